"""Solves that recur, made at once: as many steps as the last ones took, and one look at the end.

On a GPU that is one CUDA graph. A look that finds a sample unsolved, or that cannot judge one,
leaves the whole solve to the general loop, which tells how many steps it takes.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from subprocess import SubprocessError
from threading import Lock

from torch import Tensor

from shoal.equilibrium.cuda_graphs import graphs
from shoal.equilibrium.cuda_graphs.graphs import Function, Recording, captured, place
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.limits import Limits, Pair
from shoal.equilibrium.solvers.problem import Evaluation
from shoal.equilibrium.solvers.records import Outcome
from shoal.equilibrium.solvers.solution import Solution

_LOGGER = logging.getLogger(__name__)
_AFTER = 2  # solves after which their like is worth a graph
_KINDS = 16  # of solves that are known at a time
_PAUSE = 20  # solves without another try, where it takes another method to converge
_LENGTHS = 2  # graphs of a kind, of so many steps each
_MOST = 512  # steps of a graph
_AIM = 0.7  # share of the tolerance that is aimed at
_INFORMATIVE = 1e-3  # share of it below which rounding decides

_BROKEN: list[Exception] = []  # why the kernel that judges solves cannot be had, if so

record = captured  # replaced where there is no GPU


def attempt(
    evaluate: Callable[[Tensor], Evaluation], z: Tensor, steps: int, limits: Limits
) -> tuple[Tensor, Evaluation, Tensor, Tensor]:
    """The iterate after so many steps, the map there, its residuals, and what to look at."""
    begun = evaluation = evaluate(z)
    start = z
    for _ in range(steps):
        z = evaluation.value
        evaluation = evaluate(z)
    seen, residual = _verdict(limits, (begun.value, start), (evaluation.value, z))
    return z, evaluation, residual, seen


def _verdict(limits: Limits, begun: Pair, ended: Pair) -> tuple[Tensor, Tensor]:
    """What to look at, and residuals: in one kernel where there is one that works."""
    z = ended[1]
    judge = _fused() if z.is_cuda and z.dtype.itemsize <= 4 and not _BROKEN else None
    if judge is None:
        return limits.verdict(begun, ended)
    try:
        return judge(limits, begun, ended)
    except (RuntimeError, OSError, SubprocessError) as error:  # its compiler needs others
        _LOGGER.warning("solves are judged step by step, more slowly: %s", error)
        _BROKEN.append(error)
        return limits.verdict(begun, ended)


@lru_cache(maxsize=1)
def _fused() -> Callable[[Limits, Pair, Pair], tuple[Tensor, Tensor]] | None:
    """The verdict of that kernel, where its compiler is installed."""
    try:
        from shoal.equilibrium.cuda_graphs.fused_verdict import fused_verdict
    except ImportError:
        _LOGGER.warning("triton is not installed: solves are judged step by step, more slowly")
        return None
    return fused_verdict


class Recurrence:
    """How many steps the solves of a kind take, and recordings of so many.

    Attributes:
        refused: Whether there can be none, if that has been found out.
        backward: The same of the solves of the gradient, where they are kept together.
    """

    def __init__(self) -> None:
        self.refused: bool | None = None
        self.backward: Recurrence | None = None
        self._solves, self._misses, self._steps = 0, 0, 0.0
        self._recordings: OrderedDict[int, Recording] = OrderedDict()
        self._lock = Lock()

    def run(
        self, make: Callable[[int], Function], tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor], int] | None:
        """What a solve makes of tensors, and in how many steps, or ``None`` if it must be driven.

        Args:
            make: The function that solves in so many steps, looking at :func:`attempt`'s end.
            tensors: What it is called with.
        """
        if self._solves < _AFTER or self._steps > _MOST:
            return None
        steps = max(2, 2 * math.ceil(self._steps / 2))  # few lengths, so that few are recorded
        with self._lock:
            recording = self._recordings.pop(steps, None) or self._recorded(make(steps), tensors)
            if recording is None:
                return None
            self._recordings[steps] = recording
            while len(self._recordings) > _LENGTHS:
                self._recordings.popitem(last=False)
        found, (first, last) = recording.run(tensors)
        if not last <= 1:
            self._misses += 1
            return None
        self._misses = 0
        self._aim(steps, first, last)
        return found, steps

    def _recorded(self, function: Function, tensors: Sequence[Tensor]) -> Recording | None:
        try:
            return record(function, tensors)
        except RuntimeError as error:  # solves go on as before
            _LOGGER.warning("no CUDA graph of an equilibrium: %s", error)
            self._steps = math.inf
            return None

    def _aim(self, steps: int, first: float, last: float) -> None:
        """Take more steps at once, and fewer by and by."""
        if not math.isfinite(first):  # of a row of zeros, say: no rate is known
            return
        needed, last = 1.0, max(last, _INFORMATIVE)
        if first > 1 and last < first:
            rate = math.log(first / last) / steps
            enough = math.log(first) / rate
            # a little more, but not many times as much where the rate is slow, or is rounding
            needed = enough + min(-math.log(_AIM) / rate, max(2.0, enough / 2))
        gap = needed - self._steps
        self._steps += gap if gap > 0 else gap / 4

    def learn(self, solution: Solution, *, converged: bool) -> None:
        """Note what the general loop came to."""
        if not converged or self._misses > 1:  # not to be tried in vain
            self._solves, self._misses = -_PAUSE * converged, 0
            return
        self._solves += 1
        self._steps = max(self._steps, solution.evaluations - 1)


class Recurrences:
    """The kinds of solves that came last; their graphs live as long as this, or until cleared."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Recurrence] = OrderedDict()
        self._last: tuple[Hashable, Recurrence] | None = None
        self._lock = Lock()

    def __reduce__(self) -> "tuple[type[Recurrences], tuple[()]]":
        """Copies know nothing: weights are elsewhere."""
        return Recurrences, ()

    def clear(self) -> None:
        """Know nothing, and free the memory of all graphs."""
        with self._lock:
            self._known.clear()
            self._last = None

    def of(self, kind: Hashable) -> Recurrence:
        """What is known of a kind."""
        last = self._last
        if last is not None and last[0] == kind:  # mostly they come in a row
            return last[1]
        with self._lock:
            found = self._known.pop(kind, None) or Recurrence()
            self._known[kind] = found
            self._last = kind, found
            while len(self._known) > _KINDS:
                self._known.popitem(last=False)
        return found


@dataclass(frozen=True, eq=False)
class Recurring:
    """A solve of a kind that recurs.

    Attributes:
        recurrence: What is known of the kind.
        make: The function that makes it in so many steps.
        tensors: What that is called with.
        outcome: What its tensors and the number of steps come to.
    """

    recurrence: Recurrence
    make: Callable[[int], Function]
    tensors: Sequence[Tensor]
    outcome: Callable[[list[Tensor], int], Outcome]

    def run(self) -> Outcome | None:
        """Make it at once, if that is known to do."""
        found = self.recurrence.run(self.make, self.tensors)
        return None if found is None else self.outcome(*found)

    def learn(self, outcome: Outcome) -> None:
        """Note what the general loop came to."""
        self.recurrence.learn(outcome.solution, converged=outcome.converged)


def recurring(
    form: Callable[..., tuple[tuple[Tensor, ...], Tensor]],
    solver: Solver,
    changing: Sequence[Tensor],
    weights: Sequence[Tensor],
    outcome: Callable[[list[Tensor], int], Outcome],
    known: Recurrences,
) -> Recurring | None:
    """A solve as one of its kind, or ``None`` if there is no making it at once.

    Args:
        form: Called with a number of steps, limits, ``changing`` and ``weights``; hashable, and
            depends on nothing else. Returns tensors, and what to look at.
        solver: The method.
        changing: Tensors that differ between solves; the first is like the state.
        weights: Tensors that keep their places.
        outcome: What the form's tensors and the number of steps come to.
        known: What is known of such solves.
    """
    if not graphs.can_record(*changing, *weights):
        return None
    recurrence = known.of((form, solver, place(changing, weights)))

    def make(steps: int) -> Function:
        limits = Limits.of(solver, changing[0].shape[1], changing[0].dtype)
        return lambda *own: form(steps, limits, *own, *weights)

    return Recurring(recurrence, make, changing, outcome)
