r"""Kernels of deep equilibrium models, in both parametrizations.

With the fixed point $\Lambda$ of :mod:`shoal.kernels.fixed_points`, the CK is $G =
D_\varphi(\Lambda)$. A perturbation of a hidden unit passes through all layers with the factor
$M = \dot E / (1 - \sigma_a^2\dot E)$, $\dot E = D_{\varphi'}(\Lambda)$, and the NTK is a sum over
the trained groups: $G$ (readout), $\sigma_a^2 G M$ (recurrent), $\sigma_b^2 x^\top x' M$ (input).
"""

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.gaussian import dual, dual_derivative
from shoal.kernels.fixed_points import fixed_covariance, fixed_half_angle, fixed_variance
from shoal.kernels.function import angular_kernels, pair_kernels
from shoal.kernels.result import Kernels
from shoal.kernels.section import HalfAngle, section

__all__: list[str] = []


@pair_kernels.register
def _(
    architecture: DEQ,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    trainable: frozenset[str],
    width: int | None,
) -> Kernels:
    phi = architecture.activation
    constants = (architecture.recurrent_variance, architecture.input_variance)
    recurrent, injection = (torch.as_tensor(v, dtype=c.dtype, device=c.device) for v in constants)
    variance_u, variance_v, covariance = _fixed_points(phi, recurrent, injection, a, b, c)
    ck = dual(phi, variance_u, variance_v, covariance)
    slope = dual_derivative(phi, variance_u, variance_v, covariance)
    return Kernels(ck, _ntk(architecture, ck, slope, c, trainable, width))


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
    duals = section(phi, float(variance))
    inner = fixed_half_angle(duals, float(recurrent), float(injected), half)
    ck = duals.square * duals.passed(inner).cosine
    slope = duals.slope(inner.angle)
    product = squared_norm * half.cosine
    return Kernels(ck, _ntk(architecture, ck, slope, product, trainable, width))


def _ntk(
    architecture: DEQ,
    ck: Tensor,
    slope: Tensor,
    product: Tensor,
    trainable: frozenset[str],
    width: int | None,
) -> Tensor:
    """The sum of the trained groups' shares."""
    recurrent, injection = architecture.recurrent_variance, architecture.input_variance
    through = slope / (1 - recurrent * slope)
    if architecture.parametrization == "ntk":
        factors = {"readout": 1.0, "recurrent": recurrent, "input": injection}
    else:  # Ling 2023: weights in their own scale, so the NTK grows with the width
        growing, fixed = (1.0, 0.0) if width is None else (float(width), 1.0)
        factors = {"readout": growing, "recurrent": growing, "input": fixed}
    shares = {"readout": ck, "recurrent": ck * through, "input": product * through}
    return sum((factors[g] * shares[g] for g in sorted(trainable)), torch.zeros_like(ck))


def _fixed_points(
    phi: Activation, recurrent: Tensor, injection: Tensor, a: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The variances and covariances of the hidden units' inputs at equilibrium."""
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (a, b, c))
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
