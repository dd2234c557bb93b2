"""High-dimensional equivalents of kernel matrices, as operators."""

from shoal.equivalents.basis import Basis
from shoal.equivalents.operator import CrossOperator, EquivalentOperator

__all__ = ["Basis", "CrossOperator", "EquivalentOperator"]
