"""How far activations are from linear: the constants that the theorems ask for."""

import math
from dataclasses import dataclass
from fractions import Fraction

from shoal.activations import (
    ELU,
    GELU,
    Activation,
    Affine,
    Cosine,
    Erf,
    HardTanh,
    Identity,
    LeakyReLU,
    ReLU,
    Sigmoid,
    Sine,
    Softplus,
    Swish,
    Tanh,
)
from shoal.certificates.rounding import ROUND_UP, up

__all__ = ["PIECEWISE_LINEAR", "Smoothness", "smoothness"]

PIECEWISE_LINEAR = (Identity, ReLU, LeakyReLU, HardTanh)

_SUPREMA: dict[type[Activation], float] = {  # of |φ''|
    Tanh: 4 / (3 * math.sqrt(3)) * ROUND_UP,
    Sigmoid: 1 / (6 * math.sqrt(3)) * ROUND_UP,
    Softplus: 1 / 4,
    Erf: math.sqrt(8 / (math.pi * math.e)) * ROUND_UP,
    GELU: math.sqrt(2 / math.pi) * ROUND_UP,
    Swish: 1 / 2,
    Sine: 1.0,
    Cosine: 1.0,
}
_SWISH_SLOPE = 1.09984  # the largest slope is 1.099839319..., where x tanh(x/2) = 2


@dataclass(frozen=True)
class Smoothness:
    r"""Upper bounds of an activation's derivatives.

    They are proved for all activations of which ``evaluate`` has proved values.

    Attributes:
        lipschitz: $\sup|\varphi'|$.
        kinks: Where $\varphi'$ jumps.
        jump: By how much at most, all jumps together.
        curvature: $\sup|\varphi''|$ away from the kinks; infinite if no bound is known.
    """

    lipschitz: float
    kinks: tuple[float, ...]
    jump: float
    curvature: float


def smoothness(phi: Activation) -> Smoothness:
    """The constants of an activation; subclasses of shoal's own may be anything.

    Example:
        >>> from shoal.activations import ReLU
        >>> smoothness(ReLU())
        Smoothness(lipschitz=1.0, kinks=(0.0,), jump=1.0, curvature=0.0)
    """
    if type(phi) is Affine:
        return _scaled(smoothness(phi.activation), math.fabs(phi.scale))
    if type(phi) is ELU:
        jump = up(math.fabs(1 - phi.alpha))
        return Smoothness(phi.lipschitz, (0.0,) if jump else (), jump, math.fabs(phi.alpha))
    if type(phi) in PIECEWISE_LINEAR:
        kinks = phi.kink_locations or ()
        jump = up(math.fabs(1 - phi.slope)) if isinstance(phi, LeakyReLU) else float(len(kinks))
        return Smoothness(phi.lipschitz, kinks, jump, curvature=0.0)
    found = [kink for kink in phi.kinks if kink.jumps[1]]
    return Smoothness(
        lipschitz=_SWISH_SLOPE if type(phi) is Swish else phi.lipschitz,
        kinks=tuple(kink.location for kink in found),
        jump=sum(abs(kink.jumps[1]) for kink in found),
        curvature=_SUPREMA.get(type(phi), math.inf),
    )


def _scaled(inner: Smoothness, scale: float) -> Smoothness:
    return Smoothness(
        _product(scale, inner.lipschitz),
        inner.kinks,
        _product(scale, inner.jump),
        _product(scale, inner.curvature),
    )


def _product(scale: float, bound: float) -> float:
    """The product, rounded up where it is rounded."""
    if scale == 0 or math.isinf(bound):
        return bound if scale else 0.0
    product = scale * bound
    rounded = not math.isfinite(product) or Fraction(product) != Fraction(scale) * Fraction(bound)
    return up(product) if rounded else product
