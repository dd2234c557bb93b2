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

    deq = options.make_architecture(activation, recurrent_variance, input_variance)
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
        result = shoal.design(deq, input_norm=norm, which=which, method=method, trainable=groups)
        gap = None if x is None or method == "sphere" else result.gap(x)
    record = _document(result, gap)
    answer = [Row(*row) for row in _answer(result, gap)]
    if x is not None:
        ends = [float(end) for end in x.norm(dim=1).aminmax()]
        answer.append(Row("norms of the data", f"{ends[0]:.3g} to {ends[1]:.3g}", "of each sample"))
    numbers = [
        Row(name, f"{value:.8g}", f"wanted {result.target[name]:.8g}")
        for name, value in result.obtained.items()
    ]
    files: list[Path] = []
    if output is not None:
        figure, layers = result.plot(), layer_activations(result.architecture)
        parts = [
            ("answer", "Design", Findings(tuple(answer), notes=(result.explanation,))),
            (
                "layers",
                "Activations",
                Findings(tuple(Row(name, "", repr(phi)) for name, phi in layers), figure=figure),
            ),
            ("numbers", "Obtained and wanted", Findings(tuple(numbers))),
        ]
        title = "The shallow network inside a deep equilibrium model"
        page = out.render_page(title, str(result.original), parts, notes=notes)
        contents = {"report.html": page, "design.json": record, "activations": figure}
        files = out.save(output, contents)

    def show() -> None:
        out.show_rows("\n".join([str(result.original), *notes]), [*answer, *numbers])
        for sigma in getattr(result.architecture, "activations", ()):
            out.say(f"hidden layer: {sigma!r}")
        out.say(result.explanation)

    out.conclude(record, show, files, json=json)
    if not result.feasible:
        out.note("Not feasible: no network of this kind has the kernel; this is the nearest.")
        raise typer.Exit(INFEASIBLE)


def _document(result: "shoal.designs.Design", gap: Any) -> dict[str, Any]:
    """A design as plain values."""
    import shoal
    from shoal.core.files import plain

    return {
        "shoal": shoal.__version__,
        "architecture": plain(result.architecture),
        "original": plain(result.original),
        "method": result.method,
        "which": result.which,
        "trainable": sorted(result.trainable),
        "family": result.family or None,
        "input_norm": result.input_norm,
        "feasible": result.feasible,
        "residual": result.residual,
        "target": dict(result.target),
        "obtained": dict(result.obtained),
        "errors": dict(result.errors),
        "gap": None if gap is None else gap._asdict(),
        "explanation": result.explanation,
        "alternatives": [plain(design.architecture) for design in result.alternatives],
    }


def _answer(result: "shoal.designs.Design", gap: Any) -> Iterator[tuple[Any, ...]]:
    """Rows on whether there is a design, and on its error."""
    kernel, trained = result.which.upper(), ", ".join(sorted(result.trainable))
    matched = "kernel, exactly" if result.method == "sphere" else "high-dimensional coefficients"
    if result.feasible:
        yield "feasible", "yes", f"a network of this kind has the {matched}", True
    else:
        yield "feasible", "no", "see the nearest", False
    yield "matched", kernel, f"by {result.method}; trained: {trained}"
    yield "norm of the inputs", f"{result.input_norm:.6g}", "τ0"
    yield "residual", f"{result.residual:.1e}", "largest difference from the target"
    if gap is not None:
        words = f"of the {kernel} matrices on the data, in spectral norm, relative to the DEQ's"
        yield "difference", f"{gap.relative:.2e}", words
