"""Unusual rows spoil nothing for the others."""

import pytest
import torch

import shoal


def points(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 20, dtype=torch.float64, generator=generator) / 20**0.5


def directly(architecture, x):
    square = (x * x).sum(1)
    return shoal.kernel_function(architecture)(square[:, None], square, x @ x.T)


def test_a_zero_row_beside_rows_of_one_norm():
    x = torch.nn.functional.normalize(points(40))
    x[7] = 0
    architecture = shoal.DEQ(shoal.activations.Sigmoid(), 0.5, 1.0)
    for found, exact in zip(shoal.kernel(architecture, x), directly(architecture, x), strict=True):
        assert ((found - exact).abs() <= 1e-10 * exact.diagonal().max()).all()


@pytest.mark.parametrize("turn", [1.0, -1.0], ids=["equal", "opposite"])
def test_equal_and_opposite_inputs_on_both_sides(turn):
    x = points(160)
    architecture = shoal.DEQ(shoal.activations.GELU(), 0.2, 0.8, bias_variance=0.1)
    other = torch.cat([turn * x[60:], x[:1]])
    exact = directly(architecture, torch.cat([x[:100], other]))
    for found, entries in zip(shoal.kernel(architecture, x[:100], other), exact, strict=True):
        assert ((found - entries[:100, 100:]).abs() <= 1e-10 * entries.diagonal().max()).all()
