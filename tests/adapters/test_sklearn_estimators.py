"""The estimators: predictions and probabilities against plain algebra."""

import pickle

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

import shoal
from adapters.plain import relu_deq

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

from shoal.adapters import KernelClassifier, KernelRegressor


@pytest.fixture(autouse=True)
def no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_, **__):
        raise AssertionError("torch.compile was called")

    monkeypatch.setattr(torch, "compile", refuse)


def data(n: int = 20, seed: int = 0):
    random = np.random.default_rng(seed)
    return random.standard_normal((n, 3)), random.standard_normal((n, 2))


def solved(matrix, y, ridge):
    """Coefficients, and a constant that costs nothing; a ridge may be one of each sample."""
    shifted = matrix + ridge * np.eye(len(matrix))
    bordered = np.block([[shifted, np.ones((len(y), 1))], [np.ones((1, len(y))), np.zeros((1, 1))]])
    both = np.linalg.solve(bordered, np.concatenate([y, np.zeros_like(y[:1])]))
    return both[:-1], both[-1]


@pytest.mark.parametrize("which", ["ck", "ntk"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_predictions_are_those_of_ridge_regression(which: str, outputs: int) -> None:
    x, targets = data()
    y = targets[:, 0] if outputs == 1 else targets
    new = data(5, seed=1)[0]
    row = ("ck", "ntk").index(which)
    model = KernelRegressor("relu", 0.3, 0.8, standardize=False, ridge=0.1, which=which).fit(x, y)
    matrix = relu_deq(x, 0.3, 0.8)[row]
    coefficients, constant = solved(matrix, y, 0.1)
    np.testing.assert_allclose(model.dual_coef_, coefficients, atol=1e-8)
    np.testing.assert_allclose(model.intercept_, constant, atol=1e-8)
    expected = relu_deq(new, 0.3, 0.8, x)[row] @ coefficients + constant
    np.testing.assert_allclose(model.predict(new), expected, atol=1e-8)
    plain = clone(model).set_params(fit_intercept=False).fit(x, y)
    expected = relu_deq(new, 0.3, 0.8, x)[row] @ np.linalg.solve(matrix + 0.1 * np.eye(20), y)
    np.testing.assert_allclose(plain.predict(new), expected, atol=1e-8)


@pytest.mark.parametrize("criterion", ["gcv", "loo"])
def test_ridges_are_chosen_as_ridge_cv_does(criterion: str) -> None:
    """Of a linear network, by scikit-learn's own leave-one-out, whose intercept is left out too."""
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 5))
    y = x @ random.standard_normal(5) + 2 * random.standard_normal(60) + 3
    model = KernelRegressor("identity", 0.2, 0.8, standardize=False, ridge=criterion).fit(x, y)
    ridges = model.regression_.path.ridges.numpy()
    size = float(shoal.kernel(model.architecture_, x[:1], diag=True).ntk[0] / (x[0] ** 2).sum())
    known = RidgeCV(ridges / size).fit(x, y)
    assert model.ridge == criterion
    assert abs(np.log(model.ridge_ / (known.alpha_ * size))) < 0.3 * (1 + (criterion == "gcv"))
    assert model.ridge_ == model.regression_.ridge
    classes = KernelClassifier(ridge=criterion).fit(x, (y > 3).astype(int))
    assert classes.ridge_ > 0
    assert KernelClassifier(ridge=0.5).fit(x, y > 3).ridge_ == 0.5


def test_units_do_not_matter_by_default() -> None:
    x, targets = data()
    new = data(5, seed=1)[0]
    model = KernelRegressor("erf", standardize=False).fit(x, targets)
    scaled = clone(model).fit(1000 * x, targets)
    np.testing.assert_allclose(model.predict(new), scaled.predict(1000 * new), atol=1e-8)
    mean = (x**2).sum(1).mean()
    assert model.architecture_ == shoal.DEQ(shoal.activations.Erf(), 0.2, 1 / mean)
    assert KernelRegressor().fit(np.zeros((3, 2)), [1, 2, 6]).predict([[0.0, 0.0]]) == [3.0]


def test_raw_columns_are_standardized() -> None:
    raw, kinds = load_wine(return_X_y=True)
    x = StandardScaler().fit_transform(raw)
    kinds[0] = 2  # not separable
    for model in (KernelClassifier(), KernelClassifier(ridge=0.1)):
        wanted = clone(model).set_params(standardize=False).fit(x, kinds)
        fitted = pickle.loads(pickle.dumps(model.fit(raw, kinds)))
        np.testing.assert_allclose(fitted.predict_proba(raw), wanted.predict_proba(x), atol=1e-9)
    # constant columns, whose deviation is taken as one
    extended = np.column_stack([raw, np.full(len(raw), 0.1)])
    again = KernelClassifier(ridge=0.1).fit(extended, kinds)
    np.testing.assert_allclose(again.predict_proba(extended), wanted.predict_proba(x), atol=1e-9)


def test_an_architecture_stands_for_the_parameters() -> None:
    x, targets = data()
    network = shoal.FullyConnected([shoal.activations.ReLU(), shoal.activations.ReLU()])
    model = KernelRegressor(architecture=network, standardize=False, which="ck", ridge=0.1).fit(
        x, targets
    )
    assert model.architecture_ is network

    def arccosine(gram):
        size = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
        angle = np.arccos(np.clip(gram / size, -1, 1))
        return size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)

    matrix = arccosine(arccosine(x @ x.T))
    coefficients, constant = solved(matrix, targets, 0.1)
    expected = matrix @ coefficients + constant
    np.testing.assert_allclose(model.predict(x), expected, atol=1e-6)


def test_classes_of_any_kind() -> None:
    x = data(60)[0]
    names = np.array(["ant", "bee", "cow"])[np.argmax(x, axis=1)]
    model = KernelClassifier("relu", 0.3, 0.8, standardize=False, ridge=0.1).fit(x, names)
    matrix = relu_deq(x, 0.3, 0.8)[1]
    indicators = (names[:, None] == model.classes_).astype(float)
    coefficients, share = solved(matrix, indicators, 0.1)
    values = matrix @ coefficients + share
    np.testing.assert_allclose(model.decision_function(x), values, atol=1e-8)
    assert set(model.predict(x)) == {"ant", "bee", "cow"}
    two = KernelClassifier("relu", 0.3, 0.8, standardize=False, ridge=0.1).fit(x, names == "cow")
    assert two.decision_function(x).shape == (60,)
    # the two indicators sum to one, so that their difference decides
    values = values[:, 2]
    np.testing.assert_allclose(two.decision_function(x), 2 * values - 1, atol=1e-8)
    np.testing.assert_array_equal(two.predict(x), values > 0.5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"activation": "whale"}, ValueError, "activation must be one of"),
        ({"input_variance": "auto"}, ValueError, "input_variance must be a number or 'scale'"),
        ({"ridge": -1.0}, ValueError, "ridge must be >= 0"),
        ({"which": "nngp"}, ValueError, "which must be one of"),
        ({"recurrent_variance": -0.1}, ValueError, "recurrent_variance must be >= 0"),
        ({"memory": "much"}, ValueError, "memory must be a size"),
    ],
)
def test_bad_parameters_are_named_when_fitted(options, error, message: str) -> None:
    x, targets = data()
    with pytest.raises(error, match=message):
        KernelRegressor(**options).fit(x, targets)


def test_one_class_is_none() -> None:
    with pytest.raises(ValueError, match="y must have at least two classes"):
        KernelClassifier().fit(data()[0], np.ones(20, dtype=int))


@pytest.mark.parametrize("outputs", [1, 2])
def test_weights_count_samples(outputs: int) -> None:
    x, targets = data()
    y = targets[:, 0] if outputs == 1 else targets
    new = data(5, seed=1)[0]
    weights = np.random.default_rng(2).uniform(0.1, 3, 20)
    model = KernelRegressor("relu", 0.3, 0.8, standardize=False, ridge=0.1).fit(
        x, y, sample_weight=weights
    )
    coefficients, mean = solved(relu_deq(x, 0.3, 0.8)[1], y, 0.1 / weights)
    np.testing.assert_allclose(model.intercept_, mean, atol=1e-8)
    np.testing.assert_allclose(model.dual_coef_, coefficients, atol=1e-8)
    expected = relu_deq(new, 0.3, 0.8, x)[1] @ coefficients + mean
    np.testing.assert_allclose(model.predict(new), expected, atol=1e-8)


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_of_zero_and_two_remove_and_repeat(classes: int) -> None:
    x = data(30)[0]
    labels = np.argmax(x[:, :classes], axis=1)
    counts = np.arange(30) % 3
    weighted = KernelClassifier(ridge=0.1).fit(x, labels, sample_weight=counts)
    repeated = KernelClassifier(ridge=0.1).fit(x.repeat(counts, 0), labels.repeat(counts))
    new = data(9, seed=1)[0]
    np.testing.assert_allclose(
        weighted.decision_function(new), repeated.decision_function(new), atol=1e-9
    )
    ones = KernelClassifier(ridge=0.1).fit(x, labels, sample_weight=np.ones(30))
    plain = KernelClassifier(ridge=0.1).fit(x, labels)
    np.testing.assert_allclose(ones.predict_proba(new), plain.predict_proba(new), atol=1e-9)


def test_bad_weights_are_named() -> None:
    x, targets = data()
    with pytest.raises(ValueError, match=r"Negative values in data passed to `sample_weight`"):
        KernelRegressor().fit(x, targets, sample_weight=-np.ones(20))
    for ridge, message in ((-1.0, "ridge must be >= 0"), ("most", "ridge must be one of")):
        with pytest.raises(ValueError, match=message):
            KernelRegressor(ridge=ridge).fit(x, targets, sample_weight=np.ones(20))


@pytest.mark.parametrize("criterion", ["loo", "gcv", "likelihood"])
def test_a_ridge_is_chosen_with_weights(criterion: str) -> None:
    x = data(40)[0]
    y = np.sin(x.sum(1)) + 0.3 * data(40, seed=5)[1][:, 0]
    plain = KernelRegressor("relu", 0.3, 0.8, ridge=criterion).fit(x, y)
    ones = KernelRegressor("relu", 0.3, 0.8, ridge=criterion).fit(x, y, sample_weight=np.ones(40))
    assert ones.ridge_ == pytest.approx(plain.ridge_, rel=1e-6)
    if criterion != "loo":
        return
    weights = np.random.default_rng(2).uniform(0.1, 3, 40)
    model = KernelRegressor("relu", 0.3, 0.8, standardize=False).fit(x, y, sample_weight=weights)
    matrix = relu_deq(x, 0.3, 0.8)[1]

    def error(ridge: float) -> float:
        total = 0.0
        for i in range(40):
            kept = np.arange(40) != i
            inner = matrix[np.ix_(kept, kept)]
            coefficients, constant = solved(inner, y[kept], ridge / weights[kept])
            total += weights[i] * (y[i] - matrix[i, kept] @ coefficients - constant) ** 2
        return total

    tried = [error(model.ridge_ * factor) for factor in (0.5, 1.0, 2.0)]
    assert tried[1] == min(tried)


def left_out_values(x, labels, classes: int):
    """Indicators as regressed without each sample, one regression after the other."""
    indicators = np.eye(classes)[labels]
    matrix = relu_deq(x, 0.3, 0.8)[1]
    values = np.empty_like(indicators)
    for i in range(len(x)):
        kept = np.arange(len(x)) != i
        inner = matrix[np.ix_(kept, kept)]
        coefficients, constant = solved(inner, indicators[kept], 0.1)
        values[i] = matrix[i, kept] @ coefficients + constant
    return values


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_likeliest_for_samples_left_out(classes: int) -> None:
    x = data(40)[0]
    labels = (np.argmax(x[:, :classes], axis=1) + (np.arange(40) % 7 == 0)) % classes
    model = KernelClassifier("relu", 0.3, 0.8, standardize=False, ridge=0.1).fit(x, labels)
    values = left_out_values(x, labels, classes)
    shares = (40 * np.eye(classes)[labels] + 1 / classes) / 41

    def loss(s: float) -> float:
        return -float((shares * log_softmax(s * values, axis=1)).sum())

    best = minimize_scalar(loss, bounds=(0, 100), method="bounded", options={"xatol": 1e-8}).x
    assert 0.1 < best < 50
    new = data(6, seed=1)[0]
    found = model.predict_proba(new)
    decided = model.decision_function(new)
    if classes == 2:
        decided = np.stack([1 - decided, 1 + decided], axis=1) / 2
    np.testing.assert_allclose(found, softmax(best * decided, axis=1), atol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
    np.testing.assert_array_equal(model.classes_[found.argmax(1)], model.predict(new))


def test_probabilities_of_labels_without_rhyme_are_even() -> None:
    """Left-out samples of a constant input are always predicted wrong: nothing is known."""
    x, labels = np.ones((10, 2)), np.arange(10) % 2
    model = KernelClassifier(ridge=0.1).fit(x, labels)
    np.testing.assert_allclose(model.predict_proba(x), 0.5, atol=1e-12)
