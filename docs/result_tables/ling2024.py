"""Tables of the reproductions of Ling 2024."""

from collections.abc import Iterator
from statistics import median

from result_tables.printed import EPOCHS, INFERENCE, WIDTHS
from result_tables.results import Row, interval, short, summary, table

__all__: list[str] = []


PREPROCESSINGS = ("pixels", "scaled", "unit", "centered", "centered-unit")
NETWORKS = {
    "deq": "DEQ",
    "ntk-design": "NTK design on the sphere",
    "moments": "CK design by moments",
    "naive": "naive",
}
DATASETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10 sample"}


@table
def errors(figure: str) -> Iterator[Row]:
    """Figures 1 and 4: slopes of the errors, and errors at the largest size."""
    found = summary(f"ling2024-{figure}")
    forms = {"paper": "`paper`", "norms": "`norms`", "all_norms": "all weights, `norms`"}
    forms = {key: words for key, words in forms.items() if f"relu_{key}_slope" in found}
    yield "", *(f"{w}: {what}" for w in forms.values() for what in ("slope", "error at n = 6400"))
    for name in ("ReLU", "Tanh", "Swish", "LeakyReLU"):
        cells: list[str] = []
        for form in forms:
            key = f"{name.lower()}_{form}"
            cells += [interval(found, f"{key}_slope"), f"{short(100 * found[f'{key}_error'])}%"]
        yield name, *cells


@table
def spectra(figure: str) -> Iterator[Row]:
    """Figures 5 and 6, left: absolute errors on the mixture."""
    found = summary(f"ling2024-{figure}")
    keys = ("exact_paper", "exact_norms", "exact_measured", "estimate_paper", "noise", "size")
    yield "", "printed", *(f"`{key}`" for key in keys)
    for name, title in (("relu", "ReLU"), ("tanh", "Tanh")):
        cells = [
            f"{found[f'{name}_{key}']:.3f} ± {found[f'{name}_{key}_deviation']:.3f}" for key in keys
        ]
        yield title, f"{found[f'{name}_printed']:.2f}", *cells


@table
def image_spectra(figure: str) -> Iterator[Row]:
    """Figures 5 and 6, right: absolute errors on images."""
    found = summary(f"ling2024-mnist-{figure}")
    keys = ("exact_paper", "exact_measured", "estimate_paper", "noise", "size")
    yield "", "preprocessing", "printed", *(f"`{key}`" for key in keys)
    for name, title in (("relu", "ReLU"), ("tanh", "Tanh")):
        for kind in PREPROCESSINGS:
            cells = [short(found[f"{name}_{kind}_{key}"], 3) for key in keys]
            yield title, f"`{kind}`", f"{found[f'{name}_printed']:.2f}", *cells


@table
def designs() -> Iterator[Row]:
    """Figure 2: slopes and errors of designs."""
    found = summary("ling2024-figure2")
    words = {
        "relu_ck_leaky_relu": ("ReLU → two leaky ReLUs", "CK"),
        "tanh_ck_hard_tanh": ("Tanh → hard tanh", "CK"),
        "tanh_ntk_hard_tanh": ("Tanh → hard tanh", "NTK"),
    }
    assert {key.removesuffix("_error") for key in found if key.endswith("_error")} == set(words)
    yield "DEQ → design", "kernel", "slope, n ≥ 400", "relative error at n = 6400"
    for key, (design, kernel) in words.items():
        yield design, kernel, interval(found, f"{key}_slope"), short(found[f"{key}_error"])


@table
def design_spectra() -> Iterator[Row]:
    """Figure 7: absolute errors of designs on the mixture and on images."""
    keys = ("exact", "relative", "estimate", "deq_noise", "design_noise", "size")
    yield "DEQ → design", "data", "printed", *(f"`{key}`" for key in keys)
    mixture, images = summary("ling2024-figure7"), summary("ling2024-mnist-figure7")
    for name, title in (("relu", "ReLU → two leaky ReLUs"), ("tanh", "Tanh → hard tanh")):
        for kind, found in (("", mixture), *((f"{kind}_", images) for kind in PREPROCESSINGS)):
            cells = [short(found[f"{name}_{kind}{key}"]) for key in keys]
            place = f"MNIST, `{kind[:-1]}`" if kind else "mixture"
            yield title, place, f"{found[f'{name}_printed']:.2f}", *cells


@table
def accuracies() -> Iterator[Row]:
    """Figure 3: test accuracies at two widths."""
    found = summary("ling2024-figure3")
    widths = (256, 4096)
    places = [(data, width) for data in DATASETS for width in widths]
    yield "trained", "network", *(f"{DATASETS[data]}, {width}" for data, width in places)
    for trained in ("readout", "all"):
        for activation in ("Tanh", "ReLU"):
            for network, title in NETWORKS.items():
                keys = [f"{trained}_{activation.lower()}_{d}_{network}_{w}" for d, w in places]
                if keys[0] not in found:
                    continue  # what the readout alone sees is the CK
                cells = [
                    f"{100 * found[key]:.1f} ± {100 * found[f'{key}_deviation']:.1f}"
                    for key in keys
                ]
                yield trained, f"{activation} {title}", *cells


def _printed(table: str) -> dict[tuple[str, str], list[str]]:
    rows = (line.split() for line in table.split("\n") if line)
    return {(data, network): cells for data, network, *cells in rows}


@table
def times(kind: str) -> Iterator[Row]:
    """Tables 1 and 2 with ours below: ``single``, in ms, or ``epoch``, in s."""
    found = summary("ling2024-tables")
    printed = _printed({"single": INFERENCE, "epoch": EPOCHS}[kind])
    scale, unit = {"single": (1e3, "ms"), "epoch": (1.0, "s")}[kind]
    networks = {"ReLU-DEQ": "relu_deq", "L-ReLU-ENN": "relu_moments"}
    networks |= {"Tanh-DEQ": "tanh_deq", "H-Tanh-ENN": "tanh_moments"}
    yield "network", "data", *(str(width) for width in WIDTHS)
    for network, key in networks.items():
        for data in ("MNIST", "Fashion-MNIST", "CIFAR-10"):
            yield network, f"{data}, printed", *printed[data, network]
        for size in (784, 3072):
            cells = [f"{scale * found[f'{size}_{key}_{w}_{kind}']:.2f}" for w in WIDTHS]
            yield network, f"{size} pixels, ours, {unit}", *cells


@table
def ratios() -> Iterator[Row]:
    """How many times as long as its design a DEQ takes: least, median and largest over widths."""
    found = summary("ling2024-tables")
    yield "", "data", "inference, printed", "ours", "epoch, printed", "ours"
    for activation, deq, design in (
        ("ReLU", "ReLU-DEQ", "L-ReLU-ENN"),
        ("Tanh", "Tanh-DEQ", "H-Tanh-ENN"),
    ):
        for data, size in (("MNIST", 784), ("Fashion-MNIST", 784), ("CIFAR-10", 3072)):
            cells: list[str] = []
            for kind, times_of in (("single", INFERENCE), ("epoch", EPOCHS)):
                slow, fast = (_printed(times_of)[data, network] for network in (deq, design))
                pairs = zip(slow, fast, strict=True)
                cells.append(_range([float(a) / float(b) for a, b in pairs]))
                key = f"{size}_{activation.lower()}_moments"
                cells.append(_range([found[f"{key}_{w}_{kind}_ratio"] for w in WIDTHS]))
            yield activation, data, *cells


def _range(values: list[float]) -> str:
    return f"{short(min(values))}, {short(median(values))}, {short(max(values))}"
