"""Networks of finite width whose readout is trained: printed equations, and networks."""

import math

import pytest
import torch
from scipy.optimize import brentq

import shoal
from oracles.known_law import normal
from oracles.standard_errors import assert_near_mean
from shoal.learning.curves import Learned, solve_regularization

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
LAYER = shoal.FullyConnected((shoal.activations.ReLU(),))


def defilippis(spectrum, squares, noise, n, p, ridge):
    """The test error as printed in Defilippis, Loureiro and Misiakiewicz (2024), Definition 1."""

    def root(nu):
        return math.sqrt((1 - n / p) ** 2 + 4 * ridge / (p * nu))

    def excess(log_nu):
        nu = math.exp(log_nu)
        return 1 + n / p - root(nu) - 2 / p * float((spectrum / (spectrum + nu)).sum())

    second = math.exp(brentq(excess, -40, 40, xtol=1e-14))
    first = second / 2 * (1 - n / p + root(second))
    filtered = spectrum / (spectrum + second)
    squared = float(filtered.square().sum())
    ratio = first / second
    upsilon = p / n * ((1 - ratio) ** 2 + ratio**2 * squared / (p - squared))
    chi = float((filtered / (spectrum + second)).sum()) / (p - squared)
    bias = float((squares * second**2 / (spectrum + second) ** 2).sum())
    bias += chi * float((squares * second**2 * spectrum / (spectrum + second) ** 2).sum())
    return (bias + noise * upsilon) / (1 - upsilon) + noise


@pytest.mark.parametrize("ridge", [0.01, 1.0])
@pytest.mark.parametrize(("n", "m"), [(40, 20), (40, 100), (100, 40), (30, 30)])
def test_the_printed_equations(n, m, ridge):
    spectrum = torch.arange(1, 201, dtype=torch.float64) ** -1.3
    spectrum = spectrum / spectrum.sum()
    squares = torch.arange(1, 201, dtype=torch.float64) ** -2.0

    def sums(kappa):
        return float((spectrum / (spectrum + kappa)).sum()), 1 / kappa

    def error(width):
        kappa = solve_regularization(sums, 1e-12, n, ridge, width)
        shares = spectrum / (spectrum + kappa)
        bias, cross = (
            float((part * squares).sum()) for part in ((1 - shares) ** 2, shares * (1 - shares))
        )
        learned = Learned(float(shares.sum()), float(shares.square().sum()), bias + 0.2, cross)
        return learned.test_error(n, width)

    assert error(m) == pytest.approx(defilippis(spectrum, squares, 0.2, n, m, ridge), rel=1e-8)
    assert error(10**9) == pytest.approx(error(math.inf), rel=1e-6)


def nonlinear(n, seed):
    x = torch.nn.functional.normalize(normal(n, 12, seed=seed))
    y = torch.stack([torch.sin(4 * x[:, 0]), 3 * x[:, 1] * x[:, 2]], 1)
    return x, y + 0.2 * normal(n, 2, seed=seed + 1)


def features(net, x):
    """What the readout sees."""
    return net.trace(x).features.detach()


def readouts(network, n, m, ridge, sets, *, center=False):
    """Errors on new and on training samples of trained readouts, perhaps with a constant."""
    new, truth = nonlinear(1000, 900)
    found = []
    for seed in range(sets):
        x, y = nonlinear(n, 100 + 2 * seed)
        net = shoal.build(
            network, in_features=12, width=m, out_features=2, seed=seed, dtype=torch.float64
        )
        with torch.no_grad():
            z, there = (features(net, inputs) for inputs in (x, new))
        if center:
            mean, level = z.mean(0), y.mean(0)
            z, y, there = z - mean, y - level, there - mean
        weights = torch.linalg.solve(z.T @ z + ridge * torch.eye(m), z.T @ y)
        values = there @ weights + (level if center else 0.0)
        off = float((values - truth).square().mean())
        found.append([off, float((z @ weights - y).square().mean())])
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.thorough("network1")
@pytest.mark.parametrize("network", [LAYER, RELU])
@pytest.mark.parametrize(
    ("n", "m", "center"), [(100, 30, True), (100, 300, False), (400, 60, False), (40, 30, True)]
)
def test_trained_readouts_of_networks(network, n, m, center):
    ridge = 0.02
    x, y = nonlinear(500, 0)
    curve = shoal.learning_curve(
        network, x, y, [n], ridge=ridge, center=center, which="ck", width=m
    )
    errors = readouts(network, n, m, ridge, 12, center=center)
    stated = float(curve.uncertainty / curve.test_error)
    assert stated < 0.1
    for found, of in ((curve.test_error, 0), (curve.train_error, 1)):
        assert_near_mean(found, errors[:, of, None], more=3 * stated * float(found))
    infinite = shoal.learning_curve(network, x, y, [n], ridge=ridge, center=center, which="ck")
    assert float(infinite.test_error) < float(curve.test_error)


def test_without_a_ridge_errors_peak_where_features_are_as_many_as_samples():
    x, y = nonlinear(400, 0)
    curves = [
        shoal.learning_curve(LAYER, x, y, [100], ridge=0.0, center=False, which="ck", width=m)
        for m in (40, 90, 100, 110, 1000)
    ]
    errors = [float(curve.test_error) for curve in curves]
    assert errors[0] < errors[1] < errors[2] > errors[3] > errors[4]
    assert errors[2] > 1e6
    stated = float(curves[0].uncertainty)
    assert stated < 0.1 * errors[0]
    assert_near_mean(errors[0], readouts(LAYER, 100, 40, 1e-9, 12)[:, 0], more=3 * stated)


def test_narrow_networks_learn_from_any_number_of_samples_what_few_would_teach_wide_ones():
    """So much is claimed for them that is not for an infinitely wide network."""
    x, y = nonlinear(400, 0)
    given = {"ridge": 0.02, "which": "ck", "center": False}
    curve = shoal.learning_curve(LAYER, x, y, [2000, 10**6], width=40, **given)
    assert curve.limit == math.inf
    assert float(curve.test_error[1]) < float(curve.test_error[0])
    stated = float(curve.uncertainty[0])
    assert stated < 0.1 * float(curve.test_error[0])
    measured = readouts(LAYER, 2000, 40, 0.02, 6)[:, 0]
    assert_near_mean(curve.test_error[0], measured, more=3 * stated)
    wide = shoal.learning_curve(LAYER, x, y, [2000], width=4000, **given)
    assert wide.limit < 2000
    assert bool(wide.test_error.isnan().all())


def test_what_has_no_width():
    x, y = nonlinear(40, 0)
    deep = shoal.FullyConnected((shoal.activations.ReLU(),) * 2)
    with pytest.raises(ValueError, match="width is for one hidden layer or an equilibrium"):
        shoal.learning_curve(deep, x, y, [10], ridge=0.1, which="ck", width=50)
    with pytest.raises(ValueError, match="width must be >= 1"):
        shoal.learning_curve(LAYER, x, y, [10], ridge=0.1, which="ck", width=0)
    with pytest.raises(ValueError, match="width has no meaning"):
        shoal.learning_curve(LAYER, x, y, [10], ridge=0.1, which="ntk", width=50)


def test_images_have_no_width():
    _, y = nonlinear(40, 0)
    images = normal(40, 1, 6, 6)
    conv = shoal.ConvDEQ(
        shoal.activations.ReLU(), recurrent_variance=1.0, input_variance=0.8, kernel_size=3
    )
    with pytest.raises(ValueError, match="width is for vectors"):
        shoal.learning_curve(conv, images, y, [10], ridge=0.1, which="ck", width=30)
