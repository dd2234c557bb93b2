"""Leaving out samples, cross-validation and ridge paths against regressions that are done again."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV

import shoal
from shoal.learning import plain

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
RIDGE = 0.03


def data(n, p=6, outputs=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, p, generator=generator, dtype=torch.float64) / math.sqrt(p)
    noise = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    return x, 0.3 * noise + torch.sin(3 * x[:, :outputs])


@pytest.mark.parametrize("way", [{}, {"ridge": "gcv"}, {"method": shoal.learning.Cholesky()}])
@pytest.mark.parametrize(
    ("which", "ridge", "center"),
    [("ntk", RIDGE, True), ("ck", 1.0, False), ("ntk", 0.0, True), ("ck", 0.1, True)],
)
def test_leaving_out_is_regressing_again(which, ridge, center, way):
    x, y = data(120)
    y = y + 30 * center
    options = {"ridge": ridge, "which": which, "center": center, **way}
    fit = shoal.kernel_regression(RELU, x, y, **options)
    left = fit.loo()
    matrix = getattr(shoal.kernel(RELU, x), which)
    predicted, variance = plain.leave_one_out(matrix, y, fit.ridge, center)
    torch.testing.assert_close(left.predictions, predicted, rtol=0, atol=1e-8)
    torch.testing.assert_close(left.residuals, y - predicted, rtol=0, atol=1e-8)
    torch.testing.assert_close(left.variance, variance, rtol=1e-8, atol=1e-12)
    expected = float((y - predicted).square().mean())
    assert left.mean_squared_error == pytest.approx(expected, rel=1e-9)
    assert left.accuracy is None
    likelihood = plain.log_marginal_likelihood(matrix, y, fit.ridge, center)
    assert fit.log_marginal_likelihood == pytest.approx(likelihood, rel=1e-8)


def test_classes_that_are_left_out():
    x, y = data(40)
    kinds = (y[:, 0] > 0).long() + (y[:, 1] > 0)
    left = shoal.kernel_regression(RELU, x, kinds, ridge=RIDGE).loo()
    one_hot = torch.nn.functional.one_hot(kinds).double()
    predicted, _ = plain.leave_one_out(shoal.kernel(RELU, x).ntk, one_hot, RIDGE, center=True)
    assert left.accuracy == float((predicted.argmax(1) == kinds).double().mean())
    two = torch.where(y[:, 0] > 0, 1.0, -1.0).double()
    left = shoal.kernel_regression(RELU, x.numpy(), two.numpy(), ridge=RIDGE).loo()
    assert isinstance(left.residuals, np.ndarray)
    assert left.accuracy == np.mean((left.predictions > 0) == (two.numpy() > 0))


@pytest.mark.parametrize("ridge", [1e-3, RIDGE, 10.0])
def test_generalized_cross_validation(ridge):
    x, y = data(200)
    expected = plain.gcv(shoal.kernel(RELU, x).ntk, y, ridge, center=True)
    fit = shoal.kernel_regression(RELU, x, y, ridge=ridge)
    assert fit.gcv() == pytest.approx(expected, rel=1e-10)
    method = shoal.learning.ConjugateGradients(shoal.learning.Nystrom(60), tolerance=1e-10)
    iterated = shoal.kernel_regression(RELU, x, y, ridge=ridge, method=method)
    for seed in range(3):
        value, error = iterated.estimate_gcv(probes=40, seed=seed)
        assert abs(value - expected) < 4 * error
        assert 0 < error < 0.1 * expected
    for name in ("gcv", "loo"):
        with pytest.raises(ValueError, match=f"{name} requires method='cholesky' in float64"):
            getattr(iterated, name)()


@pytest.mark.parametrize("center", [True, False])
def test_paths_are_those_of_single_fits(center):
    x, y = data(80)
    ridges = [1e-3, 0.1, 0.01, 3.0]
    path = shoal.learning.ridge_path(RELU, x, y, ridges=ridges, center=center)
    assert path.ridges.tolist() == sorted(ridges)
    kernel = shoal.kernel(RELU, x).ntk
    for i, ridge in enumerate(sorted(ridges)):
        fit = shoal.kernel_regression(RELU, x, y, ridge=ridge, center=center)
        assert float(path.loo[i]) == pytest.approx(fit.loo().mean_squared_error, rel=1e-9)
        assert float(path.gcv[i]) == pytest.approx(fit.gcv(), rel=1e-9)
        assert float(path.scale[i]) == pytest.approx(fit.output_scale, rel=1e-9)
        alpha, constant = plain.ridge_regression(kernel, torch.eye(80).double(), ridge, center)
        fitted = float((kernel @ alpha + constant).trace())
        assert float(path.freedom[i]) == pytest.approx(fitted, rel=1e-9)
        scale = float(path.scale[i])
        expected = plain.log_marginal_likelihood(scale * kernel, y, scale * ridge, center)
        assert float(path.log_likelihood[i]) == pytest.approx(expected, rel=1e-9)
    assert path.accuracy is None
    classes = (y[:, 0] > 0).long()
    path = shoal.learning.ridge_path(RELU, x, classes, ridges=ridges, center=center)
    fit = shoal.kernel_regression(RELU, x, classes, ridge=0.1, center=center)
    assert float(path.accuracy[2]) == fit.loo().accuracy


@pytest.mark.parametrize("criterion", ["gcv", "loo", "likelihood"])
def test_ridges_are_chosen(criterion):
    (x, y), (new, _) = data(80), data(5, seed=1)
    fit = shoal.kernel_regression(RELU, x, y, ridge=criterion)
    path = fit.path
    values = {"gcv": path.gcv, "loo": path.loo, "likelihood": -path.log_likelihood}[criterion]
    assert fit.ridge == float(path.ridges[values.argmin()]) == path.best(criterion)
    assert 0 < int(values.argmin()) < len(values) - 1
    same = shoal.kernel_regression(RELU, x, y, ridge=fit.ridge)
    torch.testing.assert_close(fit.predict(new), same.predict(new), rtol=1e-9, atol=1e-10)
    assert same.path is None


def test_scikit_learn_leaves_out_the_same():
    """A linear network, whose kernel regression is ridge regression on the inputs."""
    x, y = data(40, outputs=1)
    linear = shoal.FullyConnected((shoal.activations.Identity(),))
    size = float(shoal.kernel(linear, x).ntk[0, 0] / x[0].square().sum())
    ridges = np.geomspace(1e-3, 10, 9)
    model = RidgeCV(ridges / size, fit_intercept=False, store_cv_results=True).fit(x, y[:, 0])
    path = shoal.learning.ridge_path(linear, x, y[:, 0], ridges=ridges, center=False)
    expected = model.cv_results_.mean(0)
    np.testing.assert_allclose(path.loo.numpy(), expected, rtol=1e-6)
    assert path.best("loo") == pytest.approx(model.alpha_ * size)


def test_a_multiple_of_a_kernel_is_as_good():
    """A homogeneous network's injection scales its kernel, which no criterion may see."""
    x, y = data(60)
    small, large = (shoal.DEQ(shoal.activations.ReLU(), 0.2, v) for v in (0.01, 4.0))
    a, b = (shoal.learning.ridge_path(network, x, y) for network in (small, large))
    for criterion in ("gcv", "loo", "likelihood"):
        assert a.score(criterion) == pytest.approx(b.score(criterion), rel=1e-8)
        assert b.best(criterion) == pytest.approx(400 * a.best(criterion), rel=1e-8)
    assert float(a.scale[20]) == pytest.approx(400 * float(b.scale[20]), rel=1e-8)


def test_selection_finds_what_made_the_data():
    """Draws of a Gaussian process with the kernel of one of several networks."""
    x, _ = data(150, p=3)
    networks = [shoal.DEQ(shoal.activations.ReLU(), v, 1.0) for v in (0.01, 0.5, 0.99)]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(150, 30, generator=generator, dtype=torch.float64)
    for truth in (0, 2):
        kernel = shoal.kernel(networks[truth], x).ck + 1e-4 * torch.eye(150)
        y = torch.linalg.cholesky(kernel) @ noise
        found = shoal.learning.select(networks, x, y, criterion="likelihood", which="ck")
        assert found.architecture == networks[truth]
        assert found.scores[truth] == max(found.scores)
        assert found.ridge == found.paths[truth].best("likelihood")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"ridge": "best"}, ValueError, "ridge must be one of 'gcv', 'loo', 'likelihood', got"),
        ({"ridge": "gcv", "method": "cg"}, ValueError, "ridge='gcv' requires method='cholesky'"),
        ({"ridge": "loo", "memory": "1MiB"}, ValueError, "an eigendecomposition needs"),
        ({"ridge": None}, TypeError, "ridge must be a real number"),
    ],
)
def test_bad_choices(options, error, text):
    x, y = data(300)
    with pytest.raises(error, match=text):
        shoal.kernel_regression(RELU, x, y, **options)


def test_bad_paths():
    x, y = data(30)
    twice = torch.cat([x, x])
    with pytest.raises(shoal.AccuracyError, match="singular within rounding"):
        shoal.learning.ridge_path(RELU, twice, torch.cat([y, y]), ridges=[0.0])
    assert math.isfinite(shoal.learning.ridge_path(RELU, twice, torch.cat([y, y])).score("loo"))
    with pytest.raises(ValueError, match="ridges must have at least one number"):
        shoal.learning.ridge_path(RELU, x, y, ridges=[])
    with pytest.raises(ValueError, match="ridges must be >= 0"):
        shoal.learning.ridge_path(RELU, x, y, ridges=[-1.0])
    with pytest.raises(shoal.AccuracyError, match="overflow: scale y down"):
        shoal.learning.ridge_path(RELU, x, 1e200 * y)
    with pytest.raises(shoal.AccuracyError, match="underflow: scale y up"):
        shoal.kernel_regression(RELU, x, 1e-200 * y, ridge="loo")
    with pytest.raises(ValueError, match="criterion must be one of"):
        shoal.learning.ridge_path(RELU, x, y).best("aic")
    with pytest.raises(ValueError, match="architectures must have at least one"):
        shoal.learning.select([], x, y)
    for memory, there in (("2MiB", "leaves [0-9.]+ MiB"), ("1KiB", "is too little even for these")):
        needs = (
            f"an eigendecomposition needs 4.88 MiB besides inputs and targets, and memory {there}"
        )
        with pytest.raises(ValueError, match=needs):
            shoal.learning.ridge_path(RELU, *data(400), memory=memory)
        with pytest.raises(ValueError, match=f"method='cholesky' needs .* memory {there}"):
            shoal.kernel_regression(
                RELU, *data(400), ridge=1.0, memory=memory, method=shoal.learning.Cholesky()
            )


@pytest.mark.parametrize("scale", [1e-100, 1e-20, 1e100])
def test_units_of_inputs_do_not_matter(scale):
    """The kernel of a ReLU grows with the square of the inputs."""
    x, y = data(30)
    path, scaled = (
        shoal.learning.ridge_path(RELU, x, y),
        shoal.learning.ridge_path(RELU, scale * x, y),
    )
    torch.testing.assert_close(scaled.ridges / scale**2, path.ridges, rtol=1e-6, atol=0)
    for name in ("loo", "gcv", "freedom"):
        torch.testing.assert_close(getattr(scaled, name), getattr(path, name), rtol=1e-5, atol=0)
    for criterion in ("loo", "gcv", "likelihood"):
        assert scaled.best(criterion) == pytest.approx(path.best(criterion) * scale**2, rel=1e-6)
    fit = shoal.kernel_regression(RELU, scale * x, y, ridge="gcv")
    assert fit.gcv() == pytest.approx(path.score("gcv"), rel=1e-6)


def test_targets_of_zero_have_no_error():
    x, y = data(30)
    fit = shoal.kernel_regression(RELU, x, 0 * y, ridge="loo")
    assert fit.path.score("loo") == fit.loo().mean_squared_error == 0
    assert fit.path.score("likelihood") == math.inf


def test_paths_have_pictures():
    pytest.importorskip("matplotlib")
    x, y = data(30)
    for targets in (y, 0 * y):
        figure = shoal.learning.ridge_path(RELU, x, targets).plot()
        assert [axes.get_xlabel() for axes in figure.axes] == ["ridge λ"] * 3
        figure.canvas.draw()
