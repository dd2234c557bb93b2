"""The scikit-learn kernel: values, gradients, and its place in Gaussian processes."""

import numpy as np
import pytest

import shoal
from adapters.plain import relu_deq

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

from shoal.adapters import SklearnKernel


def inputs(n: int, p: int = 3, seed: int = 0):
    return np.random.default_rng(seed).standard_normal((n, p))


@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_values_are_those_of_the_equations(which: str) -> None:
    x, z = inputs(6), inputs(4, seed=1)
    kernel = SklearnKernel("relu", 0.3, 0.8, which=which)
    row = ("ck", "ntk").index(which)
    own = relu_deq(x, 0.3, 0.8)[row]
    np.testing.assert_allclose(kernel(x), own, atol=1e-10)
    np.testing.assert_allclose(kernel(x, z), relu_deq(x, 0.3, 0.8, z)[row], atol=1e-10)
    np.testing.assert_allclose(kernel.diag(x), np.diag(own), atol=1e-10)
    assert not kernel.is_stationary()
    integers = np.array([[1, 2], [3, -1]])
    np.testing.assert_allclose(kernel(integers), kernel(integers.astype(float)))


def test_fixed_hyperparameters_have_no_gradient() -> None:
    x = inputs(4)
    kernel = SklearnKernel("relu", 0.3, input_variance_bounds="fixed")
    gradient = kernel(x, eval_gradient=True)[1]
    assert gradient.shape == (4, 4, 1)
    whole = SklearnKernel("relu", 0.3)(x, eval_gradient=True)[1]
    # one variance or two may be computed in strips of different sizes: equal but for rounding
    diagonal = np.abs(np.diagonal(whole[..., 1])).max()
    np.testing.assert_allclose(gradient[..., 0], whole[..., 1], rtol=0, atol=1e-12 * diagonal)
    architecture = SklearnKernel(architecture=shoal.FullyConnected([shoal.activations.ReLU()]))
    matrix, nothing = architecture(x, eval_gradient=True)
    assert nothing.shape == (4, 4, 0)
    angle = np.arccos(np.clip(x[0] @ x[1] / np.sqrt(x[0] @ x[0] * (x[1] @ x[1])), -1, 1))
    expected = (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    size = np.sqrt(x[0] @ x[0] * (x[1] @ x[1]))
    assert matrix[0, 1] == pytest.approx(size * expected, abs=1e-10)


@pytest.mark.parametrize(
    ("bounds", "activation", "limit"),
    [
        ("kernel", "tanh", 1.0),
        ("kernel", shoal.activations.LeakyReLU(2.0), 0.25),
        ((0.1, 1.8), "relu", 1.8),
    ],
)
def test_bounds_are_those_of_well_posedness(bounds, activation, limit: float) -> None:
    kernel = SklearnKernel(activation, 0.2, recurrent_variance_bounds=bounds)
    low, high = np.exp(kernel.bounds[1])
    assert 0 < low < high <= limit
    assert high == pytest.approx(limit, rel=1e-5)


def test_composition_clones_and_parameters() -> None:
    x = inputs(5)
    kernel = ConstantKernel(2.0) * SklearnKernel("relu", 0.3) + WhiteKernel(0.1)
    same = clone(kernel)
    assert same == kernel
    assert same != clone(kernel).set_params(k1__k2__recurrent_variance=0.4)
    expected = 2 * relu_deq(x, 0.3, 1.0)[0] + 0.1 * np.eye(5)
    np.testing.assert_allclose(same(x), expected, atol=1e-10)
    changed = kernel.clone_with_theta(np.log([3.0, 1.5, 0.5, 0.2]))
    assert changed.k1.k2.recurrent_variance == pytest.approx(0.5)
    assert changed.k1.k2.input_variance == pytest.approx(1.5)
    assert repr(SklearnKernel("relu")) == (
        "SklearnKernel(ReLU(), recurrent_variance=0.2, input_variance=1, which='ck')"
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"activation": "whale"}, ValueError, "activation must be one of"),
        ({"activation": 3}, TypeError, "activation must be an Activation, such as"),
        ({"which": "nngp"}, ValueError, "which must be one of"),
        ({"recurrent_variance": -0.1}, ValueError, "recurrent_variance must be >= 0"),
        ({"architecture": "deq"}, TypeError, "architecture must be an Architecture"),
        ({"trainable": {"bias"}}, ValueError, "trainable must be chosen from"),
    ],
)
def test_bad_parameters_are_named_at_use(options, error, message: str) -> None:
    kernel = SklearnKernel(**options)
    with pytest.raises(error, match=message):
        kernel(inputs(3))


def test_hyperparameters_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="recurrent_variance must be > 0, got 0"):
        _ = SklearnKernel("relu", 0.0).theta
    with pytest.raises(ValueError, match="recurrent_variance_bounds must be one of"):
        _ = SklearnKernel("relu", recurrent_variance_bounds="wide").bounds
    with pytest.raises(ValueError, match="not Lipschitz"):
        _ = SklearnKernel(shoal.activations.Hermite((0.0, 0.1, 0.1))).bounds
    with pytest.raises(ValueError, match="eval_gradient must be False where Y is given"):
        SklearnKernel()(inputs(3), inputs(2), eval_gradient=True)


@pytest.mark.parametrize("which", ["ck", "ntk"])
@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_gradients_at_duplicated_inputs(activation: str, which: str) -> None:
    x = inputs(5)
    x = np.vstack((x, x[:2]))  # the only parallel pairs are copies
    kernel = SklearnKernel(activation, 0.4, 0.7, which=which)
    gradient = kernel(x, eval_gradient=True)[1]
    np.testing.assert_allclose(gradient[:2, 5:], gradient[:2, :2], rtol=1e-13)
    np.testing.assert_allclose(gradient[5:, 5:], gradient[:2, :2], rtol=1e-13)
    for place in range(2):
        step = np.zeros(2)
        step[place] = 1e-4
        up, down = (kernel.clone_with_theta(kernel.theta + s * step)(x) for s in (1, -1))
        np.testing.assert_allclose(gradient[..., place], (up - down) / 2e-4, atol=1e-8)


@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_gradients_at_parallel_inputs(which: str) -> None:
    # a positively homogeneous kernel is the product of the norms times that of a unit vector
    norms = np.array([1.0, 3.0, 5.0, 1.0, 1.0 + 1e-15])
    x = norms[:, None] * np.array([0.6, 0.8])
    kernel = SklearnKernel("relu", 0.4, 0.7, which=which)
    gradient = kernel(x, eval_gradient=True)[1]
    unit = kernel(np.array([[0.6, 0.8]]), eval_gradient=True)[1][0, 0]
    np.testing.assert_allclose(gradient, np.outer(norms, norms)[..., None] * unit, rtol=1e-12)
