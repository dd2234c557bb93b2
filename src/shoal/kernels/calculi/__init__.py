"""Ways to compute with the covariances of features, one for each use of a kernel."""

from shoal.kernels.calculi.angles import Angles
from shoal.kernels.calculi.own import Own
from shoal.kernels.calculi.pairs import Pairs
from shoal.kernels.section import HalfAngle

__all__ = ["Angles", "HalfAngle", "Own", "Pairs"]
