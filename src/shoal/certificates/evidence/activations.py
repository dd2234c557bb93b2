"""What theorems ask of activations; what one says of itself is checked against its function."""

from torch import Tensor

from shoal.activations import Activation, Evaluated, Smoothness
from shoal.activations.consistency import check_evaluated, check_smoothness

__all__ = ["Evaluated", "Smoothness", "evaluate", "smoothness"]


def evaluate(phi: Activation, x: Tensor) -> Evaluated:
    """Values and slopes of an activation at float64 points, with bounds of their errors.

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


def smoothness(phi: Activation) -> Smoothness:
    """How far an activation is from linear: the constants that the theorems ask for.

    Example:
        >>> from shoal.activations import ReLU
        >>> smoothness(ReLU())
        Smoothness(lipschitz=1.0, kinks=(0.0,), jump=1.0, curvature=0.0)
    """
    check_smoothness(phi)
    return phi.smoothness()
