"""``shoal certify``: will gradient descent train this network?"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.app import options
from shoal.app.options import DATA, NETWORK, left_out

if TYPE_CHECKING:
    from shoal.app.sections import Findings
    from shoal.certificates import Certificate, Condition
    from shoal.core.figures import Axes
    from shoal.core.words import Row
    from shoal.networks import Network

NOT_ESTABLISHED = 3
_SAMPLES = 8  # by default: a width of 1000 can be certified for them
_OF_A_NEW_NETWORK = "activation recurrent_variance input_variance width readout_scale seed"


def certify(
    context: typer.Context,
    data: options.Data = "digits",
    label: options.Label = None,
    header: options.Header = None,
    sep: options.Separator = None,
    task: options.Task = None,
    drop: options.Drop = "",
    drop_missing: options.DropMissing = False,
    n: options.Samples = None,
    target_scale: Annotated[
        float, typer.Option(help="Factor of the labels.", rich_help_panel=DATA)
    ] = 0.1,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not center or scale the inputs.", rich_help_panel=DATA)
    ] = False,
    standardize: options.Standardize = None,
    activation: Annotated[
        str | None,
        typer.Option(help="A DEQ with this activation; by default the network of Ling 2023, with "
                     "σ_w² = 0.001 and the ReLU.", rich_help_panel=NETWORK),
    ] = None,
    recurrent_variance: options.RecurrentVariance = 0.2,
    input_variance: options.InputVariance = 0.8,
    width: Annotated[int, typer.Option(min=1, help="Hidden units.", rich_help_panel=NETWORK)]
    = 1000,
    readout_scale: Annotated[
        float, typer.Option(min=0, help="Scale of the initial readout.", rich_help_panel=NETWORK)
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the weights.", rich_help_panel=NETWORK)
    ] = 0,
    load: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A network of shoal.save instead of a new one.",
                     rich_help_panel=NETWORK),
    ] = None,
    step_size: Annotated[
        float | None, typer.Option(help="Step size to certify; by default one is chosen.")
    ] = None,
    threads: options.Threads = 1,
    output: options.Output = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Does gradient descent train this network, and how fast?

    Inputs are centered and scaled to a mean squared norm of one; for Ling 2023, of their dimension.
    At most 8 samples are taken by default. The loss is ½Σ‖f(x) − y‖², a sum.

    Examples: shoal certify; shoal certify d.npz -n 4 --width 2000 --output certificate; shoal
    certify d.npz --load net.safetensors --step-size 0.01.

    Exit codes: 2, bad input; 3, nothing is established, which never means that training fails.
    """
    import torch

    import shoal
    from shoal.app import output as out
    from shoal.app.inputs import load_inputs
    from shoal.core import checks
    from shoal.core.files import plain
    from shoal.core.words import Row

    if load is not None:
        left_out(context, _OF_A_NEW_NETWORK, "with --load")
    if activation is None:
        left_out(context, "recurrent_variance input_variance", "without --activation")
    if raw:
        left_out(context, "standardize", "with --raw")
    if step_size is not None:
        checks.real("--step-size", step_size, above=0)
    samples = load_inputs(
        data,
        label=label,
        reading=options.reading(header, sep, task, drop, drop_missing),
        n=n,
        most=_SAMPLES,
        prepared=not raw,
        standardize=standardize,
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
        architecture = (
            shoal.DEQ.ling2023(0.001, features)
            if activation is None
            else options.make_architecture(activation, recurrent_variance, input_variance)
        )
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
    out.prepare(output)
    torch.set_num_threads(threads)
    # Ling 2023 wants inputs of norm √d
    by_dimension = getattr(net.architecture, "parametrization", None) == "standard"
    x = samples.x * features**0.5 if by_dimension and not raw else samples.x
    targets = checks.real("--target-scale", target_scale) * samples.targets(net.spec.out_features)
    with out.working("Certifying"):
        certificate = shoal.certify(
            net, x.to(next(net.parameters()).dtype), targets, step_size=step_size
        )
    record = {
        "shoal": shoal.__version__,
        "data": samples.document() | {"target_scale": target_scale},
        "network": {
            "architecture": plain(net.architecture),
            "in_features": net.spec.in_features,
            "width": net.spec.width,
            "out_features": net.spec.out_features,
            "readout_scale": net.spec.readout_scale,
        },
        **certificate.to_dict(),
    }
    words = f"{len(samples.classes)} classes" if samples.classes else "real numbers"
    coverage = f"for {len(samples)} of {samples.total} samples"
    coverage += "" if target_scale == 1 else f", their targets times {target_scale:g}"
    about = (
        Row("network", f"width {net.spec.width}", f"readout times {net.spec.readout_scale:g}"),
        Row("targets", f"times {target_scale:g}", words),
    )
    findings = _findings(certificate, coverage, about)
    files: list[Path] = []
    if output is not None:
        title = f"{samples.name}, {len(samples)} samples of dimension {features}"
        part = ("certificate", "Certificate", findings)
        page = out.render_page(title, str(net.architecture), [part], notes=samples.notes)
        files = out.save(output, {"report.html": page, "certificate.json": record})
        files.append(output / "network.safetensors")
        shoal.save(net, files[-1])

    def show() -> None:
        title = f"{certificate.gradient_descent.dynamics}, {samples.name}, n = {len(samples)}"
        out.show_rows("\n".join([title, *samples.notes]), findings.rows)
        out.say(f"Covered: {coverage.removeprefix('for ')}. {certificate.explanation}")

    out.conclude(record, show, files, json=json)
    if not certificate.holds:
        out.note("Not established: the theorem does not cover this network; it may train anyway.")
        raise typer.Exit(NOT_ESTABLISHED)


def _findings(certificate: "Certificate", coverage: str, rows: "tuple[Row, ...]") -> "Findings":
    """The answer with its coverage, more rows, and the conditions as a checklist."""
    from shoal.app.sections import Findings
    from shoal.core.words import Row

    best = certificate.gradient_descent
    answer = [Row("trains to zero loss", f"{best.status} {coverage}", best.theorem), *rows]
    if certificate.step_size is not None and certificate.rate is not None:
        answer += [
            Row("step size", f"{certificate.step_size:.4g}", "for the loss ½Σ‖f(x) − y‖²"),
            Row("rate", f"{certificate.rate:.6g}", "a step multiplies the loss by this or less"),
        ]
    for c in best.conditions:
        words = f"{c.words}; margin {c.margin:.3g}" + ("" if c.holds else f"; helps: {c.remedy}")
        value = f"{c.value:.3g} {'' if c.holds else 'not '}{c.needed}"
        answer.append(Row(c.name, value, words, holds=c.holds))
    panel = partial(_draw_margins, conditions=best.conditions)
    return Findings(tuple(answer), panel=panel, notes=(certificate.explanation,))


def _draw_margins(axes: "Axes", conditions: "tuple[Condition, ...]") -> None:
    """The margins of the conditions, up to a factor of three."""
    from shoal.app.sections import draw_bars
    from shoal.core.figures import COLORS, GRAY

    draw_bars(axes, {c.name: (c.margin, COLORS[2 if c.holds else 1]) for c in conditions}, 3.0)
    axes.axvline(1, color=GRAY, linewidth=1.2, zorder=0.5)
    axes.set_xlabel("margin; below 1 the condition fails")
