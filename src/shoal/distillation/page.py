"""What a page shows of a distillation, and its picture."""

from typing import Any

from shoal.core.figures import Figure, empty_figure
from shoal.core.words import Part, Row, memory_words
from shoal.distillation.measures import Measured
from shoal.distillation.result import Distillation

_COLORS = ("#0072B2", "#D55E00", "#6b6b6b")


def distillation_part(twin: Distillation) -> Part:
    """The verdict, every candidate beside the original, and the frontier."""
    rows = [Row("verdict", "keep it" if twin.keep else "replace it", twin.verdict)]
    rows += [_row(one) for one in (twin.original, *twin.candidates)]
    notes = tuple(f"{name}: not tried, {reason}." for name, reason in twin.skipped.items())
    return Part(
        "replacements", "What may replace it", tuple(rows), figure=plot_frontier(twin), notes=notes
    )


def _row(one: Measured) -> Row:
    scores, words = one.scores, []
    if scores.agreement is not None:
        words.append(f"agrees in {scores.agreement:.1%}")
    words.append(f"outputs off by {scores.output_error:.1%}")
    if scores.calibration_error is not None:
        words.append(f"calibration error {scores.calibration_error:.3f}")
    words.append(f"{memory_words(one.parameter_bytes)} of parameters")
    words.append(f"{memory_words(one.peak_bytes)} at the peak of a batch")
    score = "" if scores.accuracy is None else f"{scores.accuracy:.2%}, "
    return Row(one.name, f"{score}{1e3 * one.seconds:.3g} ms", ", ".join(words))


def plot_frontier(twin: Distillation) -> Figure:
    """Score against time: what is up and to the left is better."""
    figure = empty_figure(8.6, 4.4)
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes = figure.subplots()
    best = twin.best
    ordered = sorted((twin.original, *twin.candidates), key=lambda one: one.seconds)
    for number, one in enumerate(ordered, 1):
        color = _COLORS[1] if one is twin.original else _COLORS[0]
        at, size = (1e3 * one.seconds, _score(one)), 12 if one is best else 6
        error = 0.0 if one is twin.original else 100 * (one.scores.uncertainty or 0.0)
        style: dict[str, Any] = {"color": color, "fmt": "*" if one is best else "o"}
        label = f"{number}  {one.name}"
        axes.errorbar(*at, yerr=error or None, elinewidth=0.6, ms=size, label=label, **style)
        beside: dict[str, Any] = {"xytext": (6, 4), "textcoords": "offset points"}
        axes.annotate(str(number), at, fontsize=9, **beside)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    allowed = _score(twin.original) - 100 * twin.tolerance
    axes.axhline(allowed, color=_COLORS[2], linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.2)
    axes.set(xlabel=f"ms for {twin.original.batch} samples", ylabel=f"{_quantity(twin)}, %")
    star = " Star: the replacement." if best is not None else ""
    bars = twin.original.scores.uncertainty is not None
    errors = " Bars: standard errors of what is lost" if bars else ""
    axes.set_title(f"Dashed: what may be lost.{star}{errors}", loc="left", fontsize=10)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure


def _quantity(twin: Distillation) -> str:
    """What is drawn upwards, in words."""
    scores = twin.original.scores
    if scores.accuracy is not None:
        return "explained variance" if scores.calibration_error is None else "accuracy"
    return "100 - error of the outputs" if scores.agreement is None else "agreement"


def _score(one: Measured) -> float:
    scores = one.scores
    return 100 * (1 - one.loss if scores.accuracy is None else scores.accuracy)
