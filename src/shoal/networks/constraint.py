"""Keep the recurrent layer of a network a contraction while it is trained."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from shoal.core.checks import instance, real
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.gain import GainBound, gain_factor

__all__ = ["GainConstraint"]

_SLACK = 0.02  # how far below the bound weights are moved, so that not every step must do so


class GainConstraint:
    r"""Keeps the gain $s L \|W\|$ of a network's recurrent layer, or loop of them, below a bound.

    Call ``apply`` after each step of an optimizer, or ``attach`` it to one. The bound is certified
    at every step, rounding included, at little cost: since $\|W'\| \le \|W\| + \|W' - W\|_F$, the
    norm itself is bounded anew only when the weights have moved far enough for it to matter.
    Weights that would exceed the bound are scaled down, also if they are frozen
    (``requires_grad=False``): the bound is about the network, not about what is trained.

    Args:
        network: A network with a recurrent layer.
        max_gain: The bound, above 0. Below 1 the equilibrium exists and is unique.

    Raises:
        TypeError: If the network has no recurrent layer.
        ValueError: If ``max_gain`` is not positive, or the activation is not Lipschitz.

    Example:
        >>> import shoal
        >>> deq = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.5, input_variance=0.5)
        >>> net = shoal.build(deq, in_features=3, width=64)
        >>> shoal.GainConstraint(net, max_gain=0.9).apply() <= 0.9
        True
        >>> net.well_posedness().contraction
        True
    """

    def __init__(self, network: EquilibriumNetwork[Any], *, max_gain: float = 0.95) -> None:
        if not isinstance(network, EquilibriumNetwork):
            raise TypeError(f"network must have a recurrent layer, got {type(network).__name__}")
        self.network = network
        self.max_gain = real("max_gain", max_gain, above=0)
        layers = [layer for layer, _ in network.turn]
        self._gain = GainBound([gain_factor(layer) for layer in layers])
        if math.inf in self._gain.factors:
            activation = layers[self._gain.factors.index(math.inf)].activation
            raise ValueError(f"network must have a Lipschitz activation, got {activation!r}")

    @torch.no_grad()
    def apply(self) -> float:
        """Scale the weights down if they need it; returns a certified bound of the gain."""
        weights = [weight for _, weight in self.network.turn]
        bound = self._gain.upper(weights, self.max_gain)
        if not math.isfinite(bound):
            raise ValueError("network must have finite recurrent weights, got NaN or infinity")
        if bound > self.max_gain:
            bounds = self._scale_down(weights, [bound for _, bound in self._gain.known])
            self._gain.learn(weights, bounds)
            bound = math.prod(bounds)
        return bound

    def _scale_down(self, weights: list[Tensor], bounds: list[float]) -> list[float]:
        """Scale weights whose gains have bounds that are too large; returns the new bounds."""
        slack = _SLACK
        # rounding adds at most ε‖W‖_F ≤ ε√m‖W‖ to the norm; mostly that is little
        rounding = math.sqrt(len(weights[0])) * torch.finfo(weights[0].dtype).eps
        while (product := math.prod(bounds)) > self.max_gain:
            factor = ((1 - slack) * self.max_gain / product) ** (1 / len(weights))
            for weight in weights:
                weight.mul_(factor)
            bounds = [bound * factor * (1 + 2 * rounding) for bound in bounds]
            if math.prod(bounds) > self.max_gain or weights[0].dtype.itemsize < 4:
                # the worst case is too bad, or small numbers lose more: see what has come of it
                bounds = self._gain.measure(weights)
                slack = min(2 * slack, 0.5)
        return bounds

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Apply the constraint now and after every step of an optimizer, until removed."""
        instance("optimizer", optimizer, torch.optim.Optimizer)
        self.apply()
        return optimizer.register_step_post_hook(lambda *_: (self.apply(), None)[1])
