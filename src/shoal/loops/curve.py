"""The output of a loop against its iterations: agreement, quality, and changes."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.core.measuring import now
from shoal.loops.decisions import IGNORED, Decisions, tensor_of
from shoal.loops.loop import Loop, rows_of

LONGEST_PERIOD = 16
_ENTRIES = 4096  # numbers of a sample's output that are recorded
_Z = 1.959964  # two-sided 95%


class Share(NamedTuple):
    """An estimate with its 95% interval.

    Attributes:
        value: The estimate, over these samples.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Curve:
    """The output after 1, 2, 3, 4, 6, 8, 12, ... iterations, with 95% intervals.

    Attributes:
        steps: Numbers of iterations.
        quality: Meaning of ``accuracy``: ``"accuracy"``, ``"explained variance"`` or ``"score"``.
        agreement: Share of decisions that equal the ones after the trained count.
        sample_agreement: Share of samples with all decisions as after the trained count.
        settled: Share of decisions that equal the last ones, and that have not changed in the
            second half of the iterations.
        accuracy: Share of correct decisions, explained variance of targets, or mean score; ``None``
            without labels and scores.
        sample_accuracy: Share of samples with all decisions correct; ``None`` without classes.
        confidence: Mean probability of the chosen classes; ``None`` without classes.
        growth: Median norm of a sample's state, relative to the norm after the trained count.
        seconds: Time of these iterations and the output.
    """

    steps: tuple[int, ...]
    quality: str
    agreement: tuple[Share, ...]
    sample_agreement: tuple[Share, ...]
    settled: tuple[Share, ...]
    accuracy: tuple[Share, ...] | None
    sample_accuracy: tuple[Share, ...] | None
    confidence: tuple[float, ...] | None
    growth: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, steps: int) -> int:
        """Return the place of a number of iterations in the columns."""
        return self.steps.index(steps)


@dataclass(eq=False)
class RecordedRun:
    """One run of a loop; samples are columns, and lists have an entry for each place of the grid.

    Changes, norms and moves are recorded at every iteration.
    """

    grid: tuple[int, ...]
    quality_name: str
    counted: Tensor  # decisions with labels
    still: Tensor  # decisions without a change in the second half
    first_change: Tensor  # iteration of the first changed decision, or zero
    last_change: Tensor
    decisions: list[Tensor] = field(default_factory=list)
    quality: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # with weights of samples
    correct: list[Tensor] = field(default_factory=list)  # samples with correct decisions only
    confidence: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # mean and least
    seconds: list[float] = field(default_factory=list)
    moves: list[Tensor] = field(default_factory=list)  # norms of changes of the output
    norms: list[Tensor] = field(default_factory=list)  # norms of the output
    state_norms: list[Tensor] = field(default_factory=list)
    recent: deque[Tensor] = field(default_factory=lambda: deque(maxlen=2 * LONGEST_PERIOD + 1))
    halfway: Tensor = field(default_factory=lambda: torch.zeros(0))  # the output, in rows


class Quality:
    """The quality of an output for each sample, by labels, by real targets, or by a score."""

    def __init__(
        self,
        decisions: Decisions,
        y: Tensor | None,
        score: Callable[[Any], Tensor] | None,
        like: Tensor,
    ) -> None:
        self.decisions, self.score = decisions, score
        self.labels = None if y is None else decisions.labels(y, like)
        self.measurable = score is not None or y is not None
        self.classes = self.labels is not None and decisions.kind != "value"
        targets = "explained variance" if score is None else "score"
        self.name = "accuracy" if self.classes else targets
        self.counted = torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
        if self.labels is not None and self.classes:
            self.counted &= self.labels != IGNORED

    def __call__(self, output: Any, decided: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quality of each sample, and its weight in the mean."""
        ones = torch.ones(len(decided), dtype=torch.float64, device=decided.device)
        if self.score is not None:
            values = self.score(output)
            if not isinstance(values, Tensor) or values.shape != (len(decided),):
                got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise ValueError(
                    f"score must return one number per sample, {(len(decided),)}, got {got}"
                )
            return values.double(), ones
        assert self.labels is not None
        if self.classes:
            weights = self.counted.double()
            right = (decided == self.labels).double() * weights
            return right.sum(1) / weights.sum(1).clamp_min(1), weights.sum(1)
        target = self.labels.double()
        spread = (target - target.mean(0)).square().sum((1, 2)).mean().clamp_min(1e-300)
        lost = (decided.double() - target).square().sum((1, 2)) / spread
        return 1 - lost.nan_to_num(math.inf), ones

    def all_correct(self, decided: Tensor) -> Tensor:
        """Return a mask of the samples with all decisions correct."""
        return ((decided == self.labels) | ~self.counted).all(1)


def grid_of(trained: int | None, most: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, 16, ..., with the trained count and the largest."""
    powers = [2**k for k in range(most.bit_length())]
    counts = {*powers, *(3 * p for p in powers), most, trained or 1}
    return tuple(sorted(n for n in counts if n <= most))


@torch.no_grad()
def record(
    loop: Loop,
    inputs: tuple[Any, ...],
    grid: tuple[int, ...],
    decisions: Decisions,
    quality: Quality,
) -> RecordedRun:
    """Run a loop once, to the end of the grid, and record its outputs."""
    mask = quality.counted
    never, device = torch.zeros(len(mask), dtype=torch.long), mask.device
    run = RecordedRun(grid, quality.name, mask, torch.ones_like(mask), never, never)
    began = now(device)
    state, context = loop.begin(*inputs)
    stepping = now(device) - began
    before: Tensor | None = None
    for n in range(1, grid[-1] + 1):
        began = now(device)
        state = loop.step(state, context, n - 1)
        stepping += now(device) - began
        began = now(device)
        output = loop.head(state, context)
        reading = now(device) - began
        decided = decisions(output)
        rows = some_entries(output)
        if before is not None:
            _record_changes(run, decisions.same(before, decided), n)
        if run.recent:
            run.moves.append(torch.linalg.vector_norm(rows - run.recent[-1], dim=1))
        run.recent.append(rows)
        run.norms.append(torch.linalg.vector_norm(rows, dim=1))
        run.state_norms.append(torch.linalg.vector_norm(rows_of(state).double(), dim=1))
        run.halfway = rows if n <= max(grid[-1] // 2, 1) else run.halfway
        before = decided
        if n in grid:
            run.decisions.append(decided)
            run.seconds.append(stepping + reading)
            if quality.measurable:
                run.quality.append(quality(output, decided))
            if quality.classes:
                run.correct.append(quality.all_correct(decided))
            if decisions.kind in ("class", "sign") and decisions.custom is None:
                run.confidence.append(_confidence(decisions, output))
    return run


def some_entries(output: Any) -> Tensor:
    """An output in rows, or every k-th of its numbers if they are many; masked scores are zero."""
    rows = tensor_of(output).reshape(len(tensor_of(output)), -1)
    rows = rows[:, :: -(-rows.shape[1] // _ENTRIES)].double()
    return rows.masked_fill(rows == -math.inf, 0.0)


def _record_changes(run: RecordedRun, same: Tensor, n: int) -> None:
    if n > max(run.grid[-1] // 2, 1):
        run.still &= same
    changed = (~same & run.counted).any(1).cpu()
    run.last_change = torch.where(changed, n, run.last_change)
    run.first_change = torch.where(changed & (run.first_change == 0), n, run.first_change)


def _confidence(decisions: Decisions, output: Any) -> tuple[Tensor, Tensor]:
    """The mean and the least probability of the chosen classes, for each sample."""
    scores = decisions.scores(output).double()
    if decisions.kind == "class":
        chosen = scores.softmax(-1).amax(-1)
    else:
        up = scores[..., 0] if decisions.threshold else scores[..., 0].sigmoid()
        chosen = torch.maximum(up, 1 - up)
    return chosen.mean(1), chosen.amin(1)


def curve_of(
    run: RecordedRun, reference: Tensor, trained: int, decisions: Decisions, counted: Tensor
) -> Curve:
    """The curve of a recorded run, compared with the decisions of the model as it runs."""
    mask = run.counted[counted]
    same = [decisions.same(one, reference)[counted] for one in run.decisions]
    settled = [
        (decisions.same(one, run.decisions[-1]) & run.still)[counted] for one in run.decisions
    ]
    size = run.state_norms[trained - 1]
    return Curve(
        run.grid,
        run.quality_name,
        tuple(decision_share(one, mask) for one in same),
        tuple(decision_share((one | ~mask).all(1, keepdim=True)) for one in same),
        tuple(decision_share(one, mask) for one in settled),
        tuple(quality_share(run, k, counted) for k in range(len(run.grid)))
        if run.quality else None,
        tuple(decision_share(one[counted][:, None]) for one in run.correct)
        if run.correct else None,
        tuple(float(mean[counted].mean()) for mean, _ in run.confidence)
        if run.confidence else None,
        tuple(float((run.state_norms[n - 1] / size)[counted].median()) for n in run.grid),
        tuple(run.seconds),
    )  # fmt: skip


def decision_share(hits: Tensor, counted: Tensor | None = None) -> Share:
    """The share of hits among the counted decisions; shape (samples, decisions)."""
    weights = torch.ones_like(hits, dtype=torch.float64) if counted is None else counted.double()
    total = weights.sum(1)
    return share((hits * weights).sum(1) / total.clamp_min(1), total)


def quality_share(run: RecordedRun, place: int, counted: Tensor) -> Share:
    """The mean quality at a place of the grid."""
    values, weights = (one[counted].cpu() for one in run.quality[place])
    if run.correct:
        return share(values, weights)
    mean = float(values.mean())
    error = _Z * float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.inf
    return Share(mean, mean - error, mean + error)


def share(each: Tensor, weights: Tensor) -> Share:
    r"""A share with its Wilson interval.

    Decisions of one sample depend on one another. The interval assumes the number of independent
    decisions that has the variance of the mean over samples, at least one per sample.
    """
    total, samples = float(weights.sum()), len(each)
    if not total:
        return Share(math.nan, 0.0, 1.0)
    value = float((each * weights).sum() / total)
    spread = float((((each - value) * weights) ** 2).sum()) / total**2
    effective = value * (1 - value) / spread if spread > 0 else float(samples)
    effective = min(max(effective, float(samples)), total) if value * (1 - value) else samples
    middle = (value + _Z**2 / (2 * effective)) / (1 + _Z**2 / effective)
    half = _Z / (1 + _Z**2 / effective) * math.sqrt(
        value * (1 - value) / effective + _Z**2 / (4 * effective**2)
    )  # fmt: skip
    return Share(value, max(0.0, middle - half), min(1.0, middle + half))
