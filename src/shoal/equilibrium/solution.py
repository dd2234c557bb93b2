"""The result of a solve: a status for each sample, its meaning, and the response to failures."""

import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.core.checks import one_of
from shoal.core.exceptions import ConvergenceError, ConvergenceWarning
from shoal.core.torch_compat import is_wrapped, physical, pytree

OnFailure = Literal["raise", "warn", "status"]
_OURS = ("shoal.", "torch.", "contextlib")  # modules of calls that users have not written
_SHOWN = 5  # failed samples that a message names
_ROUNDED = 300.0  # units of rounding within which a residual may be nothing else


class Status(IntEnum):
    """How the solve of one sample ended.

    Example:
        >>> from shoal.equilibrium import Status
        >>> Status.STAGNATED.message
        'the residual stopped falling'
    """

    CONVERGED = 0
    OUT_OF_STEPS = 1
    DIVERGED = 2
    NOT_FINITE = 3
    STAGNATED = 4

    @property
    def message(self) -> str:
        """What happened."""
        return _MESSAGES[self]

    @property
    def remedy(self) -> str:
        """What to try, the most certain first."""
        return remedies(self)


_MESSAGES = {
    Status.CONVERGED: "the residual met the tolerance",
    Status.OUT_OF_STEPS: "max_steps was reached before the residual met the tolerance",
    Status.DIVERGED: "the residual or the iterate grew without bound",
    Status.NOT_FINITE: "the map returned NaN or infinity",
    Status.STAGNATED: "the residual stopped falling",
}
_BOUNDED = (
    "keep the norms of recurrent weights that are trained small (GainConstraint; below one is "
    "enough unless the cell adds its state to its result), or the Jacobian (jacobian_penalty)"
)
_STEPS, _TOLERANCE = "more steps (max_steps)", "a larger rtol, or float64"
_SOLVERS = {  # the most able first
    "NewtonKrylov": "the solver NewtonKrylov(), which needs no contraction",
    "Broyden": "the solver Broyden()",
    "Anderson": "the solver Anderson()",
}


def remedies(status: Status, *, tried: Collection[str] | None = (), rounded: bool = False) -> str:
    """What helps, the most certain first.

    Args:
        status: How the solve ended.
        tried: The names of solvers that have failed; ``None`` if another one would not be taken.
        rounded: Whether the residual is not far above the rounding of its dtype.
    """
    if status == Status.CONVERGED:
        return "nothing to do"
    if status == Status.NOT_FINITE:
        return "check the inputs and the weights for NaN, infinity and overflow"
    names = [] if tried is None else [name for name in _SOLVERS if name not in tried]
    solvers = [_SOLVERS[name] for name in names[:1]]
    if status == Status.DIVERGED:
        cures = [_BOUNDED, *solvers]
    elif status == Status.OUT_OF_STEPS:
        cures = [_STEPS, *solvers, _BOUNDED, _TOLERANCE]
    else:
        cures = [_TOLERANCE, *solvers] if rounded else [_BOUNDED, *solvers, _TOLERANCE]
    return "; ".join(f"({number}) {text}" for number, text in enumerate(cures, 1))


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    r"""A fixed point for each sample, or the best iterate.

    Attributes:
        value: $z$, of shape (samples, ...); of samples that failed, the iterate of least residual.
        status: A :class:`Status` per sample, as an int8 tensor.
        residual: $\|f(z) - z\|$ per sample, of the very ``value`` that is returned.
        steps: How many steps each sample took.
        evaluations: How often the map, a cheaper approximation of it, or a product with its
            Jacobian was evaluated for the batch.
        note: What else to know about how it went; mostly nothing.
        log: Where the outcomes of backward passes through ``value`` are written, if it has any.
    """

    value: Tensor
    status: Tensor
    residual: Tensor
    steps: Tensor
    evaluations: int
    note: str = ""
    log: "SolveLog | None" = None

    def on_host(self) -> "Solution":
        """This solution without transforms: samples that are mapped over are rows like others."""
        if not is_wrapped(self.status):
            return self
        status, residual, steps = map(physical, (self.status, self.residual, self.steps))
        value = physical(self.value, 1)
        return replace(self, value=value, status=status, residual=residual, steps=steps)

    def with_value(self, value: Any, log: "SolveLog | None" = None) -> "Solution":
        """This solution with another value."""
        facts = self.status, self.residual, self.steps, self.evaluations, self.note
        return Solution(value, *facts, log)

    @property
    def adjoint(self) -> "Solution | None":
        """How the last backward pass through ``value`` ended; ``None`` before there was one."""
        return None if self.log is None else self.log.backward

    @property
    def converged(self) -> Tensor:
        """Which samples met the tolerance, as a bool tensor."""
        return self.status == Status.CONVERGED

    @property
    def failures(self) -> dict[Status, int]:
        """How many samples failed, by how they did; empty if all converged."""
        counts = torch.bincount(self.status.long(), minlength=len(Status)).tolist()
        return {s: counts[s] for s in Status if s != Status.CONVERGED and counts[s]}

    def __repr__(self) -> str:
        """One line, without the values."""
        converged = int(self.converged.sum())
        steps = int(self.steps.max()) if len(self.steps) else 0
        return (
            f"Solution({converged} of {len(self.status)} samples converged, "
            f"at most {steps} steps, largest residual {_largest(self.residual):.1e}"
            + (f"; {self.note})" if self.note else ")")
        )

    def explain(self, *, tried: Collection[str] | None = ()) -> str:
        """Say for each kind of failure what happened, to which samples, and what to try.

        Args:
            tried: The names of solvers that are not to be recommended; ``None`` for all of them.
        """
        return "\n".join(self._lines(tried)) or "all samples converged"

    def _lines(self, tried: Collection[str] | None) -> Iterator[str]:
        if self.note:
            yield f"{self.note}."
        for status, count in self.failures.items():
            where = (self.status == status).nonzero()[:, 0]
            named = ", ".join(map(str, where[:_SHOWN].tolist())) + (", ..." * (count > _SHOWN))
            finest = _ROUNDED * torch.finfo(self.residual.dtype).eps * self._sizes()[where]
            rounded = bool((self.residual[where] <= finest).all())
            yield (
                f"{count} of {len(self.status)} samples ({named}): {status.message} "
                f"(largest residual {_largest(self.residual[where]):.1e} after "
                f"{int(self.steps[where].max())} steps). What helps, in this order: "
                f"{remedies(status, tried=tried, rounded=rounded)}."
            )
        if Status.STAGNATED in self.failures and _rounds(self.residual):
            yield (
                "On this GPU convolutions may be rounded to 10 bits (TF32), so that no residual "
                'falls below 1e-4: torch.backends.cudnn.conv.fp32_precision = "ieee" prevents that.'
            )

    def _sizes(self) -> Tensor:
        """The norm of each sample's value, of all tensors of a tree."""
        leaves = pytree.tree_leaves(self.value)
        flat = [leaf.detach().reshape(len(self.residual), -1).double() for leaf in leaves]
        sizes: Tensor = torch.linalg.vector_norm(torch.cat(flat, 1), dim=1)
        return sizes


@dataclass(eq=False)
class SolveLog:
    """The outcomes of forward and backward solves: the last of each, and all failures counted.

    Attributes:
        forward: The last forward solve.
        backward: The last backward solve.
        once: Whether to speak of each kind of failure only once.
        solves: How many solves there were, by pass.
        samples: How many samples they had.
        failures: How many of these failed, by pass and by how they did.
        said: The number of the solve after which a failure was reported last, by pass.
    """

    forward: Solution | None = None
    backward: Solution | None = None
    once: bool = False
    solves: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Counter[Status]] = field(
        default_factory=lambda: {"forward": Counter(), "backward": Counter()}
    )
    said: Counter[str] = field(default_factory=Counter)

    def keep(self, where: str, solution: Solution, *, converged: bool) -> bool:
        """Log an outcome; returns whether to report it.

        Failures of a kind that was reported before are reported again while more than half of all
        samples fail, each time after ten times as many solves.

        Args:
            where: ``"forward"`` or ``"backward"``.
            solution: The outcome, without a graph.
            converged: Whether all samples converged.
        """
        setattr(self, where, solution)
        self.solves[where] += 1
        self.samples[where] += len(solution.residual)
        if converged:
            return bool(solution.note)
        kinds, counts = solution.failures, self.failures[where]
        new = not self.once or any(kind not in counts for kind in kinds)
        counts.update(kinds)
        often = counts.total() > self.samples[where] / 2
        if new or (often and self.solves[where] >= 10 * self.said[where]):
            self.said[where] = self.solves[where]
            return True
        return False

    def __str__(self) -> str:
        """A line for each pass."""
        return "\n".join(map(self._line, ("forward", "backward")))

    def _line(self, where: str) -> str:
        solves, samples, failed = self.solves[where], self.samples[where], self.failures[where]
        if not solves:
            return f"{where}: no solves"
        many = f"{solves} solve" + "s" * (solves > 1)
        if not failed:
            return f"{where}: {many}, all {samples} samples converged"
        kinds = ", ".join(
            f"{n} {kind.name.lower().replace('_', ' ')}" for kind, n in failed.items()
        )
        return f"{where}: {many}, {failed.total()} of {samples} samples failed ({kinds})"


class LastSolution:
    """The last solution of a layer, from which the next solve may start.

    Attributes:
        value: The solution, in rows, if there is one.
        scope: The context of the calls of the cell.
    """

    def __init__(self) -> None:
        self.value: Tensor | None = None
        self.scope: Any = None

    def choose_start(self, start: Tensor) -> Tensor:
        """The last solution, if it has a start's shape, dtype and device; else the start."""
        last = self.value
        kind = (start.shape, start.dtype, start.device)
        if last is None or is_wrapped(start) or (last.shape, last.dtype, last.device) != kind:
            return start
        return last

    def keep(self, solution: Solution) -> None:
        """Remember a solution; none if a sample has failed, or in a transform."""
        forget = is_wrapped(solution.value) or bool((solution.status != Status.CONVERGED).any())
        self.value = None if forget else solution.value.detach().clone()


def _rounds(tensor: Tensor) -> bool:
    """Whether convolutions are rounded to TF32 where a tensor is."""
    rounded = torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return rounded and tensor.is_cuda and tensor.dtype == torch.float32


def _largest(residual: Tensor) -> float:
    """The largest residual, NaN if there is one."""
    return float(residual.max()) if residual.numel() else 0.0


def check_on_failure(value: str) -> OnFailure:
    """Return ``value`` if it is a way to treat failures, or list them."""
    one_of("on_failure", value, ("raise", "warn", "status"))
    return value  # type: ignore[return-value]


def handle_failure(
    solution: Solution, on_failure: OnFailure, what: str, *, tried: Collection[str] | None = ()
) -> None:
    """Raise or warn if a sample has not converged, as ``on_failure`` says; warn of a note.

    Args:
        solution: The outcome of a solve.
        on_failure: ``"raise"``, ``"warn"`` or ``"status"`` (the caller looks at the status).
        what: Subject of the message.
        tried: The names of the solvers that were used; ``None`` if another one would not be taken.
    """
    converged = bool(solution.converged.all())
    if on_failure == "status" or (converged and not solution.note):
        return
    verdict = "may not have converged" if converged else "did not converge"
    text = f"{what} {verdict}.\n{solution.explain(tried=tried)}"
    if on_failure == "raise" and not converged:
        text += '\nWith on_failure="warn" it goes on with the iterates of least residual.'
        raise ConvergenceError(text, solution=solution)
    warnings.warn(text, ConvergenceWarning, stacklevel=_levels_outside())


def _levels_outside() -> int:
    """How many calls up from here a warning is to be shown: at the first line that is not ours."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame, level = frame.f_back, level + 1
    return level
