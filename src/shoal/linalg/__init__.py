"""Linear algebra of matrices that are never formed, and of those that are."""

from shoal.linalg.cholesky import CholeskyFactor
from shoal.linalg.krylov import Iteration, conjugate_gradients, logdet_samples
from shoal.linalg.low_rank import Columns, Diagonal
from shoal.linalg.norms import Eigenpair, dominant_eigenpair, symmetric_norm
from shoal.linalg.operator import Operator

__all__ = [
    "CholeskyFactor",
    "Columns",
    "Diagonal",
    "Eigenpair",
    "Iteration",
    "Operator",
    "conjugate_gradients",
    "dominant_eigenpair",
    "logdet_samples",
    "symmetric_norm",
]
