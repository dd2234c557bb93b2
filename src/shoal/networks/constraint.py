r"""Keep the gain of recurrent layers, or the norms of any module's weights, below a bound.

A convolution takes each output pixel from a patch of the input, $y_n = K x_{P(n)}$, where $K$ is
its weight as a matrix of shape (outputs, inputs × kernel positions). Hence
$\|y\|^2 \le \|K\|^2 \sum_n \|x_{P(n)}\|^2 \le c \|K\|^2 \|x\|^2$, where $c$ is the largest number
of patches that one pixel lies in. Along one axis, with kernel size $k$, stride $s$ and dilation
$d$, a pixel $j$ lies in patch $n$ at place $p$ if $sn + dp = j$: at every $s/g$-th place at most,
$g$ the greatest common divisor of $s$ and $d$, so that $c = \lceil kg/s \rceil$; the $c$ of several
axes is the product. Padding by zeros changes nothing; other padding repeats pixels.
A transposed convolution is the transpose of a convolution with the same weight, of the same norm.
Groups act on separate channels: the norm is the largest norm of a group.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils.hooks import RemovableHandle

from shoal.core.checks import instance, items, real
from shoal.equilibrium import Equilibrium
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.gain import GainBound, MatrixNorm
from shoal.networks.modules import names_matching
from shoal.networks.network import Network

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)


class GainConstraint:
    r"""A bound on the gain of recurrent layers, or on the norms of any module's weights.

    For a network of ``build``, the bound limits the gain $s L \|W\|$ of its recurrent layer, or of
    its loop of recurrent layers: below one, the equilibrium exists and is unique. For any other
    module, such as the cell of an :class:`Equilibrium`, it limits only the operator norm of each
    linear or convolutional weight. A bound below one makes these cells contractions:

    - $\varphi(Wz + Ux)$ with $|\varphi'| \le 1$, if the norm of $W$ is bounded;
    - compositions of such layers in $z$, such as $W_2\,\varphi(W_1 z + Ux)$.

    It does not make a residual cell $z + g(z, x)$ a contraction: its Lipschitz constant may reach
    $1 + \|g\|$ for any bound, and its state drifts as $g$ becomes small. Damp it,
    $z \mapsto \alpha z + (1 - \alpha) g(z, x)$, or normalize. Attention and normalization of the
    state are not covered either.

    Call ``apply`` after each step of an optimizer, or ``attach`` it to one. The bound is certified
    at every step, rounding included, at little cost: since $\|W'\| \le \|W\| + \|W' - W\|_F$, the
    norm is bounded again only after the weights have moved far enough. Weights that would exceed
    the bound are scaled down, also if they are frozen (``requires_grad=False``).

    For a convolution in a network of ``build``, the bound is the largest norm of its symbols, the
    matrices by which it multiplies waves: exact for circular padding, close for zeros. For a
    convolution in another module, it is the norm of the weight as a matrix of shape (outputs,
    inputs × kernel positions), times the square root of the number of patches that contain a pixel.
    This is certified for images of any size, and exceeds the norm by at most that root.

    Args:
        network: A network with a recurrent layer, or any module, or an :class:`Equilibrium` of one.
        max_gain: The bound, above 0.
        weights: For modules, names of the weights to bound or of modules that have them, one or
            several, such as ``"recurrent"`` or ``"blocks.*.weight"``; other matrices among the
            parameters may be named too. By default the weights of all linear and convolutional
            layers, including transposed ones and layers applied to the inputs.

    Raises:
        TypeError: If ``network`` is not a module, or is a network of ``build`` without a recurrent
            layer.
        ValueError: If ``max_gain`` is not positive, the activation is not Lipschitz, there are no
            such weights, or they are computed from others by a parametrization.

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
        if not isinstance(network, EquilibriumNetwork):
            self._gains = _module_gains(_module(network), weights)
        elif weights is None:
            self._gains = [_loop_gain(network)]
        else:
            raise ValueError(f"weights must be None for a network of build, got {weights!r}")

    @torch.no_grad()
    def apply(self) -> float:
        """Scale weights down that need it; returns a certified bound of the gain or norms."""
        return max(map(self._keep, self._gains))

    def _keep(self, gain: GainBound) -> float:
        """Scale weights down if they need it; returns a certified bound of their gain."""
        bound = gain.upper(self.max_gain)
        slack = 0.02  # below the bound, so that not every step must scale weights
        if not math.isfinite(bound):
            raise ValueError(f"{gain.name} must have a finite norm, got {bound}")
        while bound > self.max_gain:
            factor = ((1 - slack) * self.max_gain / bound) ** (1 / len(gain.factors))
            for weight in gain.weights():
                weight.mul_(factor)
            bound, slack = gain.upper(self.max_gain), min(2 * slack, 0.5)
        return bound

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Apply the constraint now and after every step of an optimizer, until removed."""
        instance("optimizer", optimizer, torch.optim.Optimizer)
        self.apply()
        return optimizer.register_step_post_hook(lambda *_: (self.apply(), None)[1])


def _loop_gain(network: EquilibriumNetwork[Any]) -> GainBound:
    """The gain of a network's recurrent layers, or an error if it cannot be bounded."""
    gain = network.gain_bound()
    for factor, (layer, weight) in zip(gain.factors, network.recurrent_layers, strict=True):
        if factor == math.inf:
            raise ValueError(f"network must have a Lipschitz activation, got {layer.activation!r}")
        if not any(weight is tensor for tensor in (*network.parameters(), *network.buffers())):
            raise ValueError(
                "the recurrent weights of network must be plain parameters, got some with a "
                "parametrization; remove the parametrization"
            )
    return gain


def _module(network: object) -> nn.Module:
    """The module whose weights are bounded."""
    module = network.cell if isinstance(network, Equilibrium) else network
    if isinstance(module, Network) or not isinstance(module, nn.Module):
        raise TypeError(
            "network must have a recurrent layer, or be a module or an Equilibrium of one, got "
            f"{type(module).__name__}"
        )
    return module


def _module_gains(module: nn.Module, patterns: object) -> list[GainBound]:
    """The norms of chosen weights of a module; shared ones once, with their largest factor."""
    gains: dict[tuple[int, int], tuple[float, GainBound]] = {}
    for name, layer in _chosen(module, patterns).items():
        factor, groups = 1.0, 1
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        if attribute not in dict(owner.named_parameters(recurse=False)) or "parametriz" in path:
            raise ValueError(
                f"weights must be plain parameters, got {name!r}, part of a parametrization; "
                "remove the parametrization, or leave out this weight"
            )
        weight: Tensor = getattr(owner, attribute)
        if isinstance(weight, UninitializedParameter):
            raise TypeError(f"weights must have values, got {name!r} of a lazy layer")
        if isinstance(layer, _CONVOLUTIONS):
            factor, groups = _patch_factor(layer), int(layer.groups)
        elif weight.dim() > 2:
            raise ValueError(
                "weights must be matrices, or of linear or convolutional layers, got "
                f"{name!r} of shape {tuple(weight.shape)}"
            )
        key = id(weight), groups
        if key not in gains or gains[key][0] < factor:
            read = partial(_read, owner, attribute)
            gains[key] = factor, GainBound([factor], MatrixNorm(groups), read, name=name)
    if not gains:
        raise ValueError("network must have a linear or convolutional layer, got none")
    return [gain for _, gain in gains.values()]


def _chosen(module: nn.Module, patterns: object) -> dict[str, nn.Module | None]:
    """The weights that patterns choose, by name, with their linear or convolutional layers.

    Args:
        module: The module that has them.
        patterns: Names of weights or of modules, one or several, with ``*`` for anything; all
            linear and convolutional layers by default.
    """
    layers: dict[str, nn.Module | None] = {
        f"{path}.weight".lstrip("."): layer
        for path, layer in module.named_modules()
        if isinstance(layer, (nn.Linear, *_CONVOLUTIONS))
    }
    if patterns is None:
        return layers
    chosen = (patterns,) if isinstance(patterns, str) else items("weights", patterns, "names")
    parameters = module.named_parameters()
    candidates = {
        name: layers.get(name) for name, p in parameters if p.dim() >= 2 or name in layers
    }
    candidates |= layers
    kind = "weights of linear or convolutional layers, or matrices"
    return {name: candidates[name] for name in names_matching("weights", chosen, candidates, kind)}


def _read(owner: nn.Module, attribute: str) -> list[Tensor]:
    """A weight, as it is now."""
    return [getattr(owner, attribute)]


def _patch_factor(layer: Any) -> float:
    """The square root of the number of patches that a pixel can lie in."""
    count = 1
    for axis, (size, stride, step) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    ):
        once, reach = math.ceil(size * math.gcd(stride, step) / stride), step * (size - 1)
        if isinstance(layer.padding, str):
            added = reach if layer.padding == "same" else 0
        else:
            added = 2 * layer.padding[axis]
        if layer.padding_mode == "circular" and added <= reach:
            once = size  # a pixel and its copies: at most one patch for each place of the kernel
        elif layer.padding_mode != "zeros":
            once *= 1 + added  # if all added pixels are the same one
        count *= once
    return math.sqrt(count)
