"""The estimators: scikit-learn's own checks, and predictions against plain algebra."""

import numpy as np
import pytest
import torch

import shoal
from adapters.plain import relu_deq

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier, RidgeCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from shoal.adapters import KernelClassifier, KernelRegressor


@pytest.fixture(autouse=True)
def no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_, **__):
        raise AssertionError("torch.compile was called")

    monkeypatch.setattr(torch, "compile", refuse)


@parametrize_with_checks([KernelRegressor(), KernelClassifier(), KernelRegressor(ridge="loo")])
def test_checks_of_scikit_learn(estimator, check) -> None:
    check(estimator)


def data(n: int = 20, seed: int = 0):
    random = np.random.default_rng(seed)
    return random.standard_normal((n, 3)), random.standard_normal((n, 2))


@pytest.mark.parametrize("which", ["ck", "ntk"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_predictions_are_those_of_ridge_regression(which: str, outputs: int) -> None:
    x, targets = data()
    y = targets[:, 0] if outputs == 1 else targets
    new = data(5, seed=1)[0]
    row = ("ck", "ntk").index(which)
    model = KernelRegressor("relu", 0.3, 0.8, ridge=0.1, which=which).fit(x, y)
    matrix = relu_deq(x, 0.3, 0.8)[row] + 0.1 * np.eye(len(x))
    coefficients = np.linalg.solve(matrix, y - y.mean(0))
    np.testing.assert_allclose(model.dual_coef_, coefficients, atol=1e-8)
    expected = relu_deq(new, 0.3, 0.8, x)[row] @ coefficients + y.mean(0)
    np.testing.assert_allclose(model.predict(new), expected, atol=1e-8)
    plain = clone(model).set_params(fit_intercept=False).fit(x, y)
    expected = relu_deq(new, 0.3, 0.8, x)[row] @ np.linalg.solve(matrix, y)
    np.testing.assert_allclose(plain.predict(new), expected, atol=1e-8)


@pytest.mark.parametrize("criterion", ["gcv", "loo"])
def test_ridges_are_chosen_as_ridge_cv_does(criterion: str) -> None:
    """Of a linear network, by scikit-learn's own leave-one-out on targets less their mean."""
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 5))
    y = x @ random.standard_normal(5) + 2 * random.standard_normal(60) + 3
    model = KernelRegressor("identity", 0.2, 0.8, ridge=criterion).fit(x, y)
    ridges = model.regression_.path.ridges.numpy()
    size = float(shoal.kernel(model.architecture_, x[:1], diag=True).ntk[0] / (x[0] ** 2).sum())
    known = RidgeCV(ridges / size, fit_intercept=False).fit(x, y - y.mean())
    assert model.ridge == criterion
    assert abs(np.log(model.ridge_ / (known.alpha_ * size))) < 0.3 * (1 + (criterion == "gcv"))
    assert model.ridge_ == model.regression_.ridge
    classes = KernelClassifier(ridge=criterion).fit(x, (y > 3).astype(int))
    assert classes.ridge_ > 0
    assert KernelClassifier(ridge=0.5).fit(x, y > 3).ridge_ == 0.5


def test_units_do_not_matter_by_default() -> None:
    x, targets = data()
    new = data(5, seed=1)[0]
    model = KernelRegressor("erf").fit(x, targets)
    scaled = KernelRegressor("erf").fit(1000 * x, targets)
    np.testing.assert_allclose(model.predict(new), scaled.predict(1000 * new), atol=1e-8)
    mean = (x**2).sum(1).mean()
    assert model.architecture_ == shoal.DEQ(shoal.Erf(), 0.2, 1 / mean)
    assert KernelRegressor().fit(np.zeros((3, 2)), [1, 2, 6]).predict([[0.0, 0.0]]) == [3.0]


def test_an_architecture_stands_for_the_parameters() -> None:
    x, targets = data()
    network = shoal.FullyConnected([shoal.ReLU(), shoal.ReLU()])
    model = KernelRegressor(architecture=network, which="ck", ridge=0.1).fit(x, targets)
    assert model.architecture_ is network

    def arccosine(gram):
        size = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
        angle = np.arccos(np.clip(gram / size, -1, 1))
        return size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)

    matrix = arccosine(arccosine(x @ x.T))
    centered = targets - targets.mean(0)
    expected = matrix @ np.linalg.solve(matrix + 0.1 * np.eye(20), centered) + targets.mean(0)
    np.testing.assert_allclose(model.predict(x), expected, atol=1e-6)


def test_classes_of_any_kind() -> None:
    x = data(60)[0]
    names = np.array(["ant", "bee", "cow"])[np.argmax(x, axis=1)]
    model = KernelClassifier("relu", 0.3, 0.8, ridge=0.1).fit(x, names)
    matrix = relu_deq(x, 0.3, 0.8)[1]
    indicators = (names[:, None] == model.classes_).astype(float)
    share = indicators.mean(0)
    solved = np.linalg.solve(matrix + 0.1 * np.eye(60), indicators - share)
    np.testing.assert_allclose(model.decision_function(x), matrix @ solved + share, atol=1e-8)
    assert set(model.predict(x)) == {"ant", "bee", "cow"}
    two = KernelClassifier("relu", 0.3, 0.8, ridge=0.1).fit(x, names == "cow")
    assert two.decision_function(x).shape == (60,)
    # the two indicators sum to one, so that their difference decides
    values = (matrix @ solved + share)[:, 2]
    np.testing.assert_allclose(two.decision_function(x), 2 * values - 1, atol=1e-8)
    np.testing.assert_array_equal(two.predict(x), values > 0.5)


@pytest.mark.thorough
def test_digits_in_a_pipeline_and_a_grid() -> None:
    x, y = load_digits(return_X_y=True)
    x, y, new, truth = x[:300], y[:300], x[300:600], y[300:600]
    pipeline = make_pipeline(StandardScaler(), KernelClassifier())
    grid = {
        "kernelclassifier__recurrent_variance": [0.1, 0.6],
        "kernelclassifier__which": ["ck", "ntk"],
        "kernelclassifier__activation": ["relu", shoal.LeakyReLU(0.1)],
    }
    search = GridSearchCV(pipeline, grid, cv=2).fit(x, y)
    assert len(search.cv_results_["params"]) == 8
    linear = make_pipeline(StandardScaler(), RidgeClassifier()).fit(x, y)
    assert search.score(new, truth) > linear.score(new, truth)


def test_a_constant_feature_makes_one_feature_enough() -> None:
    x = np.linspace(-2, 2, 60)[:, None]
    y = np.cos(3 * x[:, 0])
    beside = FunctionTransformer(lambda z: np.hstack([z, np.ones_like(z)]))
    pipeline = make_pipeline(beside, KernelRegressor("relu", 0.2, ridge=1e-6))
    scores = cross_val_score(pipeline, x[::-1][np.random.default_rng(0).permutation(60)], y, cv=3)
    assert scores.shape == (3,)
    assert pipeline.fit(x[::2], y[::2]).score(x[1::2], y[1::2]) > 0.99


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
