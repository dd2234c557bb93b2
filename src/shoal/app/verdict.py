"""What an analysis comes to: two sentences and three numbers, before all others."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.app.pages import Verdict
from shoal.app.sections import Findings, Section
from shoal.diagnosis.words import Row

_SAME = 0.02  # of the explained variance: a difference that is not worth a loop
_DEVIATIONS = 2.0  # up to which a difference of accuracies is chance
_PAIR = ("deq", "naive")  # what is compared: the loop, and one layer with its activation

Numbers = Mapping[str, Any]


def verdict(found: Mapping[Section, Findings]) -> Verdict | None:
    """Whether the DEQ settles, how well it predicts, and whether it needs its loop.

    Without sections that say anything of it, there is no verdict.
    """
    of = {section.name: findings.numbers for section, findings in found.items()}
    settled, new, widths, designs = (
        of.get(name) or {} for name in ("well_posedness", "prediction", "accuracy", "design")
    )
    first = [*_settles(settled), *_predicts(new)]
    sentences = [f"The network {', and '.join(first)}."] if first else []
    sentences += [*_loop(widths, designs)][:1]
    figures = (*_gain(settled), *_score(new, widths), *_worth(widths, designs))
    return Verdict(tuple(sentences), figures) if sentences else None


def _settles(numbers: Numbers) -> Iterator[str]:
    if not numbers:
        return
    if numbers["contraction"]:
        yield "settles to one equilibrium for every input"
    elif numbers["kernel_guaranteed"]:
        yield "has a kernel, but no guarantee that it settles"
    else:
        yield "has no guarantee that it settles, nor that its kernel exists"


def _gain(numbers: Numbers) -> Iterator[Row]:
    if numbers:
        gain, width = numbers["gain_upper"], numbers["width"]
        words = f"at width {width}; below 1 there is one equilibrium"
        yield Row("gain of the loop", f"{gain:.3g}", words, holds=bool(numbers["contraction"]))


def _predicts(numbers: Numbers) -> Iterator[str]:
    if not numbers:
        return
    if numbers["classes"]:
        yield f"gets {numbers['accuracy']:.1%} of new samples right"
    elif math.isfinite(numbers["loo"]):
        yield f"misses {numbers['loo']:.2g} of the target's variance on new samples"


def _score(numbers: Numbers, widths: Numbers) -> Iterator[Row]:
    """The error on samples that were left out, beside that of one answer for all."""
    if not numbers:
        return
    words = f"each of {numbers['samples']} samples left out"
    if not numbers["classes"]:
        value, words = f"{numbers['loo']:.2g}", f"of the target's variance; {words}"
        yield Row("error on new samples", value, words, holds=numbers["loo"] < 1)
        return
    holds = None
    if widths:
        holds = numbers["accuracy"] > widths["constant"]
        words += f"; one answer for all: {widths['constant']:.1%}"
    yield Row("right on new samples", f"{numbers['accuracy']:.1%}", words, holds=holds)


def _chance(widths: Numbers) -> float:
    """How much two scores may differ without a reason."""
    if widths["measure"] != "accuracy":
        return _SAME
    scores, tested = [float(widths["infinite"][name]) for name in _PAIR], int(widths["tested"])
    spread = sum(score * (1 - score) for score in scores)
    return max(1 / tested, _DEVIATIONS * math.sqrt(spread / tested))


def _loop(widths: Numbers, designs: Numbers) -> Iterator[str]:
    """What to use instead of the loop, the simplest first."""
    if widths:
        deq, plain = (widths["infinite"][name] for name in _PAIR)
        scores = f"with trained readouts a plain layer scores {plain:.1%}, the loop {deq:.1%}"
        if deq - plain <= _chance(widths):
            yield f"Nothing shows that these data need its loop: {scores}."
    gap = _gap(designs)
    if gap is not None:
        layer = f"one hidden layer with a designed activation has its NTK, up to {gap:.1g}"
        yield f"The loop can be replaced: {layer}, for inputs of one norm."
    if widths:
        yield f"These data gain by its loop: {scores}."


def _gap(designs: Numbers) -> float | None:
    """How far the NTK of the design for the sphere is off, if there is one."""
    made = designs.get("ntk_sphere")
    return float(made["gap"]) if made and made["feasible"] else None


def _worth(widths: Numbers, designs: Numbers) -> Iterator[Row]:
    if widths:
        deq, plain = (widths["infinite"][name] for name in _PAIR)
        chance = f"differences up to {100 * _chance(widths):.1f} say nothing"
        words = f"over a plain layer, of {widths['tested']} tested; {chance}"
        yield Row("what the loop adds", f"{100 * (deq - plain):+.1f} points", words)
    elif (gap := _gap(designs)) is not None:
        yield Row("kernel without the loop", f"{gap:.1g}", "relative difference, one hidden layer")
