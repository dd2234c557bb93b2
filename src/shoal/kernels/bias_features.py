r"""Biases as one more feature of the inputs.

A loop of one layer sees inputs as $\sigma_b^2 \langle x, x'\rangle + \beta$, as one without biases
sees $(x, \sqrt{\beta/\sigma_b^2})$. Kernels of positively homogeneous activations are functions of
the angle of these alone, up to their norms.
"""

from dataclasses import replace

import torch
from torch import Tensor

from shoal.architectures import Architecture, ImplicitNetwork
from shoal.kernels.function import KernelFunction

_LARGEST = 2.0  # of the feature, in norms of inputs: beside larger ones, angles lose digits


def with_bias_features(
    function: KernelFunction, first: Tensor, second: Tensor | None
) -> tuple[KernelFunction, Tensor, Tensor | None]:
    """The kernels without biases and the inputs with one more feature, where these do the same.

    Activations must be positively homogeneous, and the NTK count biases as it counts the weights of
    the inputs.

    Example:
        >>> import torch, shoal
        >>> f = shoal.kernel_function(shoal.DEQ("relu", 0.2, 0.5, bias_variance=0.5))
        >>> found, x, _ = with_bias_features(f, torch.eye(2), None)
        >>> found.architecture.bias_variance, x.tolist()
        (0.0, [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    """
    plain = _without_biases(function)
    if plain is None:
        return function, first, second
    layers, given = function.architecture.layers(function.width), dict(function.variances)
    bias, injection = layers.cells[0].bias, layers.injection
    assert bias is not None
    assert injection is not None
    above, below = (
        given.get(weights.field or "", torch.tensor(weights.variance, dtype=torch.float64))
        for weights in (bias, injection)
    )
    feature = (above.double() / below.double()).sqrt()
    for x in (first,) if second is None else (first, second):
        norm = torch.linalg.vector_norm(x.detach(), dim=-1)
        if float(feature.detach()) > _LARGEST * float(norm.median()):
            return function, first, second
    rest = tuple((name, value) for name, value in function.variances if name != bias.field)
    one, other = (
        None if x is None else torch.cat([x, feature.to(x).expand(*x.shape[:-1], 1)], -1)
        for x in (first, second)
    )
    assert one is not None
    return replace(plain, variances=rest), one, other


def _without_biases(function: KernelFunction) -> KernelFunction | None:
    """The kernels of the same network but for its biases, if those may be features."""
    architecture, width = function.architecture, function.width
    if isinstance(architecture, ImplicitNetwork):
        return None
    layers = architecture.layers(width)
    cell, injection = layers.cells[0], layers.injection
    if injection is None or layers.gated or cell.bias is None or cell.bias.field is None:
        return None
    trained = {weights.group in function.trainable for weights in (injection, cell.bias)}
    scaled = injection.tangent is not None or cell.bias.tangent is not None
    if len(trained) > 1 or (True in trained and scaled):
        return None
    if not (injection.variance > 0 and cell.bias.variance > 0):
        return None
    plain: Architecture = replace(architecture, **{cell.bias.field: 0.0})
    cells = (replace(cell, bias=None), *layers.cells[1:])
    if plain.layers(width) != replace(layers, cells=cells) or not plain.positively_homogeneous:
        return None
    return KernelFunction(plain, function.trainable - {cell.bias.group}, width)
