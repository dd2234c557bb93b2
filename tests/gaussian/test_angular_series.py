"""Duals by series in the angle, against those of single pairs."""

import math

import pytest
import torch

import shoal
from shoal.gaussian import angular_series, dual, dual_derivative
from shoal.gaussian.fixed_variances import FixedVariances

ANGLES = torch.linspace(0.21, math.pi - 0.21, 40, dtype=torch.float64)


def grid(low: float, high: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Variances, pairs of them, and covariances at all angles."""
    variances = torch.logspace(low, high, 8, base=2.0, dtype=torch.float64)
    i, j = torch.triu_indices(8, 8)
    roots = (variances[i] * variances[j]).sqrt()
    return variances, torch.stack([i, j])[..., None], roots[:, None] * ANGLES.cos()


@pytest.mark.parametrize(
    "phi", [shoal.Tanh(), shoal.Softplus(), shoal.ELU(), shoal.Sigmoid()], ids=repr
)
def test_grids_have_the_duals_of_single_pairs(phi):
    variances, places, covariances = grid(-1.7, 1.9)
    duals = FixedVariances(phi, variances, places)
    value, slope = duals(covariances)
    assert duals._in_angle is not None
    a, b = variances[places]
    some = torch.arange(0, len(ANGLES), 13)
    for found, exact in ((value, dual), (slope(), dual_derivative)):
        own, other = (exact(phi, t, t, t) for t in (a, b))
        one = [
            exact(phi, a[k], b[k], covariances[k, m].view(1))
            for k in range(0, len(covariances), 5)
            for m in some
        ]
        error = found[::5, some].flatten() - torch.cat(one)
        size = (own * other).sqrt()[::5].expand(-1, len(some)).flatten()
        assert (error.abs() / size).max() <= 5e-13


def test_wide_ranges_and_rough_duals_have_none():
    variances, places, covariances = grid(-9.0, 3.0)
    duals = FixedVariances(shoal.Tanh(), variances, places)
    duals(covariances)
    assert duals._in_angle is None

    def kinked(_, variances, places, c):
        root = (variances[places[0]] * variances[places[1]]).sqrt()[:, None]
        return torch.stack([(c / root - 0.3).abs()] * 2)

    found = angular_series.AngularSeries.of(
        shoal.Tanh(), torch.tensor([1.0, 2.0]).double(), torch.tensor([[0], [1]]), 0.2, kinked
    )
    assert found is None
