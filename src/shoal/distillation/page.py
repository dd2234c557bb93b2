"""What a page shows of a distillation."""

from shoal.core.memory import memory_words
from shoal.distillation.measures import Measured
from shoal.distillation.result import Twin
from shoal.pages.findings import Findings, Part, Row

__all__ = ["distillation_part"]


def distillation_part(twin: Twin) -> Part:
    """The verdict, every candidate beside the original, and the frontier."""
    rows = [Row("verdict", "keep it" if twin.keep else "replace it", twin.verdict)]
    rows += [_row(one) for one in (twin.original, *twin.candidates)]
    notes = tuple(f"{name}: not tried, {reason}." for name, reason in twin.skipped.items())
    findings = Findings(tuple(rows), numbers=twin.document(), figure=twin.plot(), notes=notes)
    return Part("replacements", "What may replace it", findings)


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
