"""The loss of a network on its training set, with its gradient."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from shoal.models import EquilibriumNetwork, Network

__all__ = ["Evaluation", "Objective"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The loss at the weights as they are.

    Attributes:
        output: The network's outputs, of shape (samples, outputs).
        loss: The loss, in float64.
        gradients: With respect to each trained weight; none if the loss is not finite.
        converged: Whether all equilibria were found, where there are any.
    """

    output: Tensor
    loss: float
    gradients: list[Tensor]
    converged: bool

    @property
    def finite(self) -> bool:
        """Whether the loss is a number."""
        return math.isfinite(self.loss)

    @property
    def square_gradient(self) -> float:
        r"""$\|\nabla\Phi\|^2$, in float64."""
        norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in self.gradients]
        return float(torch.stack(norms).square().sum())


class Objective:
    r"""$\Phi = \frac1{2c}\|f(X) - y\|_F^2$, where $c$ is 1 or the number of samples.

    Args:
        network: What is trained, in place.
        x: Inputs.
        y: Labels, of the shape of the outputs.
        divisor: $c$.
    """

    def __init__(self, network: Network[Any], x: Tensor, y: Tensor, divisor: float) -> None:
        self.network, self.x, self.y, self.divisor = network, x, y, divisor
        self.weights: dict[str, Parameter] = {
            name: p for name, p in network.groups.items() if p.requires_grad
        }
        if not self.weights:
            raise ValueError("net must have weights that require a gradient, got none")
        self.initial = {name: p.detach().clone() for name, p in self.weights.items()}

    @property
    def parameters(self) -> list[Tensor]:
        """The trained weights, for steps in place."""
        return list(self.weights.values())

    def evaluate(self) -> Evaluation:
        """One forward and one backward pass.

        Raises:
            ConvergenceError: If an equilibrium, or its gradient, is not found and the network was
                built to raise then.
        """
        with torch.enable_grad():
            output = self.network(self.x)
            error = output.detach() - self.y
            loss = 0.5 * float(error.double().square().sum()) / self.divisor
            gradients: list[Tensor] = []
            if math.isfinite(loss):
                trained = list(self.weights.values())
                gradients = list(torch.autograd.grad(output, trained, error / self.divisor))
        return Evaluation(output.detach(), loss, gradients, self._converged())

    def _converged(self) -> bool:
        if not isinstance(self.network, EquilibriumNetwork):
            return True
        solves = (self.network.last_solve, self.network.last_adjoint)
        return all(s is None or bool(s.converged.all()) for s in solves)

    def distances(self) -> dict[str, float]:
        """How far each group of weights is from where it began, in the Frobenius norm."""
        return {
            name: float(torch.linalg.vector_norm(p.detach() - self.initial[name], dtype=_DOUBLE))
            for name, p in self.weights.items()
        }

    def output_error(self, gain: float) -> float:
        r"""A bound of $\|f - f_*\|$, where $f_*$ has exact equilibria and no rounding.

        A residual $r$ of a contraction with gain $g$ leaves an error of at most $r/(1-g)$.

        Args:
            gain: $g$; where it is not below one, the residual itself is taken.
        """
        network = self.network
        scale = float(self.y.abs().max()) + 1.0
        rounding = torch.finfo(self.y.dtype).eps * math.sqrt(network.spec.width) * scale
        total = rounding * math.sqrt(self.y.numel())
        if isinstance(network, EquilibriumNetwork) and network.last_solve is not None:
            residual = float(torch.linalg.vector_norm(network.last_solve.residual, dtype=_DOUBLE))
            readout = network.readout.detach()
            size = float(torch.linalg.matrix_norm(readout.double(), 2)) * network.feature_scale
            total += size * residual / (1 - gain if gain < 1 else 1.0)
        return total


_DOUBLE = torch.float64
