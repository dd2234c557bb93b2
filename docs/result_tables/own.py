"""Tables of shoal's own experiments."""

import itertools
from collections.abc import Iterator

from result_tables.results import Row, interval, short, summary, table

__all__: list[str] = []


NETWORKS = {
    "deq": "DEQ",
    "ntk-design": "NTK design",
    "ck-design": "CK design",
    "naive": "naive",
}


@table
def slopes(*names: str) -> Iterator[Row]:
    """Slopes of errors against the width, and whether their intervals contain −1/2."""
    yield "experiment", "kernel", "slope", "contains −1/2"
    for name in names:
        found = summary(name)
        for key in ("ck_slope", "ntk_slope"):
            holds = found[f"{key}_low"] <= -0.5 <= found[f"{key}_high"]
            kernel = key.removesuffix("_slope").replace("_", ", ")
            experiment = f"`{name.replace('-', ' ', 1)}`"
            yield experiment, kernel, interval(found, key, 3), "yes" if holds else "no"


@table
def spectrum() -> Iterator[Row]:
    """Limiting spectra against exact kernels."""
    found = summary("shoal-spectrum")
    keys = ("ks", "low", "high", "spikes", "spikes_exact")
    yield "p/n", "kernel", *(f"`{key}`" for key in keys)
    for ratio in ("0.5", "1.25", "2.0"):
        for kind in ("ck", "ntk"):
            cells = [f"{found[f'{ratio}_{kind}_{key}']:.4f}".replace("-", "−") for key in keys]
            yield f"{float(ratio):g}", kind.upper(), *cells


@table
def training(dataset: str) -> Iterator[Row]:
    """Losses at width 8192, and the largest differences from the DEQ and from the prediction."""
    found = summary("shoal-training")
    steps = (25, 100, 400)
    yield (
        "width 8192",
        *(f"step {step}" for step in steps),
        "largest gap to the DEQ",
        "gap to infinite width",
    )
    for activation in ("ReLU", "Tanh"):
        for network, title in NETWORKS.items():
            key = f"{dataset}_{activation.lower()}_{network}_8192"
            losses = [f"{found[f'{key}_loss{step}']:.4f}" for step in steps]
            gaps = [f"{100 * found[f'{key}_{name}']:.1f}%" for name in ("gap", "off")]
            if network == "deq":
                gaps[0] = "–"
            yield f"{activation} {title}", *losses, *gaps


@table
def predicted() -> Iterator[Row]:
    """Gaps between predicted and measured training."""
    found = summary("shoal-predicted-training")
    yield "activation", "inputs", "slope", "gap at width 4096"
    for activation in ("ReLU", "Tanh"):
        for inputs in ("train", "test"):
            key = f"{activation.lower()}_{inputs}"
            gap = f"{100 * found[f'{key}_widest']:.1f}%"
            yield activation, inputs, interval(found, f"{key}_slope"), gap


@table
def sphere() -> Iterator[Row]:
    """The largest errors of designs on the sphere, over all variances."""
    found = summary("shoal-sphere")
    parts = {"inner": "up to 0.95", "anywhere": "all"}
    kinds = ("ck", "ntk")
    yield "DEQ", *(f"{kind.upper()}, {part}" for kind in kinds for part in parts.values())
    for name in ("ReLU", "Tanh", "Swish", "Softplus", "GELU"):
        cells = []
        for kind in kinds:
            for part in parts:
                errors = [
                    value
                    for key, value in found.items()
                    if key.startswith(f"{name.lower()}_")
                    and f"_{kind}" in key
                    and key.endswith(f"_{part}")
                ]
                cells.append(short(max(errors)))
        yield name, *cells


@table
def recovery() -> Iterator[Row]:
    """Coverage, lengths and errors of posteriors."""
    found = summary("shoal-recovery")
    keys = ("coverage", "length", "error")
    scales = {"known": "scale known", "free": "scale free"}
    yield "process", "n", *(f"{w}, {s}" for s in scales.values() for w in keys)
    cases = dict.fromkeys(key.rsplit("_", 2)[0] for key in found if key.endswith("_coverage"))
    for case in cases:
        name, samples, source = case.split("_")
        if source != "process":
            continue
        cells = []
        for scale in scales:
            coverage, length, error = (found[f"{case}_{scale}_{key}"] for key in keys)
            cells += [f"{100 * coverage:.0f}%", f"{length:.2f}", f"{error:.2f}"]
        yield {"relu": "ReLU", "erf": "Erf"}[name], samples, *cells


@table
def required() -> Iterator[Row]:
    """Widths that theorems, certificates and experience ask for."""
    found = summary("shoal-required-width")
    networks = {"deq": "DEQ", "implicit": "implicit"}
    settings = {"small": "0, ±0.1", "paper": "1, ±1"}
    keys = ("flow", "descent", "certificate", "experience")
    yield "network", "readout, labels", "n", "theorem, flow", "theorem, descent", *keys[2:]
    for network, setting in itertools.product(networks, settings):
        for n in (2, 4, 8, 16):
            widths = (found.get(f"{network}_{setting}_{n}_{key}") for key in keys)
            yield networks[network], settings[setting], str(n), *map(_width, widths)


def _width(width: float | None) -> str:
    if width is None:
        return "–"
    return f"{width:,.0f}" if width < 1e6 else short(width)


@table
def regression() -> Iterator[Row]:
    """Accuracies, steps and times on whole datasets."""
    found = summary("shoal-regression")
    solvers = {"none": "no preconditioner: steps, time", "nystrom": "Nyström, 2000"}
    datasets = {
        "mnist": "MNIST",
        "fashion-mnist": "Fashion-MNIST",
        "mixture": "mixture, n = 20,000, p = 2000",
    }
    yield "on an H200", "λ", "test accuracy, NTK", "CK", *solvers.values()
    for data, title in datasets.items():
        for ridge in ("1.0", "0.1", "0.01"):
            cells = [
                f"{100 * found[f'{data}_{kind}_cholesky_{ridge}_accuracy']:.2f}%"
                for kind in ("ntk", "ck")
            ]
            for solver in solvers:
                key = f"{data}_ntk_{solver}_{ridge}"
                seconds = found[f"{key}_prepare_seconds"] + found[f"{key}_solve_seconds"]
                over = "" if found[f"{key}_converged"] else "over "
                cells.append(f"{over}{found[f'{key}_steps']:.0f}, {seconds:.2f} s")
            yield title, f"{float(ridge):g}", *cells


_LOOPS = [(task, depth) for task in ("maze", "text") for depth in ("fixed", "random")]


@table
def iterations_curve() -> Iterator[Row]:
    """Accuracies of loops along the curve, and the count that the diagnosis advises."""
    found, counts = summary("shoal-iterations"), (1, 2, 4, 8, 16, 128)
    yield "task", "trained at", *(f"after {n}" for n in counts), "`stop_at`"
    for task, depth in _LOOPS:
        cells = [f"{found[f'{task}_{depth}_accuracy_{n}']:.1%}" for n in counts]
        yield task, f"{depth} depth", *cells, f"{found[f'{task}_{depth}_stop_at']:.0f}"


@table
def iterations_stopped() -> Iterator[Row]:
    """Savings of stop rules, and changed decisions of new samples."""
    found = summary("shoal-iterations")
    yield "task", "trained at", "full count", "iterations saved", "new samples changed"
    for (task, depth), steps in itertools.product(_LOOPS, (8, 32)):
        saved, changed = (found[f"{task}_{depth}_{key}_{steps}"] for key in ("saved", "changed"))
        yield task, f"{depth} depth", str(steps), f"{saved:.0%}", f"{changed:.2%}"


@table
def iterations_replaced() -> Iterator[Row]:
    """Decisions of replacements that differ from the original's, and the chosen one."""
    found, counts = summary("shoal-iterations"), (1, 2, 3, 4)
    heads = (f"{n} iteration{'s' * (n > 1)}: cut, trained" for n in counts)
    yield "task", "trained at", *heads, "chosen"
    for task, depth in _LOOPS:
        key = f"{task}_{depth}"
        ends = [f"{n}_iteration{'s' * (n > 1)}_agreement" for n in counts]
        pairs = [(found[f"{key}_cut_to_{e}"], found[f"{key}_trained_copy_{e}"]) for e in ends]
        cells = [f"{1 - cut:.1%}, {1 - copy:.1%}" for cut, copy in pairs]
        (chosen,) = (
            k for k, v in found.items() if k.startswith(key) and k.endswith("_chosen") and v
        )
        name = chosen.removeprefix(f"{key}_").removesuffix("_chosen").replace("_", " ")
        yield task, f"{depth} depth", *cells, name
