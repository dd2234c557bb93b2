"""``shoal certify``: will gradient descent train this network?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import typer

from shoal.app import options, terminal
from shoal.app.options import DATA, NETWORK, left_out
from shoal.core import checks
from shoal.core.fields import plain

if TYPE_CHECKING:
    import shoal
    from shoal.app.inputs import Inputs
    from shoal.networks import Network

NOT_ESTABLISHED = 3
_SAMPLES = 8  # by default: what a width of 1000 can be certified for

# the options that say what a kind of network is like, and those of all new ones
_OPTIONS = {
    "ling2023": "weight_variance",
    "deq": "activation recurrent_variance input_variance",
    "implicit": "gamma",
}
_SIZES = "network width readout_scale seed"


def certify(
    context: typer.Context,
    data: options.Data = "digits",
    label: options.Label = None,
    n: options.Samples = None,
    target_scale: Annotated[
        float, typer.Option(help="What labels are multiplied by.", rich_help_panel=DATA)
    ] = 0.1,
    raw: Annotated[
        bool, typer.Option("--raw", help="Take the inputs as they are.", rich_help_panel=DATA)
    ] = False,
    standardize: options.Standardize = None,
    network: Annotated[
        Literal["ling2023", "deq", "implicit"],
        typer.Option(help="ling2023, deq (Ling 2024) or implicit (Gao 2022); each has options of "
                     "its own.", rich_help_panel=NETWORK),
    ] = "ling2023",
    weight_variance: Annotated[
        float, typer.Option(min=0, help="ling2023: σ_w².", rich_help_panel=NETWORK)
    ] = 0.001,
    activation: options.Activation = "tanh",
    recurrent_variance: options.RecurrentVariance = 0.2,
    input_variance: options.InputVariance = 0.8,
    gamma: Annotated[
        float, typer.Option(min=0, help="implicit: γ.", rich_help_panel=NETWORK)
    ] = 0.1,
    width: Annotated[int, typer.Option(min=1, help="Hidden units.", rich_help_panel=NETWORK)]
    = 1000,
    readout_scale: Annotated[
        float, typer.Option(min=0, help="Of the initial readout.", rich_help_panel=NETWORK)
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights.", rich_help_panel=NETWORK)] = 0,
    load: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A network saved by shoal.save, instead of a new one.",
                     rich_help_panel=NETWORK),
    ] = None,
    step_size: Annotated[
        float | None, typer.Option(help="The step size to certify; by default one is chosen.")
    ] = None,
    threads: options.Threads = 1,
    output: options.Output = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Does gradient descent train this network, and how fast?

    Inputs are centered and scaled to a mean squared norm of one; for ling2023, of their dimension.
    At most 8 samples are taken by default. The loss is ½Σ‖f(x) − y‖², a sum.

    Examples: shoal certify; shoal certify d.npz -n 4 --width 2000 --output certificate; shoal
    certify d.npz --load net.safetensors --step-size 0.01.

    Exit codes: 2, bad input; 3, nothing is established, which never means that training fails.
    """
    import shoal
    from shoal.app.inputs import load_inputs
    from shoal.app.report import render
    from shoal.app.sections import CERTIFICATE, Subject
    from shoal.app.sections.certificate import certificate_findings
    from shoal.diagnosis.words import Row

    if load is not None:
        left_out(context, f"{' '.join(_OPTIONS.values())} {_SIZES}", "with --load, which says it")
    for kind in _OPTIONS.keys() - {network}:
        left_out(context, _OPTIONS[kind], f"unless --network is {kind}")
    if raw:
        left_out(context, "standardize", "with --raw, which takes inputs as they are")
    if step_size is not None:
        checks.real("--step-size", step_size, above=0)
    samples = load_inputs(
        data, label=label, n=n, most=_SAMPLES, prepared=not raw, standardize=standardize
    )
    if samples.y is None:
        raise ValueError(
            f"{samples.name} must have labels: --label COLUMN of a CSV file, --label FILE.npy for "
            "an .npy file, or an array y in an .npz file"
        )
    features = samples.x.shape[1]
    if load is not None:
        net: Network[Any] = shoal.load(load, device="cpu")
    else:
        architecture: shoal.Architecture = shoal.ImplicitNetwork(gamma)
        if network == "ling2023":
            architecture = shoal.DEQ.ling2023(weight_variance, features)
        elif network == "deq":
            architecture = options.architecture_of(activation, recurrent_variance, input_variance)
        net = shoal.build(
            architecture,
            in_features=features,
            out_features=samples.targets().shape[1],
            width=width,
            readout_scale=readout_scale,
            seed=seed,
            dtype=torch.float64,
            device="cpu",
        )
    terminal.prepare(output)
    torch.set_num_threads(threads)
    # Ling 2023 wants inputs of norm √d
    by_dimension = getattr(net.architecture, "parametrization", None) == "standard"
    x = samples.x * features**0.5 if by_dimension and not raw else samples.x
    targets = checks.real("--target-scale", target_scale) * samples.targets(net.spec.out_features)
    with terminal.working("Certifying"):
        found = shoal.certify(net, x.to(next(net.parameters()).dtype), targets, step_size=step_size)
    record = _document(found, net, samples, target_scale)
    words = f"{len(samples.classes)} classes" if samples.classes else "real numbers"
    about = (
        Row("network", f"width {net.spec.width}", f"readout times {net.spec.readout_scale:g}"),
        Row("targets", f"times {target_scale:g}", words),
    )
    findings = certificate_findings(found, about, {})
    files: list[Path] = []
    if output is not None:
        subject = Subject(net.architecture, samples)
        page = render(subject, {CERTIFICATE: findings}, terminal.command_line())
        files = terminal.save(output, {"report.html": page, "certificate.json": record})
        files.append(output / "network.safetensors")
        shoal.save(net, files[-1])

    def show() -> None:
        title = f"{found.gradient_descent.dynamics}, {samples.name}, n = {len(samples)}"
        terminal.show_rows("\n".join([title, *samples.notes]), findings.rows)
        terminal.say(found.explanation)

    terminal.conclude(record, show, files, json=json)
    if not found.holds:
        terminal.note("Not established: no theorem says that gradient descent trains this network.")
        raise typer.Exit(NOT_ESTABLISHED)


def _document(
    found: "shoal.certificates.Certificate", net: "Network[Any]", samples: "Inputs", scale: float
) -> dict[str, Any]:
    """A certificate as plain values."""
    import shoal

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
