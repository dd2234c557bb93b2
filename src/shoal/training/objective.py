"""The loss of a network on its training set, with its gradient."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.gain import GainBound, gain_factor

__all__ = ["Evaluation", "Objective"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The loss at the weights as they are.

    Attributes:
        output: The network's outputs, of shape (samples, outputs).
        loss: The loss, in float64.
        gradients: With respect to each trained weight; none if the loss is not finite.
        converged: Whether all equilibria were found, where there are any.
        residual: What their equation leaves, in the norm of all samples together.
    """

    output: Tensor
    loss: float
    gradients: list[Tensor]
    converged: bool
    residual: float = 0.0

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
        self._initial_gain: list[tuple[Tensor, float]] = []  # with the weights that have it

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
        if isinstance(self.network, EquilibriumNetwork):
            self.network.options.log.backward = None  # not every gradient takes a solve
        with torch.enable_grad():
            output = self.network(self.x)
            error = output.detach() - self.y
            loss = 0.5 * float(error.double().square().sum()) / self.divisor
            gradients: list[Tensor] = []
            if math.isfinite(loss):
                trained = list(self.weights.values())
                gradients = list(torch.autograd.grad(output, trained, error / self.divisor))
        return Evaluation(output.detach(), loss, gradients, *self._solved())

    def _solved(self) -> tuple[bool, float]:
        """Whether all equilibria and adjoints were found, and the residual of the equilibria."""
        network = self.network
        if not isinstance(network, EquilibriumNetwork) or network.last_solve is None:
            return True, 0.0
        solves = (network.last_solve, network.last_adjoint)
        converged = all(s is None or bool(s.converged.all()) for s in solves)
        return converged, float(torch.linalg.vector_norm(solves[0].residual, dtype=_DOUBLE))

    def distances(self) -> dict[str, float]:
        """How far each group of weights is from where it began, in the Frobenius norm."""
        return {
            name: float(torch.linalg.vector_norm(p.detach() - self.initial[name], dtype=_DOUBLE))
            for name, p in self.weights.items()
        }

    def gain_upper(self) -> float:
        """A certified bound of the recurrent layer's gain, the same after an interruption.

        It is followed from the initial weights; only if that is not enough to stay below one, it
        is found anew.
        """
        network = self.network
        if not isinstance(network, EquilibriumNetwork):
            return 0.0
        layers, weights = zip(*network.turn, strict=True)
        bound = GainBound([gain_factor(layer) for layer in layers])
        if math.inf in bound.factors:
            return math.inf
        bound.known, below_one = self._initial_gain, math.nextafter(1.0, 0.0)
        if not bound.known:
            before = {id(p): self.initial[name] for name, p in self.weights.items()}
            bound.upper([before.get(id(w), w.detach()) for w in weights], below_one)
            self._initial_gain = bound.known
        return bound.upper([w.detach() for w in weights], below_one)

    def feature_error(self, now: Evaluation, gain: float) -> float:
        r"""A bound of how far the features are from those of exact equilibria.

        A residual $r$ of a contraction with gain $g$ leaves an error of at most $r/(1-g)$.

        Args:
            now: The weights as they are.
            gain: $g$, at most; where it is not below one, the residual itself is taken.
        """
        network = self.network
        if not isinstance(network, EquilibriumNetwork) or now.residual == 0:
            return 0.0
        return network.feature_scale * now.residual / (1 - gain if gain < 1 else 1.0)

    def rounding(self, size: float) -> float:
        """What rounding may make of sums over all units, of this size."""
        return torch.finfo(self.y.dtype).eps * math.sqrt(self.network.spec.width) * size

    def output_error(self, now: Evaluation) -> float:
        r"""A bound of $\|f - f_*\|$, where $f_*$ has exact equilibria and no rounding."""
        scale = float(self.y.abs().max()) + 1.0
        total = self.rounding(scale) * math.sqrt(self.y.numel())
        if isinstance(self.network, EquilibriumNetwork) and now.residual > 0:
            readout = self.network.readout.detach().double()
            size = float(torch.linalg.matrix_norm(readout, 2))
            total += size * self.feature_error(now, self.gain_upper())
        return total


_DOUBLE = torch.float64
