r"""The kernels of an implicit network as power series in the cosine of the angle.

With the function $\Psi$ of :mod:`shoal.kernels.rectified.integrals`, the state's kernel solves
$P(\rho) = \Psi(\rho, \gamma^2 P(\rho))$. The second derivatives of $\Psi$ are elementary, so that
along a given $P$ its slopes are integrals of series, and it is an integral of them; Newton's method
doubles the number of coefficients that are known.
"""

import math

import numpy as np
import torch

from shoal.kernels.rectified.integrals import Equilibrium, equilibrium, state_square
from shoal.numerics.power_series import Series, about, geometric, needed_order, product


def equilibrium_series(gamma: float, degree: int, *, place: float = 0.0) -> Equilibrium[Series]:
    r"""Power series for inputs of norm one, up to a degree.

    They are series in $\nu$ with $\rho = p + (1 - p)\nu$, where $p$ is the ``place``.

    Raises:
        AccuracyError: If the place is too close to one.
    """
    right_angle = torch.tensor([math.pi / 2], dtype=torch.float64)
    start = Equilibrium(*map(float, equilibrium(gamma, right_angle)))
    order, found = needed_order(place, degree), np.array([start.state])
    while len(found) <= order:
        known, size = len(found), min(2 * len(found), order + 1)
        found = np.pad(found, (0, size - known))
        active, passed = _slopes(gamma, found, start)
        # what Ψ has beyond the known coefficients: its derivative is Ψ_ρ + γ² Ψ_q P'
        change = passed[:-1] + gamma**2 * product(active[:-1], _derivative(found))
        residual = _integral(change, start.state)
        residual[:known] = 0.0
        found = found + product(residual, geometric(gamma**2 * active))
    all_three = (found, *_slopes(gamma, found, start))
    # none is negative but by rounding
    return Equilibrium(*(about(series.clip(min=0.0), place, degree) for series in all_three))


def _slopes(gamma: float, state: Series, start: Equilibrium[float]) -> tuple[Series, Series]:
    r"""$\Psi_q$ and $\Psi_\rho$ along a series $P$, given their values at $\rho = 0$."""
    square = state_square(gamma)
    both, one, other = _second_derivatives(gamma * math.sqrt(square), state / square)
    moving = _derivative(state)
    bend = other / square + gamma**2 * both  # γ² Ψ_qq, since s² = γ² P(1)
    active = both[:-1] + product(bend[:-1], moving)
    passed = (one + both)[:-1] + gamma**2 * product(both[:-1], moving)
    return _integral(active, start.active), _integral(passed, start.passed)


def _second_derivatives(std: float, kappa: Series) -> tuple[Series, Series, Series]:
    r"""$\Psi_{\rho q}$, and what $\Psi_{\rho\rho}$ and $s^2\Psi_{qq}$ have more."""
    degree, scale = len(kappa) - 1, 4 * math.pi**2
    one, rho = _series(degree, 1.0), _series(degree, 0.0, 1.0)
    sine2, other2 = one - product(rho, rho), one - product(kappa, kappa)
    inverse_sine, inverse_other = _inverse_root(sine2), _inverse_root(other2)
    together = rho + std**2 * kappa
    determinant = (1 + std**2) ** 2 * one - product(together, together)
    left = _inverse_root(sine2 + std**2 * other2)
    wide, other_wide = std**2 * one + sine2, one + std**2 * other2
    # the angles χ, ω, ω' by their cosines and the squares of their sines
    shared = product(left, left)
    chi = product(product(sine2, kappa) + std**2 * product(other2, rho), shared)
    chi_rest = product(product(product(sine2, other2), determinant), product(shared, shared))
    omega = product(product(kappa, product(sine2, inverse_sine)), left)
    omega_rest = product(product(other2, wide), shared)
    other_omega = std * product(product(rho, product(other2, inverse_other)), left)
    other_rest = product(product(sine2, other_wide), shared)
    straight = math.pi / 2 * one
    both = product(straight + _arcsine(chi, chi_rest), _inverse_root(determinant))
    first = product(straight + _arcsine(kappa, other2), inverse_sine)
    first += 2 * product(straight - _arcsine(omega, omega_rest), _inverse_root(wide))
    second = product(straight + _arcsine(rho, sine2), inverse_other)
    turned = straight - _arcsine(other_omega, other_rest)
    second += 2 * std * product(turned, _inverse_root(other_wide))
    return both / scale, first / scale, second / scale


def _series(degree: int, *coefficients: float) -> Series:
    series: Series = np.zeros(degree + 1)
    known = coefficients[: degree + 1]
    series[: len(known)] = known
    return series


def _derivative(f: Series) -> Series:
    derivative: Series = np.arange(1, len(f)) * f[1:]
    return derivative


def _integral(f: Series, start: float) -> Series:
    return np.concatenate([[start], f / np.arange(1, len(f) + 1)])


def _arcsine(f: Series, rest: Series) -> Series:
    """The arcsine of a series, given 1 - f² without cancellation."""
    return _integral(product(_inverse_root(rest)[:-1], _derivative(f)), math.asin(f[0]))


def _inverse_root(f: Series) -> Series:
    """1/√f by Newton's method."""
    root = np.array([1 / math.sqrt(f[0])])
    while len(root) < len(f):
        size = min(2 * len(root), len(f))
        root = np.pad(root, (0, size - len(root)))
        root = (
            root
            + product(root, _series(size - 1, 1.0) - product(f[:size], product(root, root))) / 2
        )
    return root
