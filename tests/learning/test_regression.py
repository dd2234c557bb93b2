"""Kernel regression against dense solutions, scikit-learn and identities of Gaussian processes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel
from sklearn.kernel_ridge import KernelRidge

import shoal
from shoal.learning import plain

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
RIDGE = 0.03
PRECONDITIONERS = [None, shoal.learning.Nystrom(60)]
SMALL = shoal.learning.ConjugateGradients(shoal.learning.Nystrom(60), tolerance=1e-11)
PLAIN = shoal.learning.ConjugateGradients(None)
CASES = [
    {"method": shoal.learning.Cholesky(tolerance=1e-11)},
    {"method": shoal.learning.Cholesky(precision=torch.float32, tolerance=1e-11)},
    *({"method": replace(SMALL, preconditioner=p)} for p in PRECONDITIONERS),
    {"method": replace(SMALL, precision=torch.float32)},
    {"method": SMALL, "memory": "9MiB"},
]


def data(n, p=12, outputs=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, p, generator=generator, dtype=torch.float64) / math.sqrt(p)
    y = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    return x, y + x[:, :1]


@pytest.mark.thorough("ck-")
@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize(("which", "center"), [("ck", False), ("ntk", True)])
def test_all_methods_agree_with_a_dense_solution(options, which, center):
    (x, y), (new, _) = data(300), data(9, seed=1)
    y = y + torch.tensor([3.0, -200.0]) if center else y
    options = {**options, "ridge": RIDGE, "which": which, "center": center}
    fit = shoal.kernel_regression(RELU, x, y, **options)
    matrix = getattr(shoal.kernel(RELU, x), which)
    cross = getattr(shoal.kernel(RELU, new, x), which)
    own = getattr(shoal.kernel(RELU, new, diag=True), which)
    alpha, constant = plain.ridge_regression(matrix, y, RIDGE, center)
    torch.testing.assert_close(fit.coefficients, alpha, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(fit.intercept, constant, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(fit.predict(new), cross @ alpha + constant, rtol=1e-8, atol=1e-8)
    variance = plain.variance(matrix, cross.T, own, RIDGE, center)
    torch.testing.assert_close(fit.variance(new, batch=4), variance, rtol=1e-8, atol=1e-9)
    left = y - constant - matrix @ fit.coefficients - RIDGE * fit.coefficients
    true = torch.linalg.vector_norm(left, dim=0)
    assert fit.report.converged
    assert fit.report.residual.shape == (2,)
    spread = y - y.mean(0) * center
    allowed = 1.1e-11 * (1 + center)  # the constant comes from another solve to this tolerance
    assert bool((true <= allowed * torch.linalg.vector_norm(spread, dim=0) + 1e-12).all())


def test_a_constant_of_any_size_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(80, generator=generator, dtype=torch.float64)
    plain_fit, moved = (
        shoal.kernel_regression(RELU, x, 5 * x[:, 0] + noise + b) for b in (0.0, 1000.0)
    )
    assert moved.loo().mean_squared_error == pytest.approx(
        plain_fit.loo().mean_squared_error, rel=1e-8
    )
    assert moved.loo().mean_squared_error < 2
    torch.testing.assert_close(moved.predict(x), plain_fit.predict(x) + 1000, rtol=1e-9, atol=0)
    assert moved.gcv() == pytest.approx(plain_fit.gcv(), rel=1e-8)
    same = plain_fit.log_marginal_likelihood
    assert moved.log_marginal_likelihood == pytest.approx(same, rel=1e-8)
    with pytest.warns(UserWarning, match="pass center=True to fit it"):
        off = shoal.kernel_regression(RELU, x, 5 * x[:, 0] + noise + 1000, center=False)
    assert off.loo().mean_squared_error > 10 * moved.loo().mean_squared_error


def test_deviations_of_new_observations_cover_them():
    """Targets from the process itself, of another scale, about a constant."""
    x, _ = data(400, p=4)
    generator = torch.Generator().manual_seed(3)
    matrix = shoal.kernel(RELU, x).ntk + 0.1 * torch.eye(400, dtype=torch.float64)
    normal = torch.randn(400, 40, generator=generator, dtype=torch.float64)
    y = 50 + 7 * torch.linalg.cholesky(matrix) @ normal
    fit = shoal.kernel_regression(RELU, x[:100], y[:100], ridge=0.1)
    mean, deviation = fit.predict(x[100:], return_std=True)
    assert mean.shape == deviation.shape == (300, 40)
    inside = ((y[100:] - mean).abs() < 1.96 * deviation).double().mean()
    assert float(inside) == pytest.approx(0.95, abs=0.01)
    one = shoal.kernel_regression(RELU, x[:100].numpy(), y[:100, 0].numpy(), ridge=0.1)
    found = one.predict(x[100:].numpy(), return_std=True)[1]
    np.testing.assert_allclose(found, deviation[:, 0].numpy(), rtol=1e-9)


def test_tasks():
    x, y = data(30)
    kinds = (y[:, 0] > 0).long() + (y[:, 1] > 0)
    names = np.array(["cod", "eel", "ray"])[kinds]
    assert shoal.kernel_regression(RELU, x, y).task == "regression"
    assert shoal.kernel_regression(RELU, x, kinds.double()).classes is None
    one_hot = torch.nn.functional.one_hot(kinds).double()
    fits = [shoal.kernel_regression(RELU, x, targets) for targets in (one_hot, kinds, names)]
    assert [fit.classes for fit in fits] == [(0, 1, 2), (0, 1, 2), ("cod", "eel", "ray")]
    for fit in fits:
        assert fit.task == "classification"
        assert fit.loo().accuracy == fits[0].loo().accuracy
        assert fit.coefficients.shape == (30, 3)
    for low in (0.0, -1.0):
        fit = shoal.kernel_regression(RELU, x, torch.where(y[:, 0] > 0, 1.0, low).double())
        assert fit.classes == (int(low), 1)


def test_columns_of_different_scales_are_warned_of():
    x, y = data(50)
    x[:, 3] *= 1e4
    with pytest.warns(UserWarning, match="standardize them first"):
        shoal.kernel_regression(RELU, x, y)
    shoal.kernel_regression(RELU, (x - x.mean(0)) / x.std(0), y)


def test_constant_labels_and_equal_inputs_give_the_mean():
    x, y = data(20)
    flat = shoal.kernel_regression(RELU, x, torch.full((20,), 0.1, dtype=torch.float64))
    torch.testing.assert_close(flat.predict(x), torch.full((20,), 0.1, dtype=torch.float64))
    same = shoal.kernel_regression(RELU, x[:1].expand(20, -1), y)
    torch.testing.assert_close(same.predict(x[:1]), y.mean(0)[None])
    others = (y.sum(0) - y) / 19
    torch.testing.assert_close(same.loo().predictions, others)
    with pytest.raises(ValueError, match="at least 2 samples"):
        shoal.kernel_regression(RELU, x[:1], y[:1])
    one = shoal.kernel_regression(RELU, x[:1], y[:1], ridge=0.1)
    torch.testing.assert_close(one.predict(x), y[:1].expand(20, -1))
    with pytest.raises(ValueError, match="loo needs at least 2 samples"):
        one.loo()


class Ntk(Kernel):
    """Of scikit-learn's Gaussian processes."""

    def __init__(self):
        pass

    def __call__(self, x, y=None, eval_gradient=False):  # noqa: ARG002
        return shoal.kernel(RELU, x, x if y is None else y).ntk

    def diag(self, x):
        return shoal.kernel(RELU, x, diag=True).ntk

    def is_stationary(self):
        return False


def test_scikit_learn_agrees():
    (x, y), (new, _) = data(80), data(5, seed=1)
    x, y, new = x.numpy(), y[:, 0].numpy(), new.numpy()
    fit = shoal.kernel_regression(RELU, x, y, ridge=RIDGE, center=False)
    ridge = KernelRidge(alpha=RIDGE, kernel="precomputed").fit(shoal.kernel(RELU, x).ntk, y)
    expected = ridge.predict(shoal.kernel(RELU, new, x).ntk)
    np.testing.assert_allclose(fit.predict(new), expected, rtol=1e-9, atol=1e-10)
    process = GaussianProcessRegressor(Ntk(), alpha=RIDGE, optimizer=None).fit(x, y)
    mean, deviation = process.predict(new, return_std=True)
    np.testing.assert_allclose(fit.predict(new), mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(fit.variance(new), deviation**2, rtol=1e-8)
    likelihood = process.log_marginal_likelihood_value_
    assert fit.log_marginal_likelihood == pytest.approx(likelihood, rel=1e-10)


def test_likelihoods_are_products_of_predictions():
    # log p(y) = sum of log p(y_i | y_1, ..., y_(i-1)), each of them a posterior
    x, y = data(14, outputs=2)
    total = 0.0
    for i in range(len(x)):
        mean, variance = torch.zeros(1, 2), shoal.kernel(RELU, x[i : i + 1], diag=True).ntk
        if i:
            fit = shoal.kernel_regression(RELU, x[:i], y[:i], ridge=RIDGE, center=False)
            mean, variance = fit.predict(x[i : i + 1]), fit.variance(x[i : i + 1])
        law = torch.distributions.Normal(mean, (variance + RIDGE).sqrt())
        total += float(law.log_prob(y[i]).sum())
    whole = shoal.kernel_regression(RELU, x, y, ridge=RIDGE, center=False)
    assert whole.log_marginal_likelihood == pytest.approx(total, rel=1e-10)


def test_without_a_ridge_the_targets_are_interpolated():
    x, y = data(60, outputs=1)
    fit = shoal.kernel_regression(
        RELU, x, y[:, 0], ridge=0.0, method=shoal.learning.Cholesky(tolerance=1e-9)
    )
    torch.testing.assert_close(fit.predict(x), y[:, 0], rtol=1e-6, atol=1e-6)
    assert float(fit.variance(x).max()) < 1e-8
    assert fit.coefficients.shape == (60,)


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS, ids=repr)
def test_columns_without_a_solution_hold_no_others_back(preconditioner):
    """A kernel is zero at an input of zero: without a ridge its target cannot be anything else."""
    x, y = data(2)
    x[0], y[0, 0] = 0.0, 0.0
    method = shoal.learning.ConjugateGradients(preconditioner, max_steps=100)
    with pytest.warns(shoal.ConvergenceWarning, match="1 of 2 right-hand sides"):
        fit = shoal.kernel_regression(
            RELU, x, y, ridge=0.0, center=False, method=method, on_failure="warn"
        )
    assert fit.coefficients.isfinite().all()
    expected = y[1, 0] / shoal.kernel(RELU, x[1:], diag=True).ntk
    torch.testing.assert_close(fit.coefficients[1:, 0], expected, rtol=1e-9, atol=0.0)


def test_what_does_not_converge_says_so():
    x, y = data(200)
    options = {"ridge": 1e-8, "center": False, "method": replace(PLAIN, max_steps=3)}
    with pytest.raises(shoal.ConvergenceError, match=r"2 of 2 right-hand sides .* after 3 steps"):
        shoal.kernel_regression(RELU, x, y, **options)
    with pytest.warns(shoal.ConvergenceWarning, match="the regression did not converge"):
        fit = shoal.kernel_regression(RELU, x, y, on_failure="warn", **options)
    assert not fit.report.converged
    with pytest.raises(shoal.ConvergenceError):
        fit.variance(x[:2] + 0.1)
    matrix = shoal.kernel(RELU, x).ntk + 1e-8 * torch.eye(200, dtype=torch.float64)
    true = torch.linalg.vector_norm(y - matrix @ fit.coefficients, dim=0)
    expected = true / torch.linalg.vector_norm(y, dim=0)
    torch.testing.assert_close(fit.report.residual, expected, rtol=1e-6, atol=0.0)


def test_equal_samples_need_a_ridge():
    x, y = data(100)
    x[50:] = x[:50]
    with pytest.raises(shoal.AccuracyError, match="take a larger ridge"):
        shoal.kernel_regression(RELU, x, y, ridge=0.0)
    assert shoal.kernel_regression(RELU, x, y, ridge=0.1).report.converged


def test_progress():
    x, y = data(100)
    seen = []
    shoal.kernel_regression(RELU, x, y, ridge=RIDGE, method="cg", on_progress=seen.append)
    assert [p.stage for p in seen[:3]] == ["precondition", "form", "solve"]
    assert seen[-1].share == 1.0
    assert seen[-1].residual <= 1e-6
    assert [p.step for p in seen[2:]] == list(range(1, len(seen) - 1))
    seen.clear()
    shoal.kernel_regression(RELU, x, y, ridge=RIDGE, on_progress=seen.append)
    assert [(p.stage, p.share) for p in seen[:2]] == [("form", 0.0), ("factor", 1.0)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ridge": -1.0}, ValueError, "ridge must be >= 0"),
        ({"ridge": math.nan}, ValueError, "ridge must be finite"),
        ({"which": "nngp"}, ValueError, "which must be one of 'ck', 'ntk'"),
        ({"method": "lu"}, ValueError, "method must be one of"),
        ({"method": shoal.learning.Cholesky}, TypeError, "method must be a Cholesky or"),
        ({"memory": "much"}, ValueError, "memory must be a size"),
        ({"memory": "1KiB", "method": "cholesky"}, ValueError, "method='cholesky' needs"),
        ({"on_failure": "ignore"}, ValueError, "on_failure must be one of"),
        ({"y": torch.ones(3)}, ValueError, r"y must have shape \(n,\)"),
        ({"y": torch.full((10,), math.inf)}, ValueError, "y must be finite"),
        ({"x": torch.ones(2, 10, 3)}, ValueError, "x must have shape"),
        ({"x": torch.ones(10, 3, dtype=torch.int64)}, TypeError, "x must be"),
        (
            {"architecture": shoal.activations.Tanh()},
            TypeError,
            "architecture must be an Architecture",
        ),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    x, y = data(10)
    arguments = {"architecture": RELU, "x": x, "y": y, "ridge": RIDGE} | change
    with pytest.raises(error, match=message):
        shoal.kernel_regression(**arguments)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (shoal.learning.ConjugateGradients, {"preconditioner": "ilu"}, "preconditioner must be"),
        (shoal.learning.ConjugateGradients, {"max_steps": 0}, "max_steps must be >= 1"),
        (shoal.learning.ConjugateGradients, {"tolerance": 0.0}, "tolerance must be > 0"),
        (shoal.learning.ConjugateGradients, {"precision": torch.float16}, "precision must"),
        (shoal.learning.Cholesky, {"precision": "float32"}, "precision must be torch.float"),
        (shoal.learning.Cholesky, {"tolerance": math.nan}, "tolerance must be finite"),
        (shoal.learning.Nystrom, {"rank": 0}, "rank must be >= 1"),
        (shoal.learning.Nystrom, {"seed": -1}, "seed must be >= 0"),
    ],
)
def test_bad_options_of_methods_are_named(make, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(**options)


def test_bad_inputs_to_predict_for_are_named():
    x, y = data(10)
    fit = shoal.kernel_regression(RELU, x, y, ridge=RIDGE)
    with pytest.raises(ValueError, match=r"x must have shape \(inputs, 12\)"):
        fit.predict(x[:, :3])
    with pytest.raises(ValueError, match="batch must be >= 1"):
        fit.variance(x, batch=0)
    with pytest.raises(ValueError, match="probes must be >= 2"):
        fit.estimate_gcv(probes=1)


def test_later_changes_of_the_data_do_not_matter():
    x, y = data(30)
    fit = shoal.kernel_regression(RELU, x, y, ridge=RIDGE)
    new = x[:4] + 0.1
    expected = fit.predict(new), fit.variance(new), fit.log_marginal_likelihood
    x.mul_(2)
    y.zero_()
    found = fit.predict(new), fit.variance(new), fit.log_marginal_likelihood
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", ["x", "y"])
def test_gradients_are_refused(name):
    arguments = dict(zip("xy", data(8), strict=True))
    arguments[name].requires_grad_()
    with pytest.raises(ValueError, match=f"{name} must not require gradients"):
        shoal.kernel_regression(RELU, **arguments, ridge=RIDGE)
    with torch.no_grad():
        assert shoal.kernel_regression(RELU, **arguments, ridge=RIDGE).report.converged


def test_the_least_limit_of_memory_is_told():
    x, y = data(300)
    options = {"ridge": RIDGE, "method": SMALL}
    with pytest.raises(ValueError, match="memory must be at least '9MiB'"):
        shoal.kernel_regression(RELU, x, y, memory="1MiB", **options)
    assert shoal.kernel_regression(RELU, x, y, memory="9MiB", **options).report.converged


def test_many_integers_are_classes_with_a_warning() -> None:
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    with pytest.warns(UserWarning, match="40 different integers among 40 samples"):
        fit = shoal.kernel_regression(shoal.DEQ("relu", 0.2, 0.8), x, torch.arange(40), ridge=0.1)
    assert fit.loo().accuracy is not None
