"""Tables of the reproductions of Ling 2024."""

from collections.abc import Iterator
from statistics import median

from result_tables.results import Row, interval, short, summary, table

__all__: list[str] = []


WIDTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
PREPROCESSINGS = ("pixels", "scaled", "unit", "centered", "centered-unit")
NETWORKS = {
    "deq": "DEQ",
    "moments": "CK design by moments",
    "naive": "naive",
}
DATASETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10 sample"}


@table
def errors(figure: str) -> Iterator[Row]:
    """Figures 1 and 4: slopes of the errors, and errors at the largest size."""
    found = summary(f"ling2024-{figure}")
    forms = {"paper": "`paper`", "norms": "`norms`"}
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
    keys = ("exact_paper", "exact_measured", "size")
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
    keys = ("exact", "relative", "deq_noise")
    yield "DEQ → design", "data", "printed", *(f"`{key}`" for key in keys)
    mixture, images = summary("ling2024-figure7"), summary("ling2024-mnist-figure7")
    for name, title in (("relu", "ReLU → two leaky ReLUs"), ("tanh", "Tanh → hard tanh")):
        for kind, found in (("", mixture), ("pixels_", images), ("centered-unit_", images)):
            cells = [short(found[f"{name}_{kind}{key}"]) for key in keys]
            place = f"MNIST, `{kind[:-1]}`" if kind else "mixture"
            yield title, place, f"{found[f'{name}_printed']:.2f}", *cells


@table
def accuracies() -> Iterator[Row]:
    """Figure 3: test accuracies at width 256."""
    found = summary("ling2024-figure3")
    yield "readout trained", *DATASETS.values()
    for activation in ("Tanh", "ReLU"):
        for network, title in NETWORKS.items():
            keys = [f"readout_{activation.lower()}_{d}_{network}_256" for d in DATASETS]
            cells = [
                f"{100 * found[key]:.1f} ± {100 * found[f'{key}_deviation']:.1f}" for key in keys
            ]
            yield f"{activation} {title}", *cells


# What Tables 1 and 2 print: how many times as long as its design a DEQ takes, at eight widths.
PRINTED_RATIOS = {
    ("ReLU", "MNIST"): ("1.9, 2.3, 3.0", "23, 26, 48"),
    ("ReLU", "Fashion-MNIST"): ("1.5, 2.3, 2.7", "17, 39, 79"),
    ("ReLU", "CIFAR-10"): ("2.6, 2.8, 3.1", "57, 160, 266"),
    ("Tanh", "MNIST"): ("2.0, 2.4, 2.9", "16, 31, 122"),
    ("Tanh", "Fashion-MNIST"): ("1.7, 2.2, 2.8", "24, 32, 50"),
    ("Tanh", "CIFAR-10"): ("2.2, 2.5, 3.2", "27, 33, 76"),
}


@table
def ratios() -> Iterator[Row]:
    """How many times as long as its design a DEQ takes: least, median and largest over widths."""
    found = summary("ling2024-tables")
    yield "", "data", "inference, printed", "shoal", "epoch, printed", "shoal"
    for (activation, data), printed in PRINTED_RATIOS.items():
        key = f"{3072 if data == 'CIFAR-10' else 784}_{activation.lower()}_moments"
        ours = (
            _range([found[f"{key}_{width}_{kind}_ratio"] for width in WIDTHS])
            for kind in ("single", "epoch")
        )
        cells = (cell for pair in zip(printed, ours, strict=True) for cell in pair)
        yield activation, data, *cells


def _range(values: list[float]) -> str:
    return f"{short(min(values))}, {short(median(values))}, {short(max(values))}"
