r"""The linear and convolutional weights of any module, and what bounds the norms of their maps.

A convolution takes each output pixel from a patch of the input, $y_n = K x_{P(n)}$, where $K$ is
its weight as a matrix of shape (outputs, inputs × kernel positions). Hence
$\|y\|^2 \le \|K\|^2 \sum_n \|x_{P(n)}\|^2 \le c \|K\|^2 \|x\|^2$, where $c$ is the largest number
of patches that one pixel lies in. Along one axis, with kernel size $k$, stride $s$ and dilation
$d$, a pixel $j$ lies in patch $n$ at place $p$ if $sn + dp = j$: at every $s/g$-th place at most,
$g$ the greatest common divisor of $s$ and $d$, so that $c = \lceil kg/s \rceil$; the $c$ of several
axes is the product. Zeros that pad the input change nothing; other padding puts pixels in several
places, and the numbers of patches add up.
A transposed convolution is the transpose of a convolution with the same weight, of the same norm.
Groups act on channels of their own: the norm is the largest of theirs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from shoal.core.checks import items
from shoal.networks.parameter_names import is_named

_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


@dataclass(frozen=True)
class LinearWeight:
    """A weight whose norm as a matrix, times a factor, bounds that of the map it makes.

    Attributes:
        owner: The module that has it.
        attribute: Its name there.
        name: Its name in the whole.
        factor: The factor.
        groups: The number of matrices, one below the other, that it is made of.
    """

    owner: nn.Module
    attribute: str
    name: str
    factor: float = 1.0
    groups: int = 1

    def read(self) -> Tensor:
        """The weight as it is now."""
        found: Tensor = getattr(self.owner, self.attribute)
        return found


def linear_weights(module: nn.Module, patterns: object = None) -> list[LinearWeight]:
    """The weights of linear and convolutional layers; one that several share is there once.

    Args:
        module: What has them.
        patterns: Names of weights or of modules, one or several, with ``*`` for anything; then
            other matrices among the parameters may be named too. All layers' by default.

    Raises:
        ValueError: If there is none, or a weight is made of other parameters.
    """
    wanted = _patterns(patterns)
    found = list(_of_layers(module, wanted))
    if wanted is not None:
        known = {id(weight.read()) for weight in found}
        found += _matrices(module, wanted, known)
        for pattern in wanted:
            if not any(is_named(weight.name, pattern) for weight in found):
                raise ValueError(
                    "weights must name linear or convolutional weights, or matrices, of the "
                    f"network, got {pattern!r}; there are {_listed(module)}"
                )
    if not found:
        raise ValueError("network must have a linear or convolutional layer, got none")
    several: dict[tuple[int, int], LinearWeight] = {}
    for weight in found:  # shared ones once, for the map of the largest norm
        key = id(weight.read()), weight.groups
        if key not in several or weight.factor > several[key].factor:
            several[key] = weight
    return list(several.values())


def _patterns(patterns: object) -> tuple[str, ...] | None:
    if patterns is None:
        return None
    several = (patterns,) if isinstance(patterns, str) else items("weights", patterns, "names")
    if not several or not all(isinstance(pattern, str) for pattern in several):
        raise TypeError(f"weights must be names of weights, got {patterns!r}")
    return several


def _of_layers(module: nn.Module, wanted: Sequence[str] | None) -> Iterator[LinearWeight]:
    for path, layer in module.named_modules():
        name = f"{path}.weight" if path else "weight"
        if not isinstance(layer, (nn.Linear, *_CONVOLUTIONS)):
            continue
        if wanted is not None and not any(is_named(name, pattern) for pattern in wanted):
            continue
        parameters = {key for key, _ in layer.named_parameters(recurse=False)}
        if parametrize.is_parametrized(layer, "weight") or "weight" not in parameters:
            raise ValueError(
                f"weights must be parameters themselves, got {name!r}, which is made of others by "
                "a parametrization; leave it out, or remove the parametrization"
            )
        if isinstance(layer.weight, UninitializedParameter):
            raise TypeError(f"weights must have values, got {name!r} of a lazy layer")
        if isinstance(layer, nn.Linear):
            yield LinearWeight(layer, "weight", name)
        else:
            yield LinearWeight(layer, "weight", name, _norm_factor(layer), layer.groups)


def _matrices(module: nn.Module, wanted: Sequence[str], known: set[int]) -> Iterator[LinearWeight]:
    """Other parameters that are named and are matrices; vectors, such as biases, are left out."""
    for name, parameter in module.named_parameters():
        meant = any(is_named(name, pattern) for pattern in wanted)
        if id(parameter) in known or not meant or parameter.dim() < 2:
            continue
        path, _, attribute = name.rpartition(".")
        if parameter.dim() > 2 or "parametrizations" in path.split("."):
            raise ValueError(
                "weights must be matrices, or of linear or convolutional layers, got "
                f"{name!r} of shape {tuple(parameter.shape)}"
            )
        yield LinearWeight(module.get_submodule(path), attribute, name)


def _listed(module: nn.Module) -> str:
    names = [name for name, parameter in module.named_parameters() if parameter.dim() >= 2]
    return ", ".join(names) if names else "none"


def _norm_factor(layer: nn.Module) -> float:
    """The square root of the number of patches that a pixel can lie in."""
    sizes, strides, dilations = layer.kernel_size, layer.stride, layer.dilation
    if isinstance(layer.padding, str):
        same = layer.padding == "same"
        added = [d * (k - 1) * same for k, d in zip(sizes, dilations, strict=True)]  # type: ignore[arg-type]
    else:
        added = [2 * one for one in layer.padding]  # type: ignore[union-attr]
    axes = zip(sizes, strides, dilations, added, strict=True)  # type: ignore[arg-type]
    return math.sqrt(math.prod(_patches(*axis, str(layer.padding_mode)) for axis in axes))


def _patches(size: int, stride: int, dilation: int, added: int, mode: str) -> int:
    """The most patches that a pixel lies in along one axis, its padded copies counted.

    Args:
        size: Of the kernel.
        stride: Of the patches.
        dilation: Of the kernel.
        added: The pixels that padding adds on both sides together.
        mode: Which ones it adds.
    """
    once = math.ceil(size * math.gcd(stride, dilation) / stride)
    if mode == "zeros":
        return once
    if mode == "replicate":
        return (1 + added) * once  # if all of them are the same pixel
    found = (1 + min(added, 2)) * once  # on either side at most once: PyTorch demands it
    if mode == "circular" and added <= dilation * (size - 1):
        # no more patches than pixels: each place of the kernel sees a pixel in one patch at most
        return min(found, size)
    return found
