"""Kernels of infinitely wide networks in GPyTorch and scikit-learn.

Neither package is imported before one of its adapters is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.adapters.gpytorch_kernel import GPyTorchKernel
    from shoal.adapters.sklearn_estimators import KernelClassifier, KernelRegressor
    from shoal.adapters.sklearn_kernel import SklearnKernel

__all__ = ["GPyTorchKernel", "KernelClassifier", "KernelRegressor", "SklearnKernel"]

_MODULES = {
    "GPyTorchKernel": "gpytorch_kernel",
    "KernelClassifier": "sklearn_estimators",
    "KernelRegressor": "sklearn_estimators",
    "SklearnKernel": "sklearn_kernel",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
