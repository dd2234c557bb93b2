r"""Kernels of residual networks (Du 2018, Theorem D.1).

Every layer is $x^{(h)} = e\,x^{(h-1)} + k\,m^{-1/2}\sigma(W x^{(h-1)})$, the first with $e = 0$,
$k = \sqrt{c_\sigma}$, the others with $e = 1$, $k = s/H$. Its units are independent given what is
below, so that with $\mu = \mathbb{E}[\sigma]$ and the means $b$ of the features (times $\sqrt m$)

$\Sigma' = e\,\Sigma + k(b_i\mu_j + \mu_i b_j) + k^2 D_\sigma(\Sigma)$ and $b' = e\,b + k\mu$.

An output reacts to a layer's features by independent signs, so that its reactions have no cross
terms: every NTK so far is multiplied by $e + k^2 D_{\sigma'}(\Sigma)$, and the layer's own weights
add $k^2\,\Sigma\,D_{\sigma'}(\Sigma)$. That share of the last layer is the paper's $K^{(H)}$.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import ConvResNet, ResNet
from shoal.gaussian import dual, dual_derivative, moments
from shoal.gaussian.moments import mean, mean_square, normalization
from shoal.kernels.function import (
    angular_kernels,
    own_kernels,
    pair_kernels,
    pairs_of_one_norm,
)
from shoal.kernels.result import Kernels
from shoal.kernels.section import HalfAngle, section

__all__ = ["ResidualLayer", "layer_weights", "residual_layers"]

_SMALLEST = 1e-300  # a variance of zero


class ResidualLayer(NamedTuple):
    """A layer.

    Attributes:
        sigma: Its activation.
        skip: $e$, one or zero.
        factor: $k$.
        trained: Whether its weights are.
    """

    sigma: Activation
    skip: float
    factor: float
    trained: bool


def residual_layers(
    architecture: ResNet | ConvResNet, trainable: frozenset[str] = frozenset()
) -> Iterator[ResidualLayer]:
    """The layers from the input to the output."""
    for layer, sigma in enumerate(architecture.activations, start=1):
        skip, factor = layer_weights(architecture, layer, sigma)
        yield ResidualLayer(sigma, skip, factor, f"layer{layer}" in trainable)


def layer_weights(
    architecture: ResNet | ConvResNet, layer: int, sigma: Activation
) -> tuple[float, float]:
    r"""$e$ and $k$ of a layer, counted from one, if it has the activation $\sigma$."""
    if layer == 1:
        return 0.0, math.sqrt(normalization(sigma))
    return 1.0, architecture.residual_scale / architecture.depth


@pair_kernels.register
def _(
    architecture: ResNet,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    trainable: frozenset[str],
    width: int | None,  # noqa: ARG001
    variances: Mapping[str, Tensor] | None = None,  # noqa: ARG001
) -> Kernels:
    a, b, c = torch.broadcast_tensors(a, b, c)
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (a, b, c))
    equal_norms, equal_inputs = a == b, (a == b) & (c == a)
    mean_a = mean_b = ntk = torch.zeros_like(c)
    for sigma, skip, k, trained in residual_layers(architecture, trainable):
        slope = k**2 * dual_derivative(sigma, a, b, c)
        ntk = ntk * (skip + slope) + (slope * c if trained else 0.0)
        value = k**2 * dual(sigma, a, b, c)
        first_a, square_a = _moments(sigma, a, differentiable=differentiable)
        first_b, square_b = _moments(sigma, b, differentiable=differentiable)
        c = skip * c + k * (mean_a * first_b + mean_b * first_a) + value
        a = skip * a + 2 * k * mean_a * first_a + k**2 * square_a
        b = skip * b + 2 * k * mean_b * first_b + k**2 * square_b
        mean_a, mean_b = skip * mean_a + k * first_a, skip * mean_b + k * first_b
        if not differentiable:  # what is equal stays so, to the last bit
            b, c = torch.where(equal_norms, a, b), torch.where(equal_inputs, a, c)
    return Kernels(c, ntk)


@own_kernels.register
def _(
    architecture: ResNet,
    a: Tensor,
    trainable: frozenset[str],
    width: int | None,  # noqa: ARG001
    variances: Mapping[str, Tensor] | None = None,  # noqa: ARG001
) -> Kernels:
    """The same for inputs with themselves, by integrals of one variable."""
    first = ntk = torch.zeros_like(a)
    for sigma, skip, k, trained in residual_layers(architecture, trainable):
        m = moments(sigma, a.clamp(min=_SMALLEST).sqrt())
        slope = k**2 * m.first_square
        ntk = ntk * (skip + slope) + (slope * a if trained else 0.0)
        a = skip * a + 2 * k * first * m.mean + k**2 * m.square
        first = skip * first + k * m.mean
    return Kernels(a, ntk)


@angular_kernels.register
def _(
    architecture: ResNet,
    squared_norm: float,
    half: HalfAngle,
    trainable: frozenset[str],
    width: int | None,
) -> Kernels:
    r"""The same with an angle instead of a covariance.

    The means drop out of $\Sigma(0) - \Sigma(\theta)$, and only add to
    $\Sigma(0) + \Sigma(\theta)$.
    """
    variance, first, half_input = squared_norm, 0.0, half
    ntk = torch.zeros_like(half.cosine)
    for sigma, skip, k, trained in residual_layers(architecture, trainable):
        if variance == 0:  # no angle means anything there
            return pairs_of_one_norm(architecture, squared_norm, half_input, trainable, width)
        duals = section(sigma, variance)
        moment = float(mean(sigma, torch.tensor(variance, dtype=torch.float64)))
        slope = k**2 * duals.slope(half.angle)
        ntk = ntk * (skip + slope) + (slope * (variance * half.cosine) if trained else 0.0)
        passed, square = duals.passed(half), k**2 * duals.square
        below, cross = skip * variance, 2 * k * first * moment
        variance = below + cross + square
        sine2 = (below * half.sine2 + square * passed.sine2) / variance
        cosine2 = (below * half.cosine2 + cross + square * passed.cosine2) / variance
        half = HalfAngle(sine2, cosine2.clamp(min=0.0))
        first = skip * first + k * moment
    return Kernels(variance * half.cosine, ntk)


def _moments(sigma: Activation, variance: Tensor, *, differentiable: bool) -> tuple[Tensor, Tensor]:
    """Mean and mean square of an activation."""
    if differentiable:  # duals of kinks have no second derivatives where u = v
        some = variance.clamp(min=_SMALLEST)
        return mean(sigma, some), mean_square(sigma, some)[0]
    distinct, inverse = variance.unique(return_inverse=True)
    square = dual(sigma, distinct, distinct, distinct)
    return mean(sigma, distinct.clamp(min=_SMALLEST))[inverse], square[inverse]
