r"""The recurrent layer $Z \mapsto \varphi(s Z W^\top + U)$ as a problem, and its linearizations."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.core.torch_internals import vjp
from shoal.equilibrium.coarse import STEPS, packing_pays, products_pay
from shoal.equilibrium.problem import Evaluation, Problem

__all__ = ["AdjointProblem", "Layer", "LayerProblem", "TangentProblem"]


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
        return pull(torch.ones_like(value))[0]


class LayerProblem(Problem):
    """The equilibrium of the layer; keeps the preactivations there."""

    def __init__(self, layer: Layer, injection: Tensor, weight: Tensor) -> None:
        self.layer, self.injection, self.weight = layer, injection, weight
        self._function, self._scale, self._transposed = (
            layer.activation.function,
            layer.scale,
            weight.t(),
        )
        self._linearized: tuple[Tensor, Tensor] | None = None
        self._rounded: Tensor | None = None

    def start(self) -> Tensor:
        """The first iterate after zero, for which no product is needed."""
        return self.layer.activation.function(self.injection)

    def evaluate(self, z: Tensor) -> Evaluation:
        """One product and one activation."""
        inner = torch.addmm(self.injection, z, self._transposed, alpha=self._scale)
        return Evaluation(self._function(inner), inner)

    def jacobian_product(self, z: Tensor, tangent: Tensor) -> Tensor:
        """One product; the slopes at ``z`` are kept for the next one."""
        if self._linearized is None or self._linearized[0] is not z:
            inner = self.layer.preactivation(z, self.injection, self.weight)
            self._linearized = (z, self.layer.slope(inner))
        return self._linearized[1] * torch.mm(tangent, self.weight.t()).mul(self.layer.scale)

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
        """Their injections."""
        part = LayerProblem(self.layer, self.injection.index_select(0, index), self.weight)
        part._rounded = self._rounded
        return part


class AdjointProblem(Problem):
    r"""$G = V + s (G \circ D) W$, $D$ the slopes."""

    def __init__(self, scale: float, right: Tensor, slope: Tensor, weight: Tensor) -> None:
        self.scale, self.right, self.slope, self.weight = scale, right, slope, weight
        self._rounded: Tensor | None = None

    def coarse(self, z: Tensor, evaluation: Evaluation, steps: int) -> Tensor | None:
        """Steps whose product with the change since ``z`` is in bfloat16."""
        if z.dtype != torch.float32:
            return None
        if self._rounded is None:
            self._rounded = self.weight.bfloat16()
        new = evaluation.value
        for _ in range(steps):
            change = torch.mm(((new - z) * self.slope).bfloat16(), self._rounded)
            new = evaluation.value.add(change, alpha=self.scale)
        return new

    @property
    def coarse_steps(self) -> int:
        """A few, where the device is fast in bfloat16."""
        return STEPS if products_pay(len(self.right), self.weight) else 0

    def evaluate(self, z: Tensor) -> Evaluation:
        """One product."""
        return Evaluation(torch.addmm(self.right, z * self.slope, self.weight, alpha=self.scale))

    def jacobian_product(self, z: Tensor, tangent: Tensor) -> Tensor:  # noqa: ARG002
        """One product."""
        return torch.mm(tangent * self.slope, self.weight).mul(self.scale)

    def packing_pays(self, dropped: int) -> bool:
        """If the products are large."""
        return packing_pays(dropped, self.weight)

    def rows(self, index: Tensor) -> "AdjointProblem":
        """Their right-hand sides and slopes."""
        right, slope = (t.index_select(0, index) for t in (self.right, self.slope))
        part = AdjointProblem(self.scale, right, slope, self.weight)
        part._rounded = self._rounded
        return part


class TangentProblem(Problem):
    r"""$K = C + D \circ (s K W^\top)$, the transposed equation."""

    def __init__(self, scale: float, right: Tensor, slope: Tensor, weight: Tensor) -> None:
        self.scale, self.right, self.slope, self.weight = scale, right, slope, weight

    def evaluate(self, z: Tensor) -> Evaluation:
        """One product."""
        product = torch.mm(z, self.weight.t())
        return Evaluation(torch.addcmul(self.right, product, self.slope, value=self.scale))

    def jacobian_product(self, z: Tensor, tangent: Tensor) -> Tensor:  # noqa: ARG002
        """One product."""
        return torch.mm(tangent, self.weight.t()).mul(self.scale).mul(self.slope)

    def packing_pays(self, dropped: int) -> bool:
        """If the products are large."""
        return packing_pays(dropped, self.weight)

    def rows(self, index: Tensor) -> "TangentProblem":
        """Their right-hand sides and slopes."""
        right, slope = (t.index_select(0, index) for t in (self.right, self.slope))
        return TangentProblem(self.scale, right, slope, self.weight)
