"""Spectral norms by Lanczos, against dense decompositions."""

import numpy as np
import pytest
import torch

from shoal.core.exceptions import ConvergenceError
from shoal.linalg import symmetric_norm


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
