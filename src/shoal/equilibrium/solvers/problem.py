"""Fixed-point problems, as solvers see them: a map on rows of numbers, one row per sample."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from shoal.core.torch_compat import (
    is_transformed,
    kept_as_they_are,
    point_at,
    pytree,
    version,
    vjp,
    without_fused_attention,
)
from shoal.equilibrium.solvers.state import State, StateLayout

if TYPE_CHECKING:
    from shoal.equilibrium.cuda_graphs.recurring import Recurrences, Recurring
    from shoal.equilibrium.solvers.base import Solver

Product = Callable[[Tensor], Tensor]


class Evaluation(NamedTuple):
    """The map at a point.

    Attributes:
        value: $f(z)$; shape (samples, size).
        kept: What the problem wants to have at the solution, one row per sample, or ``None``.
    """

    value: Tensor
    kept: Tensor | None = None


class Linearization(ABC):
    """The map near a point, differentiable in all that the map depends on.

    Attributes:
        z: The point.
        has_formulas: Whether it knows its partial derivatives by all of its problem's tensors.
        may_mix: Whether samples may depend on each other, for all that is known.
    """

    z: Tensor
    has_formulas = False
    may_mix = False

    @property
    @abstractmethod
    def value(self) -> Tensor:
        """$f(z)$."""

    @abstractmethod
    def pull(self, g: Tensor) -> Tensor:
        r"""$J^\top g$."""

    @abstractmethod
    def push(self, k: Tensor) -> Tensor:
        """$J k$."""

    def packing_pays(self, dropped: int) -> bool:  # noqa: ARG002
        """Whether its equations can go on without so many samples, and are the faster for it."""
        return False

    def rows(self, index: Tensor) -> "Linearization":
        """The problem of some of the samples alone."""
        raise NotImplementedError

    def partials(self, g: Tensor, needed: Sequence[bool]) -> list[Tensor | None]:
        """Cotangents of the tensors that the problem is made of, where there are formulas.

        Args:
            g: A cotangent of the value.
            needed: Which of them are wanted; the others get ``None``.
        """
        raise NotImplementedError

    def adjoint(self, right: Tensor) -> "LinearProblem":
        r"""The equation $g = v + J^\top g$."""
        return LinearProblem(self, right, adjoint=True)

    def tangent(self, right: Tensor) -> "LinearProblem":
        """The equation $k = c + J k$."""
        return LinearProblem(self, right, adjoint=False)


def largest_entries(rows: Tensor) -> Tensor:
    """The largest absolute value in each row; shape (samples, 1).

    On a CPU the norm of infinite order takes ten times as long.
    """
    return rows.abs().amax(1, keepdim=True)


def sizes(residual: Tensor) -> Tensor:
    """The largest entry of each row, one for zeros; shape (samples, 1).

    Methods that form squares divide by the sizes of the first residuals: they would overflow or
    vanish otherwise, in float32 beyond 1e19 and below 1e-19.
    """
    largest = largest_entries(residual)
    return torch.where(largest > 0, largest, 1.0)


def row_sizes(right: Tensor) -> tuple[Tensor, Tensor]:
    """The largest entry of each row, never zero, and whether it is finite; (samples, 1)."""
    size = largest_entries(right)
    return size.clamp_min(torch.finfo(right.dtype).tiny), size.isfinite()


def is_wide(size: Tensor, finite: Tensor) -> Tensor:
    """Whether squares of the smallest rows vanish beside the largest one, of size one.

    Args:
        size: From :func:`row_sizes`, like the next.
        finite: Which of them count; rows of zeros do not.
    """
    info = torch.finfo(size.dtype)
    counted = finite & (size > info.tiny)
    least = size.masked_fill(~counted, torch.inf).amin()
    return least < math.sqrt(info.tiny / info.eps) * size.masked_fill(~counted, 0.0).amax()


class Problem(ABC):
    """A map whose fixed point is wanted for each row."""

    @abstractmethod
    def evaluate(self, z: Tensor) -> Evaluation:
        """The map at ``z``, of shape (samples, size)."""

    def evaluate_to_look(self, z: Tensor) -> tuple[Evaluation, Linearization | None]:
        """The map at an iterate that may be the last one, and near it if that comes with it."""
        return self.evaluate(z), None

    def recurring(
        self, solver: "Solver", start: Tensor | None, known: "Recurrences"
    ) -> "Recurring | None":
        """This solve as one of a kind that may be made at once; ``None`` if it may not."""
        del solver, start, known
        return None

    @property
    def evaluations_per_look(self) -> int:
        """How many evaluations take as long as a look of the host at where the iterates are."""
        return 0

    @abstractmethod
    def linearize(self, z: Tensor, kept: Tensor | None = None) -> Linearization:
        """The map near ``z``.

        Args:
            z: The point.
            kept: What an evaluation there has kept, if there was one.
        """

    def derivative_at(self, z: Tensor) -> Product:
        """The derivative of the map at ``z``, as a function of the direction, for each row."""
        with without_fused_attention():
            return self.linearize(z).push

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

    def packing_pays(self, dropped: int) -> bool:  # noqa: ARG002
        """Whether it can go on without so many samples, and is the faster for it."""
        return False

    def rows(self, index: Tensor) -> "Problem":
        """The problem of some samples alone."""
        raise NotImplementedError

    @property
    def may_mix(self) -> bool:
        """Whether samples may depend on each other, for all that is known."""
        return False


class FunctionProblem(Problem):
    r"""The problem of a function or a module.

    Args:
        function: Takes the state, the inputs and the parameters; returns a state.
        layout: How states lie in rows.
        inputs: Trees of tensors, and whatever else the function takes.
        parameters: Tensors that all samples share.
        separable: Whether the function may be called for some of the samples alone: with their
            rows of the state and of all tensors among the inputs.
        scope: Makes the context in which the function is called.
        cast: Whether it may return another dtype than it was given.
    """

    def __init__(
        self,
        function: Callable[..., State],
        layout: StateLayout,
        inputs: Sequence[Any] = (),
        parameters: Sequence[Tensor] = (),
        *,
        separable: bool = False,
        scope: Callable[[], AbstractContextManager[Any]] = nullcontext,
        cast: bool = False,
    ) -> None:
        self.function, self.layout, self.separable = function, layout, separable
        self.inputs, self.parameters = tuple(inputs), tuple(parameters)
        self.scope, self.cast = scope, cast
        self.is_followed = False  # whether it will be linearized at the solution
        self._watched = [  # tensors of inference mode have no version that would tell of a change
            t
            for t in pytree.tree_leaves(self.inputs)
            if isinstance(t, Tensor) and not t.is_inference()
        ]

    @property
    def may_mix(self) -> bool:
        """Whether the function is not known to take some samples alone."""
        return not self.separable

    def evaluate_to_look(self, z: Tensor) -> tuple[Evaluation, Linearization | None]:
        """One evaluation, whose graph serves the gradient if the iterate is the solution."""
        if not self.is_followed or is_transformed(z):
            return self.evaluate(z), None
        try:
            # one evaluation, whatever is done to more
            near = kept_as_they_are(lambda: self.linearize(point_at(z)))
        except RuntimeError:
            self.evaluate(z.clone())  # which says better what is wrong with a function in place
            raise
        return Evaluation(near.value.detach()), near

    def evaluate(self, z: Tensor) -> Evaluation:
        """Call the function, and see that it returns what it was given."""
        if z.is_inference():
            z, watched = z.clone(), self._watched
        else:
            watched = [z, *self._watched]
        versions = [version(t) for t in watched]
        with self.scope():
            value = self.function(self.layout.state(z), *self.inputs, *self.parameters)
        for tensor, before in zip(watched, versions, strict=True):
            if version(tensor) != before:
                changed = "z" if tensor is z else "its inputs"
                raise ValueError(
                    f"f must not change {changed} in place, got a function that does; use clone()"
                )
        return Evaluation(self.layout.returned(value, z, cast=self.cast))

    def linearize(self, z: Tensor, kept: Tensor | None = None) -> Linearization:  # noqa: ARG002
        """One evaluation, whose graph is kept."""
        return FunctionLinearization(self, z)

    def packing_pays(self, dropped: int) -> bool:  # noqa: ARG002
        """Whether it can: what a call costs is not known. Random numbers depend on the shape."""
        return self.separable and not getattr(self.scope, "random", False)

    def rows(self, index: Tensor) -> "FunctionProblem":
        """The inputs' rows; the parameters stay."""
        inputs = pytree.tree_map_only(Tensor, lambda t: t.index_select(0, index), self.inputs)
        return FunctionProblem(
            self.function,
            self.layout,
            inputs,
            self.parameters,
            separable=True,
            scope=self.scope,
            cast=self.cast,
        )


class FunctionLinearization(Linearization):
    r"""A linearization by reverse mode alone: $Jk$ is the derivative of $g \mapsto J^\top g$."""

    def __init__(self, problem: FunctionProblem, z: Tensor) -> None:
        self.problem, self.z = problem, z
        self._value, self._pull = vjp(lambda t: problem.evaluate(t).value, z)
        self._push: Product | None = None
        self.may_mix = len(z) > 1 and not problem.separable

    @property
    def value(self) -> Tensor:
        """The map at the point."""
        return self._value

    def pull(self, g: Tensor) -> Tensor:
        r"""$J^\top g$, by autograd."""
        return self._pull(g)

    def push(self, k: Tensor) -> Tensor:
        r"""$Jk$, by differentiating $J^\top g$ by autograd."""
        if self._push is None:
            _, self._push = vjp(self._pull, torch.zeros_like(self.z))
        return self._push(k)

    def packing_pays(self, dropped: int) -> bool:
        """Whether it does for the map."""
        return self.problem.packing_pays(dropped)

    def rows(self, index: Tensor) -> Linearization:
        """The linearization at some samples, by another evaluation."""
        return self.problem.rows(index).linearize(self.z.index_select(0, index))


class LinearProblem(Problem):
    r"""$g = c + Mg$, where $M$ is the Jacobian of another map, or its transpose.

    Args:
        near: The other map near a point.
        right: $c$, of shape (samples, size).
        adjoint: Whether it is the transpose.
    """

    def __init__(self, near: Linearization, right: Tensor, *, adjoint: bool) -> None:
        self.near, self.right, self.adjoint = near, right, adjoint

    def with_right(self, right: Tensor) -> "LinearProblem":
        """The equation with another right-hand side."""
        return type(self)(self.near, right, adjoint=self.adjoint)

    def product(self, g: Tensor) -> Tensor:
        """$M g$."""
        return self.near.pull(g) if self.adjoint else self.near.push(g)

    @property
    def may_mix(self) -> bool:
        """Whether they may in the map."""
        return self.near.may_mix

    def evaluate(self, z: Tensor) -> Evaluation:
        """One product."""
        return Evaluation(self.right + self.product(z))

    def linearize(self, z: Tensor, kept: Tensor | None = None) -> Linearization:  # noqa: ARG002
        """The linearization of a linear map: its own."""
        return _LinearMap(self, z)

    def derivative_at(self, z: Tensor) -> Product:  # noqa: ARG002
        """The product."""
        return self.product

    def packing_pays(self, dropped: int) -> bool:
        """Whether it does for the map."""
        return self.near.packing_pays(dropped)

    def rows(self, index: Tensor) -> "LinearProblem":
        """The equations of some samples, with a linearization of their own."""
        right = self.right.index_select(0, index)
        return LinearProblem(self.near.rows(index), right, adjoint=self.adjoint)


class _LinearMap(Linearization):
    """The map of a linear equation near a point: itself."""

    def __init__(self, problem: LinearProblem, z: Tensor) -> None:
        self.problem, self.z, self.may_mix = problem, z, problem.near.may_mix
        self._value = problem.evaluate(z).value

    @property
    def value(self) -> Tensor:
        """The map at the point."""
        return self._value

    def pull(self, g: Tensor) -> Tensor:
        """The product with the transpose, which is the other one of the two."""
        near = self.problem.near
        return near.push(g) if self.problem.adjoint else near.pull(g)

    def push(self, k: Tensor) -> Tensor:
        """The product."""
        return self.problem.product(k)
