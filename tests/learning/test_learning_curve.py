"""Learning curves from samples, against laws that are known and regressions that are done."""

import math

import numpy as np
import pytest
import torch

import shoal
from oracles.known_law import normal, omniscient
from shoal.learning import plain

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
LINEAR = shoal.FullyConnected(
    (shoal.activations.Identity(),)
)  # whose kernels are multiples of x·x'


def linear_data(n, spectrum, coefficients, noise, seed):
    x = normal(n, len(spectrum), seed=seed) * spectrum.sqrt()
    return x, x @ coefficients + noise * normal(n, seed=seed + 1)


@pytest.mark.filterwarnings("ignore:the columns of x")
@pytest.mark.thorough("0.0-")
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_law_of_linear_regression(ridge, noise):
    """More features than any training set has, of a spectrum with a power law."""
    spectrum = torch.arange(1, 1001, dtype=torch.float64) ** -1.2
    coefficients = torch.ones(1000, dtype=torch.float64)
    x, y = linear_data(600, spectrum, coefficients, noise, seed=0)
    unit = torch.eye(1, 1000, dtype=torch.float64)
    scale = float(shoal.kernel(LINEAR, unit).ck)
    sizes = [20, 60, 200, 600]
    given = {"ridge": ridge * scale, "which": "ck", "center": False}
    curve = shoal.learning_curve(LINEAR, x, y, sizes, **given)
    assert curve.samples == 600
    for i, n in enumerate(sizes):
        test, bias, train = omniscient(spectrum, coefficients**2, noise, n, ridge)
        assert abs(float(curve.test_error[i]) - test) < 3 * float(curve.uncertainty[i])
        close = 0.12 if n < 600 else 0.25  # all are left out, without a ridge
        assert float(curve.test_error[i]) == pytest.approx(test, rel=close)
        assert float(curve.bias[i]) == pytest.approx(bias, rel=close)
        assert float(curve.train_error[i]) == pytest.approx(train, rel=close)
    torch.testing.assert_close(curve.bias + curve.variance, curve.test_error)
    assert bool((curve.uncertainty[:3] < 0.15 * curve.test_error[:3]).all())


@pytest.mark.filterwarnings("ignore:the columns of x")
def test_larger_sets_are_predicted_as_far_as_is_claimed():
    spectrum = torch.arange(1, 1001, dtype=torch.float64) ** -1.2
    coefficients = torch.ones(1000, dtype=torch.float64)
    x, y = linear_data(500, spectrum, coefficients, 0.5, seed=4)
    scale = float(shoal.kernel(LINEAR, torch.eye(1, 1000, dtype=torch.float64)).ck)
    sizes = [750, 1000, 1001]
    curve = shoal.learning_curve(LINEAR, x, y, sizes, ridge=scale, which="ck")
    assert curve.limit == 1000
    for i in (0, 1):
        test, *_ = omniscient(spectrum, coefficients**2, 0.5, sizes[i], 1.0)
        assert abs(float(curve.test_error[i]) - test) < 3 * float(curve.uncertainty[i])
        assert float(curve.test_error[i]) == pytest.approx(test, rel=0.1)
    assert bool(curve.test_error[2].isnan())
    none = shoal.learning_curve(LINEAR, x, y, sizes, ridge=0.0, which="ck")
    assert none.limit == 500
    assert bool(none.test_error.isnan().all())


def nonlinear(n, seed):
    x = torch.nn.functional.normalize(normal(n, 8, seed=seed))
    y = torch.stack([torch.sin(4 * x[:, 0]), 3 * x[:, 1] * x[:, 2]], 1)
    return x, y + 0.2 * normal(n, 2, seed=seed + 1)


def test_all_samples_are_left_out_one_by_one():
    x, y = nonlinear(120, 0)
    curve = shoal.learning_curve(RELU, x, y, [120], ridge=0.05)
    fit = shoal.kernel_regression(RELU, x, y, ridge=0.05)
    assert float(curve.test_error) == pytest.approx(fit.loo().mean_squared_error, rel=1e-9)
    residual = float((fit.predict(x) - y).square().mean())
    assert float(curve.train_error) == pytest.approx(residual, rel=1e-8)


@pytest.mark.parametrize("criterion", ["loo", "gcv", "likelihood"])
def test_the_ridge_is_chosen_for_all_samples(criterion):
    x, y = nonlinear(120, 0)
    curve = shoal.learning_curve(RELU, x, y, [60, 120], ridge=criterion)
    path = shoal.learning.ridge_path(RELU, x, y)
    assert curve.ridge == path.best(criterion)
    if criterion == "loo":
        assert float(curve.test_error[1]) == pytest.approx(path.score("loo"), rel=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_bias_and_variance_of_many_training_sets(which):
    ridge, n, sets = 0.02, 100, 60
    (x, y), (new, truth) = nonlinear(400, 0), nonlinear(800, 10)
    curve = shoal.learning_curve(RELU, x, y, [n], ridge=ridge, which=which)
    pool, targets = nonlinear(n * sets, 20)
    values, trained = [], 0.0
    for k in range(sets):
        some = slice(k * n, (k + 1) * n)
        inner = getattr(shoal.kernel(RELU, pool[some]), which)
        alpha, constant = plain.ridge_regression(inner, targets[some], ridge, center=True)
        values.append(getattr(shoal.kernel(RELU, new, pool[some]), which) @ alpha + constant)
        trained += float((ridge * alpha).square().mean()) / sets
    found = torch.stack(values)
    variance = float(found.var(0).mean())
    bias = float((found.mean(0) - truth).square().mean()) - variance / sets
    spread = 2 * float(curve.uncertainty / curve.test_error)
    assert spread < 0.25
    assert float(curve.bias) == pytest.approx(bias, rel=spread)
    assert float(curve.variance) == pytest.approx(variance, rel=spread)
    assert float(curve.train_error) == pytest.approx(trained, rel=spread)
    assert abs(float(curve.test_error) - bias - variance) < 3 * float(curve.uncertainty)


def test_error_rates():
    x, y = nonlinear(2400, 0)
    classes = 2 * (y[:, 0] > 0).long() + (y[:, 1] > 0) + 5
    curve = shoal.learning_curve(RELU, x[:400], classes[:400], [50, 100, 400, 450], ridge=0.05)
    for i, n in enumerate((50, 100)):
        rates = []
        for k in range(12):
            some = slice(400 + k * n, 400 + (k + 1) * n)
            one_hot = torch.nn.functional.one_hot(classes[some] - 5).double()
            fit = shoal.kernel_regression(RELU, x[some], one_hot, ridge=0.05)
            wrong = fit.predict(x[-700:]).argmax(1) != classes[-700:] - 5
            rates.append(float(wrong.double().mean()))
        assert float(curve.error_rate[i]) == pytest.approx(np.mean(rates), abs=0.04)
    fit = shoal.kernel_regression(
        RELU, x[:400], torch.nn.functional.one_hot(classes[:400] - 5).double(), ridge=0.05
    )
    assert float(curve.error_rate[2]) == pytest.approx(1 - fit.loo().accuracy, abs=1e-12)
    assert math.isfinite(float(curve.test_error[3]))
    assert bool(curve.error_rate[3].isnan())
    assert all(0 < check.measured_rate < 1 for check in curve.checks)


def test_classes_may_be_called_anything():
    x, y = nonlinear(80, 0)
    places = (y[:, 0] > 0).long() + (y[:, 1] > 0)
    names = np.array(["cod", "eel", "ray"])
    same = [
        learned_rates(x, places),
        learned_rates(x.numpy(), places.numpy()),
        learned_rates(x, (7 * places - 3).to(torch.int8)),
        learned_rates(x.numpy(), names[places]),
        learned_rates(x, names[places].tolist()),
        learned_rates(x, places.tolist()),
    ]
    for one in same:
        torch.testing.assert_close(one, same[0], rtol=0, atol=0)
    two = learned_rates(x, places > 0), learned_rates(x.numpy(), places.numpy() > 0)
    torch.testing.assert_close(*two, rtol=0, atol=0)


def learned_rates(x, classes):
    curve = shoal.learning_curve(RELU, x, classes, [20, 80], ridge=0.05)
    return torch.stack([curve.test_error, curve.error_rate])


def test_checks_are_measured():
    x, y = nonlinear(160, 0)
    curve = shoal.learning_curve(RELU, x, y, ridge=0.5, repeats=8, seed=3)
    assert [(c.size, c.source) for c in curve.checks] == [
        (20, 160),
        (40, 160),
        (80, 160),
        (160, 80),
    ]
    assert curve.limit == 320
    assert (int(curve.sizes[0]), int(curve.sizes[-1])) == (16, 320)
    for check in curve.checks:
        assert abs(check.deviation) < 0.5
        assert check.deviation == pytest.approx(check.predicted / check.measured - 1)
        assert check.measured_rate is None
    again = shoal.learning_curve(RELU, x.numpy(), y.numpy(), ridge=0.5, repeats=8, seed=3)
    torch.testing.assert_close(again.uncertainty, curve.uncertainty, rtol=1e-9, atol=0)


def test_singular_kernels_claim_less():
    """Of a linear kernel in 20 dimensions, nothing is left to learn from more than 20 samples."""
    x = normal(100, 20)
    curve = shoal.learning_curve(LINEAR, x, x[:, 0] + 0.1 * normal(100, seed=1), [10, 90], ridge=0)
    assert curve.limit < 30
    assert bool(curve.test_error.isnan()[1])
    assert not bool(curve.test_error.isnan()[0])


@pytest.mark.parametrize("scale", [1e-70, 1e-20, 1e40])
def test_units_of_inputs_and_targets_do_not_matter(scale):
    """The kernel of a ReLU grows with the square of the inputs."""
    x, y = nonlinear(64, 0)
    curve = shoal.learning_curve(RELU, x, y, [8, 64, 100], ridge=1.0)
    scaled = shoal.learning_curve(RELU, scale * x, 1e100 * y, [8, 64, 100], ridge=scale**2)
    torch.testing.assert_close(scaled.test_error / 1e200, curve.test_error, rtol=1e-8, atol=0)
    torch.testing.assert_close(scaled.train_error / 1e200, curve.train_error, rtol=1e-8, atol=0)
    torch.testing.assert_close(scaled.uncertainty / 1e200, curve.uncertainty, rtol=1e-8, atol=0)
    classes = (y[:, 0] > 0).long()
    rates = [
        shoal.learning_curve(RELU, s * x, classes, [8, 64], ridge=0.0).error_rate
        for s in (1.0, scale)
    ]
    torch.testing.assert_close(*rates, rtol=0, atol=0.02)


@pytest.mark.parametrize("ridge", [1e6, 1e200, 1e300])
def test_a_ridge_beyond_all_learns_nothing(ridge):
    x, y = nonlinear(64, 0)
    sizes = [8, 64, 128]
    mean = shoal.learning_curve(RELU, x, y, sizes, ridge=ridge)
    expected = y.var(0).mean() * (1 + 1 / mean.sizes.double())  # of the mean of so many targets
    torch.testing.assert_close(mean.test_error, expected, rtol=1 / 7**2, atol=1e-12)
    curve = shoal.learning_curve(RELU, x, y, sizes, ridge=ridge, center=False)
    nothing = float(y.square().mean())
    for error in (curve.test_error, curve.bias, curve.train_error):
        torch.testing.assert_close(error, torch.full_like(error, nothing), rtol=1e-3, atol=0)


def test_targets_of_zero_have_no_error():
    x, y = nonlinear(64, 0)
    curve = shoal.learning_curve(RELU, x, 0 * y, [8, 64, 100], ridge=1.0)
    for values in (curve.test_error, curve.variance, curve.train_error, curve.uncertainty):
        assert values.tolist() == [0, 0, 0]
    assert all(check.deviation == 0 for check in curve.checks)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": torch.zeros(40, 3, dtype=torch.float64)}, "the kernel matrix is zero or constant"),
        ({"x": torch.ones(40, 3, dtype=torch.float64)}, "zero or constant"),
        (
            {
                "x": torch.ones(64, 4, dtype=torch.float64),
                "y": normal(64),
                "sizes": None,
                "ridge": 0.0,
                "center": False,
            },
            "singular within rounding",
        ),
        ({"y": 1e160 * normal(40, seed=1)}, "overflow: scale y down"),
        ({"y": 1e-160 * normal(40, seed=1)}, "underflow: scale y up"),
    ],
)
def test_what_cannot_be_predicted_is_said(change, text):
    given = {"x": normal(40, 3), "y": normal(40, seed=1), "sizes": [10], "ridge": 0.1}
    with pytest.raises(shoal.AccuracyError, match=text):
        shoal.learning_curve(RELU, **(given | change))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"y": torch.zeros(40, dtype=torch.long)}, ValueError, "at least two classes"),
        ({"y": torch.ones(40, 2, dtype=torch.long)}, ValueError, "y must have shape"),
        ({"y": torch.ones(3, dtype=torch.float64)}, ValueError, "y must have shape"),
        ({"y": [0.5] * 40}, TypeError, "y must be integers or strings, got dtype float64"),
        ({"y": [[1], [2, 3]] * 20}, ValueError, "y must have shape"),
        ({"y": ["a", 1] * 20}, TypeError, "y must be integers or strings, not both"),
        ({"y": [0, 1] * 10}, ValueError, "y must have shape"),
        ({"sizes": []}, ValueError, "sizes must have at least one number"),
        ({"sizes": [0]}, ValueError, "sizes must be >= 2"),
        ({"sizes": 5}, TypeError, "sizes must be a collection"),
        ({"ridge": -1.0}, ValueError, "ridge must be >= 0"),
        ({"ridge": "aic"}, ValueError, "ridge must be"),
        ({"repeats": 0}, ValueError, "repeats must be >= 1"),
        ({"x": normal(5, 3), "y": normal(5)}, ValueError, "at least 32 samples, got 5"),
        ({"memory": "1KiB"}, ValueError, "an eigendecomposition needs"),
    ],
)
def test_bad_arguments(change, error, text):
    given = {"x": normal(40, 3), "y": normal(40, seed=1), "sizes": [10], "ridge": 0.1}
    with pytest.raises(error, match=text):
        shoal.learning_curve(RELU, **(given | change))


def test_pictures():
    pytest.importorskip("matplotlib")
    x, y = nonlinear(100, 0)
    one = shoal.learning_curve(RELU, x, y, ridge=0.05).plot()
    assert [axes.get_title() for axes in one.axes] == ["mean squared error, λ = 0.05"]
    two = shoal.learning_curve(RELU, x, (y[:, 0] > 0).long(), ridge=0.0).plot()
    assert len(two.axes) == 2


def test_a_kernel_that_is_slow_is_logged_once(caplog):
    """Two layers with biases, of inputs of many norms: entries are computed one by one."""
    net = shoal.FullyConnected(("relu", "relu"), bias_variance=0.1)
    x, y = 30 * normal(100, 5) * normal(100, 1, seed=1), normal(100, seed=2)
    with caplog.at_level("INFO", logger="shoal"):
        shoal.learning_curve(net, x, y, [10, 50, 100], repeats=1)
    assert [record.getMessage().count("one by one") for record in caplog.records] == [1]
