"""Training and test errors, predicted from kernels alone."""

from shoal.prediction.learning_curve import learning_curve
from shoal.prediction.result import Check, LearningCurve

__all__ = ["Check", "LearningCurve", "learning_curve"]
