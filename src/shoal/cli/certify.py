"""``shoal certify``: will gradient descent train this network?"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from rich.text import Text

import shoal
from shoal.cli.analyze import architecture_of
from shoal.cli.command import Example, command
from shoal.cli.errors import note
from shoal.cli.options import (
    Debug,
    Json,
    Label,
    Save,
    Standardize,
    Threads,
    Verbose,
    check_count,
    check_output,
    limited,
)
from shoal.cli.output import command_line, console, emit, working
from shoal.cli.tables import tell_files
from shoal.core import checks
from shoal.core.fields import plain
from shoal.data import Dataset, load_data
from shoal.networks import Network
from shoal.report import Row, Subject, render
from shoal.report.certificate import CERTIFICATE, certificate_findings
from shoal.report.saving import save_results

__all__ = ["NOT_ESTABLISHED", "certify"]

NOT_ESTABLISHED = 3
_SAMPLES = 8  # by default: what a width of 1000 can be certified for

# the options that say what a kind of network is like, and their values where they are not given
_OPTIONS: dict[str, dict[str, Any]] = {
    "ling2023": {"weight_variance": 0.001},
    "deq": {"activation": "tanh", "recurrent_variance": 0.2, "input_variance": 0.8},
    "implicit": {"gamma": 0.1},
}
_SIZES: dict[str, Any] = {"width": 1000, "readout_scale": 0.0, "seed": 0}
_MARKS = {
    "proved": Text("proved", "green"),
    "holds at the measured values": Text("holds", "green"),
    "not established": Text("FAILS", "red"),
}


@command(
    "Does gradient descent train this network, and how fast?",
    place=3,
    writes="report.html (the page for people), certificate.json, network.safetensors",
    exits="1 failed; 2 bad input; 3 nothing is established",
    examples=(
        Example("the network of Ling 2023 on 8 digits", "shoal certify"),
        Example(
            "with the report and the network to train",
            "shoal certify d.npz -n 4 --width 2000 --output certificate",
        ),
        Example(
            "a network that shoal.save wrote, for a step size",
            "shoal certify d.npz --load net.safetensors --step-size 0.01",
        ),
    ),
    takes_data=True,
    panels={
        "Data": "label n target_scale raw standardize",
        "Network": "network weight_variance activation recurrent_variance input_variance gamma "
        "width readout_scale seed load",
        "Training": "step_size",
    },
)
def certify(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Inputs with labels: a dataset, or a file: .npy, .npz, .csv, .csv.gz; see below.",
        ),
    ] = "digits",
    label: Label = None,
    n: Annotated[
        int | None,
        typer.Option(
            "--n", "-n", help="How many samples, of each class its share.", show_default="at most 8"
        ),
    ] = None,
    target_scale: Annotated[float, typer.Option(help="What labels are multiplied by.")] = 0.1,
    raw: Annotated[bool, typer.Option("--raw", help="Take the inputs as they are.")] = False,
    standardize: Standardize = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="ling2023, deq (Ling 2024) or implicit (Gao 2022); each has options of its own.",
            show_default="ling2023",
        ),
    ] = None,
    weight_variance: Annotated[
        float | None, typer.Option(help="ling2023: σ_w².", show_default="0.001")
    ] = None,
    activation: Annotated[
        str | None, typer.Option(help="deq: φ, as for analyze.", show_default="tanh")
    ] = None,
    recurrent_variance: Annotated[
        float | None, typer.Option(help="deq: σ_a².", show_default="0.2")
    ] = None,
    input_variance: Annotated[
        float | None, typer.Option(help="deq: σ_b².", show_default="0.8")
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="implicit: γ.", show_default="0.1")] = None,
    width: Annotated[int | None, typer.Option(help="Hidden units.", show_default="1000")] = None,
    readout_scale: Annotated[
        float | None, typer.Option(help="The factor of the initial readout.", show_default="0")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the weights.", show_default="0")] = None,
    load: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A network saved by shoal.save, instead of a new one."),
    ] = None,
    step_size: Annotated[
        float | None, typer.Option(help="The step size to certify.", show_default="one is chosen")
    ] = None,
    threads: Threads = 1,
    output: Save = None,
    json: Json = False,
    verbose: Verbose = 0,  # noqa: ARG001
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Certify that gradient descent trains a network to zero loss, and how fast.

    Inputs are centered and scaled to a mean squared norm of one; for ling2023, of their dimension.
    The loss is ½Σ‖f(x) − y‖², a sum. The exit code is 3 if nothing is established, which never
    means that training fails.
    """
    check_count("--threads", threads)
    check_output(output)
    chosen = {
        "weight_variance": weight_variance,
        "activation": activation,
        "recurrent_variance": recurrent_variance,
        "input_variance": input_variance,
        "gamma": gamma,
        "width": width,
        "readout_scale": readout_scale,
        "seed": seed,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    _check_choices(network, given, load)
    if raw and standardize is not None:
        raise ValueError(
            "--standardize must be left out with --raw, which takes inputs as they are"
        )
    if step_size is not None:
        checks.real("--step-size", step_size, above=0)
    checks.real("--target-scale", target_scale)
    samples = load_data(
        data, label=label, n=n, dtype=torch.float64, device=torch.device("cpu"), most=_SAMPLES,
        prepared=not raw, standardize=standardize,
    )  # fmt: skip
    if samples.y is None:
        raise ValueError(
            f"{samples.name} must have labels: --label COLUMN of a CSV file, --label FILE.npy for "
            "an .npy file, or an array y in an .npz file"
        )
    net = _loaded(load) if load is not None else _built(network or "ling2023", given, samples)
    x = samples.x if raw or not _by_dimension(net) else samples.x * samples.x.shape[1] ** 0.5
    targets = target_scale * samples.targets(net.spec.out_features)
    with limited(threads), working("Certifying", quiet=json):
        found = shoal.certify(net, x.to(next(net.parameters()).dtype), targets, step_size=step_size)
    record = _document(found, net, samples, target_scale)
    files: list[Path] = []
    if output is not None:
        files = save_results(
            output,
            pages={"report.html": _page(found, net, samples, target_scale)},
            documents={"certificate.json": record},
            others={"network.safetensors": lambda path: shoal.save(net, path)},
        )
    if json:
        emit(record)
    else:
        _show(found, record, files)
    if not found.holds:
        note("Not established: no theorem says that gradient descent trains this network.")
        raise typer.Exit(NOT_ESTABLISHED)


def _check_choices(network: str | None, given: dict[str, Any], load: Path | None) -> None:
    """Check that options do not contradict each other."""
    if load is not None:
        extra = [*(["network"] if network is not None else []), *given]
        if extra:
            raise ValueError(f"{_option(extra[0])} must be left out with --load, which says it")
        return
    kind = checks.one_of("--network", network or "ling2023", _OPTIONS)
    for name in given:
        if name not in _OPTIONS[kind] | _SIZES:
            (owner,) = (other for other, options in _OPTIONS.items() if name in options)
            raise ValueError(f"{_option(name)} must be left out, unless --network is {owner}")
    numbers = {name: given[name] for name in given if name not in ("activation", "width", "seed")}
    for name, value in numbers.items():
        checks.real(_option(name), value, at_least=0)
    checks.size("--width", given.get("width", 1))
    checks.integer("--seed", given.get("seed", 0), at_least=0, below=2**64)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _built(kind: str, given: dict[str, Any], samples: Dataset) -> Network[Any]:
    values = _OPTIONS[kind] | _SIZES | given
    features = samples.x.shape[1]
    architecture: shoal.Architecture
    if kind == "ling2023":
        architecture = shoal.DEQ.ling2023(values["weight_variance"], features)
    elif kind == "deq":
        architecture = architecture_of(*(values[name] for name in _OPTIONS[kind]))
    else:
        architecture = shoal.ImplicitNetwork(values["gamma"])
    net: Network[Any] = shoal.build(
        architecture,
        in_features=features,
        out_features=samples.targets().shape[1],
        dtype=torch.float64,
        device="cpu",
        **{name: values[name] for name in _SIZES},
    )
    return net


def _loaded(path: Path) -> Network[Any]:
    try:
        return shoal.load(path, device="cpu")
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"--load must be a network saved by shoal.save: {error}") from None


def _by_dimension(net: Network[Any]) -> bool:
    """Whether the network wants inputs of norm √d, as Ling 2023 does."""
    return getattr(net.architecture, "parametrization", None) == "standard"


def _document(
    found: shoal.Certificate, net: Network[Any], samples: Dataset, scale: float
) -> dict[str, Any]:
    """A certificate as plain values."""
    spec = net.spec
    return {
        "shoal": shoal.__version__,
        "data": {
            "name": samples.name,
            "samples": len(samples.x),
            "rows": samples.rows,
            "standardized": samples.standardized,
            "notes": list(samples.notes),
            "target_scale": scale,
        },
        "network": {
            "architecture": plain(spec.architecture),
            "in_features": spec.in_features,
            "width": spec.width,
            "out_features": spec.out_features,
            "readout_scale": spec.readout_scale,
        },
        **found.to_dict(),
    }


def _page(found: shoal.Certificate, net: Network[Any], samples: Dataset, scale: float) -> str:
    """The report."""
    words = "two classes" if len(samples.classes) == 2 else f"{len(samples.classes)} classes"
    rows = (
        Row("network", f"width {net.spec.width}", f"readout times {net.spec.readout_scale:g}"),
        Row("targets", f"times {scale:g}", words if samples.classes else "real numbers"),
    )
    findings = certificate_findings(found, rows, {})
    subject = Subject(net.architecture, samples)
    return render(subject, {CERTIFICATE: findings}, command=command_line())


def _show(found: shoal.Certificate, record: dict[str, Any], files: list[Path]) -> None:
    out, best, of = console(), found.gradient_descent, record["data"]
    network = record["network"]
    outputs = network["out_features"]
    notes = "".join(f"\n{sentence}" for sentence in of["notes"])
    title = (
        f"{best.dynamics}, {best.theorem}: {best.status}\n{of['name']}, n = {of['samples']}, "
        f"width {network['width']}, {outputs} output{'s' if outputs > 1 else ''}{notes}"
    )
    table = Table(title=title, title_justify="left")
    for name in ("", "condition", "found", "needed", "margin", "says"):
        right = name in ("found", "needed", "margin")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for c in best.conditions:
        table.add_row(
            _MARKS[c.status], c.name, f"{c.value:.3g}", c.needed, f"{c.margin:.3g}", c.words
        )
    out.print(table)
    out.print(found.explanation, soft_wrap=True)
    tell_files(files, "--output FOLDER saves the report, the certificate and the network.")
