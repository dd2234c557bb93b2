"""Covariances against the dense matrices that they stand for."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.asymptotics import (
    Covariance,
    DiagonalCovariance,
    FullCovariance,
    LowRankCovariance,
    ScalarCovariance,
)

P = 7


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


F, D, M = noise(P, 2), noise(P, seed=1).square(), noise(P, 12, seed=2)
WIDE = noise(P, 9, seed=3)


class Banded(Covariance):
    """A structure of a user's own, of which only what is abstract is written."""

    dimension = P

    def variances(self) -> Tensor:
        return torch.full((P,), 2.0, dtype=torch.float64)

    def apply(self, v: Tensor) -> Tensor:
        band = torch.diag(torch.full((P - 1,), 0.5, dtype=torch.float64), 1)
        return (2 * torch.eye(P) + band + band.T) @ v

    def draw(
        self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return FullCovariance(self.dense()).draw(count, generator, dtype)


CASES: dict[str, tuple[Covariance, Tensor]] = {
    "scalar": (ScalarCovariance(1.7, P), 1.7 * torch.eye(P, dtype=torch.float64)),
    "zero": (ScalarCovariance(0, P), torch.zeros(P, P, dtype=torch.float64)),
    "diagonal": (DiagonalCovariance(D), torch.diag(D)),
    "low rank": (LowRankCovariance(F, D), F @ F.T + torch.diag(D)),
    "low rank, equal diagonal": (LowRankCovariance(F, 0.3), F @ F.T + 0.3 * torch.eye(P).double()),
    "low rank, no diagonal": (LowRankCovariance(F), F @ F.T),
    "wide factor": (LowRankCovariance(WIDE, 1), WIDE @ WIDE.T + torch.eye(P)),
    "full": (FullCovariance(M @ M.T), M @ M.T),
    "singular": (FullCovariance(F @ F.T), F @ F.T),
    "nothing": (FullCovariance(torch.zeros(P, P)), torch.zeros(P, P, dtype=torch.float64)),
    "own": (Banded(), Banded().apply(torch.eye(P, dtype=torch.float64))),
}


@pytest.mark.parametrize("name", CASES)
def test_against_the_matrix(name: str) -> None:
    covariance, matrix = CASES[name]
    assert covariance.dimension == P
    torch.testing.assert_close(covariance.dense(), matrix)
    torch.testing.assert_close(covariance.variances(), matrix.diagonal())
    assert covariance.trace() == pytest.approx(float(matrix.trace()))
    for v in (noise(P, seed=4), noise(P, 3, seed=5)):
        torch.testing.assert_close(covariance.apply(v), matrix @ v)
    values = np.linalg.eigvalsh(matrix.numpy())
    np.testing.assert_allclose(covariance.eigenvalues().numpy(), values, atol=1e-12)
    assert repr(covariance).startswith(type(covariance).__name__)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(CASES, CASES)))
def test_inner_products(first: str, second: str) -> None:
    (a, dense_a), (b, dense_b) = CASES[first], CASES[second]
    assert a.inner(b) == pytest.approx(float((dense_a @ dense_b).trace()), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_covariance(name: str) -> None:
    covariance, matrix = CASES[name]
    count = 40_000
    rows = covariance.draw(count, torch.Generator().manual_seed(3))
    spread = matrix.diagonal().sqrt()
    assert (rows.mean(0).abs() <= 5 * spread / count**0.5).all()
    # the variance of an entry of the sample covariance is (C_ij² + C_ii C_jj)/n
    errors = ((matrix**2 + torch.outer(spread**2, spread**2)) / count).sqrt()
    assert ((rows.T @ rows / count - matrix).abs() <= 5 * errors + 1e-12).all()
    # normal: the fourth moments are three times the squares of the second
    fourth = rows.square().square().mean(0)
    assert ((fourth - 3 * spread**4).abs() <= 5 * (96 / count) ** 0.5 * spread**4 + 1e-20).all()
    again = covariance.draw(count, torch.Generator().manual_seed(3), torch.float32)
    assert torch.equal(again, rows.float())


def test_singular_draws_stay_in_the_range() -> None:
    null = np.linalg.svd(F.numpy().T)[2][2:]  # orthogonal to the columns
    for covariance in (LowRankCovariance(F), FullCovariance(F @ F.T)):
        rows = covariance.draw(50, torch.Generator().manual_seed(0))
        assert float((rows @ torch.tensor(null).T).abs().max()) < 1e-6


def test_low_rank_never_makes_a_matrix() -> None:
    p = 200_000  # whose matrix would have 320 GB
    a = LowRankCovariance(noise(p, 3), 1.0)
    b = DiagonalCovariance(torch.rand(p, generator=torch.Generator().manual_seed(0)))
    assert a.inner(b) == pytest.approx(float(a.variances() @ b.variances()))
    gram = a.factor.T @ a.factor
    squared = gram.square().sum() + 2 * gram.trace() + p
    assert a.inner(a) == pytest.approx(float(squared))
    assert a.draw(2, torch.Generator().manual_seed(0)).shape == (2, p)
    assert float(a.eigenvalues()[-1]) == pytest.approx(1 + float(torch.linalg.eigvalsh(gram)[-1]))


def test_values_are_copied_and_travel() -> None:
    values = np.ones(3)
    covariance = DiagonalCovariance(values)
    values[0] = 5
    assert covariance.trace() == 3
    assert ScalarCovariance(1, 3) == ScalarCovariance(1.0, 3)
    for covariance, matrix in CASES.values():
        for other in (copy.deepcopy(covariance), pickle.loads(pickle.dumps(covariance))):
            torch.testing.assert_close(other.dense(), matrix)
    with pytest.raises(AttributeError):
        CASES["full"][0].matrix = M  # type: ignore[attr-defined]


def test_rounding_is_forgiven_as_the_dtype_has_it() -> None:
    single = (F @ F.T).float()  # rank 2 up to rounding
    assert float(torch.linalg.eigvalsh(single.double())[0]) < 0
    assert FullCovariance(single).trace() == pytest.approx(float(F.square().sum()), rel=1e-6)
    with pytest.raises(ValueError, match="positive semidefinite, got the eigenvalue -"):
        FullCovariance(single.double() - 1e-6 * torch.eye(P))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ScalarCovariance(-1.0, 3), ValueError, "variance must be >= 0, got -1"),
        (lambda: ScalarCovariance(float("nan"), 3), ValueError, "variance must be finite"),
        (lambda: ScalarCovariance(1.0, 0), ValueError, "dimension must be >= 1, got 0"),
        (lambda: ScalarCovariance(1.0, 2.0), TypeError, "dimension must be an integer"),
        (lambda: DiagonalCovariance([1.0, -0.5]), ValueError, "values must be >= 0, got -0.5"),
        (lambda: DiagonalCovariance(torch.ones(2, 2)), ValueError, r"a vector, got shape \(2, 2\)"),
        (lambda: DiagonalCovariance([]), ValueError, "values must not be empty"),
        (lambda: DiagonalCovariance("abc"), TypeError, "values must be a tensor, an array or a"),
        (lambda: DiagonalCovariance([1j, 2.0]), TypeError, "real numbers, got dtype complex128"),
        (lambda: DiagonalCovariance([True, False]), TypeError, "real numbers, got dtype bool"),
        (lambda: FullCovariance(torch.ones(2, 3)), ValueError, r"square, got shape \(2, 3\)"),
        (
            lambda: FullCovariance([[1.0, 0.5], [0.25, 1.0]]),
            ValueError,
            "symmetric, got entries that differ by 0.25 from their mirror images",
        ),
        (
            lambda: FullCovariance([[1.0, 2.0], [2.0, 1.0]]),
            ValueError,
            "matrix must be positive semidefinite, got the eigenvalue -1",
        ),
        (lambda: FullCovariance([[1.0, 2.0], [2.0]]), ValueError, "rows of different lengths"),
        (lambda: FullCovariance([[float("inf")]]), ValueError, "matrix must be finite"),
        (lambda: LowRankCovariance(D), ValueError, r"shape \(dimension, rank\), got \(7,\)"),
        (lambda: LowRankCovariance(F, -1.0), ValueError, "diagonal must be >= 0, got -1"),
        (lambda: LowRankCovariance(F, D[1:]), ValueError, "factor has rows, 7, got 6"),
        (lambda: ScalarCovariance(1, 3).inner(Banded()), ValueError, "dimension 3, got 7"),
        (lambda: Banded().inner(2.0), TypeError, "other must be a Covariance, got float"),
        (lambda: ScalarCovariance(1, 3).apply(D), ValueError, r"3 rows, got shape \(7,\)"),
        (
            lambda: ScalarCovariance(1, 3).apply([1.0]),
            TypeError,
            "v must be a floating-point tensor.*, got list",
        ),
    ],
)
def test_bad_covariances(make: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make()  # type: ignore[operator]
