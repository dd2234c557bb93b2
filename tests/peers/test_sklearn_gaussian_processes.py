"""scikit-learn's own tests of Gaussian processes, with kernels of networks in place of its own.

Its tests take a kernel as an argument, so they are called as they are. Inputs of one feature, as
most of them have, want biases: without them, a kernel of such inputs has rank two. What cannot
hold is listed with its reason, and what does hold is asserted instead.
"""

import importlib
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import shoal

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel

from shoal.adapters import SklearnKernel

SUITE = "scikit-learn: tests of Gaussian processes"
PACKAGE = "scikit-learn"

MODULES = ("test_gpr", "test_gpc", "test_kernels")
FIXED = dict.fromkeys(
    ["recurrent_variance_bounds", "input_variance_bounds", "bias_variance_bounds"], "fixed"
)
NETWORK = {"recurrent_variance": 0.2, "input_variance": 1.0, "bias_variance": 1.0}


def _factor(kernel: Kernel) -> Kernel:
    return ConstantKernel(1.0, (1e-2, 1e2)) * kernel


KERNELS: dict[str, Kernel] = {
    "relu fixed": SklearnKernel("relu", **NETWORK, **FIXED),
    "relu": SklearnKernel("relu", **NETWORK),
    "relu ntk": SklearnKernel("relu", **NETWORK, which="ntk"),
    "tanh fixed": SklearnKernel("tanh", **NETWORK, **FIXED),
    "tanh": SklearnKernel("tanh", **NETWORK),
    "fully connected": SklearnKernel(
        architecture=shoal.FullyConnected([shoal.activations.ReLU()] * 2, bias_variance=1.0)
    ),
    "factor fully connected": _factor(
        SklearnKernel(
            architecture=shoal.FullyConnected([shoal.activations.ReLU()], bias_variance=1.0)
        )
    ),
    "factor resnet": _factor(
        SklearnKernel(
            architecture=shoal.ResNet(shoal.activations.ReLU(), 2, bias_variance=1.0), which="ntk"
        )
    ),
}
QUICK = {"relu fixed", "fully connected", "factor fully connected"}
PROCESSES = {"test_multi_class_n_jobs"}  # which take long to start
QUICK_TESTS = {"test_kernel_gradient", "test_kernel_theta"}  # with all


def _module(name: str) -> ModuleType:
    place = f"sklearn.gaussian_process.tests.{name}"
    return pytest.importorskip(place, reason="the tests of scikit-learn are not installed")


def _takes_a_kernel(test: Any) -> bool:
    marks = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
    names = {name for mark in marks for name in mark.args[0].split(",")}
    return "kernel" in names and "length_scale" not in names


def _cases() -> Iterator[Any]:
    for place in MODULES:
        try:
            module = importlib.import_module(f"sklearn.gaussian_process.tests.{place}")
        except ImportError:
            yield pytest.param(place, "", "", marks=pytest.mark.skip("the tests are not installed"))
            continue
        for name, test in sorted(vars(module).items()):
            if name.startswith("test_") and _takes_a_kernel(test) and name not in NOT_OURS:
                for kernel in KERNELS:
                    if (kernel in QUICK and name not in PROCESSES) or name in QUICK_TESTS:
                        yield place, name, kernel


NOT_OURS = {
    "test_kernel_stationary": "kernels of networks depend on norms and angles, not on differences",
    "test_no_optimizer": "its kernels are None and RBF(), whose theta is zero",
}


TUNED = {  # which want something to tune
    "test_lml_improving",
    "test_converged_to_local_maximum",
    "test_solution_inside_bounds",
    "test_custom_optimizer",
}


def _ridge_is_all_that_is_missed(module: ModuleType, kernel: Kernel) -> None:
    """The ridge α shifts predictions from the targets by α (K + αI)⁻¹ y."""
    model = GaussianProcessRegressor(kernel=kernel).fit(module.X, module.y)
    matrix = model.kernel_(module.X) + model.alpha * np.eye(len(module.X))
    weights = np.linalg.solve(matrix, module.y)
    rounding = 1e2 * np.finfo(float).eps * np.linalg.norm(matrix) * np.linalg.norm(weights)
    missed = module.y - model.predict(module.X)
    np.testing.assert_allclose(missed, model.alpha * weights, rtol=0, atol=rounding)
    covariance = model.predict(module.X, return_cov=True)[1]
    np.testing.assert_allclose(
        np.diag(covariance), 0.0, atol=model.alpha + 1e2 * np.finfo(float).eps * matrix.max()
    )


def _prior_is_the_kernel(module: ModuleType, kernel: Kernel) -> None:
    """The prior variance of a network grows with the norm of its input."""
    mean, covariance = GaussianProcessRegressor(kernel=kernel).predict(module.X, return_cov=True)
    np.testing.assert_array_equal(mean, 0)
    np.testing.assert_allclose(np.diag(covariance), kernel.diag(module.X), rtol=1e-12)


def _nothing_is_free(module: ModuleType, kernel: Kernel) -> None:
    """The test indexes θ by all hyperparameters; here all are fixed."""
    gradient = kernel(module.X, eval_gradient=True)[1]
    assert len(kernel.theta) == 0
    assert gradient.shape == (len(module.X), len(module.X), 0)
    assert all(hyperparameter.fixed for hyperparameter in kernel.hyperparameters)


def _fixing_one_leaves_the_others(module: ModuleType, kernel: Kernel) -> None:
    """The test supports at most two hyperparameters."""
    gradient, theta = kernel(module.X, eval_gradient=True)[1], kernel.theta
    np.testing.assert_allclose(
        theta, np.log([getattr(kernel, h.name) for h in kernel.hyperparameters]), rtol=1e-15
    )
    for place, hyperparameter in enumerate(kernel.hyperparameters):
        fixed = clone(kernel).set_params(**{f"{hyperparameter.name}_bounds": "fixed"})
        np.testing.assert_array_equal(fixed.theta, np.delete(theta, place))
        found = fixed(module.X, eval_gradient=True)[1]
        np.testing.assert_allclose(found, np.delete(gradient, place, axis=2), rtol=1e-12)


Instead = Callable[[ModuleType, Kernel], None]
_INTERPOLATION = ("test_gpr_interpolation", "test_gpr_predict_no_cov_no_std_return")
_SMALL_EIGENVALUES = ("relu fixed", "fully connected")
CANNOT_HOLD: dict[tuple[str, str, str], Instead] = {
    **{("test_gpr", "test_prior", kernel): _prior_is_the_kernel for kernel in KERNELS},
    **{
        ("test_gpr", test, kernel): _ridge_is_all_that_is_missed
        for test in _INTERPOLATION
        for kernel in _SMALL_EIGENVALUES
    },
    **{
        ("test_kernels", "test_kernel_theta", kernel): _nothing_is_free
        for kernel in ("relu fixed", "tanh fixed", "fully connected")
    },
    **{
        ("test_kernels", "test_kernel_theta", kernel): _fixing_one_leaves_the_others
        for kernel in ("relu", "relu ntk", "tanh")
    },
}


@pytest.mark.parametrize(("place", "name", "which"), list(_cases()))
def test_with_the_kernels_of_networks(
    place: str, name: str, which: str, record_property: Callable[[str, object], None]
) -> None:
    module, kernel = _module(place), clone(KERNELS[which])
    if name in TUNED and not len(kernel.theta):
        pytest.skip("it has no hyperparameters to tune")
    if name == "test_kernel_theta" and not isinstance(kernel, SklearnKernel):
        pytest.skip("it is for kernels that are no products, as scikit-learn has it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a variance at its bound
        instead = CANNOT_HOLD.get((place, name, which))
        if instead is not None:
            record_property("excused", (instead.__doc__ or "").splitlines()[0])
            instead(module, kernel)
            return
        test = getattr(module, name)
        wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
        others = {"target": getattr(module, "y", None), "global_random_seed": 42}
        test(kernel, **{key: value for key, value in others.items() if key in wanted})


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_several_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module("test_gpr")
    fixed = KERNELS["relu fixed"]
    monkeypatch.setattr(module, "RBF", lambda **_: clone(fixed))
    monkeypatch.setattr(module, "kernels", [KERNELS["factor fully connected"]])
    module.test_y_multioutput()
