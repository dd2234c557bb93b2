r"""Kernels of the implicit network of Gao 2022 at infinite width.

Its feature map $\phi = m^{-1/2}\sigma(Wx + b)$ is a cell, which sees the covariance $x^\top x' +
\beta$ and has the kernel $G$ of slope $\dot G$. The equilibrium is $z = m^{-1/2}\sigma(\gamma g +
r)$ with $r = \sigma(w^\top x + b)$ and a Gaussian $g$ of covariance $P = z^\top z'$, so that $P$ is
a fixed point of $P \mapsto \Psi(\theta, \gamma^2 P)$ times the norms of $(x, \sqrt\beta)$ and $(x',
\sqrt\beta)$, whose angle is $\theta$. With $\dot E = \Psi_q$ and $F = \Psi_\rho$ there, the CK is
$P + G$, and the NTK is a sum over the trained groups: $P$ (readout), $G$ (skip), $\gamma^2 P \dot E
/ (1 - \gamma^2\dot E)$ (recurrent), and $F / (1 - \gamma^2\dot E) + \dot G$ times $x^\top x'$
(input) or $\beta$ (bias). Without biases they are together the limit of the paper's $H$.

Here $\Psi$ is an integral of a rectified sum of a Gaussian and a rectified Gaussian, by integrals
along a ray. Let $w$, $w'$ be standard Gaussians at the angle $\theta$ and, independent of them,
$y$, $y'$ Gaussians of variance $s^2$ at the angle $\psi$: $\rho = \cos\theta$ is the covariance
of the former, $q = s^2\cos\psi$ the covariance of the latter. With $r = \max(w, 0)$, the function
$\Psi = \mathbb{E}[\max(y + r, 0)\max(y' + r', 0)]$ has by Price's theorem the slopes

$\Psi_\rho = P(w, w', y + w, y' + w' > 0)$ and $\Psi_q = P(y + r, y' + r' > 0)$,

which have no closed form. Their own slopes are densities on rays or quadrants, and have one:

$\Psi_{\rho\rho} = \frac{\pi - \psi}{4\pi^2\sin\theta} +
\frac{\omega}{2\pi^2\sqrt{s^2 + \sin^2\theta}} + \Psi_{\rho q}$, $\quad
\Psi_{qq} = \frac{\pi - \theta}{4\pi^2 s^2\sin\psi} +
\frac{\omega'}{2\pi^2 s\sqrt{1 + s^2\sin^2\psi}} + \Psi_{\rho q}$,
$\Psi_{\rho q} = \frac{\pi - \chi}{4\pi^2\sqrt{\det(R + S)}}$

with the covariances $R$ of $w$, $w'$ and $S$ of $y$, $y'$ and the angles $\omega$, $\omega'$,
$\chi$ below. On the ray $(t\theta, t\psi)$ from the diagonal, where all is known, they are smooth,
and the integral is the difference from the diagonal.

The equilibrium of an implicit network solves $P = \Psi(\rho, \gamma^2 P)$, one equation per angle.
"""

import math
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from shoal.activations import ReLU
from shoal.activations.panels import gauss_legendre
from shoal.architectures import ImplicitNetwork
from shoal.core.caches import cached
from shoal.core.exceptions import ConvergenceError
from shoal.kernels.fixed_points import solve
from shoal.kernels.function import KernelFunction, calculus_kernels
from shoal.kernels.recursions import NetworkKernels

_FINEST = 40  # octaves by which the first and the last panel are narrower than the ray, at most
_NARROWEST = 1e-100  # an angle of zero

N = TypeVar("N")


@dataclass(frozen=True)
class Diagonal:
    r"""The values where both angles are zero.

    Attributes:
        square: $\Psi = \mathbb{E}[\max(y + r, 0)^2]$.
        passed: $\Psi_\rho = P(w, y + w > 0)$.
        active: $\Psi_q = P(y + r > 0)$.
    """

    square: float
    passed: float
    active: float

    @classmethod
    def from_std(cls, std: float) -> "Diagonal":
        """The integrals for a standard deviation $s$."""
        passed = 0.5 - math.atan(std) / (2 * math.pi)
        square = std**2 / 4 + (1 + std**2) * passed + std / (2 * math.pi)
        return cls(square, passed, passed + 0.25)


@dataclass(frozen=True)
class Rectified:
    r"""The integrals at some angles.

    Attributes:
        drop: $\Psi(0, 0) - \Psi(\theta, \psi)$, accurate in itself.
        passed: $\Psi_\rho$.
        active: $\Psi_q$.
    """

    drop: Tensor
    passed: Tensor
    active: Tensor


def rectified(std: float, theta: Tensor, psi: Tensor) -> Rectified:
    r"""Integrate along the ray; differentiable.

    Args:
        std: $s$, at least zero.
        theta: The angles $\theta$, above 0 and up to $\pi$. shape: (n,)
        psi: The angles $\psi$, above 0 and up to $\pi/2$. shape: (n,)
    """
    diagonal = Diagonal.from_std(std)
    t, weights = (part[:, None].to(theta) for part in _rule(std))
    thetas, psis = t * theta, t * psi
    # slopes along the ray, where ρ and q fall: dρ = -sin θ dθ, dq = -s² sin ψ dψ
    sine, psi_sine = thetas.sin(), std**2 * psis.sin()
    mixed = _mixed_density(std, thetas, psis)
    passed = theta * (_theta_density(std, thetas, psis) + sine * mixed) + psi * psi_sine * mixed
    active = theta * sine * mixed + psi * (_psi_density(std, thetas, psis) + psi_sine * mixed)
    # by parts: the remaining fall of ρ and of q at each place
    theta_fall = 2 * ((1 + t) * theta / 2).sin() * ((1 - t) * theta / 2).sin()
    psi_fall = 2 * std**2 * ((1 + t) * psi / 2).sin() * ((1 - t) * psi / 2).sin()
    total = 2 * (theta / 2).sin() ** 2 * diagonal.passed
    total = total + 2 * std**2 * (psi / 2).sin() ** 2 * diagonal.active
    return Rectified(
        drop=total - (weights * (theta_fall * passed + psi_fall * active)).sum(0),
        passed=diagonal.passed - (weights * passed).sum(0),
        active=diagonal.active - (weights * active).sum(0),
    )


def _mixed_density(std: float, theta: Tensor, psi: Tensor) -> Tensor:
    r"""$\Psi_{\rho q}$, the density of $y = -w$, $y' = -w'$ where $w, w' > 0$."""
    near = (theta / 2).sin() ** 2 + std**2 * (psi / 2).sin() ** 2
    far = (theta / 2).cos() ** 2 + std**2 * (psi / 2).cos() ** 2
    # det(R + S) = 4 near · far; χ is the angle of the pair whose precision is R⁻¹ + S⁻¹
    sines, cosines = (theta / 2).sin() * (psi / 2).sin(), (theta / 2).cos() * (psi / 2).cos()
    chi = 2 * torch.atan2(sines * (far / near).sqrt(), cosines)
    return (math.pi - chi) / (8 * math.pi**2 * (near * far).sqrt())


def _theta_density(std: float, theta: Tensor, psi: Tensor) -> Tensor:
    r"""$\sin\theta\,(\Psi_{\rho\rho} - \Psi_{\rho q})$: one of $y$, $y'$, or both, positive."""
    sine = theta.sin()
    spread = (std**2 + sine**2).sqrt()
    omega = torch.atan2(psi.sin() * spread, psi.cos() * sine)
    return (math.pi - psi) / (4 * math.pi**2) + sine * omega / (2 * math.pi**2 * spread)


def _psi_density(std: float, theta: Tensor, psi: Tensor) -> Tensor:
    r"""$s^2\sin\psi\,(\Psi_{qq} - \Psi_{\rho q})$: one of $w$, $w'$, or both, negative."""
    sine = std * psi.sin()
    spread = (1 + sine**2).sqrt()
    omega = torch.atan2(theta.sin() * spread, theta.cos() * sine)
    return (math.pi - theta) / (4 * math.pi**2) + sine * omega / (2 * math.pi**2 * spread)


def _rule(std: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1], dense at both ends, where layers of width s are."""
    octaves = min(_FINEST, 3 + max(0, -math.floor(math.log2(max(std, 2.0**-_FINEST)))))
    steps = [2.0**-k for k in range(octaves, 0, -1)]
    panels = [0.0, *steps, *(1 - step for step in reversed(steps[:-1])), 1.0]
    edges = torch.tensor(panels, dtype=torch.float64)
    nodes, weights = gauss_legendre(16)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    middle = (edges[1:] + edges[:-1])[:, None] / 2
    return (middle + half * nodes).flatten(), (half * weights).flatten()


class UnitEquilibrium(NamedTuple, Generic[N]):
    r"""An equilibrium for inputs of norm one, as numbers of some kind.

    Attributes:
        state: $P$.
        active: $\Psi_q$.
        passed: $\Psi_\rho$.
    """

    state: N
    active: N
    passed: N


@cached
def state_square(gamma: float) -> float:
    r"""$P$ of an input of norm one with itself, by Newton's method.

    $\Psi$ on the diagonal is a concave function of $s^2 = \gamma^2 P$ whose slope falls from 3/4
    to 1/2: there is one solution if $\gamma^2 < 2$, and none otherwise.
    """
    if not gamma**2 < 2:
        raise ConvergenceError(f"the kernel does not exist: gamma² is {gamma**2:.4g}, at least 2")
    square, step = 1.0, -math.inf
    while Diagonal.from_std(gamma * math.sqrt(square)).square > square:
        square *= 2
    while True:  # from above, all steps lead down, until rounding ends them
        integrals = Diagonal.from_std(gamma * math.sqrt(square))
        last, step = step, (integrals.square - square) / (1 - gamma**2 * integrals.active)
        if not last < step < 0:
            return square
        square += step


def equilibrium(gamma: float, theta: Tensor) -> UnitEquilibrium[Tensor]:
    r"""The equilibrium of inputs of norm one at some angles, block by block; differentiable."""
    blocks = [_block(gamma, part) for part in theta.reshape(-1).split(4096)]
    return UnitEquilibrium(
        *(torch.cat(kind).view(theta.shape) for kind in zip(*blocks, strict=True))
    )


def _block(gamma: float, theta: Tensor) -> UnitEquilibrium[Tensor]:
    theta = theta.clamp(min=_NARROWEST)
    square = state_square(gamma)
    std = gamma * math.sqrt(square)

    def angle_from_square(part: Tensor) -> Tensor:  # part is sin² ψ/2
        return 2 * torch.asin(part.clamp(min=_NARROWEST**2, max=0.5).sqrt())

    def equation(part: Tensor) -> tuple[Tensor, Tensor]:
        integrals = rectified(std, theta, angle_from_square(part))
        return integrals.drop / (2 * square), gamma**2 * integrals.active

    start = (theta / 2).sin() ** 2 / 2
    differentiable = torch.is_grad_enabled() and theta.requires_grad
    part = solve(equation, start, start.detach(), "angle", differentiable=differentiable)
    integrals = rectified(std, theta, angle_from_square(part))
    return UnitEquilibrium(square * (1 - 2 * part), integrals.active, integrals.passed)


@calculus_kernels.register
def implicit_network_kernels(
    architecture: ImplicitNetwork, calculus: Any, function: KernelFunction
) -> NetworkKernels[Any]:
    """Both kernels in a calculus."""
    bias = dict(function.variances).get("bias_variance", architecture.bias_variance)
    start, _ = calculus.start(gated=False)
    injected = calculus.combine([(1.0, start)], bias)
    feature, slope = calculus.apply_activation(ReLU(), injected, mean=False)
    angle, norms = calculus.angle(injected)
    unit = equilibrium(architecture.gamma, angle)
    state, ratio = norms * unit.state, architecture.gamma**2 * unit.active
    series = calculus.geometric(ratio)
    entering = unit.passed * series + slope()
    shares = {
        "readout": state,
        "skip": calculus.covariance(feature),
        "recurrent": ratio * series * state,
        "input": calculus.covariance(start) * entering,
        "bias": bias * entering,
    }
    ntk = sum((shares[group] for group in sorted(function.trainable)), 0.0 * state)
    return NetworkKernels(state + shares["skip"], ntk, feature)
