"""scikit-learn's own checks of estimators; some of them need pandas."""

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from shoal.adapters import KernelClassifier, KernelRegressor

SUITE = "scikit-learn: `check_estimator`"
PACKAGE = "scikit-learn"

ESTIMATORS = [
    KernelRegressor(),
    KernelClassifier(),
    KernelRegressor(ridge=0.1),
    KernelClassifier(standardize=False, which="ck", ridge="gcv"),
]
_EQUIVALENCE = "check_sample_weight_equivalence_on_dense_data"


def cannot_hold(estimator: BaseEstimator) -> dict[str, str]:
    """The checks that fail, with their reasons."""
    if isinstance(estimator.ridge, str):
        reason = "leave-one-out chooses the ridge, and omits one copy of a repeated sample"
        return {_EQUIVALENCE: reason}
    if isinstance(estimator, KernelClassifier):
        reason = "probabilities use leave-one-out, which omits one copy of a repeated sample"
        return {_EQUIVALENCE: reason}
    return {}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=cannot_hold)
def test_checks_of_scikit_learn(estimator, check) -> None:
    check(estimator)
