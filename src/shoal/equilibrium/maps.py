"""Maps and the tensors that they are made of, given or found."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shoal.core.closures import HeldModules, Replaced, Uses
from shoal.core.torch_internals import is_transformed, next_operation, outside_tensors
from shoal.equilibrium.solvers.problem import FunctionProblem, Problem

__all__ = ["Map", "OfFunction"]


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

        def replaced(*arguments: Any) -> Any:
            with held(), Replaced(others) as uses:
                value = given.function(*arguments)
            if uses.missed:
                raise RuntimeError(
                    "f must be the same function in the backward pass, got one that no longer "
                    "uses the same tensors; make it a module, or pass the tensors in `inputs`"
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
        """The same map, and the tensors that it must be given where transforms are at work."""
        if not is_transformed(start):
            return self, ()
        used = self._uses(start)
        return replace(self, used=used), used

    def seen(
        self, value: Tensor, point: Tensor, since: int
    ) -> "tuple[OfFunction, tuple[Tensor, ...]]":
        """The same map with the tensors that autograd follows into the function, given or not.

        Args:
            value: The function's value at a point.
            point: The point.
            since: The number of the first operation of that evaluation.
        """
        given = pytree.tree_leaves((self.given.inputs, self.given.parameters))
        known = [leaf for leaf in given if isinstance(leaf, Tensor)]
        found = outside_tensors(value, point, known, since)
        if found is None:  # some are neither leaves nor given: look for them where they are used
            found = outside_tensors(value, point, self._uses(point.detach()), since)
        return replace(self, used=found or (), hidden=found is None), found or ()

    def differentiated(self, z: Tensor) -> "tuple[OfFunction, tuple[Tensor, ...]]":
        """The same map with the tensors that autograd follows, found by an evaluation."""
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
            given.function(state, *given.inputs, *given.parameters)
        return tuple(uses.tensors)
