"""What kernels are in high dimension: expansions in norms and inner products, and their sums."""

from shoal.equivalents.centering import centered
from shoal.equivalents.coefficients import Coefficients, KernelCoefficients, coefficients
from shoal.equivalents.equivalent import Equivalent, Errors, equivalent
from shoal.equivalents.equivalent_operator import (
    Basis,
    CrossOperator,
    CrossOperators,
    EquivalentOperator,
)
from shoal.equivalents.statistics import SampleStatistics

__all__ = [
    "Basis",
    "Coefficients",
    "CrossOperator",
    "CrossOperators",
    "Equivalent",
    "EquivalentOperator",
    "Errors",
    "KernelCoefficients",
    "SampleStatistics",
    "centered",
    "coefficients",
    "equivalent",
]
