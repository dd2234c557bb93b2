"""``shoal certify``: will gradient descent train this network?"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import typer
from rich.table import Table
from rich.text import Text

import shoal
from shoal.cli.analyze import architecture_of
from shoal.cli.command import Command, Example
from shoal.cli.errors import note
from shoal.cli.options import check_output, flag, left_out
from shoal.cli.output import command_line, conclude, console, working
from shoal.core import checks
from shoal.core.fields import plain
from shoal.core.threads import limited_threads
from shoal.data import Dataset, load_data
from shoal.networks import Network
from shoal.report import Row, Subject, render
from shoal.report.certificate import CERTIFICATE, certificate_findings
from shoal.report.saving import save_results

NOT_ESTABLISHED = 3
_SAMPLES = 8  # by default: what a width of 1000 can be certified for

# the options that say what a kind of network is like, and those of all new ones
_OPTIONS = {
    "ling2023": "weight_variance",
    "deq": "activation recurrent_variance input_variance",
    "implicit": "gamma",
}
_SIZES = "width readout_scale seed"
_MARKS = {
    "proved": Text("proved", "green"),
    "holds at the measured values": Text("holds", "green"),
    "not established": Text("FAILS", "red"),
}


@Command(
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
    data: str = "digits",
    /,
    label: str | None = None,
    n: int | None = None,
    target_scale: float = 0.1,
    raw: bool = False,
    standardize: bool | None = None,
    network: str = "ling2023",
    weight_variance: float = 0.001,
    activation: str = "tanh",
    recurrent_variance: float = 0.2,
    input_variance: float = 0.8,
    gamma: float = 0.1,
    width: int = 1000,
    readout_scale: float = 0.0,
    seed: int = 0,
    load: Path | None = None,
    step_size: float | None = None,
    threads: int = 1,
    output: Path | None = None,
) -> None:
    """Certify that gradient descent trains a network to zero loss, and how fast.

    Inputs are centered and scaled to a mean squared norm of one; for ling2023, of their dimension.
    The loss is ½Σ‖f(x) − y‖², a sum. The exit code is 3 if nothing is established, which never
    means that training fails.

    Options:
        data (DATA): Inputs with labels: a dataset, or a file: .npy, .npz, .csv, .csv.gz; see below.
        n: How many samples, of each class its share; by default at most 8.
        target_scale: What labels are multiplied by.
        raw: Take the inputs as they are.
        network: ling2023, deq (Ling 2024) or implicit (Gao 2022); each has options of its own.
        weight_variance: ling2023: σ_w².
        activation: deq: φ, as for analyze.
        recurrent_variance: deq: σ_a².
        input_variance: deq: σ_b².
        gamma: implicit: γ.
        width: Hidden units.
        readout_scale: The factor of the initial readout.
        seed: Of the weights.
        load (FILE): A network saved by shoal.save, instead of a new one.
        step_size: The step size to certify; by default one is chosen.
    """
    check_output(output)
    numbers = {
        "weight_variance": weight_variance,
        "recurrent_variance": recurrent_variance,
        "input_variance": input_variance,
        "gamma": gamma,
        "readout_scale": readout_scale,
    }
    _check_choices(network, numbers, width, seed, load)
    if raw:
        left_out("standardize", "with --raw, which takes inputs as they are")
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
    features = samples.x.shape[1]
    make: dict[str, Callable[[], shoal.Architecture]] = {
        "ling2023": lambda: shoal.DEQ.ling2023(weight_variance, features),
        "deq": lambda: architecture_of(activation, recurrent_variance, input_variance),
        "implicit": lambda: shoal.ImplicitNetwork(gamma),
    }
    if load is not None:
        net = _loaded(load)
    else:
        net = _built(make[network](), samples, width, readout_scale, seed)
    x = samples.x if raw or not _by_dimension(net) else samples.x * features**0.5
    targets = target_scale * samples.targets(net.spec.out_features)
    with limited_threads(threads), working("Certifying"):
        found = shoal.certify(net, x.to(next(net.parameters()).dtype), targets, step_size=step_size)
    record = _document(found, net, samples, target_scale)
    conclude(
        record,
        partial(_show, found, record),
        output,
        lambda folder: save_results(
            folder,
            pages={"report.html": _page(found, net, samples, target_scale)},
            documents={"certificate.json": record},
            others={"network.safetensors": lambda path: shoal.save(net, path)},
        ),
        saves="--output FOLDER saves the report, the certificate and the network.",
    )
    if not found.holds:
        note("Not established: no theorem says that gradient descent trains this network.")
        raise typer.Exit(NOT_ESTABLISHED)


def _check_choices(
    network: str, numbers: dict[str, float], width: int, seed: int, load: Path | None
) -> None:
    """Check what is said of a new network, and that it does not contradict itself."""
    if load is not None:
        left_out(f"network {' '.join(_OPTIONS.values())} {_SIZES}", "with --load, which says it")
        return
    checks.one_of("--network", network, _OPTIONS)
    for kind, options in _OPTIONS.items():
        if kind != network:
            left_out(options, f"unless --network is {kind}")
    for name, value in numbers.items():
        checks.real(flag(name), value, at_least=0)
    checks.size("--width", width)
    checks.integer("--seed", seed, at_least=0, below=2**64)


def _built(
    architecture: shoal.Architecture, samples: Dataset, width: int, readout_scale: float, seed: int
) -> Network[Any]:
    net: Network[Any] = shoal.build(
        architecture,
        in_features=samples.x.shape[1],
        out_features=samples.targets().shape[1],
        width=width,
        readout_scale=readout_scale,
        seed=seed,
        dtype=torch.float64,
        device="cpu",
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


def _show(found: shoal.Certificate, record: dict[str, Any]) -> None:
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
