"""The part of a page that shows what may replace a model."""

from shoal.core.words import Part, Row, memory_words
from shoal.loops import Distillation
from shoal.loops.distillation import Measured


def distillation_part(twin: Distillation) -> Part:
    """The verdict, every candidate beside the original, and the frontier."""
    rows = [Row("verdict", "keep it" if twin.keep else "replace it", twin.verdict)]
    rows += [_row(one) for one in (twin.original, *twin.candidates)]
    notes = tuple(f"{name}: not tried, {reason}." for name, reason in twin.skipped.items())
    return Part("replacements", "What may replace it", tuple(rows), figure=twin.plot(), notes=notes)


def _row(one: Measured) -> Row:
    words = [
        f"agrees in {one.scores.agreement:.1%} of the decisions",
        f"outputs off by {one.scores.output_error:.1%}",
        f"{memory_words(one.parameter_bytes)} of parameters",
        f"{memory_words(one.peak_bytes)} at the peak of a batch",
    ]
    score = "" if one.scores.accuracy is None else f"{one.scores.accuracy:.2%}, "
    return Row(one.name, f"{score}{1e3 * one.seconds:.3g} ms", ", ".join(words))
