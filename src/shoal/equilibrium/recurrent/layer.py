r"""The recurrent layer $Z \mapsto \varphi(s Z W^\top + U)$ as a problem, and its linearizations."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.base import is_ours
from shoal.core.torch_compat import vjp
from shoal.equilibrium.cuda_graphs.recurring import Recurrences, Recurring, attempt, recurring
from shoal.equilibrium.recurrent.coarse import (
    STEPS,
    evaluations_per_look,
    packing_pays,
    products_pay,
)
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.limits import Limits
from shoal.equilibrium.solvers.problem import (
    Evaluation,
    Linearization,
    LinearProblem,
    Problem,
    row_sizes,
)
from shoal.equilibrium.solvers.records import Outcome
from shoal.equilibrium.solvers.solution import Solution


@dataclass(frozen=True)
class Layer:
    r"""What of a recurrent layer is not a tensor: $\varphi$ and $s$."""

    activation: Activation
    scale: float

    def preactivation(self, z: Tensor, injection: Tensor, weight: Tensor) -> Tensor:
        r"""$s Z W^\top + U$, in one matrix product."""
        return torch.addmm(injection, z, weight.t(), alpha=self.scale)

    def slope(self, preactivation: Tensor) -> Tensor:
        r"""$\varphi'$, differentiable."""
        if type(self.activation).first_derivative is not Activation.first_derivative:
            return self.activation.first_derivative(preactivation)
        function = self.activation.function  # a user's: by a product that composes with all else
        value, pull = vjp(function, preactivation)
        return pull(torch.ones_like(value))

    @property
    def is_elementary(self) -> bool:
        """Whether it is nothing but operations on the numbers given, of which a graph can be."""
        kind = type(self.activation)
        return is_ours(kind) and kind._expression is not None


_ENTRIES = 1 << 22  # of a state, of which a graph holds a dozen
Made = tuple[tuple[Tensor, ...], Tensor]  # what a solve at once makes, and what to look at


@dataclass(frozen=True)
class _AtOnce:
    """The equilibrium of the layer after some steps, and what its derivatives need."""

    layer: Layer

    def __call__(
        self, steps: int, limits: Limits, start: Tensor, injection: Tensor, weight: Tensor
    ) -> Made:
        problem = LayerProblem(self.layer, injection, weight)
        z, evaluation, residual, seen = attempt(problem.evaluate, start, steps, limits)
        assert evaluation.kept is not None
        return (z, evaluation.kept, self.layer.slope(evaluation.kept), residual), seen


@dataclass(frozen=True)
class AdjointAtOnce:
    """The solution of the adjoint equation after some steps, solved for at size one."""

    scale: float

    def __call__(
        self, steps: int, limits: Limits, right: Tensor, slope: Tensor, *others: Tensor
    ) -> Made:
        """The solution and its residuals, of a right-hand side of any size.

        Args:
            steps: How many.
            limits: What counts as solved.
            right: The right-hand side.
            slope: The slopes of the layer.
            others: Where to start, if that is known, and the weights.
        """
        *guess, weight = others
        size, finite = row_sizes(right)
        unit = (right / size).masked_fill(~finite, 0.0)

        def evaluate(g: Tensor) -> Evaluation:
            return Evaluation(torch.addmm(unit, g * slope, weight, alpha=self.scale))

        g, _, residual, seen = attempt(evaluate, guess[0] if guess else unit, steps, limits)
        residual = (residual * size[:, 0]).masked_fill(~finite[:, 0], 0.0)
        return (torch.where(finite, g * size, right), residual), seen


class LayerProblem(Problem):
    """The equilibrium of the layer; keeps the preactivations there."""

    def __init__(self, layer: Layer, injection: Tensor, weight: Tensor) -> None:
        self.layer, self.injection, self.weight = layer, injection, weight
        self._function, self._scale, self._transposed = (
            layer.activation.function,
            layer.scale,
            weight.t(),
        )
        self._rounded: Tensor | None = None

    def start(self) -> Tensor:
        """The first iterate after zero, for which no product is needed."""
        return self.layer.activation.function(self.injection)

    def evaluate(self, z: Tensor) -> Evaluation:
        """One product and one activation."""
        inner = torch.addmm(self.injection, z, self._transposed, alpha=self._scale)
        return Evaluation(self._function(inner), inner)

    def recurring(
        self, solver: Solver, start: Tensor | None, known: Recurrences
    ) -> Recurring | None:
        """The solve as one of its kind, for a graph, if the activation allows one."""
        if not self.may_recur(solver):
            return None

        def outcome(found: list[Tensor], steps: int) -> Outcome:
            z, inner, slope, residual = found
            near = LayerLinearization(self.layer, z, inner, self.weight, slope)
            solution = Solution.of_steps(z, residual, steps)
            return Outcome(solution, inner, converged=True, near=near)

        changing = self.start() if start is None else start, self.injection
        return recurring(_AtOnce(self.layer), solver, changing, (self.weight,), outcome, known)

    def may_recur(self, solver: Solver) -> bool:
        """Whether there can be a graph of its steps, and they are the faster for it."""
        entries = len(self.injection) * len(self.weight)
        return _pays(self, solver, entries) and self.layer.is_elementary

    @property
    def evaluations_per_look(self) -> int:
        """Evaluations between two looks at residuals, by the price of a product."""
        return evaluations_per_look(len(self.injection), self.weight)

    def linearize(self, z: Tensor, kept: Tensor | None = None) -> "LayerLinearization":
        """The linearization, made of slopes: without a product if preactivations were kept."""
        inner = self.layer.preactivation(z, self.injection, self.weight) if kept is None else kept
        return LayerLinearization(self.layer, z, inner, self.weight)

    def coarse(self, z: Tensor, evaluation: Evaluation, steps: int) -> Tensor | None:
        """Steps whose product with the change since ``z`` is in bfloat16."""
        if evaluation.kept is None or z.dtype != torch.float32:
            return None
        weight, scale, new = self._coarse_weight().t(), self.layer.scale, evaluation.value
        for _ in range(steps):
            change = torch.mm((new - z).bfloat16(), weight)
            new = self.layer.activation.function(evaluation.kept.add(change, alpha=scale))
        return new

    @property
    def coarse_steps(self) -> int:
        """A few, where the device is fast in bfloat16."""
        return STEPS if products_pay(len(self.injection), self.weight) else 0

    def _coarse_weight(self) -> Tensor:
        if self._rounded is None:
            self._rounded = self.weight.bfloat16()
        return self._rounded

    def packing_pays(self, dropped: int) -> bool:
        """If the products are large."""
        return packing_pays(dropped, self.weight)

    def rows(self, index: Tensor) -> "LayerProblem":
        """The problem of some samples, with their injections."""
        part = LayerProblem(self.layer, self.injection.index_select(0, index), self.weight)
        part._rounded = self._rounded
        return part


class LayerLinearization(Linearization):
    r"""The layer near a point: its slopes $D$, and all else that follows from them."""

    has_formulas = True

    def __init__(
        self, layer: Layer, z: Tensor, inner: Tensor, weight: Tensor, slope: Tensor | None = None
    ) -> None:
        self.layer, self.z, self.inner, self.weight = layer, z, inner, weight
        self.slope = layer.slope(inner) if slope is None else slope
        self.rounded: Tensor | None = None

    @property
    def value(self) -> Tensor:
        """The layer at the point."""
        return self.layer.activation.function(self.inner)

    def pull(self, g: Tensor) -> Tensor:
        r"""$s (g \circ D) W$."""
        return torch.mm(g * self.slope, self.weight).mul(self.layer.scale)

    def push(self, k: Tensor) -> Tensor:
        r"""$D \circ (s k W^\top)$."""
        return torch.mm(k, self.weight.t()).mul(self.layer.scale).mul(self.slope)

    def partials(self, g: Tensor, needed: Sequence[bool]) -> list[Tensor | None]:
        r"""$G \circ D$ for the injection, $s (G \circ D)^\top Z$ for the weights."""
        inner, weight = g * self.slope, None
        if needed[1] and torch.is_grad_enabled():
            weight = torch.mm(inner.t(), self.z).mul(self.layer.scale)
        elif needed[1]:  # in one operation
            scale = self.layer.scale
            weight = torch.addmm(self.weight, inner.t(), self.z, beta=0, alpha=scale)
        return [inner if needed[0] else None, weight]

    def adjoint(self, right: Tensor) -> "LayerAdjoint":
        """The adjoint equation, with one product per step."""
        return LayerAdjoint(self, right, adjoint=True)

    def packing_pays(self, dropped: int) -> bool:
        """If the products are large."""
        return packing_pays(dropped, self.weight)

    def rows(self, index: Tensor) -> "LayerLinearization":
        """The linearization at some samples, with their slopes."""
        z, inner, slope = (t.index_select(0, index) for t in (self.z, self.inner, self.slope))
        part = LayerLinearization(self.layer, z, inner, self.weight, slope)
        part.rounded = self.rounded
        return part


class LayerAdjoint(LinearProblem):
    r"""$G = V + s (G \circ D) W$, $D$ the slopes."""

    near: LayerLinearization

    def evaluate(self, z: Tensor) -> Evaluation:
        """One product, which adds the right-hand side too."""
        near = self.near
        inner = z * near.slope
        return Evaluation(torch.addmm(self.right, inner, near.weight, alpha=near.layer.scale))

    def recurring(
        self, solver: Solver, start: Tensor | None, known: Recurrences
    ) -> Recurring | None:
        """The adjoint solve as one of its kind, for a graph, whatever the activation."""
        if not _pays(self, solver, self.right.numel()):
            return None

        def outcome(found: list[Tensor], steps: int) -> Outcome:
            g, residual = found
            return Outcome(Solution.of_steps(g, residual, steps), None, converged=True)

        near, guess = self.near, () if start is None else (start,)
        form, changing = AdjointAtOnce(near.layer.scale), (self.right, near.slope, *guess)
        return recurring(form, solver, changing, (near.weight,), outcome, known)

    @property
    def evaluations_per_look(self) -> int:
        """Evaluations between two looks at residuals, by the price of a product."""
        return evaluations_per_look(len(self.right), self.near.weight)

    def coarse(self, z: Tensor, evaluation: Evaluation, steps: int) -> Tensor | None:
        """Steps whose product with the change since ``z`` is in bfloat16."""
        if z.dtype != torch.float32:
            return None
        near = self.near
        if near.rounded is None:
            near.rounded = near.weight.bfloat16()
        new = evaluation.value
        for _ in range(steps):
            change = torch.mm(((new - z) * near.slope).bfloat16(), near.rounded)
            new = evaluation.value.add(change, alpha=near.layer.scale)
        return new

    @property
    def coarse_steps(self) -> int:
        """A few, where the device is fast in bfloat16."""
        return STEPS if products_pay(len(self.right), self.near.weight) else 0

    def rows(self, index: Tensor) -> "LayerAdjoint":
        """The equations of some samples, with their right-hand sides and slopes."""
        return LayerAdjoint(self.near.rows(index), self.right.index_select(0, index), adjoint=True)


def _pays(problem: Problem, solver: Solver, entries: int) -> bool:
    """Whether steps are so short that it matters how they are started, and graphs need little."""
    short = problem.evaluations_per_look > 0 and entries <= _ENTRIES
    return short and bool(solver.follows_map(problem))
