"""How many iterations to run, and whether the loop matters: choices from a curve."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.loops.curve import Curve, Recording

Matters = Literal["yes", "no", "hurts", "unknown"]
RunningOn = Literal["helps", "hurts", "changes nothing", "unknown"]

_ALIKE = 0.99  # agreement that counts as the same decisions
_SOLVED = 0.95  # share of samples, alike in all decisions, of a loop that does not matter
_NEARLY = 0.9  # agreement with the long run, from which an unlabeled loop may be run to its rest
_WORST = -1e30  # quality of what is not finite
_FLAT = 0.25  # points of quality within which two counts are equally good
_LOSS = 2.0  # points of quality that running on must lose to hurt
_MOST = 100.0  # points of one sample that count as evidence, so that a few outliers hide nothing


@dataclass(frozen=True)
class Choice:
    """What a curve says.

    Attributes:
        stop_at: Number of iterations to run; ``None`` if nothing speaks for any.
        loop_matters: Whether more than one iteration is needed; ``"hurts"`` if iterations make the
            output worse.
        running_on: What iterations beyond the trained count do.
    """

    stop_at: int | None
    loop_matters: Matters
    running_on: RunningOn


def choose(
    curve: Curve,
    run: Recording,
    trained: int | None,
    counted: Tensor,
    *,
    converging: float,
    alike: float | None = None,
) -> Choice:
    """Choose by the quality of outputs if it is known, else by agreement.

    Args:
        curve: The curve.
        run: The recording that it was made of.
        trained: The count that the model runs.
        counted: Which samples count.
        converging: Share of samples whose output converges.
        alike: Agreement of two random starts; ``None`` if the start is not random.
    """
    if run.quality:
        return _by_quality(_Qualities(run, counted), curve, trained)
    return _by_agreement(curve, trained, converging, min(_ALIKE, alike or 1.0))


class _Qualities:
    """Qualities of samples at the grid, in points."""

    def __init__(self, run: Recording, counted: Tensor) -> None:
        rows = counted.cpu()
        several = torch.stack([value.cpu()[rows] for value, _ in run.quality])
        several = several.nan_to_num(nan=_WORST, neginf=_WORST)
        weights = run.quality[0][1].cpu()[rows]
        shares = bool((several <= 1).all())  # as all but scores in units of their own are
        unit = 1.0 if shares else float(several[len(several) // 2].std()) or 1.0
        self.weights = weights / weights.mean().clamp_min(1e-300)
        self.points = 100 * several / unit
        self.means = (self.points * self.weights).mean(1).tolist()

    def gain(self, start: int, end: int) -> tuple[float, bool]:
        """How many points are gained between two places, and whether chance is ruled out."""
        each = (self.points[end] - self.points[start]) * self.weights
        count = len(each)
        mean, bounded = float(each.mean()), each.clamp(-_MOST, _MOST)
        error = float(bounded.std()) / count**0.5 if count > 1 else float("inf")
        return mean, abs(float(bounded.mean())) > 2 * error


def _by_quality(quality: _Qualities, curve: Curve, trained: int | None) -> Choice:
    grid = curve.steps
    best = max(quality.means)
    good = [k for k, mean in enumerate(quality.means) if mean >= best - _FLAT]
    own = None if trained is None else grid.index(trained)
    stop = _place(good, own, len(grid))
    if own is not None and own not in good:
        gained, certain = quality.gain(own, stop)
        stop = stop if certain or (gained > 1 and abs(stop - own) == 1) else own
    gained, certain = quality.gain(0, stop)
    lost, lost_certainly = quality.gain(len(grid) - 1, stop)
    running: RunningOn = "changes nothing"
    if lost > _LOSS:
        running = "hurts" if lost_certainly else "unknown"
    elif own is not None and best > quality.means[own] + 1 and good[-1] > own:
        running = "helps" if stop > own and quality.gain(own, stop)[1] else "unknown"
    by_loop, by_loop_certainly = quality.gain(0, own if own is not None else stop)
    matters: Matters
    if by_loop < -_LOSS and by_loop_certainly:
        matters = "hurts"
    elif gained <= 1 and not _more_are_solved(curve, stop):
        matters = "no"
    elif running == "hurts":
        matters = "hurts"
    else:
        matters = "yes" if certain or gained <= 1 else "unknown"
    return Choice(grid[stop], matters, running)


def _more_are_solved(curve: Curve, stop: int) -> bool:
    """Whether more samples have all decisions correct than after one iteration, beyond chance."""
    solved = curve.sample_accuracy
    return solved is not None and solved[stop].low > solved[0].high


def _place(good: list[int], own: int | None, count: int) -> int:
    """The place of the count to run, out of those that are equally good.

    It is the least that leads to the model's own count without a gap. If that is not good, it is
    the nearest to it, and one step more if that is as good.
    """
    if own is not None and own not in good:
        near = min(good, key=lambda k: (abs(k - own), k))
        return near + 1 if near > own and near + 1 in good and near + 1 < count else near
    place = good[0] if own is None else own
    while own is not None and place - 1 in good:
        place -= 1
    return place


def _by_agreement(curve: Curve, trained: int | None, converging: float, alike: float) -> Choice:
    """The least count with the decisions of the trained one, or of the rest of what nears it."""
    grid = curve.steps
    last = len(grid) - 1
    settled = _from([one.value >= alike for one in curve.settled], last)
    rests = converging >= _NEARLY
    if trained is None:
        if not rests and curve.settled[last].value < alike:
            return Choice(None, "unknown", "unknown")
        stop = settled
        running: RunningOn = "changes nothing"
    else:
        own = grid.index(trained)
        with_rest = curve.settled[own].value
        stop = _from([one.value >= alike for one in curve.agreement], own)
        stop = min(stop + 1, own) if stop else stop  # a margin for what few samples show
        running = "changes nothing" if with_rest >= alike else "unknown"
        if rests and _NEARLY <= with_rest < alike and _surer(curve, own, settled):
            stop = settled
    first = curve.agreement[0].value if trained is not None else curve.settled[0].value
    same = first >= alike and curve.sample_agreement[0].value >= _SOLVED
    return Choice(grid[stop], "no" if same else "yes", running)


def _from(holds: list[bool], last: int) -> int:
    """The first place from which something holds up to a last one."""
    place = last
    while place and holds[place - 1]:
        place -= 1
    return place


def _surer(curve: Curve, own: int, later: int) -> bool:
    """Whether a later output is at least as confident as the trained one."""
    if curve.confidence is None:
        return False
    return curve.confidence[later] >= curve.confidence[own]
