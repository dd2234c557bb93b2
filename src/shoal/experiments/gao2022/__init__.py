"""The experiments of Gao 2022, and its lemmas on the Gram matrix of the feature map."""

from shoal.experiments.gao2022.concentration import Concentration
from shoal.experiments.gao2022.losses import Losses
from shoal.experiments.gao2022.stability import Stability

__all__ = ["Concentration", "Losses", "Stability"]
