"""What all solvers have in common: tolerances, and one method that makes a step."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from shoal.core.checks import integer, real
from shoal.equilibrium.solvers.problem import Evaluation, Problem

State = Any  # of a solver's own making; tensors in it have one row per sample
_S = TypeVar("_S", bound="Solver")

_RTOL = {torch.float64: 1e-12, torch.float32: 1e-6}
_COARSE = 1e-2  # for dtypes of eight to eleven bits
_ATOL = 1e-3  # of the relative tolerance: what counts as zero for features of order one


@dataclass(frozen=True)
class Solver(ABC):
    r"""A method that finds fixed points, as an immutable value.

    A sample has converged when $\|f(z) - z\| \le$ ``atol`` + ``rtol`` $\|z\|$, with Euclidean
    norms. By this definition a map without a fixed point whose residual tends to zero converges as
    well. Subclasses are final; the driver owns the loop, the solver only its step.

    Args:
        rtol: The relative tolerance; by default 1e-12 in float64, 1e-6 in float32 and 1e-2 in half
            precision.
        atol: The absolute tolerance; by default a thousandth of ``rtol``, times the size of the
            start or of its residual, whichever is larger, where that is below one.
        max_steps: After how many steps a sample counts as out of steps.
    """

    rtol: float | None = field(default=None, kw_only=True)
    atol: float | None = field(default=None, kw_only=True)
    max_steps: int = field(default=200, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.rtol is not None:
            object.__setattr__(self, "rtol", real("rtol", self.rtol, at_least=0, below=1))
        if self.atol is not None:
            object.__setattr__(self, "atol", real("atol", self.atol, at_least=0))
        object.__setattr__(self, "max_steps", integer("max_steps", self.max_steps, at_least=1))

    @property
    def steady(self) -> bool:
        """Whether the residual falls at a steady rate, so that the end can be foreseen."""
        return False

    def follows_map(self, problem: Problem) -> bool | None:  # noqa: ARG002
        """Whether solves by steps to the map's values may be CUDA graphs; ``None`` if others."""
        return None

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """The relative and the absolute tolerance for iterates of a dtype, of the order of one."""
        rtol = _RTOL.get(dtype, _COARSE) if self.rtol is None else self.rtol
        return rtol, _ATOL * rtol if self.atol is None else self.atol

    def with_tolerances(self: _S, rtol: float | None, atol: float | None) -> _S:
        """This method with other tolerances."""
        return replace(self, rtol=rtol, atol=atol)

    @abstractmethod
    def init(self, z: Tensor) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(
        self, problem: Problem, state: State, z: Tensor, evaluation: Evaluation, excess: float
    ) -> tuple[Tensor, State, int]:
        """The next iterate and state, and how many more evaluations that took.

        Args:
            problem: The map.
            state: From ``init`` or the previous step.
            z: The iterate; shape (samples, size).
            evaluation: The map there.
            excess: By what factor the worst sample was off when the driver last looked.
        """


def select(state: State, index: Tensor) -> State:
    """A state of some of the samples."""
    if isinstance(state, Tensor):
        return state.index_select(0, index)
    if isinstance(state, list | tuple):
        return type(state)(select(part, index) for part in state)
    if hasattr(state, "__dataclass_fields__"):
        return replace(
            state, **{f.name: select(getattr(state, f.name), index) for f in fields(state)}
        )
    return state
