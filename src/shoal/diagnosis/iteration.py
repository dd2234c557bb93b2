r"""The plain iteration $z \leftarrow f(z)$: what becomes of it, and after how many steps."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.diagnosis.equilibria import newton_errors
from shoal.diagnosis.model_loop import ModelLoop
from shoal.equilibrium.problem import Problem

BEHAVIORS = ("settles", "settles slowly", "cycles", "drifts", "wanders", "diverges")
_SETTLED = {torch.float64: 1e-8, torch.float32: 1e-5}  # moves that count as none, relatively
_PERIODS = 16  # the longest that is looked for
_SAME = 1e-4  # of a move: two states that are the same state of a cycle
_ZERO = 1e-3  # of the largest state so far: the size below which sizes do not count
_NEAR = 0.05  # of the size of a state: where an iteration ended, and an equilibrium
_STRETCHES = 6  # of the second half of an iteration, in which it nears an equilibrium
_STEADY = 0.5  # of the factor of the first stretch, that of the last one if it goes to zero
_FAR = 1e5  # growth of the state that is divergence
_STRAIGHT = 0.5  # of a path's length, covered between its ends, that is a drift


@dataclass(frozen=True, eq=False)
class Iteration:
    """What the plain iteration did from one start.

    Attributes:
        start: Where it began, in words.
        behaviors: For each sample one of ``BEHAVIORS``.
        periods: The period of each sample's cycle; zero if it does not cycle.
        steps: After how many steps each sample moved no more; -1 if it does not settle.
        moves: The relative length of each move; shape (steps, samples).
        state: The last state, in rows.
    """

    start: str
    behaviors: tuple[str, ...]
    periods: tuple[int, ...]
    steps: tuple[int, ...]
    moves: Tensor
    state: Tensor

    @property
    def settled(self) -> Tensor:
        """Which samples settled."""
        return torch.tensor([b == "settles" for b in self.behaviors], device=self.state.device)

    @property
    def counts(self) -> dict[str, int]:
        """How many samples behaved in which way."""
        return {b: self.behaviors.count(b) for b in BEHAVIORS if b in self.behaviors}


class EffectiveDepth(NamedTuple):
    """How many applications of the cell it takes until the output is what it will be.

    Attributes:
        depths: For each sample that settles so near, until the output stays within the tolerance.
        decisions: Until its largest entry stays the same, where outputs have several.
        tolerance: Of the output, relative to it.
        errors: The relative error of the outputs after 0, 1, ... applications: the median, and the
            largest of all samples.
    """

    depths: tuple[int, ...]
    decisions: tuple[int, ...] | None
    tolerance: float
    errors: tuple[tuple[float, float], ...]

    def quantile(self, share: float) -> int:
        """The depth that suffices for a share of the samples."""
        return sorted(self.depths)[max(math.ceil(share * len(self.depths)) - 1, 0)]


@torch.no_grad()
def iterate(problem: Problem, start: Tensor, words: str, *, steps: int, known: Tensor) -> Iteration:
    """Run the plain iteration, and say what each sample did.

    Args:
        problem: The map.
        start: Where to begin, in rows.
        words: The same in words.
        steps: How many steps to make at most.
        known: An equilibrium that may be where it goes, in rows; not a number where there is none.
    """
    z, history, moves, lengths, distances = start, [start], [], [], []
    tolerance = _SETTLED.get(start.dtype, 1e-2)
    middle, largest = start, _norms(start)
    sizes = largest + sum(
        _norms(z.nan_to_num(0.0, 0.0, 0.0)) for z in (problem.evaluate(start), known)
    )
    limit = _FAR * (1.0 + sizes)
    for step in range(1, steps + 1):
        new = problem.evaluate(z)
        lengths.append(_norms(new - z))
        size = _norms(new)
        largest = torch.maximum(largest, size)
        # one that goes to zero settles too: what it has been counts for what is small
        moves.append(lengths[-1] / torch.maximum(size, _ZERO * largest).clamp_min(_tiny(size)))
        distances.append(_norms(new - known))
        z = new
        history = [*history[-2 * _PERIODS :], z]
        if step == steps // 2:
            middle = z
        rests = (moves[-1] <= tolerance) & ~(distances[-1] > _NEAR * size)
        if bool((rests | ~(size <= limit)).all()):
            break
    several = torch.stack(moves)
    judge = _Judge(
        several.cpu(),
        torch.stack(lengths).cpu(),
        torch.stack(distances).cpu(),
        [state.cpu() for state in history],
        middle.cpu(),
        limit.cpu(),
        (newton_errors(problem, z) <= _NEAR * torch.maximum(size, _ZERO * largest)).cpu(),
        tolerance,
    )
    found = [judge.behavior(row) for row in range(len(z))]
    settled = [_settled_after(several[:, row], tolerance) for row in range(len(z))]
    return Iteration(
        words,
        tuple(behavior for behavior, _ in found),
        tuple(period for _, period in found),
        tuple(s if b == "settles" else -1 for s, (b, _) in zip(settled, found, strict=True)),
        several,
        z,
    )


def _tiny(like: Tensor) -> float:
    return float(torch.finfo(like.dtype).tiny)


def _norms(rows: Tensor) -> Tensor:
    """Lengths of rows, in float64: squares of large numbers overflow in less."""
    found: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return found


def _settled_after(moves: Tensor, tolerance: float) -> int:
    """The number of steps after which all moves were small."""
    large = (~(moves <= tolerance)).nonzero()
    return int(large[-1]) + 1 if len(large) else 0


@dataclass(frozen=True, eq=False)
class _Judge:
    """What the end of an iteration says."""

    moves: Tensor
    lengths: Tensor
    distances: Tensor
    history: list[Tensor]
    middle: Tensor
    limit: Tensor
    arrived: Tensor
    tolerance: float

    def behavior(self, row: int) -> tuple[str, int]:
        """What a sample did, and its period."""
        last, halfway = self.history[-1][row], self.middle[row]
        norm, lengths = torch.linalg.vector_norm(last), self.lengths[:, row]
        if not bool(norm <= self.limit[row]):
            return "diverges", 0
        if bool(self.moves[-1, row] <= self.tolerance):
            # small moves may be those of a slow one that is far from where it goes
            return ("settles" if bool(self.arrived[row]) else "settles slowly"), 0
        bounds = self._distance_bounds(row)
        nears = len(bounds) > 1 and bool((bounds[1:] < bounds[:-1]).all())
        period = self._period(row, float(lengths[-1]))
        if period and not (nears and _falls_steadily(bounds[:, 1])):
            return "cycles", period
        if nears:
            return "settles slowly", 0
        later = lengths[len(lengths) // 2 :]
        grows = bool(norm > 2 * torch.linalg.vector_norm(halfway))
        if grows and bool(later[-1] > 2 * later[0]):
            return "diverges", 0
        straight = torch.linalg.vector_norm(last - halfway) > _STRAIGHT * later.sum()
        return ("drifts" if bool(straight) else "wanders"), 0

    def _period(self, row: int, move: float) -> int:
        """The shortest period of the last states; zero if there is none."""
        states = torch.stack([z[row] for z in self.history])
        for period in range(2, min(_PERIODS, (len(states) - 1) // 2) + 1):
            apart = torch.linalg.vector_norm(states[period:] - states[:-period], dim=1)
            if bool((apart[-period:] <= _SAME * move).all()):
                return period
        return 0

    def _distance_bounds(self, row: int) -> Tensor:
        """The least and the largest distance from a known equilibrium, in stretches of the end.

        What nears it comes closer by both from one stretch to the next. What wanders about may be
        nearer in the end than in the middle, but not all the time.
        """
        later = self.distances[-max(len(self.distances) // 2, 2) :, row]
        stretches = later.tensor_split(min(_STRETCHES, len(later)))
        return torch.stack([torch.stack(torch.aminmax(one)) for one in stretches])


def _falls_steadily(bounds: Tensor) -> bool:
    """Whether distances fall by the same factor all the time, as those that go to zero do.

    An iteration that goes to a cycle around an equilibrium nears that too, but less and less.
    """
    factors = bounds.log().diff().neg()
    return bool(factors[-1] > _STEADY * factors[0])


@torch.no_grad()
def effective_depth(
    loop: ModelLoop,
    problem: Problem,
    start: Tensor,
    settled: Iteration,
    known: Tensor,
    tolerance: float,
) -> EffectiveDepth | None:
    """How many applications it takes until outputs are what they will be.

    Args:
        loop: The loop, with its output.
        problem: Its map.
        start: Where the iteration began.
        settled: What became of it.
        known: Equilibria that solvers have found, to a finer tolerance than an iteration ends at.
        tolerance: Of the output, relative to it.
    """
    rows = settled.settled.nonzero()[:, 0]
    if not len(rows):
        return None
    apart = _norms(known - settled.state)  # not a number where none is known
    there = (apart <= _NEAR * _norms(settled.state))[:, None]
    final = loop.output(torch.where(there, known, settled.state))[rows]
    size = torch.linalg.vector_norm(final, dim=1).clamp_min(_tiny(final))
    classes = final.argmax(1)
    z, errors, wrong = start, [], []
    least, most = max(settled.steps), 2 * len(settled.moves) + 1
    for step in range(most + 1):
        z = z if not step else problem.evaluate(z)
        now = loop.output(z)[rows]
        errors.append(torch.linalg.vector_norm(now - final, dim=1) / size)
        wrong.append(now.argmax(1) != classes)
        if step >= least and bool((errors[-1] <= tolerance).all()):
            break
    near = errors[-1] <= tolerance  # those that do not come so near have no depth
    if not bool(near.any()):
        return None
    table, misses = torch.stack(errors)[:, near], torch.stack(wrong)[:, near].to(size.dtype)
    several = final.shape[1] > 1 and loop.head is not None
    return EffectiveDepth(
        tuple(_settled_after(one, tolerance) for one in table.T),
        tuple(_settled_after(one, 0.5) for one in misses.T) if several else None,
        tolerance,
        tuple((float(row.median()), float(row.max())) for row in table),
    )
