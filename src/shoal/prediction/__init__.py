"""Training and test errors, predicted from kernels alone."""

from shoal.prediction.hermite_law import HermiteLaw
from shoal.prediction.hermite_spectrum import HermiteSpectrum
from shoal.prediction.learning_curve import learning_curve
from shoal.prediction.result import Check, LearningCurve

__all__ = ["Check", "HermiteLaw", "HermiteSpectrum", "LearningCurve", "learning_curve"]
