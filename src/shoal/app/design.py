"""``shoal design``: the shallow network inside a DEQ, from the command line."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal.app import options
from shoal.app.options import DATA

if TYPE_CHECKING:
    import shoal

INFEASIBLE = 3
_COMPARED = 64  # samples whose kernel matrices are compared, by default
_DESIGN = "Design"


def design(
    context: typer.Context,
    activation: options.Activation = "tanh",
    recurrent_variance: options.RecurrentVariance = 0.2,
    input_variance: options.InputVariance = 0.8,
    input_norm: Annotated[
        float,
        typer.Option(help="Root mean square norm of the inputs, above 0.", rich_help_panel=DATA),
    ] = 1.0,
    data: Annotated[
        str | None,
        typer.Option(help="Inputs on which the kernels are compared, prepared as by analyze.",
                     rich_help_panel=DATA),
    ] = None,
    label: options.Label = None,
    header: options.Header = None,
    sep: options.Separator = None,
    drop: options.Drop = "",
    drop_missing: options.DropMissing = False,
    n: options.Samples = None,
    standardize: options.Standardize = None,
    method: Annotated[
        Literal["moments", "sphere"],
        typer.Option(help="moments: the high-dimensional coefficients, by ordinary layers; sphere: "
                     "the kernel itself, for inputs of norm input_norm.", rich_help_panel=_DESIGN),
    ] = "moments",
    which: Annotated[
        str | None,
        typer.Option(help="ck or ntk; by default as trained.", rich_help_panel=_DESIGN),
    ] = None,
    trainable: Annotated[
        str | None,
        typer.Option(help="Trained groups: readout,recurrent,input; by default all.",
                     rich_help_panel=_DESIGN),
    ] = None,
    output: options.Output = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """The shallow network that has the kernel of a DEQ.

    It has one or two hidden layers. If there is none of the wanted kind, the nearest one is shown
    and written. Inputs of --data are prepared as by analyze, and scaled to --input-norm. Designs
    on the sphere are not compared on them: they hold for inputs of that norm, whatever the data.

    Examples: shoal design --activation relu --trainable readout --output design; shoal design
    --method sphere --data x.npy.

    Exit codes: 2, bad input; 3, no network of the wanted kind has the kernel.
    """
    import shoal
    from shoal.app import output as out
    from shoal.app.inputs import load_inputs
    from shoal.app.sections import Findings
    from shoal.core import checks
    from shoal.core.words import Row
    from shoal.designs.result import layer_activations

    deq = options.architecture_of(activation, recurrent_variance, input_variance)
    notes: tuple[str, ...] = ()
    norm, x = checks.real("--input-norm", input_norm, above=0), None
    if data is None:
        options.left_out(context, f"n standardize label {options.READING}", "without --data")
    else:
        reading = options.reading(header, sep, None, drop, drop_missing)
        count = _COMPARED if n is None else n
        loaded = load_inputs(data, label=label, reading=reading, standardize=standardize)
        x = loaded.x[loaded.drawn(count)]  # a file may be sorted
        x = norm * x
        notes = loaded.notes
    out.prepare(output)
    groups = None if trainable is None else [group.strip() for group in trainable.split(",")]
    with out.working("Designing"):
        found = shoal.design(deq, input_norm=norm, which=which, method=method, trainable=groups)
        gap = None if x is None or method == "sphere" else found.gap(x)
    record = _document(found, gap)
    answer = [Row(*row) for row in _answer(found, gap)]
    if x is not None:
        ends = [float(end) for end in x.norm(dim=1).aminmax()]
        answer.append(Row("norms of the data", f"{ends[0]:.3g} to {ends[1]:.3g}", "of each sample"))
    numbers = [
        Row(name, f"{value:.8g}", f"wanted {found.target[name]:.8g}")
        for name, value in found.obtained.items()
    ]
    files: list[Path] = []
    if output is not None:
        figure, layers = found.plot(), layer_activations(found.architecture)
        parts = [
            ("answer", "Design", Findings(tuple(answer), notes=(found.explanation,))),
            (
                "layers",
                "Activations",
                Findings(tuple(Row(name, "", repr(phi)) for name, phi in layers), figure=figure),
            ),
            ("numbers", "Obtained and wanted", Findings(tuple(numbers))),
        ]
        title = "The shallow network inside a deep equilibrium model"
        page = out.render_page(title, str(found.original), parts, notes=notes)
        contents = {"report.html": page, "design.json": record, "activations": figure}
        files = out.save(output, contents)

    def show() -> None:
        out.show_rows("\n".join([str(found.original), *notes]), [*answer, *numbers])
        for sigma in getattr(found.architecture, "activations", ()):
            out.say(f"hidden layer: {sigma!r}")
        out.say(found.explanation)

    out.conclude(record, show, files, json=json)
    if not found.feasible:
        out.note("Not feasible: no network of this kind has the kernel; this is the nearest.")
        raise typer.Exit(INFEASIBLE)


def _document(found: "shoal.designs.Design", gap: Any) -> dict[str, Any]:
    """A design as plain values."""
    import shoal
    from shoal.core.files import plain

    return {
        "shoal": shoal.__version__,
        "architecture": plain(found.architecture),
        "original": plain(found.original),
        "method": found.method,
        "which": found.which,
        "trainable": sorted(found.trainable),
        "family": found.family or None,
        "input_norm": found.input_norm,
        "feasible": found.feasible,
        "residual": found.residual,
        "target": dict(found.target),
        "obtained": dict(found.obtained),
        "errors": dict(found.errors),
        "gap": None if gap is None else gap._asdict(),
        "explanation": found.explanation,
        "alternatives": [plain(other.architecture) for other in found.alternatives],
    }


def _answer(found: "shoal.designs.Design", gap: Any) -> Iterator[tuple[Any, ...]]:
    """Rows on whether there is a design, and how near it is."""
    kernel, trained = found.which.upper(), ", ".join(sorted(found.trainable))
    wanted = "kernel, exactly" if found.method == "sphere" else "high-dimensional coefficients"
    if found.feasible:
        yield "feasible", "yes", f"a network of this kind has the {wanted}", True
    else:
        yield "feasible", "no", "see the nearest", False
    yield "matched", kernel, f"by {found.method}; trained: {trained}"
    yield "norm of the inputs", f"{found.input_norm:.6g}", "τ0"
    yield "residual", f"{found.residual:.1e}", "largest difference from the target"
    if gap is not None:
        words = f"of the {kernel} matrices on the data, in spectral norm, relative to the DEQ's"
        yield "difference", f"{gap.relative:.2e}", words
