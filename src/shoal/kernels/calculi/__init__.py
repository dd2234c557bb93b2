"""Ways to compute with the covariances of features, one for each use of a kernel."""

from shoal.kernels.approximations.section import HalfAngle
from shoal.kernels.calculi.angles import Angles
from shoal.kernels.calculi.own import Own
from shoal.kernels.calculi.pairs import Pairs

__all__ = ["Angles", "HalfAngle", "Own", "Pairs"]
