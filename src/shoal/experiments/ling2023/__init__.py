"""The experiments of Ling 2023, and its theorems on the DEQ at initialization."""

from shoal.experiments.ling2023.concentration import Concentration
from shoal.experiments.ling2023.depth import Depth
from shoal.experiments.ling2023.losses import Losses

__all__ = ["Concentration", "Depth", "Losses"]
