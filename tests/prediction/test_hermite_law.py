"""Spectra and learning curves from covariances: closed forms, quadrature, and simulation."""

import math

import pytest
import torch
from scipy.special import eval_gegenbauer, roots_gegenbauer

import shoal
from oracles.known_law import normal, omniscient
from oracles.standard_errors import assert_near_mean

RELU = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
LINEAR = shoal.FullyConnected((shoal.Identity(),))  # whose kernels are multiples of x·x'
TANH = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)


def power_law(decay, count):
    values = torch.arange(1, count + 1, dtype=torch.float64) ** -decay
    return values / values.sum()


@pytest.mark.parametrize(("network", "which"), [(RELU, "ck"), (RELU, "ntk"), (TANH, "ck")])
def test_equal_variances_are_a_sphere(network, which):
    """Funk and Hecke: eigenvalues are integrals against Gegenbauer polynomials."""
    d = 9
    spectrum = shoal.HermiteLaw(torch.full((d,), 1 / d)).spectrum(network, which=which)
    nodes, weights = roots_gegenbauer(400, d / 2 - 1)
    one = torch.ones(400, dtype=torch.float64)
    values = getattr(shoal.kernel_function(network)(one, one, torch.from_numpy(nodes)), which)
    for level in range(5):
        ratio = eval_gegenbauer(level, d / 2 - 1, nodes) / eval_gegenbauer(level, d / 2 - 1, 1)
        exact = float((values.numpy() * ratio * weights).sum() / weights.sum())
        found = float(spectrum.levels[level]) / d**level
        assert found == pytest.approx(exact, rel=1e-5, abs=1e-12)
    assert spectrum.effective_dimension == pytest.approx(d)


def test_eigenvalues_are_sorted_products_and_sum_to_the_trace():
    spectrum = shoal.HermiteLaw(power_law(0.5, 40), modes=500).spectrum(RELU)
    assert spectrum.indices[:3] == ((), (0,), (1,))
    assert bool((spectrum.values.diff() <= 0).all())
    assert len(set(spectrum.indices)) == 500
    trace = float(shoal.kernel_function(RELU)(1.0, 1.0, 1.0).ntk)
    assert float(spectrum.values.sum()) + spectrum.rest == pytest.approx(trace, rel=1e-9)
    one, two = spectrum.indices.index((0,)), spectrum.indices.index((5,))
    shares = power_law(0.5, 40)
    ratio = float(spectrum.values[two] / spectrum.values[one])
    assert ratio == pytest.approx(float(shares[5] / shares[0]))


@pytest.mark.thorough("network1")
@pytest.mark.parametrize(("network", "which"), [(RELU, "ntk"), (TANH, "ck")])
@pytest.mark.parametrize(("decay", "close"), [(0.3, 0.02), (1.0, 0.1)])
def test_eigenvalues_of_samples(network, which, decay, close):
    """What samples see of a spectrum: their degrees of freedom at an effective regularization."""
    variances = power_law(decay, 80)
    x = normal(500, 80) * variances.sqrt()
    spectrum = shoal.HermiteLaw(variances).spectrum(network, which=which)
    values = torch.linalg.eigvalsh(getattr(shoal.kernel(network, x), which))
    for ridge in (0.1, 1.0, 10.0):
        trace = float((1 / (values + ridge)).sum())
        sampled = 500 - ridge * trace
        assert spectrum.freedom(1 / trace) == pytest.approx(sampled, rel=close)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_a_linear_kernel_has_the_covariance_as_its_spectrum(ridge):
    variances = power_law(1.2, 200)
    target = {(i,): 0.5 / (1 + i) for i in range(200)}
    scale = float(shoal.kernel(LINEAR, torch.eye(1, 200, dtype=torch.float64)).ck)
    law = shoal.HermiteLaw(variances.flip(0), target, noise=0.01)
    curve = shoal.learning_curve(LINEAR, law, n=[10, 50], ridge=ridge * scale, which="ck")
    squares = torch.tensor(list(target.values()), dtype=torch.float64) ** 2 / variances
    for i, n in enumerate((10, 50)):
        test, bias, train = omniscient(variances, squares, 0.1, n, ridge)
        assert float(curve.test_error[i]) == pytest.approx(test, rel=1e-9)
        assert float(curve.bias[i]) == pytest.approx(bias, rel=1e-9)
        assert float(curve.train_error[i]) == pytest.approx(train, rel=1e-7, abs=1e-12)
    assert curve.samples is None
    assert curve.uncertainty.tolist() == [0, 0]


def drawn(n, variances, noise, seed):
    z = normal(n, len(variances), seed=seed)
    y = z[:, 0] + 0.5 * z[:, 5] + 0.5 * z[:, 0] * z[:, 1]
    return z * variances.sqrt(), y + noise * normal(n, seed=seed + 1)


def simulated(network, which, n, ridge, variances, sets):
    errors = []
    for seed in range(sets):
        x, y = drawn(n, variances, 0.3, 10 + 2 * seed)
        new, truth = drawn(1500, variances, 0.3, 1000 + 2 * seed)
        inner = getattr(shoal.kernel(network, x), which) + ridge * torch.eye(n)
        values = getattr(shoal.kernel(network, new, x), which) @ torch.linalg.solve(inner, y)
        errors.append(float((values - truth).square().mean()))
    return errors


TARGET = {(0,): 1.0, (5,): 0.5, (0, 1): 0.5}


@pytest.mark.thorough("network1")
@pytest.mark.parametrize(("network", "which"), [(RELU, "ntk"), (TANH, "ck")])
def test_curves_of_gaussian_inputs(network, which):
    variances = power_law(0.5, 60)
    law = shoal.HermiteLaw(variances, TARGET, noise=0.09)
    curve = shoal.learning_curve(network, law, n=[60, 200], ridge=0.1, which=which)
    for i, n in enumerate((60, 200)):
        errors = simulated(network, which, n, 0.1, variances, 6)
        assert_near_mean(curve.test_error[i], errors)
    beyond = shoal.learning_curve(network, law, n=10**7, ridge=0.1, which=which)
    assert beyond.limit < 10**7
    assert bool(beyond.test_error.isnan().all())


def test_a_law_of_samples_estimates_the_target_and_is_checked():
    variances = power_law(0.5, 40)
    x, y = drawn(1000, variances, 0.3, 7)
    law = shoal.HermiteLaw.fit(x, y)
    curve = shoal.learning_curve(RELU, law, n=[60, 200, 4000], ridge=0.1)
    assert curve.samples == 1000
    assert [check.size for check in curve.checks] == [100, 200, 400]
    for i, n in enumerate((60, 200)):
        stated = float(curve.uncertainty[i])  # of a law that is fitted to 1000 samples
        assert stated < 0.1 * float(curve.test_error[i])
        errors = simulated(RELU, "ntk", n, 0.1, variances, 6)
        assert_near_mean(curve.test_error[i], errors, more=3 * stated)
    assert bool(curve.test_error[2].isnan()) == (curve.limit < 4000)
    moments = law.moments(law.spectrum(RELU).indices)
    total = float(moments.squares.sum()) + moments.rest
    assert total == pytest.approx(float(y.square().mean()))
    # the noise: 1000 squares of normal numbers, and the target's part that is not found
    assert moments.rest == pytest.approx(0.09, rel=5 * math.sqrt(2 / 1000))


def test_stated_deviations_count_which_samples_a_law_was_fitted_to():
    """The law is right here. Its checks cannot tell what other samples would have given."""
    variances = power_law(0.5, 20)
    given = {"n": [30, 100], "ridge": 10.0, "which": "ck"}
    right = shoal.HermiteLaw(variances, {(1,): 1.0}, noise=1.0)
    truth = shoal.learning_curve(LINEAR, right, **given)
    far = []
    for seed in range(20):
        z = normal(400, 21, seed=50 + seed)
        y = z[:, 1] + z[:, 20]
        law = shoal.HermiteLaw.fit(z[:, :20] * variances.sqrt(), y, modes=100)
        curve = shoal.learning_curve(LINEAR, law, **given)
        far.append((curve.test_error - truth.test_error) / curve.uncertainty)
    off = torch.stack(far).abs()
    assert float((off <= 1).double().mean()) >= 0.5
    assert float((off <= 2).double().mean()) >= 0.8


def test_digits_are_predicted_within_what_is_stated():
    pytest.importorskip("sklearn")
    digits = shoal.data.load("digits", split="all", dtype=torch.float64)
    x = digits.x.flatten(1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.normalize((x - x.mean(0))[order])
    classes = digits.y[order].long()
    curve = shoal.learning_curve(
        RELU, shoal.HermiteLaw.fit(x[:1000], classes[:1000]), n=[100, 300], ridge=0.1
    )
    one_hot = torch.nn.functional.one_hot(classes).double()
    for i, n in enumerate((100, 300)):
        fit = shoal.kernel_regression(RELU, x[1000 : 1000 + n], one_hot[1000 : 1000 + n], ridge=0.1)
        error = float((fit.predict(x[1300:]) - one_hot[1300:]).square().mean())
        assert abs(float(curve.test_error[i]) - error) < 2.5 * float(curve.uncertainty[i])
    assert curve.error_rate is None


@pytest.mark.parametrize("kind", ["not centered", "few clusters"])
def test_where_it_does_not_hold_it_says_so(kind):
    x = normal(400, 10)
    if kind == "not centered":
        x = x + 4
    else:  # a target that is a function of the cluster, far from any low polynomial
        centers = 6 * normal(24, 10, seed=3)
        places = torch.arange(400) % 24
        x = centers[places] + 0.01 * x
    y = torch.sin(2 * x[:, 0]) if kind == "not centered" else normal(24, seed=4)[places]
    with pytest.raises(shoal.AccuracyError, match="Hermite ansatz"):
        shoal.learning_curve(RELU, shoal.HermiteLaw.fit(x, y), n=[50], ridge=0.01)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"variances": []}, ValueError, "variances must not be empty"),
        ({"variances": [1.0, -1.0]}, ValueError, "variances must be > 0"),
        ({"variances": [math.nan]}, ValueError, "variances"),
        ({"target": {(7,): 1.0}}, ValueError, "target must have components below 3"),
        ({"target": {3: 1.0}}, TypeError, "target must have tuples"),
        ({"target": {(0, 1): 1.0, (1, 0): 2.0}}, ValueError, "target must have each product once"),
        ({"target": {(0,): "a"}}, TypeError, "target"),
        ({"noise": -1.0}, ValueError, "noise must be >= 0"),
        ({"modes": 0}, ValueError, "modes must be >= 1"),
    ],
)
def test_bad_laws(change, error, text):
    with pytest.raises(error, match=text):
        shoal.HermiteLaw(**({"variances": [1.0, 0.5, 0.2]} | change))


def test_bad_arguments():
    law = shoal.HermiteLaw([1.0, 0.5])
    with pytest.raises(ValueError, match="has its own target: give n"):
        shoal.learning_curve(RELU, law, sizes=[3], ridge=0.1)
    with pytest.raises(TypeError, match="ridge must be a real number"):
        shoal.learning_curve(RELU, law, n=3, ridge="loo")
    with pytest.raises(ValueError, match="y must have shape"):
        shoal.HermiteLaw.fit(normal(20, 3), normal(19))
    with pytest.raises(ValueError, match="x must have shape"):
        shoal.HermiteLaw.fit(normal(20), normal(20))
    with pytest.raises(ValueError, match="x must not be zero everywhere"):
        shoal.HermiteLaw.fit(torch.zeros(20, 3), normal(20))
    with pytest.raises(ValueError, match="y must"):
        shoal.HermiteLaw.fit(normal(20, 3), normal(20) * math.nan)
