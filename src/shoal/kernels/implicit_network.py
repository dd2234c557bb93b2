r"""Kernels of the implicit network of Gao 2022 at infinite width.

Its equilibrium is $z = m^{-1/2}\sigma(\gamma g + r)$ with $r = \sigma(w^\top x)$ and a Gaussian
$g$ of covariance $P = z^\top z'$, so that $P$ is a fixed point of $P \mapsto \Psi(\theta, \gamma^2
P)$ (see :mod:`shoal.kernels.rectified`). All is positively homogeneous, so that inputs of norm one
and the angle between them tell everything. With $\dot E = \Psi_q$ and $F = \Psi_\rho$ there, and
the kernel $G$ of the feature map, the CK is $P + G$, and the NTK is a sum over the trained groups:
$P$ (readout), $G$ (skip), $\gamma^2 P \dot E / (1 - \gamma^2\dot E)$ (recurrent) and
$x^\top x' (F / (1 - \gamma^2\dot E) + (\pi - \theta)/2\pi)$ (input). Together they are the limit
of the paper's $H$.
"""

import math
from typing import Any

import torch
from torch import Tensor

from shoal.architectures import ImplicitNetwork
from shoal.core.caches import cached
from shoal.core.exceptions import ConvergenceError
from shoal.kernels.calculi.own import Variances
from shoal.kernels.fixed_points import solve
from shoal.kernels.function import KernelFunction, kernels_in
from shoal.kernels.rectified import Diagonal, rectified
from shoal.kernels.recursions import Network
from shoal.kernels.result import Kernels

__all__ = ["equilibrium", "state_square"]

_NARROWEST = 1e-100  # an angle of zero
_BLOCK = 4096  # pairs that are integrated at a time


@kernels_in.register
def implicit_network_kernels(
    architecture: ImplicitNetwork, calculus: Any, function: KernelFunction
) -> Network[Variances]:
    """The product of the norms times a function of the angle."""
    angle, scale = calculus.of_angle()
    unit = _unit_kernels(architecture, angle, function.trainable)
    ck = scale * unit.ck
    argument = scale * (architecture.gamma**2 * state_square(architecture.gamma) + 0.5)
    return Network(ck, scale * unit.ntk, Variances(ck, argument=argument))


@cached
def state_square(gamma: float) -> float:
    r"""$P$ of an input of norm one with itself, by Newton's method.

    $\Psi$ on the diagonal is a concave function of $s^2 = \gamma^2 P$ whose slope falls from 3/4
    to 1/2: there is one solution if $\gamma^2 < 2$, and none otherwise.
    """
    if not gamma**2 < 2:
        raise ConvergenceError(f"the kernel does not exist: gamma² is {gamma**2:.4g}, at least 2")
    square, step = 1.0, -math.inf
    while Diagonal.at(gamma * math.sqrt(square)).square > square:
        square *= 2
    while True:  # from above, all steps lead down, until rounding ends them
        here = Diagonal.at(gamma * math.sqrt(square))
        last, step = step, (here.square - square) / (1 - gamma**2 * here.active)
        if not last < step < 0:
            return square
        square += step


def _unit_kernels(
    architecture: ImplicitNetwork, angle: Tensor, trainable: frozenset[str]
) -> Kernels:
    """Both kernels of inputs of norm one, block by block."""
    parts = [
        _block(architecture.gamma, theta, trainable) for theta in angle.reshape(-1).split(_BLOCK)
    ]
    return Kernels(*(torch.cat(kind).view(angle.shape) for kind in zip(*parts, strict=True)))


def _block(gamma: float, theta: Tensor, trainable: frozenset[str]) -> Kernels:
    state, active, passed = equilibrium(gamma, theta)
    through = 1 / (1 - gamma**2 * active)
    free = (math.pi - theta) / (2 * math.pi)
    feature = theta.sin() / (2 * math.pi) + free * theta.cos()
    shares = {
        "readout": state,
        "skip": feature,
        "recurrent": gamma**2 * active * through * state,
        "input": theta.cos() * (passed * through + free),
    }
    ntk = sum((shares[group] for group in sorted(trainable)), torch.zeros_like(state))
    return Kernels(state + feature, ntk)


def equilibrium(gamma: float, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""$P$, $\dot E$ and $F$ of inputs of norm one at some angles."""
    theta = theta.clamp(min=_NARROWEST)
    square = state_square(gamma)
    std = gamma * math.sqrt(square)

    def angle_of(part: Tensor) -> Tensor:  # part is sin² ψ/2
        return 2 * torch.asin(part.clamp(min=_NARROWEST**2, max=0.5).sqrt())

    def equation(part: Tensor) -> tuple[Tensor, Tensor]:
        found = rectified(std, theta, angle_of(part))
        return found.drop / (2 * square), gamma**2 * found.active

    start = (theta / 2).sin() ** 2 / 2
    differentiable = torch.is_grad_enabled() and theta.requires_grad
    part = solve(equation, start, start.detach(), "angle", differentiable=differentiable)
    found = rectified(std, theta, angle_of(part))
    return square * (1 - 2 * part), found.active, found.passed
