"""How far activations are from linear: the constants that the theorems ask for."""

import math
from dataclasses import dataclass
from functools import singledispatch

from shoal.activations import (
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
from shoal.certificates.rounding import up

__all__ = ["Smoothness", "smoothness"]

_PIECEWISE_LINEAR = (Identity, ReLU, LeakyReLU, HardTanh)


@dataclass(frozen=True)
class Smoothness:
    r"""Bounds of an activation and of its derivatives.

    Attributes:
        lipschitz: $\sup|\varphi'|$.
        kinks: Where $\varphi'$ jumps.
        jump: By how much at most, all jumps together.
        curvature: $\sup|\varphi''|$ away from the kinks; infinite if no bound is known.
        exact: Whether $\varphi$ is evaluated without rounding and these numbers are exact, so that
            they can be part of a proof.
    """

    lipschitz: float
    kinks: tuple[float, ...]
    jump: float
    curvature: float
    exact: bool


def smoothness(phi: Activation) -> Smoothness:
    """The constants of an activation.

    Example:
        >>> from shoal.activations import ReLU
        >>> smoothness(ReLU())
        Smoothness(lipschitz=1.0, kinks=(0.0,), jump=1.0, curvature=0.0, exact=True)
    """
    if type(phi) in _PIECEWISE_LINEAR:  # subclasses may be anything
        kinks = phi.kink_locations or ()
        jump = up(abs(1 - phi.slope)) if isinstance(phi, LeakyReLU) else float(len(kinks))
        return Smoothness(phi.lipschitz, kinks, jump, curvature=0.0, exact=True)
    found = [kink for kink in phi.kinks if kink.jumps[1]]
    return Smoothness(
        lipschitz=phi.lipschitz,
        kinks=tuple(kink.location for kink in found),
        jump=sum(abs(kink.jumps[1]) for kink in found),
        curvature=_curvature(phi),
        exact=False,
    )


@singledispatch
def _curvature(phi: Activation) -> float:
    r"""$\sup|\varphi''|$ between kinks, where it has a closed form."""
    if type(phi) in _PIECEWISE_LINEAR:
        return 0.0
    suprema: dict[type[Activation], float] = {
        Tanh: 4 / (3 * math.sqrt(3)),
        Sigmoid: 1 / (6 * math.sqrt(3)),
        Softplus: 1 / 4,
        Erf: math.sqrt(8 / (math.pi * math.e)),
        GELU: math.sqrt(2 / math.pi),
        Swish: 1 / 2,
        Sine: 1.0,
        Cosine: 1.0,
    }
    return suprema.get(type(phi), math.inf)


@_curvature.register
def _affine(phi: Affine) -> float:
    return abs(phi.scale) * _curvature(phi.activation)
