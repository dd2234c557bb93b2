"""Products in reduced precision, against the matrix in float64."""

import warnings

import pytest
import torch

import shoal
from kernels.points import inputs
from shoal.kernels.operator import KernelOperator
from shoal.kernels.rounded_products import rounded_products

RELU = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
TANH = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)


def rounded(architecture, x, kernel="ntk", memory=10_000):
    return getattr(
        shoal.kernel_operator(architecture, x, memory=memory, precision=torch.float32), kernel
    )


@pytest.mark.parametrize("kernel", ["ck", "ntk"])
@pytest.mark.parametrize(
    ("architecture", "x"),
    [
        (RELU, inputs(700, 6)),
        (RELU, inputs(700, 6).abs()),
        (TANH, inputs(700, 6, one_norm=True)),
        (RELU, torch.cat([inputs(40, 3), torch.zeros(2, 3), -inputs(40, 3)]).double()),
    ],
    ids=["any norms", "no negative numbers", "one norm", "zeros and opposites"],
)
def test_products_have_the_error_of_float32(architecture, x, kernel):
    operator, vectors = rounded(architecture, x, kernel), inputs(len(x), 3, seed=1)
    assert not operator.keeps
    exact = getattr(shoal.kernel(architecture, x), kernel)
    error = (operator @ vectors - exact @ vectors).abs().amax(0)
    size = exact.abs().max() * vectors.norm(dim=0)
    assert float((error / size).max()) < 5e-6
    assert (operator @ vectors).dtype == torch.float64
    torch.testing.assert_close(operator.exact(10**6) @ vectors, exact @ vectors)
    torch.testing.assert_close(operator.to_dense(), exact)


def test_the_rounded_matrix_is_symmetric():
    x = inputs(600, 4)
    left, right = inputs(600, 2, seed=1), inputs(600, 2, seed=2)
    operator = rounded(RELU, x)
    first, second = left.T @ (operator @ right), (operator @ left).T @ right
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-2)


def test_processes_have_parts_of_the_product():
    operator, vectors = rounded(RELU, inputs(1500, 4)), inputs(1500, 2, seed=1)
    parts = [operator._rounded.product(vectors, rank, 3) for rank in range(3)]
    torch.testing.assert_close(sum(parts), operator @ vectors, rtol=1e-13, atol=1e-11)
    assert all(float(part.abs().max()) > 0 for part in parts)


def test_what_fits_is_kept_and_what_has_no_series_in_the_angle_stays_exact():
    x = inputs(60, 4)
    assert rounded(RELU, x, memory="10MiB").keeps
    mixed = rounded(TANH, x)  # of different norms
    assert mixed.keeps
    exact = shoal.kernel(TANH, x).ntk @ x
    torch.testing.assert_close(mixed @ x, exact, rtol=0, atol=1e-5)
    assert rounded_products(shoal.kernel_operator(RELU, x, x[:3]).ck._plan, 0) is None
    assert isinstance(mixed.exact(1000), KernelOperator)


def test_regressions_meet_their_tolerance_in_float64():
    x = inputs(1400, 5, one_norm=True)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], 1)
    exact = shoal.kernel(RELU, x).ntk + 1e-3 * torch.eye(1400).double()
    method = shoal.ConjugateGradients(
        shoal.Nystrom(100, precision=torch.float16), tolerance=1e-10, precision=torch.float32
    )
    fit = shoal.kernel_regression(RELU, x, y, ridge=1e-3, method=method, memory="11MiB")
    assert float(((y - exact @ fit.coefficients).norm(dim=0) / y.norm(dim=0)).max()) < 1.01e-10
    whole = shoal.ConjugateGradients(shoal.Nystrom(100), tolerance=1e-10)
    single = shoal.kernel_regression(RELU, x, y, ridge=1e-3, method=whole)
    steps = int(fit.report.iterations.max()), int(single.report.iterations.max())
    assert steps[0] <= 1.5 * steps[1]  # what sweeps of refinement cost
    torch.testing.assert_close(fit.coefficients, single.coefficients, rtol=1e-6, atol=1e-6)


def test_a_ridge_below_the_error_is_not_said_to_converge():
    """Cosines of copies are one but for rounding, of which their half sine is the root."""
    x = inputs(300, 8, one_norm=True)
    copies, y = torch.cat([x, x]), inputs(600, 2, seed=1)
    exact = shoal.kernel(RELU, copies).ntk
    entries = rounded(RELU, copies) @ torch.eye(600).double() - exact
    apart = entries.clone()
    for offset in (0, 300, -300):
        apart.diagonal(offset).zero_()
    assert float(apart.abs().max()) < 2e-6
    assert 1e-6 < float(torch.linalg.matrix_norm(entries, 2)) < 1e-3
    found = {}
    for precision in (torch.float32, torch.float64):
        for ridge in (3e-3, 1e-6):
            method = shoal.ConjugateGradients(shoal.Nystrom(50), precision=precision, max_steps=200)
            options = {"method": method, "memory": "10MiB", "on_failure": "warn"}
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", shoal.ConvergenceWarning)
                fit = shoal.kernel_regression(RELU, copies, y, ridge=ridge, **options)
            left = y - exact @ fit.coefficients - ridge * fit.coefficients
            true = (left.norm(dim=0) / y.norm(dim=0)).max()
            assert fit.report.converged == bool(true <= 1.01e-6) == (not said)
            found[precision, ridge] = fit.report.converged
            if said:
                assert "take precision=torch.float64" in str(said[0].message)
    assert [key for key, converged in found.items() if not converged] == [(torch.float32, 1e-6)]
