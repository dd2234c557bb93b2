r"""Properties of an activation by brute force, from its function at many points alone.

An activation is a function $\varphi$; everything else follows. Derivatives are difference
quotients, kinks are places where these differ on both sides, the Lipschitz constant is the largest
of them on a grid. Nothing here is fast or exact: derivatives err by about 1e-8, and a kink is
found if its jump is larger than 1e-3.
"""

import torch
from torch import Tensor

from shoal.activations.base import Activation

_STEP = 2e-4  # of difference quotients
_REACH, _POINTS = 16.0, 320_001  # of the grid on which kinks and slopes are looked for


def derivative(phi: Activation, x: Tensor) -> Tensor:
    r"""$\varphi'$ away from kinks, by central differences of two steps.

    Example:
        >>> import torch, shoal
        >>> derivative(shoal.activations.Tanh(), torch.zeros(1).double()).round(decimals=9)
        tensor([1.], dtype=torch.float64)
    """

    def quotient(h: float) -> Tensor:
        return (phi(x + h) - phi(x - h)) / (2 * h)

    return (4 * quotient(_STEP) - quotient(2 * _STEP)) / 3


def slopes(phi: Activation) -> tuple[Tensor, Tensor]:
    """Difference quotients between the points of a grid, and where they are taken."""
    x = torch.linspace(-_REACH, _REACH, _POINTS, dtype=torch.float64)
    return (x[1:] + x[:-1]) / 2, phi(x).diff() / x.diff()


def lipschitz(phi: Activation) -> float:
    r"""The largest $|\varphi'|$ on the grid."""
    return float(slopes(phi)[1].abs().max())


def kinks(phi: Activation) -> list[float]:
    r"""Where $\varphi'$ jumps: the quotient changes by more than its neighbors do."""
    x, quotient = slopes(phi)
    change = (quotient[3:] - quotient[:-3]).abs()  # across at most two cells that hold a kink
    places: list[float] = []
    for place in ((x[3:] + x[:-3]) / 2)[change > 1e-3].tolist():
        if not places or place - places[-1] > 1e-2:
            places.append(place)
    return places
