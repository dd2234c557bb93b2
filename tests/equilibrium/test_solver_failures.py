"""What is returned of a search that fails, or that has nothing to go by."""

import math

import pytest
import torch

from shoal import ConvergenceWarning
from shoal.equilibrium import Picard, Status, solve


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("separable", [False, True])
def test_the_best_iterate_is_returned_of_each_sample_that_fails(separable):
    """Sample 0 converges, 1 diverges from its start, 2 comes close first, 3 leaves the domain."""
    slope, far = column(0.5, 1.5, 0.5, 0.5), column(0.0, 0.0, 1e-3, 0.0)
    edge = column(math.inf, math.inf, math.inf, 1.5)

    def f(z, slope, far, edge):
        near = slope * z + 1 + torch.where(z > 1.99, far * 1e9, 0.0)
        return torch.where(z > edge, math.nan, near)

    solution = solve(
        f,
        column(0.0, 0.0, 0.0, 0.0),
        inputs=(slope, far, edge),
        separable=separable,
        on_failure="status",
    )
    expected = [Status.CONVERGED, Status.DIVERGED, Status.DIVERGED, Status.NOT_FINITE]
    assert solution.status.tolist() == expected
    assert solution.value[:, 0].tolist()[1] == 0
    # iterates 2 - 2^(1-k), not all of which are looked at, before they pass 1.99
    assert 1.9 < solution.value[2].item() < 1.99
    assert 1.0 <= solution.value[3].item() <= 1.5
    rows = solution.value
    true = (f(rows, slope, far, edge) - rows)[:, 0].abs()
    torch.testing.assert_close(solution.residual, true, rtol=1e-3, atol=1e-12)


def test_an_absolute_tolerance_above_the_state_is_told():
    z0 = column(1.0)
    with pytest.warns(ConvergenceWarning, match=r"(?s)may not have converged.*atol = 2 exceeds"):
        solution = solve(torch.cos, z0, solver=Picard(atol=2))
    assert "atol = 2 exceeds" in repr(solution)
    assert "atol = 2 exceeds" in solution.explain()
    solution = solve(torch.cos, z0, solver=Picard(atol=2), on_failure="status")
    assert "atol = 2 exceeds" in solution.note
    # tolerances that mean something, and states that are exactly right, need no words
    assert not solve(torch.cos, z0, solver=Picard(atol=0.1)).note
    assert not solve(lambda z: 0.5 * z, column(1.0, 0.0), solver=Picard(atol=1e-6)).note


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_solutions_far_from_a_start_beside_another_one(dtype):
    """tanh(2z) moves away from zero, to a solution that is a million times as far."""
    x = torch.full((2, 4), 1e-6, dtype=dtype)
    found = solve(lambda z, x: torch.tanh(2 * z) + x, 0 * x, inputs=(x,))
    torch.testing.assert_close(found.value, torch.full_like(x, 0.957504), rtol=1e-5, atol=0)
