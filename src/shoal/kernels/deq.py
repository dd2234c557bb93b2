r"""Kernels of deep equilibrium models, in both parametrizations.

With the fixed point $\Lambda$ of :mod:`shoal.kernels.fixed_points`, the CK is $G =
D_\varphi(\Lambda)$. A perturbation of a hidden unit passes through all layers with the factor
$M = \dot E / (1 - \sigma_a^2\dot E)$, $\dot E = D_{\varphi'}(\Lambda)$, and the NTK is a sum over
the trained groups: $G$ (readout), $\sigma_a^2 G M$ (recurrent), $\sigma_b^2 x^\top x' M$ (input).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.exceptions import ConvergenceError
from shoal.gaussian import dual, dual_derivative, moments
from shoal.kernels.fixed_points import fixed_covariance, fixed_half_angle, fixed_variance
from shoal.kernels.function import (
    angular_kernels,
    own_kernels,
    pair_kernels,
    pairs_of_one_norm,
)
from shoal.kernels.result import Kernels
from shoal.kernels.section import HalfAngle, section

__all__ = ["group_weights"]

_SMALLEST = 1e-300  # a variance of zero


@pair_kernels.register
def _(
    architecture: DEQ,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    trainable: frozenset[str],
    width: int | None,
    variances: Mapping[str, Tensor] | None = None,
) -> Kernels:
    phi = architecture.activation
    recurrent, injection = _variances(architecture, c, variances)
    variance_u, variance_v, covariance = _fixed_points(phi, recurrent, injection, a, b, c)
    ck = dual(phi, variance_u, variance_v, covariance)
    slope = dual_derivative(phi, variance_u, variance_v, covariance)
    weights = group_weights(architecture, recurrent, injection, width)
    return Kernels(ck, _ntk(weights, recurrent, ck, slope, c, trainable))


@own_kernels.register
def _(
    architecture: DEQ,
    a: Tensor,
    trainable: frozenset[str],
    width: int | None,
    variances: Mapping[str, Tensor] | None = None,
) -> Kernels:
    """The same for inputs with themselves, by integrals of one variable."""
    phi = architecture.activation
    recurrent, injection = _variances(architecture, a, variances)
    variance = fixed_variance(phi, recurrent, injection * a, differentiable=True)
    m = moments(phi, variance.clamp(min=_SMALLEST).sqrt())
    weights = group_weights(architecture, recurrent, injection, width)
    return Kernels(m.square, _ntk(weights, recurrent, m.square, m.first_square, a, trainable))


@angular_kernels.register
def _(
    architecture: DEQ,
    squared_norm: float,
    half: HalfAngle,
    trainable: frozenset[str],
    width: int | None,
) -> Kernels:
    """The same with angles instead of covariances."""
    recurrent = torch.tensor(architecture.recurrent_variance, dtype=torch.float64)
    injected = torch.tensor(architecture.input_variance * squared_norm, dtype=torch.float64)
    phi = architecture.activation
    variance = fixed_variance(phi, recurrent, injected, differentiable=False)
    if float(variance) == 0:  # no angle means anything there
        return pairs_of_one_norm(architecture, squared_norm, half, trainable, width)
    duals = section(phi, float(variance))
    inner = fixed_half_angle(duals, float(recurrent), float(injected), half)
    ck = duals.square * duals.passed(inner).cosine
    slope = duals.slope(inner.angle)
    product = squared_norm * half.cosine
    weights = group_weights(architecture, recurrent, _variances(architecture, ck, None)[1], width)
    return Kernels(ck, _ntk(weights, recurrent, ck, slope, product, trainable))


def _variances(
    architecture: DEQ, like: Tensor, variances: Mapping[str, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Those given, or else those of the architecture: recurrent and input."""
    given = variances or {}
    first, second = (
        given[name] if name in given else like.new_tensor(getattr(architecture, name))
        for name in architecture.variances
    )
    return first, second


def group_weights(
    architecture: DEQ, recurrent: Tensor, injection: Tensor, width: int | None
) -> dict[str, Tensor | float]:
    """How much each group counts in the NTK."""
    if architecture.parametrization == "ntk":
        return {"readout": 1.0, "recurrent": recurrent, "input": injection}
    # Ling 2023: weights in their own scale, so the NTK grows with the width
    growing, fixed = (1.0, 0.0) if width is None else (float(width), 1.0)
    return {"readout": growing, "recurrent": growing, "input": fixed}


def _ntk(
    weights: dict[str, Tensor | float],
    recurrent: Tensor,
    ck: Tensor,
    slope: Tensor,
    product: Tensor,
    trainable: frozenset[str],
) -> Tensor:
    """The sum of the trained groups' shares."""
    largest = (
        float((recurrent * slope).detach().max()) if float(recurrent.detach().max()) > 0 else 0.0
    )
    if not largest < 1:
        raise ConvergenceError(
            "the kernel does not exist: recurrent_variance times E[φ'(u) φ'(v)] is "
            f"{largest:.4g} at the fixed point, and must be below 1"
        )
    through = slope / (1 - recurrent * slope)
    shares = {"readout": ck, "recurrent": ck * through, "input": product * through}
    return sum((weights[g] * shares[g] for g in sorted(trainable)), torch.zeros_like(ck))


def _fixed_points(
    phi: Activation, recurrent: Tensor, injection: Tensor, a: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The variances and covariances of the hidden units' inputs at equilibrium."""
    point = (a, b, c, recurrent, injection)
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in point)
    variance_u = fixed_variance(phi, recurrent, injection * a, differentiable=differentiable)
    variance_v = fixed_variance(phi, recurrent, injection * b, differentiable=differentiable)
    if differentiable:
        covariance = fixed_covariance(
            phi, recurrent, variance_u, variance_v, injection * c, differentiable=True
        )
        return variance_u, variance_v, covariance
    # equal norms have equal variances, an input and itself have that covariance: to the last bit
    variance_v = torch.where(a == b, variance_u, variance_v)
    covariance, other = variance_u.clone(), ~((a == b) & (c == a))
    if bool(other.any()):
        covariance[other] = fixed_covariance(
            phi,
            recurrent,
            variance_u[other],
            variance_v[other],
            injection * c[other],
            differentiable=False,
        )
    return variance_u, variance_v, covariance
