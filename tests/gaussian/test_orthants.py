"""Orthant probabilities against Owen's T of SciPy and the density's integrals in mpmath."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import ndtr, owens_t

from shoal.activations.closed_forms.orthants import Quadrant

THRESHOLDS = [  # h, k - h
    (0.0, 0.3),
    (0.0, 5.0),
    (1e-6, 0.0),
    (1e-6, 1.0),
    (0.2, 0.0),
    (0.2, 1e-9),
    (1.0, 0.0),
    (1.0, 1e-7),
    (1.0, -0.5),
    (2.5, 1e-3),
    (3.0, -3.0),
    (5.0, 0.0),
    (6.0, 2.0),
    (8.5, -8.4),
    (40.0, 0.0),
    (40.0, -39.0),
]
ANGLES = [1.4e-6, 1e-4, 1e-2, 0.5, 1.5, math.pi / 2, 2.0, 3.0, math.pi - 1e-4, math.pi - 1.4e-6]


def quadrant(h, gap, reduced):
    h, gap = (torch.tensor([x], dtype=torch.float64) for x in (h, gap))
    return Quadrant(h, h + gap, gap, reduced)


def by_plackett(h, k, end, *, moment):
    """∫ (ρ - r)^moment p_r(h, k) dr over r = cos y from 0 to ρ = cos ``end``."""

    def density(y):
        exponent = (h - k) ** 2 / (2 * mpmath.sin(y) ** 2) + h * k / (1 + mpmath.cos(y))
        return (mpmath.cos(end) - mpmath.cos(y)) ** moment * mpmath.exp(-exponent)

    # there is a layer of the width |h - k| at y = 0, and one of about 1/√(hk) at y = π
    start, layer, other = mpmath.pi / 2, abs(h - k), 1 / mpmath.sqrt(1 + h * k)
    cuts = {y for n in (-1, 0, 1, 2) for y in (layer * 4**n, mpmath.pi - other * 2**n / 2)}
    inside = sorted((y for y in cuts if start < y < end or end < y < start), reverse=end < start)
    return -mpmath.quad(density, [start, *inside, end]) / (2 * mpmath.pi)


@pytest.mark.parametrize(("h", "gap"), THRESHOLDS)
@mpmath.workdps(30)
def test_integrals_of_the_density(h, gap):
    k, size = mpmath.mpf(h) + mpmath.mpf(gap), min(1.0, h + abs(gap))
    for angle in ANGLES:
        rho, root = (torch.tensor([f(angle)], dtype=torch.float64) for f in (math.cos, math.sin))
        end = mpmath.atan2(root.item(), rho.item())
        single, double = (by_plackett(h, k, end, moment=n) for n in (0, 1))
        full, reduced = (quadrant(h, gap, form) for form in (False, True))
        assert abs(full.integral(rho, root).item() - single) <= 4e-15
        turn = mpmath.pi / 2 - end
        expected = single - turn / (2 * mpmath.pi)
        assert abs(reduced.integral(rho, root).item() - expected) <= 4e-15 * size
        magnitude = 1 + h * k * (ndtr(-h) + ndtr(-h - gap))
        assert abs(full.double_integral(rho, root).item() - double) <= 5e-15 * magnitude
        removed = (mpmath.cos(end) + h * k) * turn + mpmath.sin(end) - 1
        expected = double - removed / (2 * mpmath.pi)
        error = abs(reduced.double_integral(rho, root).item() - expected)
        assert error <= 5e-15 * size * (1 + h * k)


def by_owen(h, gap, sine, half_tangent):
    """P(X > h, Y > k) for h, k > 0; k - h cos θ = (k - h) + h sin θ tan(θ/2)."""
    total = 0.0
    for x, step in ((h, gap), (h + gap, -gap)):
        total += ndtr(-x) / 2 - owens_t(x, (step / sine + x * half_tangent) / x)
    return total


@pytest.mark.parametrize("near", [0.0, 1e-12, 1e-6, 1.0])
def test_orthant_probabilities_at_random(near):
    """Angles down to 1e-12 from 0 and π, with a distance of the thresholds up to ``near``."""
    unit = np.random.default_rng(0).random((4, 5000))
    h, gap = 8 * unit[0] ** 2 + 1e-3, near * unit[1]
    small, obtuse = 10 ** (-12 * unit[2]), unit[3] < 0.3
    cosine, sine = np.where(obtuse, -np.cos(small), np.cos(small)), np.sin(small)
    half_tangent = np.where(obtuse, 1 / np.tan(small / 2), np.tan(small / 2))
    arguments = (torch.from_numpy(t) for t in (h, h + gap, gap))
    found = Quadrant(*arguments, reduced=False).integral(*map(torch.from_numpy, (cosine, sine)))
    exact = by_owen(h, gap, sine, half_tangent) - ndtr(-h) * ndtr(-h - gap)
    assert np.abs(found.numpy() - exact).max() <= 5e-15


def test_full_correlation_is_the_limit():
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for h, gap in ((0.5, 0.0), (0.5, 0.2), (0.5, -0.2), (0.5, 1e-14)):
        tail_h, tail_k = float(ndtr(-h)), float(ndtr(-h - gap))
        found = quadrant(h, gap, reduced=False)
        aligned, opposed = found.integral(one, zero).item(), found.integral(-one, zero).item()
        assert aligned == pytest.approx(min(tail_h, tail_k) - tail_h * tail_k, abs=1e-15)
        assert opposed == pytest.approx(-tail_h * tail_k, abs=1e-15)
