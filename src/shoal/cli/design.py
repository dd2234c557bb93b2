"""``shoal design``: the shallow network inside a DEQ, from the command line."""

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
import typer
from rich.table import Table

import shoal
from shoal.cli.analyze import architecture_of
from shoal.cli.command import Command, Example
from shoal.cli.errors import note
from shoal.cli.options import check_folder, check_output, flag, left_out
from shoal.cli.output import command_line, conclude, console, working
from shoal.core import checks
from shoal.core.fields import plain
from shoal.data import Dataset, load_data
from shoal.designs.design import METHODS
from shoal.equivalents.centering import LARGEST_NORM, SMALLEST_NORM
from shoal.networks.programs.exporting import export_target, exported_files
from shoal.report.design_page import design_page
from shoal.report.saving import save_results

INFEASIBLE = 3
_COMPARED = 64  # samples whose kernel matrices are compared, by default


@Command(
    "The shallow network that has the kernel of a DEQ.",
    place=2,
    writes="report.html (the page for people), design.json, activations.png and .svg",
    exits="1 failed; 2 bad input; 3 no network of the wanted kind has the kernel",
    examples=(
        Example("the network with the NTK of the default DEQ", "shoal design"),
        Example(
            "for a readout that is trained alone, with a report",
            "shoal design --activation relu --trainable readout --output design",
        ),
        Example(
            "exact on the sphere, exported without shoal",
            "shoal design --method sphere --export shallow.py --in-features 784",
        ),
        Example("the norm of the inputs from data", "shoal design --data x.npy --json"),
    ),
    takes_data=True,
    panels={
        "Network": "activation recurrent_variance input_variance",
        "Data": "tau0 data label n",
        "Design": "method match trainable family norm_gated tolerance",
        "Export": "export width in_features out_features seed",
    },
)
def design(
    activation: str = "tanh",
    recurrent_variance: float = 0.2,
    input_variance: float = 0.8,
    tau0: float | None = None,
    data: str | None = None,
    label: str | None = None,
    n: int | None = None,
    method: str = "moments",
    match: str | None = None,
    trainable: str | None = None,
    family: str | None = None,
    norm_gated: bool = False,
    tolerance: float | None = None,
    output: Path | None = None,
    export: Path | None = None,
    width: int = 1024,
    in_features: int | None = None,
    out_features: int | None = None,
    seed: int = 0,
) -> None:
    """Design an explicit network with one or two hidden layers that has the kernel of a DEQ.

    If there is none of the wanted kind, the nearest one is shown and written, and the exit code is
    3. Inputs of --data are taken as they are; scale them as you will for training.

    Options:
        tau0: The norm of the inputs, above 0; by default that of --data, or 1.
        data (DATA): Inputs, as for analyze, but taken as they are.
        n: Samples whose kernels are compared; by default at most 64.
        method: moments: the high-dimensional coefficients, by ordinary layers; sphere: the kernel
            itself, for inputs of norm tau0.
        match: ck or ntk; by default by what is trained.
        trainable: What will be trained: readout,recurrent,input; by default all.
        family: By moments: hard_tanh, leaky_relu or sinusoid.
        norm_gated: On the sphere: for inputs of every norm.
        tolerance: On the sphere: the largest error of the kernel, relative to its diagonal; by
            default 1e-06.
        export (FILE): The built network: .py, without shoal, or .onnx.
        width: Of the exported network.
        in_features: Of the exported network; by default those of --data.
        out_features: Of the exported network; by default what the labels of --data need, or 1.
        seed: Of the exported network's weights.
    """
    check_output(output)
    deq = architecture_of(activation, recurrent_variance, input_variance)
    options = {"family": family, "norm_gated": norm_gated or None, "tolerance": tolerance}
    chosen = _method(method, options)
    if data is None:
        left_out("label n", "without --data")
    loaded = None if data is None else _inputs(data, label, n)
    x = None if loaded is None else loaded.x
    norm = checks.real("--tau0", tau0, above=0) if tau0 is not None else 1.0
    if x is not None and tau0 is None:
        norm = _norm(x, method)
    sizes = {"width": width, "in_features": in_features, "out_features": out_features, "seed": seed}
    built = _network_options(export, sizes, loaded)
    with working("Designing"):
        found = shoal.design(
            deq,
            tau0=norm,
            match=match,
            method=chosen,
            trainable=None if trainable is None else [g.strip() for g in trainable.split(",")],
        )
        gap = None if x is None else found.gap(x[: n or _COMPARED])
    files: list[Path] = []
    if export is not None:
        trained = {"readout"} if found.trainable == {"readout"} and found.match == "ck" else None
        shoal.export(shoal.build(found.architecture, trainable=trained, **built), export)
        files += exported_files(export)
    record = _document(found, gap)
    conclude(
        record,
        partial(_show, found, gap),
        output,
        partial(_save, found, gap, record),
        saves="--output FOLDER saves the design, --export FILE the built network.",
        files=files,
    )
    if not found.feasible:
        note("Not feasible: no network of the wanted kind has this kernel; this is the nearest.")
        raise typer.Exit(INFEASIBLE)


def _save(found: shoal.Design, gap: Any, record: dict[str, Any], folder: Path) -> list[Path]:
    figure = found.plot()
    return save_results(
        folder,
        pages={"report.html": design_page(found, figure, gap=gap, command=command_line())},
        documents={"design.json": record},
        figures={"activations": figure},
    )


def _method(name: str, options: dict[str, Any]) -> shoal.MomentMatching | shoal.SphereMatching:
    """The method with those of its options that are given; those of others must not be."""
    kind = METHODS[checks.one_of("--method", name, METHODS)]
    others = options.keys() - {field.name for field in fields(kind)}
    left_out(" ".join(others), f"with --method {name}")
    return kind(**{option: value for option, value in options.items() if value is not None})


def _inputs(data: str, label: str | None, n: int | None) -> Dataset:
    device = torch.device("cpu")
    loaded = load_data(data, label=label, dtype=torch.float64, device=device, prepared=False)
    if n is not None and not 2 <= n <= len(loaded.x):
        raise ValueError(f"-n must be between 2 and {len(loaded.x)} for {loaded.name}, got {n}")
    if not bool(loaded.x.any()):
        raise ValueError(f"--data must not be zero everywhere, got {loaded.name}")
    return loaded.take(loaded.drawn())  # the first are compared, and a file may be sorted


def _norm(x: torch.Tensor, method: str) -> float:
    """The root mean square of the norms; no square of large or small numbers is taken."""
    largest = x.abs().max()
    found = float(largest * (x / largest).square().sum(1).mean().sqrt())
    if method == "moments" and not SMALLEST_NORM <= found <= LARGEST_NORM:
        raise ValueError(
            f"--data must have a norm from {SMALLEST_NORM:g} to {LARGEST_NORM:g}, got {found:g} as "
            "the root mean square; scale the inputs as you will for training"
        )
    return found


def _network_options(
    export: Path | None, given: dict[str, int | None], data: Dataset | None
) -> dict[str, Any]:
    """The options of the exported network, checked before anything is computed."""
    if export is None:
        left_out(" ".join(given), "without --export")
        return {}
    check_folder(export_target("--export", export).absolute().parent, "--export")
    known = {"out_features": 1}
    if data is not None:
        known |= {"in_features": data.x.shape[1]}
        known |= {} if data.y is None else {"out_features": data.targets().shape[1]}
    options = known | {name: value for name, value in given.items() if value is not None}
    if "in_features" not in options:
        raise ValueError("--in-features must be given with --export, unless --data is")
    for name, value in options.items():
        checks.integer(flag(name), value, at_least=0 if name == "seed" else 1)
    return options


def _document(found: shoal.Design, gap: Any) -> dict[str, Any]:
    """A design as plain values."""
    return {
        "shoal": shoal.__version__,
        "architecture": plain(found.architecture),
        "original": plain(found.original),
        "method": found.method,
        "match": found.match,
        "trainable": sorted(found.trainable),
        "family": found.family or None,
        "tau0": found.tau0,
        "feasible": found.feasible,
        "residual": found.residual,
        "target": dict(found.target),
        "obtained": dict(found.obtained),
        "errors": dict(found.errors),
        "gap": None if gap is None else gap._asdict(),
        "explanation": found.explanation,
        "alternatives": [plain(other.architecture) for other in found.alternatives],
    }


def _show(found: shoal.Design, gap: Any) -> None:
    table = Table()
    for name in ("", "wanted", "obtained"):
        table.add_column(name, overflow="fold")
    for name, value in found.target.items():
        table.add_row(name, f"{value:.8g}", f"{found.obtained[name]:.8g}")
    out = console()
    for sigma in getattr(found.architecture, "activations", ()):
        out.print(f"hidden layer: {sigma!r}", soft_wrap=True)
    out.print(table)
    out.print(found.explanation, soft_wrap=True)
    if gap is not None:
        out.print(
            f"On the data, the {found.match.upper()} matrices of both networks, infinitely wide, "
            f"differ by {gap.relative:.2e} in spectral norm, relative to the DEQ's.",
            soft_wrap=True,
        )
