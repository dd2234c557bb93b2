"""Learning curves of mixtures against regressions on samples of them."""

import math

import pytest
import torch

import shoal
from shoal.learning.prediction.gaussian_features import GaussianFeatures, regressed

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
LINEAR = shoal.FullyConnected((shoal.activations.Identity(),))


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_isotropic_features_without_means():
    """Targets that the features know nothing of (Marchenko and Pastur)."""
    p, n, ridge = 300, 200, 0.7
    identity = torch.eye(p, dtype=torch.float64) / p
    features = GaussianFeatures(torch.zeros(2, p, dtype=torch.float64), [identity] * 2)
    counts, targets = torch.tensor([120.0, 80.0]).double(), torch.eye(2, dtype=torch.float64)
    fit = regressed(features, targets, counts, ridge)
    kappa = _kappa(n, p, ridge)
    learned = (1 / p) / (1 / p + kappa)
    expected = 0.5 * n / (n - p * learned**2)
    train = (ridge / (n * kappa)) ** 2 * expected
    for found, value in (
        (fit.test, expected),
        (fit.bias, 0.5),
        (fit.rate, 0.5),
        (fit.train, train),
    ):
        assert found.tolist() == pytest.approx([value, value], rel=1e-8)


def _kappa(n, p, ridge):
    """The positive root of n = p s/(s + k) + ridge/k, s = 1/p, a quadratic in k."""
    s = 1 / p
    a, b, c = n, n * s - p * s - ridge, -ridge * s
    return (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)


def drawn(features, counts, seed):
    x, labels = [], []
    for c, (mean, covariance) in enumerate(zip(features.means, features.covariances, strict=True)):
        noise = normal(int(counts[c]), len(mean), seed=seed + c)
        x.append(mean + noise @ torch.linalg.cholesky(covariance).T)
        labels += [c] * int(counts[c])
    return torch.cat(x), torch.tensor(labels)


def three_classes(p):
    """Features with means, large and small, and covariances that differ in every direction."""
    means = torch.zeros(3, p, dtype=torch.float64)
    means[0, 0], means[1, 1], means[2, 2], means[:, 3] = 0.3, 0.25, 0.2, 0.5
    grid = torch.linspace(0.3, 2, p, dtype=torch.float64)
    rotation = torch.linalg.qr(normal(p, p, seed=9))[0]
    matrices = [grid.diag(), grid.flip(0).diag(), rotation @ grid.diag() @ rotation.T]
    return GaussianFeatures(means, [m / p for m in matrices])


def test_features_of_three_classes():
    p, ridge = 160, 0.2
    features, counts = three_classes(p), torch.tensor([60, 100, 80])
    targets = torch.eye(3, dtype=torch.float64)
    fit = regressed(features, targets, counts.double(), ridge)
    found = []
    for seed in range(0, 200, 10):
        x, labels = drawn(features, counts, seed)
        new, truth = drawn(features, torch.tensor([500] * 3), seed + 5)
        gram = x.T @ x + ridge * torch.eye(p, dtype=torch.float64)
        weights = torch.linalg.solve(gram, x.T @ targets[labels])
        rows = []
        for c in range(3):
            values, fitted = new[truth == c] @ weights, x[labels == c] @ weights
            errors = [(values - targets[c]), (fitted - targets[c])]
            wrong = (values.argmax(1) != c).double().mean()
            rows.append([*(e.square().mean() for e in errors), wrong])
        found.append(rows)
    measured = torch.tensor(found).mean(0).double()
    torch.testing.assert_close(fit.test, measured[:, 0], rtol=0.02, atol=0)
    torch.testing.assert_close(fit.train, measured[:, 1], rtol=0.02, atol=0)
    torch.testing.assert_close(fit.rate, measured[:, 2], rtol=0, atol=0.015)


def mixture(p, kind):
    means = torch.zeros(2, p, dtype=torch.float64)
    means[0, 0], means[1, 1] = 2.0, -1.0
    grid = torch.linspace(0.2, 2, p, dtype=torch.float64)
    covariances = {
        "means": 1.0,
        "norms": [1.0, 1 + 4 / math.sqrt(p)],
        "shapes": [grid, grid.flip(0)],
    }
    return shoal.GaussianMixture(means, covariances[kind], [0.6, 0.4])


def deviation(kind, p, n, which, ridge, repeats):
    """Predicted over measured, less one, of test errors; and the difference of rates."""
    mix = mixture(p, kind)
    curve = shoal.learning_curve(RELU, mix, n=n, ridge=ridge, which=which)
    norms = (mix.means.square().sum(1) + torch.tensor([c.trace() for c in mix.covariances])) / p
    network = shoal.centered(RELU, math.sqrt(float(mix.proportions @ norms)))
    errors, rates = [], []
    for seed in range(repeats):
        x, labels = mix.sample(n + 400, seed=seed, shuffle=True)
        kernel = getattr(shoal.kernel(network, x, x[:n]), which)
        y = torch.nn.functional.one_hot(labels, 2).double()
        inner = kernel[:n] + ridge * torch.eye(n, dtype=torch.float64)
        values = kernel[n:] @ torch.linalg.solve(inner, y[:n])
        errors.append(float((values - y[n:]).square().mean()))
        rates.append(float((values.argmax(1) != labels[n:]).double().mean()))
    mean = torch.tensor(errors).double()
    standard = float(mean.std()) / math.sqrt(repeats) / float(mean.mean())
    rate = float(curve.error_rate) - sum(rates) / repeats
    return float(curve.test_error) / float(mean.mean()) - 1, standard, rate


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "which", "ratio", "ridge"),
    [("means", "ntk", 1.5, 0.05), ("norms", "ck", 0.7, 0.3), ("shapes", "ntk", 1.5, 0.0)],
)
def test_kernel_regression_on_mixtures(kind, which, ratio, ridge):
    error, standard, rate = deviation(kind, 120, int(120 * ratio), which, ridge, 8)
    assert abs(error) < 0.03 + 3 * standard
    assert abs(rate) < 0.035


@pytest.mark.parametrize("n", [20, 80])
def test_linear_regression_with_hardly_a_ridge(n):
    """Without means and of one covariance, classes are noise; p features are fitted to it."""
    mix = shoal.GaussianMixture(torch.zeros(2, 40, dtype=torch.float64), 1.0, [0.5, 0.5])
    curve = shoal.learning_curve(LINEAR, mix, n=n, ridge=1e-9)
    ratio = max(n, 40) / min(n, 40)  # Hastie et al. 2022, with no signal
    assert float(curve.test_error) == pytest.approx(0.5 * ratio / (ratio - 1), rel=0.02)


def test_curves_have_all_sizes():
    mix = mixture(40, "norms")
    curve = shoal.learning_curve(RELU, mix, n=[20, 80, 320], ridge=0.1)
    assert curve.sizes.tolist() == [20, 80, 320]
    assert bool((curve.test_error.diff() < 0).all())
    assert bool((curve.error_rate.diff() < 0).all())
    assert bool((curve.train_error < curve.test_error).all())
    assert curve.limit == math.inf
    assert curve.samples is None
    single = shoal.learning_curve(RELU, mix, n=80, ridge=0.1)
    torch.testing.assert_close(single.test_error, curve.test_error[1:2])
    explicit = shoal.FullyConnected((shoal.activations.ReLU(), shoal.activations.ReLU()))
    assert 0 < float(shoal.learning_curve(explicit, mix, n=80, ridge=0.1).test_error) < 0.5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n": None}, "a mixture has its own classes: give n"),
        ({"y": [1.0]}, "a mixture has its own classes: give n"),
        ({"sizes": [4]}, "a mixture has its own classes: give n"),
        ({"n": 0}, "n must be >= 1"),
        ({"ridge": -1.0}, "ridge must be >= 0"),
        ({"which": "nngp"}, "which must be one of"),
        ({"architecture": LINEAR, "ridge": 0.0}, "ridge must be > 0 for a kernel that is linear"),
        (
            {"architecture": shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8, bias_variance=0.1)},
            "bias_variance",
        ),
        ({"x": shoal.GaussianMixture([[0.0, 1.0]], 1.0)}, "at least two classes"),
    ],
)
def test_bad_arguments(change, text):
    given = {"architecture": RELU, "x": mixture(20, "means"), "n": 10, "ridge": 0.1} | change
    with pytest.raises(ValueError, match=text):
        shoal.learning_curve(**given)
