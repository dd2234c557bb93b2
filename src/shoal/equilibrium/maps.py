"""Maps and the tensors that they are made of, given or found."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from shoal.core.closures import HeldModules, Replaced, Uses
from shoal.core.torch_compat import (
    is_transformed,
    is_wrapped,
    next_operation,
    outside_tensors,
    pytree,
)
from shoal.equilibrium.solvers.problem import (
    Evaluation,
    FunctionProblem,
    Linearization,
    LinearProblem,
    Problem,
)
from shoal.equilibrium.solvers.state import StateLayout


class Map(Protocol):
    """A map, as what of it is not a tensor: with its tensors, it is a problem."""

    def problem(self, *tensors: Tensor) -> Problem:
        """The problem of finding its fixed points."""
        ...


@dataclass(frozen=True, eq=False)
class OfFunction:
    """The map of a function, which may use tensors that it is not given.

    Attributes:
        given: The problem.
        held: The modules that it uses, as they are now.
        used: Tensors to differentiate by, given or not.
        hidden: Whether it uses others that could not be found.
    """

    given: FunctionProblem
    held: HeldModules
    used: tuple[Tensor, ...] = ()
    hidden: bool = False

    @classmethod
    def now(cls, given: FunctionProblem) -> "OfFunction":
        """The map of a function as it is now."""
        return cls(given, HeldModules(given.function))

    @property
    def has_leaves_alone(self) -> bool:
        """Whether it is differentiated by known tensors, none of which depends on another."""
        return bool(self.used) and all(tensor.is_leaf for tensor in self.used)

    def problem(self, *tensors: Tensor) -> Problem:
        """The problem with other tensors instead of those that were found."""
        if not self.used:
            return self.given
        others = {id(own): tensor for own, tensor in zip(self.used, tensors, strict=True)}
        given, scope, held = self.given, self.given.scope, self.held
        leaves = pytree.tree_leaves((given.inputs, given.parameters))
        free = {id(tensor) for tensor in (*leaves, *held.tensors)}

        def replaced(*arguments: Any) -> Any:
            with held(others), Replaced(others) as uses:
                value = uses.instead(given.function(*uses.instead(arguments)))
            # those of modules and inputs need not be used everywhere
            if uses.hidden or (uses.missed and uses.missed.difference(free)):
                raise RuntimeError(
                    "f must be the same function in the backward pass, got one that no longer "
                    "uses the same tensors; make it a module, or pass the tensors in `inputs`, and "
                    "take no derivative by them inside"
                )
            return value

        return FunctionProblem(
            replaced,
            given.layout,
            given.inputs,
            given.parameters,
            scope=scope,
            cast=given.cast,
        )

    def with_tensors(self, start: Tensor) -> "tuple[Map, tuple[Tensor, ...]]":
        """This map, and the tensors that it must be given where transforms are at work."""
        if not is_transformed(start):
            return self, ()
        return self.also_at(start)

    def also_at(self, z: Tensor) -> "tuple[OfFunction, tuple[Tensor, ...]]":
        """This map with the tensors that it uses at a point, and those that its modules have."""
        own = (t for t in self.held.tensors if t.requires_grad or is_wrapped(t))
        several = {id(tensor): tensor for tensor in (*self.used, *self._uses(z), *own)}
        used = tuple(several.values())
        return replace(self, used=used), used

    def seen(
        self, value: Tensor, point: Tensor, since: int
    ) -> "tuple[OfFunction, tuple[Tensor, ...]]":
        """This map with the tensors that autograd follows into the function, given or not.

        Args:
            value: The function's value at a point.
            point: The point.
            since: The number of the first operation of that evaluation.
        """
        given = pytree.tree_leaves((self.given.inputs, self.given.parameters))
        known = [leaf for leaf in (*given, *self.held.tensors) if isinstance(leaf, Tensor)]
        found = outside_tensors(value, point, known, since)
        if found is None:  # some are neither leaves nor given: look for them where they are used
            found = outside_tensors(value, point, self._uses(point.detach()), since)
        return replace(self, used=found or (), hidden=found is None), found or ()

    def differentiated(self, z: Tensor) -> "tuple[OfFunction, tuple[Tensor, ...]]":
        """This map with the tensors that autograd follows, found by an evaluation."""
        if self.used or not torch.is_grad_enabled():
            return self, self.used
        point, since = z.detach().requires_grad_(), next_operation()
        found, tensors = self.seen(self.given.evaluate(point).value, point, since)
        if found.hidden:
            raise TypeError(
                "f uses a tensor that requires a gradient but is not among its arguments, in an "
                "operation that cannot be looked into; pass it in `inputs`, or use Implicit()"
            )
        return found, tensors

    def _uses(self, z: Tensor) -> tuple[Tensor, ...]:
        given = self.given
        state = given.layout.state(z)
        uses = Uses(pytree.tree_leaves(state))
        with torch.no_grad(), given.scope(), uses:
            uses.note(given.function(state, *given.inputs, *given.parameters))
        return tuple(uses.tensors)


@dataclass(frozen=True, eq=False)
class Adjoint:
    """The adjoint equation of a map: its tensors are the right-hand side, the point, the map's."""

    of: Map

    def problem(self, *tensors: Tensor) -> LinearProblem:
        """The equation of these tensors."""
        right, z, *others = tensors
        return self.at(self.of.problem(*others).linearize(z), right)

    @staticmethod
    def at(near: Linearization, right: Tensor) -> LinearProblem:
        """The equation of a right-hand side, near a point."""
        return near.adjoint(right)


@dataclass(frozen=True, eq=False)
class Tangent(Adjoint):
    """The tangent equation, likewise."""

    @staticmethod
    def at(near: Linearization, right: Tensor) -> LinearProblem:
        """The equation of a right-hand side, near a point."""
        return near.tangent(right)


class _RowProblem(FunctionProblem):
    """The problem of a function of rows, of any length."""

    def evaluate(self, z: Tensor) -> Evaluation:
        return Evaluation(self.function(z))


@dataclass(frozen=True, eq=False)
class Mapped:
    """Several copies of a map, one for each entry of a dimension of some of its tensors."""

    of: Map
    count: int
    dims: tuple[int | None, ...]

    def problem(self, *tensors: Tensor) -> Problem:
        """The problem of all copies, one after the other in its rows."""

        def each(z: Tensor) -> Tensor:
            rows = z.view(self.count, len(z) // self.count, z.shape[1])
            together = torch.vmap(
                lambda z, *ts: self.of.problem(*ts).evaluate(z).value,
                in_dims=(0, *self.dims),
                randomness="same",
            )
            return together(rows, *tensors).reshape(z.shape)

        return _RowProblem(each, StateLayout.of(torch.zeros(1, 1)))


def copies(
    of: Map, tensors: Sequence[Tensor], dims: Sequence[int | None], count: int
) -> tuple[Map, list[Tensor]]:
    """Copies of a map as one, and its tensors; a linear equation's first two have rows."""
    if not isinstance(of, Adjoint):
        return Mapped(of, count, tuple(dims)), list(tensors)
    inner, others = copies(of.of, tensors[2:], dims[2:], count)
    rows = [merged_rows(t, d, count) for t, d in zip(tensors[:2], dims[:2], strict=True)]
    return type(of)(inner), [*rows, *others]


def merged_rows(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """The rows of all copies, one copy after the other."""
    several = tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return several.reshape(-1, *several.shape[2:])
