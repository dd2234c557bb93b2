"""The experiments of Gao 2022, and its lemmas on the Gram matrix of the feature map."""

from shoal.experiments.gao2022.losses import Losses

__all__ = ["Losses"]
