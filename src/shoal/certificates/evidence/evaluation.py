"""Values and slopes of activations with bounds of their errors."""

from torch import Tensor

from shoal.activations import Activation, Evaluated
from shoal.activations.consistency import check_evaluated

__all__ = ["Evaluated", "evaluate"]


def evaluate(phi: Activation, x: Tensor) -> Evaluated:
    """Evaluate an activation at float64 points; what a user's gives is checked against it.

    Example:
        >>> import torch
        >>> from shoal.activations import Tanh
        >>> found = evaluate(Tanh(), torch.tensor([0.5], dtype=torch.float64))
        >>> bool((found.values - torch.tanh(torch.tensor([0.5]).double())).abs() < 1e-11)
        True
    """
    found = phi.evaluated(x)
    check_evaluated(phi, x, found)
    return found
