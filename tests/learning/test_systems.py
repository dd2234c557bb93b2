"""Factors in place, preconditioners and memory."""

import math
import pickle

import pytest
import torch

import shoal
from shoal.numerics import CholeskyFactor, cholesky

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("panel", "rows"), [(1024, 16384), (7, 16384), (16, 5), (1, 1)])
def test_factors_in_place(panel, rows, monkeypatch):
    monkeypatch.setitem(cholesky._PANEL, "cpu", panel)
    monkeypatch.setattr(cholesky, "_ROWS", rows)
    half = normal(50, 60)
    kernel = half @ half.T / 60
    shifted = kernel + 0.3 * torch.eye(50, dtype=torch.float64)
    array = kernel.triu() + torch.full((50, 50), 1e9).tril(-1)  # nobody looks below
    place = array.data_ptr()
    factor = CholeskyFactor(array, kernel.diagonal().clone(), 0.3)
    assert factor.matrix.data_ptr() == place
    torch.testing.assert_close(array.tril(), torch.linalg.cholesky(shifted))
    assert torch.equal(array.triu(1), kernel.triu(1))
    b = normal(50, 3, seed=1)
    torch.testing.assert_close(factor.product(b), shifted @ b)
    torch.testing.assert_close(factor.solve(b), torch.linalg.solve(shifted, b))
    quadratic = (b * torch.linalg.solve(shifted, b)).sum(0)
    torch.testing.assert_close(factor.quadratic(b), quadratic)
    assert factor.logdet() == pytest.approx(float(torch.logdet(shifted)))
    torch.testing.assert_close(factor.inverse_diagonal(), torch.linalg.inv(shifted).diagonal())


@pytest.mark.parametrize(
    "preconditioner",
    [shoal.learning.Nystrom(), None],
    ids=str,
)
@pytest.mark.parametrize("ridge", [0.0, 1e-320, 1e-12])
def test_ridges_may_be_nothing(preconditioner, ridge):
    x = torch.nn.functional.normalize(normal(40, 60))
    exact = torch.linalg.solve(shoal.kernel(RELU, x).ntk, x[:, 0])
    method = shoal.learning.ConjugateGradients(preconditioner, tolerance=1e-9)
    options = {"ridge": ridge, "method": method, "center": False}
    found = shoal.kernel_regression(RELU, x, x[:, 0], **options)
    torch.testing.assert_close(found.coefficients, exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "preconditioner",
    [shoal.learning.Nystrom(), None],
    ids=str,
)
def test_inputs_of_zero_leave_the_ridge(preconditioner):
    x, y = torch.zeros(5, 3, dtype=torch.float64), normal(5)
    method = shoal.learning.ConjugateGradients(preconditioner, max_steps=5)
    found = shoal.kernel_regression(RELU, x, y, ridge=0.5, method=method, center=False)
    torch.testing.assert_close(found.coefficients, 2 * y)
    with pytest.raises(shoal.ConvergenceError, match="did not converge"):
        shoal.kernel_regression(RELU, x, y, ridge=0.0, method=method)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [shoal.learning.ConjugateGradients, shoal.learning.Cholesky])
def test_regressions_can_be_pickled(method, precision):
    x = normal(30, 4)
    method = method(precision=precision)
    fit = shoal.kernel_regression(RELU, x, x[:, 0], ridge=0.1, method=method)
    again = pickle.loads(pickle.dumps(fit))
    assert torch.equal(again.predict(x), fit.predict(x))
    assert torch.equal(again.variance(x), fit.variance(x))


@pytest.mark.parametrize("power", [-1000, -600, 600, 1000])
@pytest.mark.parametrize(
    "method",
    [
        shoal.learning.Cholesky(tolerance=1e-10),
        shoal.learning.Cholesky(tolerance=1e-10, precision=torch.float32),
        shoal.learning.ConjugateGradients(tolerance=1e-10),
    ],
    ids=str,
)
def test_targets_may_have_any_size(power, method):
    x = normal(40, 5) / math.sqrt(5)
    y = torch.stack([x[:, 0].sin(), x[:, 1]], 1)
    options = {"ridge": 0.1, "method": method, "center": False}
    plain = shoal.kernel_regression(RELU, x, y, **options)
    scale = torch.tensor([2.0**power, 1.0], dtype=torch.float64)
    scaled = shoal.kernel_regression(RELU, x, y * scale, **options)
    matrix = shoal.kernel(RELU, x).ntk + 0.1 * torch.eye(40, dtype=torch.float64)
    expected = torch.linalg.solve(matrix, y)
    torch.testing.assert_close(scaled.coefficients / scale, expected, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(scaled.report.residual, plain.report.residual, rtol=1.0, atol=1e-12)


def test_likelihoods_that_overflow_are_refused():
    x = normal(10, 3)
    fit = shoal.kernel_regression(RELU, x, 2.0**700 * x[:, 0], ridge=0.1)
    with pytest.raises(shoal.AccuracyError, match="the likelihood of these targets overflows"):
        _ = fit.log_marginal_likelihood
