"""Fixed-point problems, as solvers see them: a map on rows of numbers, one row per sample."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.masked import MaskedTensor

from shoal.core.torch_compat import (
    below_unmapped,
    is_autocast,
    kept_buffers,
    lent_tensors,
    named_tensors,
    pytree,
    version,
    vjp,
    without_fused_attention,
)
from shoal.equilibrium.state import State, StateLayout

Product = Callable[[Tensor], Tensor]


class Linearization:
    r"""A map near a point, by reverse mode alone: $Jk$ is the derivative of $g \mapsto J^\top g$.

    Attributes:
        z: The point.
        value: $f(z)$, with a graph to all that the map depends on.
        pull: $J^\top g$, by autograd.
        problem: The map.
        samples_coupled: Whether samples may depend on each other.
    """

    def __init__(self, problem: "Problem", z: Tensor) -> None:
        self.z, self.problem, self.samples_coupled = z, problem, problem.samples_coupled
        self.value, self.pull = vjp(problem.evaluate, z)

    @cached_property
    def push(self) -> Product:
        r"""$Jk$, by differentiating $J^\top g$ by autograd."""
        return vjp(self.pull, torch.zeros_like(self.z))[1]


class Problem(ABC):
    """A map whose fixed point is wanted for each row.

    Attributes:
        evaluations: How often it was evaluated, or a product with its Jacobian was formed.
        samples_coupled: Whether samples may depend on each other.
        recorder: The recordings of its iterations on a GPU, if there may be some.
    """

    evaluations: int = 0
    samples_coupled: bool = True
    recorder: Any = None

    @abstractmethod
    def evaluate(self, z: Tensor) -> Tensor:
        """The map at ``z``, of shape (samples, size)."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that the map may be differentiated by, or mapped over."""

    @abstractmethod
    def with_tensors(self, *tensors: Tensor) -> "Problem":
        """The same map with other tensors in their place."""

    def linearize(self, z: Tensor) -> Linearization:
        """The map near ``z``."""
        return Linearization(self, z)

    def partials(
        self, z: Tensor, tensors: Sequence[Tensor], places: Sequence[int]
    ) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """The product with the transposed derivative by some of the tensors, in ``torch.func``."""

        def value(*moved: Tensor) -> Tensor:
            replaced = [*tensors]
            for place, tensor in zip(places, moved, strict=True):
                replaced[place] = tensor
            return self.with_tensors(*replaced).evaluate(z)

        pull: Callable[[Tensor], tuple[Tensor, ...]]
        pull = torch.func.vjp(value, *(tensors[place] for place in places))[1]
        return pull

    def derivative_at(self, z: Tensor) -> Product:
        """The derivative of the map at ``z``, as a function of the direction, for each row."""
        with without_fused_attention():
            return self.counted(self.linearize(z).push)

    def counted(self, product: Product) -> Product:
        """A product that counts each call as an evaluation."""

        def call(vector: Tensor) -> Tensor:
            self.evaluations += 1
            return product(vector)

        return call


class FunctionProblem(Problem):
    r"""The problem of a function or a module.

    Args:
        function: Takes the state and the inputs; returns a state.
        layout: How states lie in rows.
        inputs: Inputs of the function: trees of tensors, or other objects.
        named: Inputs by name.
        separable: Whether samples do not depend on each other.
        scope: Makes the context in which the function is called.

    Attributes:
        module: The module whose parameters and buffers the function uses, if the function is a
            module or a method of one.
    """

    def __init__(
        self,
        function: Callable[..., State],
        layout: StateLayout,
        inputs: Sequence[Any] = (),
        named: dict[str, Any] | None = None,
        *,
        separable: bool = False,
        scope: "CallScope | None" = None,
    ) -> None:
        self.function, self.layout = function, layout
        self.inputs, self.named = tuple(inputs), named or {}
        self.samples_coupled, self.scope = not separable, scope
        owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
        self.module = owner if isinstance(owner, nn.Module) else None
        self._input_tensors: list[Tensor] = []
        for tree in (*self.inputs, *self.named.values()):
            for leaf in (tree,) if isinstance(tree, Tensor) else pytree.tree_leaves(tree):
                if isinstance(leaf, MaskedTensor):  # most of its operations have no derivative
                    raise TypeError(
                        "inputs must be plain tensors, got a MaskedTensor; give its values, and "
                        "the mask as another input"
                    )
                if isinstance(leaf, Tensor):
                    self._input_tensors.append(leaf)
        self._lent: dict[str, Tensor] | None = None
        self._checked = False

    def evaluate(self, z: Tensor) -> Tensor:
        """Call the function, and see that it returns a state."""
        self.evaluations += 1
        scope = self.scope
        if scope is None or scope.is_plain:
            return self.layout.checked_rows(self._call(z), z)
        return self.layout.checked_rows(scope.call(self._call, z), z, cast=scope.autocast)

    def _call(self, z: Tensor) -> State:
        state = self.layout.state(z)
        if self._checked:
            return self.function(state, *self.inputs, **self.named)
        if self._lent and self.module is not None:
            with lent_tensors(self.module, self._lent):
                return self.function(state, *self.inputs, **self.named)
        if z.is_inference():  # without a version: a function that works in place may spoil a copy
            return self.function(self.layout.state(z.clone()), *self.inputs, **self.named)
        watched = [t for t in (z, *self._input_tensors) if not t.is_inference()]
        versions = [*map(version, watched)]
        value = self.function(state, *self.inputs, **self.named)
        for tensor, before in zip(watched, versions, strict=True):
            if version(tensor) != before:
                changed = "z" if tensor is z else "its inputs"
                raise ValueError(
                    f"f must not change {changed} in place, got a function that does; use clone()"
                )
        self._checked = True
        return value

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Input tensors, and parameters and buffers of the module."""
        return (*self._input_tensors, *self._module_tensors.values())

    @cached_property
    def _module_tensors(self) -> dict[str, Tensor]:
        return {} if self.module is None else named_tensors(self.module)

    def with_tensors(self, *tensors: Tensor) -> "FunctionProblem":
        """The map with other inputs, parameters and buffers."""
        count = len(self._input_tensors)
        other = self.with_inputs(tensors[:count])
        other._input_tensors, other.recorder = [*tensors[:count]], None
        other._lent = other._module_tensors = dict(
            zip(self._module_tensors, tensors[count:], strict=True)
        )
        other.tensors, other._checked = tensors, not other._lent
        return other

    @property
    def is_plain(self) -> bool:
        """Whether a call is the function alone: no autocast, random numbers or lent parameters."""
        return self._checked and not self._lent and (self.scope is None or self.scope.is_plain)

    @property
    def may_replay(self) -> bool:
        """Whether ``is_plain`` may hold after the first call."""
        return not self._lent and (self.scope is None or not self.scope.autocast)

    @property
    def num_inputs(self) -> int:
        """How many of the tensors are inputs."""
        return len(self._input_tensors)

    def with_inputs(self, inputs: Sequence[Tensor]) -> "FunctionProblem":
        """The map with other inputs, and the parameters that its module has."""
        tensors = iter(inputs)
        other = copy(self)
        other.inputs, other.named = pytree.tree_map_only(
            Tensor, lambda _: next(tensors), (self.inputs, self.named)
        )
        return other

    def linearize(self, z: Tensor) -> Linearization:
        """One evaluation, whose graph is kept."""
        with kept_buffers(), self._outside_of_vmap(z):
            return super().linearize(z)

    def partials(
        self, z: Tensor, tensors: Sequence[Tensor], places: Sequence[int]
    ) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """The product with the transposed derivative by some of the tensors, in ``torch.func``."""
        with self._outside_of_vmap(z):
            return super().partials(z, tensors, places)

    def _outside_of_vmap(self, z: Tensor) -> AbstractContextManager[Any]:
        """A context in which random numbers can be drawn, if the function draws some."""
        if self.scope is None or not self.scope.random:
            return nullcontext()
        return below_unmapped(z, *self.tensors)


class LinearProblem(Problem):
    r"""$g = c + Mg$, where $M$ is the Jacobian of another map, or its transpose.

    Args:
        near: The other map near a point.
        right: $c$, of shape (samples, size).
        adjoint: Whether it is the transpose.
        base: The other map, if it is to be linearized again.
    """

    def __init__(
        self, near: Linearization, right: Tensor, *, adjoint: bool, base: Problem | None = None
    ) -> None:
        self.near, self.right, self.adjoint, self.base = near, right, adjoint, base
        self.samples_coupled, self.recorder = near.samples_coupled, near.problem.recorder
        self.product = near.pull if adjoint else near.push

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The right-hand side, the point, and the other map's tensors."""
        return (self.right, self.near.z, *(() if self.base is None else self.base.tensors))

    def with_tensors(self, *tensors: Tensor) -> "LinearProblem":
        """The equation of another right-hand side near another point."""
        right, z, *base_tensors = tensors
        assert self.base is not None
        base = self.base.with_tensors(*base_tensors)
        return LinearProblem(base.linearize(z), right, adjoint=self.adjoint, base=base)

    def evaluate(self, z: Tensor) -> Tensor:
        """One product."""
        self.evaluations += 1
        return self.right + self.product(z)

    def derivative_at(self, z: Tensor) -> Product:  # noqa: ARG002
        """The product."""
        return self.counted(self.product)


class MappedProblem(Problem):
    """Several copies of a problem, one for each entry of a dimension of some of its tensors.

    Args:
        base: The problem.
        tensors: Its tensors for all copies.
        dims: The dimensions of the copies, ``None`` for a tensor that all copies share.
        count: The number of copies; their rows follow each other.
    """

    def __init__(
        self, base: Problem, tensors: Sequence[Tensor], dims: Sequence[int | None], count: int
    ) -> None:
        self.base, self.dims, self.count = base, tuple(dims), count
        self._tensors = tuple(tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors for all copies."""
        return self._tensors

    def with_tensors(self, *tensors: Tensor) -> "MappedProblem":
        """The copies with other tensors."""
        return MappedProblem(self.base, tensors, self.dims, self.count)

    def evaluate(self, z: Tensor) -> Tensor:
        """Each copy at its rows."""
        self.evaluations += 1
        rows = z.view(self.count, len(z) // self.count, z.shape[1])
        evaluate_copies = torch.vmap(
            lambda z, *tensors: self.base.with_tensors(*tensors).evaluate(z),
            in_dims=(0, *self.dims),
            randomness="same",
        )
        value: Tensor = evaluate_copies(rows, *self._tensors)
        return value.reshape(z.shape)


def mapped(
    problem: Problem, tensors: Sequence[Tensor], dims: Sequence[int | None], count: int
) -> tuple[Problem, list[Tensor]]:
    """Copies of a problem as one problem, and its tensors.

    The right-hand sides and points of linear equations become rows of one equation.
    """
    if not isinstance(problem, LinearProblem):
        return MappedProblem(problem, tensors, dims, count), list(tensors)
    assert problem.base is not None
    base, base_tensors = mapped(problem.base, tensors[2:], dims[2:], count)
    right, z = (merged_rows(t, d, count) for t, d in zip(tensors[:2], dims[:2], strict=True))
    copies = LinearProblem(base.linearize(z), right, adjoint=problem.adjoint, base=base)
    return copies, [right, z, *base_tensors]


def merged_rows(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """The rows of all copies, one copy after the other."""
    copies = tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return copies.reshape(-1, *copies.shape[2:])


class CallScope:
    """The context of a cell's calls: the caller's autocast, and the same random numbers.

    Attributes:
        autocast: Whether autocast is on.
        random: Whether the cell draws random numbers; known after its first call.
        is_plain: Whether the calls have neither autocast nor random numbers.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.kind = tensor.device.type
        self.autocast = is_autocast(self.kind)
        self.dtype = torch.get_autocast_dtype(self.kind) if self.autocast else None
        self.random: bool | None = None
        self.is_plain = False
        self.first = self.before = self._state()

    def begin(self) -> None:
        """Let the cell's random numbers begin at the present state of the generators."""
        self.before = self._state()

    def prepared_again(self) -> AbstractContextManager[None]:
        """Draw the random numbers that came before the cell's, if there were any."""
        same = all(map(torch.equal, self.first, self.before))
        return nullcontext() if same else self._use_states(self.first)

    def repeat(self, other: "CallScope") -> None:
        """Draw the random numbers of another scope, if it was of the same device."""
        if other.random and other.kind == self.kind:
            self.before, self.random = other.before, True

    def call(self, function: Callable[[Tensor], State], z: Tensor) -> State:
        """Call a function in the context; the first call shows whether it draws random numbers."""
        if self.autocast and not torch.is_autocast_enabled(self.kind):
            with torch.autocast(self.kind, self.dtype):
                return self.call(function, z)
        if self.random is not None:
            with self._use_states(self.before) if self.random else nullcontext():
                return function(z)
        try:
            value = function(z)
        except BaseException:
            self._restore(self.before)  # the call may be made again
            raise
        self.random = not all(map(torch.equal, self._state(), self.before))
        self.is_plain = not self.random and not self.autocast
        return value

    @contextmanager
    def _use_states(self, states: list[Tensor]) -> Iterator[None]:
        """A context that draws random numbers from saved states; restores the present ones."""
        present = self._state()
        self._restore(states)
        try:
            yield
        finally:
            self._restore(present)

    def _state(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state()] if self.kind == "cuda" else states

    def _restore(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1])
