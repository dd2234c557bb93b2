"""Long-run behavior of an output, number of iterations to run, and whether a loop matters."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.loops.curve import LONGEST_PERIOD, Curve, RecordedRun

Matters = Literal["yes", "no", "hurts", "unknown"]
RunningOn = Literal["helps", "hurts", "changes nothing", "unknown"]

_ALIKE = 0.99  # agreement that counts as the same decisions
_NEARLY = 0.9  # least agreement with the long run to run an unlabeled loop until it converges
_CONFIDENT = 0.25  # greatest part of the doubt that remains if confidence clearly rises
_LOSS = 2.0  # points of quality that running on must lose to hurt


class Choice(NamedTuple):
    """The advice of a curve."""

    stop_at: int | None
    loop_matters: Matters
    running_on: RunningOn


def choose_by_quality(
    curve: Curve, run: RecordedRun, trained: int | None, counted: Tensor
) -> Choice:
    """Choose by the quality of the outputs of the samples that count."""
    quality, grid = _Qualities(run, counted), curve.steps
    best = max(quality.means)
    # within a quarter of a point, counts are equally good
    good = [k for k, mean in enumerate(quality.means) if mean >= best - 0.25]
    at_trained = None if trained is None else grid.index(trained)
    stop = _stopping_place(good, at_trained, len(grid))
    if at_trained is not None and at_trained not in good:
        gained, certain = quality.gain(at_trained, stop)
        stop = stop if certain or (gained > 1 and abs(stop - at_trained) == 1) else at_trained
    gained, certain = quality.gain(0, stop)
    lost, lost_certainly = quality.gain(len(grid) - 1, stop)
    worse = lost > _LOSS and lost_certainly
    running: RunningOn = "changes nothing"
    if at_trained == len(grid) - 1:
        running = "unknown"
    elif at_trained is not None and stop > at_trained:
        running = "helps" if quality.gain(at_trained, stop)[1] else "unknown"
    elif lost > _LOSS:
        running = "hurts" if worse else "unknown"
    elif at_trained is not None and best > quality.means[at_trained] + 1 and good[-1] > at_trained:
        running = "unknown"
    by_loop, by_loop_certainly = quality.gain(0, at_trained if at_trained is not None else stop)
    solved = curve.sample_accuracy  # samples with all decisions correct
    more_solved = solved is not None and solved[stop].low > solved[0].high  # beyond chance
    matters: Matters
    if by_loop < -_LOSS and by_loop_certainly:
        matters = "hurts"
    elif gained <= 1 and not more_solved:
        matters = "no"
    elif worse:
        matters = "hurts"
    else:
        matters = "yes" if certain or gained <= 1 else "unknown"
    return Choice(grid[stop], matters, running)


class _Qualities:
    """Qualities of samples at the grid, in points."""

    def __init__(self, run: RecordedRun, counted: Tensor) -> None:
        rows = counted.cpu()
        values = torch.stack([value.cpu()[rows] for value, _ in run.quality])
        values = values.nan_to_num(nan=-1e30, neginf=-1e30)
        weights = run.quality[0][1].cpu()[rows]
        shares = bool((values <= 1).all())  # otherwise scores in other units
        unit = 1.0 if shares else float(values[len(values) // 2].std()) or 1.0
        self.weights = weights / weights.mean().clamp_min(1e-300)
        self.points = 100 * values / unit
        self.means = (self.points * self.weights).mean(1).tolist()

    def gain(self, start: int, end: int) -> tuple[float, bool]:
        """The points gained between two places, and whether the gain exceeds chance."""
        each = (self.points[end] - self.points[start]) * self.weights
        count = len(each)
        mean, bounded = float(each.mean()), each.clamp(-100, 100)  # limits outliers
        error = float(bounded.std()) / count**0.5 if count > 1 else float("inf")
        return mean, abs(float(bounded.mean())) > 2 * error


def _stopping_place(good: list[int], at_trained: int | None, count: int) -> int:
    """The place of the count to run, out of equally good places.

    It is the first of an unbroken sequence up to the trained count. If the trained count is not
    good, it is the nearest place, or one step further if that is as good.
    """
    if at_trained is not None and at_trained not in good:
        near = min(good, key=lambda k: (abs(k - at_trained), k))
        return near + 1 if near > at_trained and near + 1 in good and near + 1 < count else near
    place = good[0] if at_trained is None else at_trained
    while at_trained is not None and place - 1 in good:
        place -= 1
    return place


def choose_by_agreement(
    curve: Curve,
    run: RecordedRun,
    trained: int | None,
    counted: Tensor,
    *,
    converging: float,
    starts: float | None,
) -> Choice:
    """Choose the least count that agrees with the trained one, or with the long run.

    ``converging`` is the share of samples whose output converges; ``starts`` is the agreement of
    two random starts, or ``None`` without randomness.
    """
    grid, alike = curve.steps, min(_ALIKE, starts or 1.0)
    last = len(grid) - 1
    settled = _first_lasting([one.value >= alike for one in curve.settled], last)
    converges = converging >= _NEARLY
    if trained is None:
        if not converges and curve.settled[last].value < alike:
            return Choice(None, "unknown", "unknown")
        stop = settled
        running: RunningOn = "changes nothing"
    else:
        at_trained = grid.index(trained)
        agreement = curve.settled[at_trained].value
        stop = _first_lasting([one.value >= alike for one in curve.agreement], at_trained)
        stop = min(stop + 1, at_trained) if stop else stop  # a margin for few samples
        running = "changes nothing" if agreement >= alike and at_trained < last else "unknown"
        if converges and _NEARLY <= agreement < alike:
            stop = settled if _more_confident(run, counted, at_trained, settled) else stop
    first = curve.agreement[0].value if trained is not None else curve.settled[0].value
    same = first >= alike and curve.sample_agreement[0].value >= 0.95
    return Choice(grid[stop], "no" if same else "yes", running)


def _more_confident(run: RecordedRun, counted: Tensor, start: int, end: int) -> bool:
    """Whether most of the doubt, one minus the confidence, goes between two places."""
    if not run.confidence:
        return False
    before, after = (1 - run.confidence[k][0][counted] for k in (start, end))
    fall = before - after
    error = float(fall.std()) / len(fall) ** 0.5 if len(fall) > 1 else float("inf")
    clear = float(fall.mean()) > 2 * error
    return clear and float(after.mean()) <= _CONFIDENT * float(before.mean())


def _first_lasting(holds: list[bool], last: int) -> int:
    """The first place from which a condition holds up to the last place."""
    place = last
    while place and holds[place - 1]:
        place -= 1
    return place


def behaviors(run: RecordedRun, scale: float) -> list[tuple[str, int]]:
    """The behavior of each sample's output, and the period of its cycle, or zero.

    ``scale`` is the spread of the outputs of different samples.
    """
    norms = torch.stack(run.norms).cpu()
    if not run.moves:
        finite = norms[-1].isfinite().tolist()
        return [("converges" if one else "diverges", 0) for one in finite]
    moves = torch.stack(run.moves).cpu()
    recent = torch.stack(list(run.recent)).cpu()
    across = torch.linalg.vector_norm(recent[-1] - run.halfway.cpu(), dim=1)
    return [
        _behavior(moves[:, row], norms[:, row], recent[:, row], float(across[row]), scale)
        for row in range(moves.shape[1])
    ]


def _behavior(
    moves: Tensor, norms: Tensor, recent: Tensor, across: float, scale: float
) -> tuple[str, int]:
    """The behavior of one sample, and its period.

    The ratio of the paths of two octaves, ``later`` over ``earlier``, is 4 for quadratic growth,
    2 for constant moves, 1 for logarithmic growth, and less for a path that ends.
    """
    if not bool(norms.isfinite().all()):
        return "diverges", 0
    half, quarter = len(moves) // 2, len(moves) // 4
    later, earlier = float(moves[half:].sum()), float(moves[quarter:half].sum())
    if later <= 0.01 * scale:
        return "converges", 0
    if later > 4.5 * earlier and norms[-1] > 2 * norms[half]:
        return "diverges", 0
    if _decays(moves):
        return "converges", 0
    period = _period(recent)
    if period:
        return "cycles", period
    if later < 0.8 * earlier:
        return "converges", 0
    return ("drifts" if across > 0.5 * later else "wanders"), 0


def _decays(moves: Tensor) -> bool:
    """Whether moves fall like a geometric series, by a factor that does not tend to one."""
    windows = moves.tensor_split(8)[2:]
    if not all(len(one) for one in windows):
        return False
    largest = torch.stack([one.max() for one in windows]).clamp_min(1e-300)
    factors = largest[1:] / largest[:-1]
    falls = bool((factors < 1).all()) and bool(largest[-1] < 0.7 * largest[0])
    return falls and bool(factors[-1] < factors[:-1].mean() + 0.03)


def _period(recent: Tensor) -> int:
    """The shortest period of the last outputs; zero if there is none."""
    for period in range(2, min(LONGEST_PERIOD, (len(recent) - 1) // 2) + 1):
        apart = torch.linalg.vector_norm(recent[period:] - recent[:-period], dim=1)
        move = torch.linalg.vector_norm(recent[1:] - recent[:-1], dim=1).max()
        if bool((apart[-period:] <= 0.05 * move).all()):
            return period
    return 0
