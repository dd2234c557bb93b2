"""Keep the recurrent layer of a network, or the weights of any module, small in training."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from shoal.core.checks import instance, real
from shoal.equilibrium import Equilibrium
from shoal.networks.contraction.gain import GainBound, MatrixNorm
from shoal.networks.contraction.linear_weights import LinearWeight, linear_weights
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.network import Network

_SLACK = 0.02  # how far below the bound weights are moved, so that not every step must do so


class GainConstraint:
    r"""Keeps the gain of recurrent layers, or the norm of any module's weights, below a bound.

    For a network of ``build`` that is the gain $s L \|W\|$ of its recurrent layer, or of the loop
    of them. For any other module, such as the cell of an :class:`Equilibrium`, it is the operator
    norm of the map that each linear or convolutional weight makes: what the cell is made of
    besides, such as slopes of activations and sums, is yours to count. If the recurrent weight of a
    cell $\varphi(Wz + Ux)$ with $|\varphi'| \le 1$ has a norm below one, the equilibrium exists and
    is unique.

    Call ``apply`` after each step of an optimizer, or ``attach`` it to one. The bound is certified
    at every step, rounding included, at little cost: since $\|W'\| \le \|W\| + \|W' - W\|_F$, the
    norm itself is bounded anew only when the weights have moved far enough for it to matter.
    Weights that would exceed the bound are scaled down, also if they are frozen
    (``requires_grad=False``): the bound is about the network, not about what is trained.

    The norm of a convolutional network's convolution is bounded by those of its symbols, the
    matrices by which it multiplies waves: exactly for circular padding, closely for zeros. That of
    another module's convolution is bounded by that of its weight as a matrix, of shape (outputs,
    inputs × kernel positions), times the square root of the number of patches that a pixel lies in:
    of positions over strides. For images of any size that is certified, but above the norm by up to
    that root.

    Args:
        network: A network with a recurrent layer, or any module, or an :class:`Equilibrium` of one.
        max_gain: The bound, above 0. Below 1 the equilibrium of a network exists and is unique.
        weights: For modules, names of the weights to bound or of modules that have them, one or
            several, such as ``"recurrent"`` or ``"blocks.*.weight"``; other matrices among the
            parameters may be named too. By default the weights of all linear and convolutional
            layers, transposed ones too, also those that the inputs go through.

    Raises:
        TypeError: If it is a network of ``build`` without a recurrent layer, or no module.
        ValueError: If ``max_gain`` is not positive, the activation is not Lipschitz, there are no
            such weights, or they are made of others by a parametrization.

    Example:
        >>> import torch, shoal
        >>> deq = shoal.DEQ("tanh", recurrent_variance=0.5, input_variance=0.5)
        >>> net = shoal.build(deq, in_features=3, width=64)
        >>> shoal.GainConstraint(net, max_gain=0.9).apply() <= 0.9
        True
        >>> net.well_posedness().contraction
        True
        >>> cell = torch.nn.Conv2d(8, 8, 3, padding=1)
        >>> shoal.GainConstraint(cell, max_gain=0.5).apply() <= 0.5
        True
    """

    def __init__(
        self,
        network: EquilibriumNetwork[Any] | nn.Module,
        *,
        max_gain: float = 0.95,
        weights: str | Sequence[str] | None = None,
    ) -> None:
        self.network = network
        self.max_gain = real("max_gain", max_gain, above=0)
        self._single: list[tuple[LinearWeight, GainBound]] = []
        self._loop: GainBound | None = None
        if isinstance(network, EquilibriumNetwork):
            if weights is not None:
                raise ValueError(f"weights must be None for a network of build, got {weights!r}")
            self._loop = _loop_gain(network)
        else:
            for weight in linear_weights(_module(network), weights):
                bound = GainBound([weight.factor], [MatrixNorm(weight.groups)], name=weight.name)
                self._single.append((weight, bound))

    @torch.no_grad()
    def apply(self) -> float:
        """Scale weights down that need it; returns a certified bound of the gain or norms."""
        if self._loop is not None:
            assert isinstance(self.network, EquilibriumNetwork)
            return self._keep([weight for _, weight in self.network.recurrent_layers], self._loop)
        return max(self._keep([weight.read()], gain) for weight, gain in self._single)

    def _keep(self, weights: list[Tensor], gain: GainBound) -> float:
        """Scale weights down if they need it; returns a certified bound of their gain."""
        bound = gain.upper(weights, self.max_gain)
        if not math.isfinite(bound):
            raise ValueError(f"{gain.name} must have a finite norm, got {bound}")
        if bound > self.max_gain:
            bounds = self._scale_down(weights, gain)
            gain.learn(weights, bounds)
            bound = math.prod(bounds)
        return bound

    def _scale_down(self, weights: list[Tensor], gain: GainBound) -> list[float]:
        """Scale weights whose gains have bounds that are too large; returns the new bounds."""
        bounds, slack = [bound for _, bound in gain.known], _SLACK
        # rounding adds at most ε‖W‖_F ≤ ε√m‖W‖ to the norm of a matrix; mostly that is little
        drift = max(norm.drift for norm in gain.norms)
        rounding = drift * math.sqrt(len(weights[0])) * torch.finfo(weights[0].dtype).eps
        while (product := math.prod(bounds)) > self.max_gain:
            factor = ((1 - slack) * self.max_gain / product) ** (1 / len(weights))
            for weight in weights:
                weight.mul_(factor)
            bounds = [bound * factor * (1 + 2 * rounding) for bound in bounds]
            if math.prod(bounds) > self.max_gain or weights[0].dtype.itemsize < 4:
                # the worst case is too bad, or small numbers lose more: see what has come of it
                bounds = gain.measure(weights)
                slack = min(2 * slack, 0.5)
        return bounds

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Apply the constraint now and after every step of an optimizer, until removed."""
        instance("optimizer", optimizer, torch.optim.Optimizer)
        self.apply()
        return optimizer.register_step_post_hook(lambda *_: (self.apply(), None)[1])


def _loop_gain(network: EquilibriumNetwork[Any]) -> GainBound:
    """The gain of a network's recurrent layers, or say why it has none to bound."""
    layers = [layer for layer, _ in network.recurrent_layers]
    gain = network.gain_bound()
    if math.inf in gain.factors:
        activation = layers[gain.factors.index(math.inf)].activation
        raise ValueError(f"network must have a Lipschitz activation, got {activation!r}")
    own = {id(tensor) for tensor in (*network.parameters(), *network.buffers())}
    if not all(id(weight) in own for _, weight in network.recurrent_layers):
        raise ValueError(
            "network must have recurrent weights that are parameters themselves, got some that are "
            "made of others by a parametrization; remove it"
        )
    return gain


def _module(network: object) -> nn.Module:
    """The module whose weights are bounded, or say why there is none."""
    module = network.cell if isinstance(network, Equilibrium) else network
    if isinstance(module, Network) or not isinstance(module, nn.Module):
        raise TypeError(
            "network must have a recurrent layer, or be a module or an Equilibrium of one, got "
            f"{type(module).__name__}"
        )
    return module
