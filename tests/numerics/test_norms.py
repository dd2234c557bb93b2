"""Spectral norms by Lanczos, against dense decompositions."""

import numpy as np
import pytest
import torch

from shoal.core.exceptions import ConvergenceError
from shoal.numerics import symmetric_norm
from shoal.numerics.norms import norms_from_below


def symmetric(size: int, seed: int) -> torch.Tensor:
    matrix = torch.randn(
        size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return matrix + matrix.T


@pytest.mark.parametrize("size", [1, 2, 7, 60, 300])
@pytest.mark.parametrize("sign", [1, -1])
def test_it_is_that_of_the_dense_matrix(size: int, sign: int) -> None:
    matrix = sign * symmetric(size, size)  # no gap at the edge: the hard case
    found = symmetric_norm(lambda v: matrix @ v, size)
    assert found == pytest.approx(float(np.linalg.norm(matrix.numpy(), 2)), rel=1e-6)


def test_matrices_of_low_rank_and_zero() -> None:
    ones = torch.ones(50, 50, dtype=torch.float64)
    assert symmetric_norm(lambda v: ones @ v, 50) == pytest.approx(50, rel=1e-12)
    assert symmetric_norm(lambda v: -2 * v, 50) == pytest.approx(2, rel=1e-12)
    assert symmetric_norm(torch.zeros_like, 50) == 0


def test_what_does_not_converge_says_so() -> None:
    matrix = symmetric(300, 0)
    with pytest.raises(ConvergenceError, match="not found to 1e-05 in 9 steps"):
        symmetric_norm(lambda v: matrix @ v, 300, steps=9)


@pytest.mark.parametrize("steps", [1, 4, 48])
def test_norms_of_many_matrices_are_found_from_below(steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    several = torch.randn(5, 30, 30, dtype=torch.float64, generator=generator)
    several[1] = 0.0
    several[2] = several[2, :, :2] @ several[2, :2]  # of rank two
    start = torch.randn(5, 30, dtype=torch.float64, generator=generator)
    found = norms_from_below(
        lambda v: torch.einsum("nij,nj->ni", several, v),
        lambda g: torch.einsum("nij,ni->nj", several, g),
        start,
        steps,
    )
    true = torch.linalg.matrix_norm(several, 2)
    assert (found <= true * (1 + 1e-12)).all()
    if steps == 48:  # more than there are dimensions
        torch.testing.assert_close(found, true, rtol=1e-10, atol=0.0)
