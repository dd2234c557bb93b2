"""Training and test errors, predicted from kernels alone."""

from shoal.learning.prediction.learning_curve import learning_curve
from shoal.learning.prediction.result import Check, LearningCurve

__all__ = ["Check", "LearningCurve", "learning_curve"]
