"""Fixed-point problems, as solvers see them: a map on rows of numbers, one row per sample."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.torch_internals import vjp

__all__ = ["Evaluation", "FunctionProblem", "Problem", "sizes"]


class Evaluation(NamedTuple):
    """The map at a point.

    Attributes:
        value: $f(z)$; shape (samples, size).
        kept: What the problem wants to have at the solution, one row per sample, or ``None``.
    """

    value: Tensor
    kept: Tensor | None = None


def sizes(residual: Tensor) -> Tensor:
    """The largest entry of each row, one for zeros; shape (samples, 1).

    Methods that form squares divide by the sizes of the first residuals: they would overflow or
    vanish otherwise, in float32 beyond 1e19 and below 1e-19.
    """
    largest: Tensor = torch.linalg.vector_norm(residual, torch.inf, dim=1, keepdim=True)
    return torch.where(largest > 0, largest, 1.0)


class Problem(ABC):
    """A map whose fixed point is wanted for each row."""

    @abstractmethod
    def evaluate(self, z: Tensor) -> Evaluation:
        """The map at ``z``, of shape (samples, size)."""

    @abstractmethod
    def jacobian_product(self, z: Tensor, tangent: Tensor) -> Tensor:
        """The derivative of the map at ``z`` in the direction ``tangent``, for each row."""

    def coarse(self, z: Tensor, evaluation: Evaluation, steps: int) -> Tensor | None:  # noqa: ARG002
        """Some steps of an approximation of the map that agrees with it at ``z``, from there.

        Args:
            z: Where the map was evaluated.
            evaluation: What came out; the first step is to its value.
            steps: How many more to make.

        Returns:
            The last iterate, or ``None`` if there is no such approximation.
        """
        return None

    @property
    def coarse_steps(self) -> int:
        """How many such steps pay; zero if none does."""
        return 0

    @abstractmethod
    def packing_pays(self, dropped: int) -> bool:
        """Whether it can go on without so many samples, and is the faster for it."""

    @abstractmethod
    def rows(self, index: Tensor) -> "Problem":
        """The problem of some samples alone."""


class FunctionProblem(Problem):
    r"""The problem of a user's function.

    Args:
        function: Takes $z$ of shape (samples, \*shape), the inputs and the parameters.
        shape: The shape of one sample.
        inputs: Tensors with one entry per sample.
        parameters: Tensors that all samples share.
        separable: Whether the function may be called for some of the samples alone.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        shape: torch.Size,
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        *,
        separable: bool,
    ) -> None:
        self.function, self.shape, self.separable = function, shape, separable
        self.inputs, self.parameters = tuple(inputs), tuple(parameters)

    def evaluate(self, z: Tensor) -> Evaluation:
        """Call the function, and see that it returns what it was given."""
        given = z.view(len(z), *self.shape)
        if given.is_inference():  # those have no version that would tell of a change
            given = given.clone()
        version = None if given.is_inference() else given._version
        value = self.function(given, *self.inputs, *self.parameters)
        if version is not None and given._version != version:
            raise ValueError(
                "f must not change z in place, got a function that does; use z.clone()"
            )
        if not isinstance(value, Tensor) or value.shape != given.shape:
            kind = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"f must return a tensor of shape {tuple(given.shape)}, got {kind}")
        if value.dtype != z.dtype:
            raise TypeError(f"f must return dtype {z.dtype} for a z of it, got {value.dtype}")
        return Evaluation(value.reshape(z.shape))

    def jacobian_product(self, z: Tensor, tangent: Tensor) -> Tensor:
        r"""As the derivative of $g \mapsto J^\top g$, so that reverse mode suffices."""
        _, pull = vjp(lambda t: self.evaluate(t).value, z)
        _, push = vjp(lambda g: pull(g)[0], torch.zeros_like(z))
        return push(tangent)[0]

    def packing_pays(self, dropped: int) -> bool:  # noqa: ARG002
        """Whether it can: what a call costs is not known."""
        return self.separable

    def rows(self, index: Tensor) -> "FunctionProblem":
        """The inputs' rows; the parameters stay."""
        inputs = [t.index_select(0, index) for t in self.inputs]
        return FunctionProblem(self.function, self.shape, inputs, self.parameters, separable=True)
