"""Kernels of fully connected networks (Ling 2024, Proposition 3.7; Du 2018, equation 4)."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import FullyConnected
from shoal.gaussian import dual, dual_derivative, moments
from shoal.gaussian.domain import within_bound
from shoal.gaussian.moments import mean_square, normalization
from shoal.kernels.function import (
    angular_kernels,
    own_kernels,
    pair_kernels,
    pairs_of_one_norm,
)
from shoal.kernels.result import Kernels
from shoal.kernels.section import HalfAngle, section

__all__ = ["layer_factor"]

_SMALLEST = 1e-300  # a variance of zero


@pair_kernels.register
def _(
    architecture: FullyConnected,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    trainable: frozenset[str],
    width: int | None,  # noqa: ARG001
    variances: Mapping[str, Tensor] | None = None,  # noqa: ARG001
) -> Kernels:
    r"""Layer by layer: $\Sigma' = D_\sigma(\Sigma)$, and every NTK so far times $D_{\sigma'}$."""
    if architecture.norm_gated:
        return _gated_pairs(architecture, a, b, c, trainable)
    ntk = torch.zeros_like(c)
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (a, b, c))
    equal_norms, equal_inputs = a == b, (a == b) & (c == a)
    for layer, sigma in enumerate(architecture.activations, start=1):
        factor = layer_factor(architecture, sigma)
        below = c if f"layer{layer}" in trainable else 0.0
        ntk = (ntk + below) * factor * dual_derivative(sigma, a, b, c)
        covariance = factor * dual(sigma, a, b, c)
        if differentiable:  # duals of kinks have no second derivatives where u = v
            a, b = (factor * mean_square(sigma, t.clamp(min=_SMALLEST))[0] for t in (a, b))
        else:
            a, b = factor * dual(sigma, a, a, a), factor * dual(sigma, b, b, b)
        c = covariance
        if not differentiable:  # what is equal stays so, to the last bit
            b, c = torch.where(equal_norms, a, b), torch.where(equal_inputs, a, c)
    return Kernels(c, ntk + c if "readout" in trainable else ntk)


@own_kernels.register
def _(
    architecture: FullyConnected,
    a: Tensor,
    trainable: frozenset[str],
    width: int | None,
    variances: Mapping[str, Tensor] | None = None,  # noqa: ARG001
) -> Kernels:
    """The same for inputs with themselves, by integrals of one variable."""
    if architecture.norm_gated:
        inner = own_kernels(_ungated(architecture), torch.ones_like(a), trainable, width)
        return Kernels(*(a * k for k in inner))
    ntk = torch.zeros_like(a)
    for layer, sigma in enumerate(architecture.activations, start=1):
        factor = layer_factor(architecture, sigma)
        below = a if f"layer{layer}" in trainable else 0.0
        m = moments(sigma, a.clamp(min=_SMALLEST).sqrt())
        ntk, a = (ntk + below) * factor * m.first_square, factor * m.square
    return Kernels(a, ntk + a if "readout" in trainable else ntk)


@angular_kernels.register
def _(
    architecture: FullyConnected,
    squared_norm: float,
    half: HalfAngle,
    trainable: frozenset[str],
    width: int | None,
) -> Kernels:
    """The same with an angle instead of a covariance."""
    if architecture.norm_gated:
        unit = angular_kernels(_ungated(architecture), 1.0, half, trainable, width)
        return Kernels(*(squared_norm * k for k in unit))
    variance, half_input, ntk = squared_norm, half, torch.zeros_like(half.cosine)
    for layer, sigma in enumerate(architecture.activations, start=1):
        if variance == 0:  # no angle means anything there
            return pairs_of_one_norm(architecture, squared_norm, half_input, trainable, width)
        factor, duals = layer_factor(architecture, sigma), section(sigma, variance)
        below = variance * half.cosine if f"layer{layer}" in trainable else 0.0
        ntk = (ntk + below) * factor * duals.slope(half.angle)
        variance, half = factor * duals.square, duals.passed(half)
    ck = variance * half.cosine
    return Kernels(ck, ntk + ck if "readout" in trainable else ntk)


def _gated_pairs(
    architecture: FullyConnected, a: Tensor, b: Tensor, c: Tensor, trainable: frozenset[str]
) -> Kernels:
    """The product of the norms times the kernels of the directions."""
    size = a.clamp(min=_SMALLEST).sqrt() * b.clamp(min=_SMALLEST).sqrt()
    one = torch.ones_like(size)
    cosine = within_bound(one, one, torch.where((a == b) & (c == a) & (a > 0), one, c / size))
    inner = pair_kernels(_ungated(architecture), one, one, cosine, trainable, None)
    return Kernels(*(a.sqrt() * b.sqrt() * k for k in inner))


def _ungated(architecture: FullyConnected) -> FullyConnected:
    return replace(architecture, norm_gated=False)


def layer_factor(architecture: FullyConnected, sigma: Activation) -> float:
    r"""$c_\sigma = 1/\mathbb{E}[\sigma(\xi)^2]$ where layers are normalized, else one."""
    return normalization(sigma) if architecture.normalized else 1.0
