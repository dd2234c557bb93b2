"""``shoal design``: the shallow network inside a DEQ, from the command line."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

import shoal
from shoal.cli.analyze import architecture_of
from shoal.cli.command import Example, command
from shoal.cli.errors import note
from shoal.cli.options import (
    Activation,
    Debug,
    InputVariance,
    Json,
    Label,
    RecurrentVariance,
    Save,
    Verbose,
    check_folder,
    check_output,
)
from shoal.cli.output import command_line, console, emit, working
from shoal.cli.tables import tell_files
from shoal.core import checks
from shoal.core.fields import plain
from shoal.data import Dataset, load_data
from shoal.designs.design import METHODS
from shoal.equivalents.centering import LARGEST_NORM, SMALLEST_NORM
from shoal.networks.exporting import export_target, exported_files
from shoal.report.design_page import design_page
from shoal.report.saving import save_results

__all__ = ["INFEASIBLE", "design"]

INFEASIBLE = 3
_NETWORK = {"width": 1024, "out_features": 1, "seed": 0}  # unless options say otherwise
_COMPARED = 64  # samples whose kernel matrices are compared, by default


@command(
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
            "shoal design --method sphere --export shallow.py --in-features 784 --out-features 10",
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
    activation: Activation = "tanh",
    recurrent_variance: RecurrentVariance = 0.2,
    input_variance: InputVariance = 0.8,
    tau0: Annotated[
        float | None,
        typer.Option(help="The norm of the inputs, above 0.", show_default="that of --data, or 1"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Inputs, as for analyze, but taken as they are."),
    ] = None,
    label: Label = None,
    n: Annotated[
        int | None,
        typer.Option(
            "--n", "-n", help="Samples whose kernels are compared.", show_default="at most 64"
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="moments: the high-dimensional coefficients, by ordinary layers; sphere: the "
            "kernel itself, for inputs of norm tau0."
        ),
    ] = "moments",
    match: Annotated[
        str | None, typer.Option(help="ck or ntk.", show_default="by what is trained")
    ] = None,
    trainable: Annotated[
        str | None,
        typer.Option(help="What will be trained: readout,recurrent,input.", show_default="all"),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="By moments: hard_tanh, leaky_relu or sinusoid.")
    ] = None,
    norm_gated: Annotated[
        bool | None, typer.Option("--norm-gated", help="On the sphere: for inputs of every norm.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="On the sphere: the largest error of the kernel, relative to its diagonal.",
            show_default="1e-06",
        ),
    ] = None,
    output: Save = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The built network: .py, without shoal, or .onnx."),
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Of the exported network.", show_default="1024")
    ] = None,
    in_features: Annotated[
        int | None, typer.Option(help="Of the exported network.", show_default="those of --data")
    ] = None,
    out_features: Annotated[
        int | None,
        typer.Option(
            help="Of the exported network.", show_default="what the labels of --data need, or 1"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the exported network's weights.", show_default="0")
    ] = None,
    json: Json = False,
    verbose: Verbose = 0,  # noqa: ARG001
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Design an explicit network with one or two hidden layers that has the kernel of a DEQ.

    If there is none of the wanted kind, the nearest one is shown and written, and the exit code is
    3. Inputs of --data are taken as they are; scale them as you will for training.
    """
    check_output(output)
    deq = architecture_of(activation, recurrent_variance, input_variance)
    options = {"family": family, "norm_gated": norm_gated, "tolerance": tolerance}
    chosen = _method(method, options)
    loaded = None if data is None else _inputs(data, label, n)
    x = None if loaded is None else loaded.x
    if x is None and (label is not None or n is not None):
        extra = "-n" if label is None else "--label"
        raise ValueError(f"{extra} must be left out without --data")
    norm = checks.real("--tau0", tau0, above=0) if tau0 is not None else 1.0
    if x is not None and tau0 is None:
        norm = _norm(x, method)
    sizes = {"width": width, "in_features": in_features, "out_features": out_features, "seed": seed}
    built = _network_options(export, sizes, loaded)
    with working("Designing", quiet=json):
        found = shoal.design(
            deq,
            tau0=norm,
            match=match,
            method=chosen,
            trainable=None if trainable is None else [g.strip() for g in trainable.split(",")],
        )
        gap = None if x is None else found.gap(x[: n or _COMPARED])
    record = _document(found, gap)
    files: list[Path] = []
    if export is not None:
        trained = {"readout"} if found.trainable == {"readout"} and found.match == "ck" else None
        shoal.export(shoal.build(found.architecture, trainable=trained, **built), export)
        files += exported_files(export)
    if output is not None:
        figure = found.plot()
        files += save_results(
            output,
            pages={"report.html": design_page(found, figure, gap=gap, command=command_line())},
            documents={"design.json": record},
            figures={"activations": figure},
        )
    if json:
        emit(record)
    else:
        _show(found, gap, files)
    if not found.feasible:
        note("Not feasible: no network of the wanted kind has this kernel; this is the nearest.")
        raise typer.Exit(INFEASIBLE)


def _method(name: str, options: dict[str, Any]) -> shoal.MomentMatching | shoal.SphereMatching:
    """The method with those of the options that are given, which must be its own."""
    kind = METHODS[checks.one_of("--method", name, METHODS)]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - {field.name for field in fields(kind)}:
        flag = option.replace("_", "-")
        raise ValueError(f"--{flag} must be left out with --method {name}, got {given[option]!r}")
    return kind(**given)


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
    options = {name: value for name, value in given.items() if value is not None}
    flags = {name: f"--{name.replace('_', '-')}" for name in given}
    if export is None:
        if options:
            raise ValueError(f"{flags[next(iter(options))]} must be left out without --export")
        return {}
    check_folder(export_target("--export", export).absolute().parent, "--export")
    if data is not None:
        outputs = {} if data.y is None else {"out_features": data.targets().shape[1]}
        options = {"in_features": data.x.shape[1]} | outputs | options
    elif "in_features" not in options:
        raise ValueError("--in-features must be given with --export, unless --data is")
    options = _NETWORK | options
    for name, value in options.items():
        if name == "seed":
            checks.integer(flags[name], value, at_least=0)
        else:
            checks.size(flags[name], value)
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


def _show(found: shoal.Design, gap: Any, files: list[Path]) -> None:
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
    tell_files(files, "--output FOLDER saves the design, --export FILE the built network.")
