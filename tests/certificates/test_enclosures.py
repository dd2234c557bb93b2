"""Rigorous bounds, against arithmetic with fifty digits and against matrices made to deceive."""

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch

import shoal
from shoal.certificates import least_eigenvalue, least_singular_value, spectral_norm
from shoal.certificates.enclosures import norm_upper, row_norms
from shoal.certificates.equilibria import (
    Crossings,
    Enclosed,
    NotContractingError,
    enclose_equilibrium,
)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def eigenvalues(matrix: torch.Tensor) -> list[mpmath.mpf]:
    """In fifty digits."""
    with mpmath.workdps(50):
        values = mpmath.eigsy(mpmath.matrix(matrix.tolist()), eigvals_only=True)
    return sorted(values)


def symmetric(name: str) -> torch.Tensor:
    size = 7
    index = torch.arange(1, size + 1, dtype=torch.float64)
    if name == "hilbert":  # least eigenvalue 3.5e-9
        return 1 / (index[:, None] + index - 1)
    if name == "singular":
        factor = gaussian(size, 3)
        return factor @ factor.T
    if name == "graded":
        scale = 10.0 ** (-2 * index)
        return scale[:, None] * (torch.eye(size).double() + 0.1) * scale
    if name == "indefinite":
        a = gaussian(size, size)
        return a + a.T
    if name == "huge":
        return 1e150 * symmetric("plain")
    if name == "tiny":
        return 1e-150 * symmetric("plain")
    factor = gaussian(size, 2 * size)
    return factor @ factor.T


MATRICES = ["plain", "hilbert", "singular", "graded", "indefinite", "huge", "tiny"]


@pytest.mark.parametrize("name", MATRICES)
def test_no_eigenvalue_is_below_the_bound(name: str) -> None:
    matrix = symmetric(name)
    matrix = (matrix + matrix.T) / 2
    bound, true = least_eigenvalue(matrix), eigenvalues(matrix)[0]
    assert mpmath.mpf(bound) <= true
    assert float(true) - bound <= 1e-12 * float(matrix.diagonal().abs().sum())
    assert least_eigenvalue(matrix, error=0.5) <= bound - 0.5


@pytest.mark.parametrize("sign", [1, -1])
def test_a_matrix_one_rounding_from_singular_is_not_overrated(sign: int) -> None:
    matrix = torch.ones(2, 2, dtype=torch.float64)
    matrix[1, 1] += sign * 2.0**-52
    assert mpmath.mpf(least_eigenvalue(matrix)) <= eigenvalues(matrix)[0]


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (1, 6), (6, 6)])
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_norms_and_singular_values_lie_on_the_right_side(
    shape: tuple[int, int], scale: float
) -> None:
    matrix = gaussian(*shape, seed=sum(shape)) * scale
    with mpmath.workdps(50):
        exact = mpmath.matrix((matrix / scale).tolist())
        gram = exact.T * exact if shape[0] >= shape[1] else exact * exact.T
        values = sorted(mpmath.eigsy(gram, eigvals_only=True))
        largest, least = float(mpmath.sqrt(values[-1])), float(mpmath.sqrt(values[0]))
    upper = spectral_norm(matrix) / scale
    assert largest * (1 - 1e-14) <= upper <= 1.001 * largest
    tall = matrix if shape[0] >= shape[1] else matrix.T
    lower = least_singular_value(tall) / scale
    assert 0.999 * least <= lower <= least * (1 + 1e-14)
    if shape[0] != shape[1]:
        assert least_singular_value(tall.T) == 0


def test_the_norm_of_a_large_matrix_is_tight() -> None:
    matrix = gaussian(300, 300)
    true = float(torch.linalg.matrix_norm(matrix, 2))
    assert true <= spectral_norm(matrix) <= 1.002 * true
    flat = torch.linalg.qr(matrix).Q  # all singular values equal: Lanczos stops early
    assert 1 - 1e-14 <= spectral_norm(flat) <= 1.002
    assert spectral_norm(torch.zeros(3, 4).double()) == 0


def test_an_error_of_the_features_lowers_their_least_singular_value() -> None:
    matrix = gaussian(20, 3)
    plain = least_singular_value(matrix)
    assert plain - 0.1 - 1e-12 <= least_singular_value(matrix, error=0.1) <= plain - 0.1
    assert least_singular_value(matrix, error=100.0) == 0


@pytest.mark.parametrize("scale", [1.0, 1e-180, 1e180])
def test_norms_of_vectors_are_upper_bounds(scale: float) -> None:
    matrix = gaussian(50, 40) * scale
    with mpmath.workdps(50):
        rows = [mpmath.sqrt(sum(mpmath.mpf(v) ** 2 for v in row)) for row in matrix.tolist()]
        total = mpmath.sqrt(sum(r**2 for r in rows))
    assert total <= mpmath.mpf(norm_upper(matrix)) <= total * (1 + mpmath.mpf(1e-11))
    for bound, row in zip(row_norms(matrix).tolist(), rows, strict=True):
        assert row <= mpmath.mpf(bound) <= row * (1 + mpmath.mpf(1e-11))


def test_no_set_of_crossing_units_weighs_more_than_the_bound() -> None:
    distances, weights = gaussian(3, 9, seed=1).abs(), gaussian(3, 9, seed=2).abs()
    crossings = Crossings(distances, weights)
    for move in (0.0, 0.01, 0.3, 1.0, 2.5, 100.0):
        bounds = crossings.weight(torch.full((3,), move, dtype=torch.float64))
        for row in range(3):
            best = 0.0
            for chosen in itertools.product([False, True], repeat=9):
                mask = torch.tensor(chosen)
                if float(distances[row][mask].square().sum()) <= move**2:
                    best = max(best, float(weights[row][mask].square().sum()) ** 0.5)
            assert best <= float(bounds[row]) <= math.hypot(best, float(weights[row].max())) + 1e-9
    assert torch.allclose(crossings.weight(torch.full((3,), 1e9).double()), weights.norm(dim=1))


@pytest.mark.parametrize(
    "activation",
    [shoal.activations.ReLU(), shoal.activations.LeakyReLU(0.3), shoal.activations.Tanh()],
)
def test_the_equilibrium_is_within_its_error_of_the_true_one(activation: shoal.Activation) -> None:
    width, samples = 40, 5
    weight, injection = 0.06 * gaussian(width, width), gaussian(samples, width, seed=1)
    readout = gaussian(2, width, seed=2)
    found = enclose_equilibrium(weight, Enclosed(injection, 0.0), readout, activation)
    precise = np.longdouble
    w, j, z = (t.numpy().astype(precise) for t in (weight, injection, injection * 0))
    for _ in range(800):
        inner = z @ w.T + j
        if isinstance(activation, shoal.activations.Tanh):
            z = np.tanh(inner)
        else:
            z = np.where(
                inner > 0, inner, (0.3 if activation != shoal.activations.ReLU() else 0) * inner
            )
    missed = float(np.sqrt(((z - found.features.value.numpy()) ** 2).sum()))
    assert missed <= found.features.error <= 1e-9
    slopes = activation.derivative(torch.from_numpy(inner.astype(float)))
    identity = torch.eye(width, dtype=torch.float64)
    for i, slope in enumerate(slopes):
        true = torch.linalg.solve(identity - weight.T * slope, readout.T)
        assert float((true.T - found.adjoints[:, i]).norm()) <= found.adjoint_error + 1e-12
        assert float(torch.linalg.matrix_norm(true, 2)) <= float(found.adjoint_norms[i])


def test_a_layer_that_may_expand_is_refused() -> None:
    with pytest.raises(NotContractingError, match="gain"):
        enclose_equilibrium(
            torch.eye(4).double(),
            Enclosed(gaussian(2, 4), 0.0),
            gaussian(1, 4),
            shoal.activations.ReLU(),
        )


@pytest.mark.parametrize("bound", [least_eigenvalue, least_singular_value, spectral_norm])
def test_what_is_no_matrix_of_numbers_is_refused(bound: Callable[[torch.Tensor], float]) -> None:
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="matrix must be finite"):
            bound(torch.full((2, 2), number, dtype=torch.float64))
    with pytest.raises(ValueError, match="two dimensions"):
        bound(gaussian(3))
    with pytest.raises(TypeError, match="floating-point"):
        bound(torch.ones(2, 2, dtype=torch.int64))


def test_single_precision_is_taken_for_the_numbers_that_it_holds() -> None:
    matrix = torch.ones(2, 2)
    matrix[1, 1] += 2.0**-23  # the norm is 2 + 2**-24 and more, which float32 cannot tell from 2
    true = eigenvalues(matrix.double())
    assert true[-1] <= mpmath.mpf(spectral_norm(matrix)) <= true[-1] * (1 + 1e-3)
    assert true[0] * (1 - 1e-6) <= mpmath.mpf(least_eigenvalue(matrix)) <= true[0]


@pytest.mark.parametrize("exponent", [-1060, -1030, 1000])
def test_numbers_at_the_ends_of_the_range(exponent: int) -> None:
    plain = symmetric("plain").round()  # integers, so that the scaled matrix is exact
    true, scale = eigenvalues(plain), mpmath.mpf(2) ** exponent
    matrix = plain * 2.0**exponent
    assert mpmath.mpf(least_eigenvalue(matrix)) <= true[0] * scale
    assert mpmath.mpf(spectral_norm(matrix)) >= true[-1] * scale
    assert mpmath.mpf(least_singular_value(matrix)) <= true[0] * scale


def test_the_bound_does_not_trust_the_factorization(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, factorize = symmetric("plain"), torch.linalg.cholesky_ex
    monkeypatch.setattr(
        torch.linalg, "cholesky_ex", lambda a: (1.1 * factorize(a)[0], factorize(a)[1])
    )
    bound, true = least_eigenvalue(matrix), eigenvalues(matrix)[0]
    assert mpmath.mpf(bound) <= true
    assert bound < 0 < true


def test_a_unit_weighs_what_all_outputs_give_it() -> None:
    readout = torch.ones(16, 5, dtype=torch.float64)
    found = enclose_equilibrium(
        torch.zeros(5, 5).double(),
        Enclosed(gaussian(2, 5), 0.0),
        readout,
        shoal.activations.Tanh(),
    )
    assert 4 <= found.adjoint_peak <= 4 * (1 + 1e-9)


def test_units_on_a_kink_cost_nothing() -> None:
    distances = torch.tensor([[0.0, 1e-200, 1e-150, 1.0]]).double()
    weights = torch.tensor([[0.0, 1e-5, 1.0, 2.0]]).double()
    bound = Crossings(distances, weights).weight(torch.tensor([1e-140]).double())
    assert float(bound) >= math.hypot(1e-5, 1.0)
    assert float(bound) < 1.001
