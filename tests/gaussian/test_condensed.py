"""Duals by condensed weights against the quadrature that integrates pair by pair."""

import math

import numpy as np
import pytest
import torch

from shoal.activations import Activation
from shoal.gaussian import condensed, mixed


class Rounded(Activation):
    """A corner that is rounded off at 1e-3, and waves: many panels."""

    def function(self, x):
        return torch.sqrt(x**2 + 1e-6) + 0.2 * torch.sin(9 * x)


PHI = Rounded()


def reference(j: int, a: float, b: float, angle: float) -> float:
    """The same integral in polar-free form: dense trapezoidal sums, independent of panels."""
    # tanh-graded nodes that resolve the corner; the density is smooth
    t = np.linspace(-6.5, 6.5, 3001)
    u = 10 * np.sinh(t) / np.sinh(6.5)
    weight = 10 * np.cosh(t) / np.sinh(6.5) * (t[1] - t[0])
    x = torch.from_numpy(u)
    left, right = (PHI.derivative(math.sqrt(s) * x, j).numpy() for s in (a, b))
    cosine, sine = math.cos(angle), math.sin(angle)
    total = 0.0
    for i in range(0, len(u), 500):
        some = u[i : i + 500, None]
        density = np.exp(-(some**2) / 2 - ((u - cosine * some) / sine) ** 2 / 2)
        total += (left[i : i + 500] * weight[i : i + 500]) @ (density @ (right * weight))
    return total / (2 * math.pi * sine)


@pytest.mark.parametrize("j", [0, 1])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.3, 2.5)])
@pytest.mark.parametrize("angle", [0.3, 1.4, 2.9])
def test_against_sums(j: int, a: float, b: float, angle: float) -> None:
    found = condensed.condensed_dual(
        PHI, (j, j), (math.sqrt(a), math.sqrt(b)), math.cos(angle), math.sin(angle), 10.0
    )
    assert found == pytest.approx(reference(j, a, b, angle), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("j", [0, 1])
def test_against_the_other_quadrature(j: int, monkeypatch: pytest.MonkeyPatch) -> None:
    angle = torch.tensor([0.012, 0.1, 2.0, 3.1], dtype=torch.float64)
    one = torch.ones_like(angle)
    assert condensed.pays(PHI, 10.0)
    found = mixed.mixed_dual_at_angle(PHI, j, j, one, 2 * one, angle)
    monkeypatch.setattr(mixed, "SMALLEST_SINE", 2.0)
    torch.testing.assert_close(
        found, mixed.mixed_dual_at_angle(PHI, j, j, one, 2 * one, angle), rtol=1e-12, atol=1e-13
    )
