"""How far activations are from linear: the constants that the theorems ask for."""

from shoal.activations import Activation, Smoothness
from shoal.activations.consistency import check_smoothness

__all__ = ["Smoothness", "smoothness"]


def smoothness(phi: Activation) -> Smoothness:
    """The constants of an activation; those that a user gives are checked against the function.

    Example:
        >>> from shoal.activations import ReLU
        >>> smoothness(ReLU())
        Smoothness(lipschitz=1.0, kinks=(0.0,), jump=1.0, curvature=0.0)
    """
    check_smoothness(phi)
    return phi.smoothness()
