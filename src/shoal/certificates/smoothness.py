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
    kinks = [kink for kink in phi.kinks if kink.jumps[1]]
    return Smoothness(
        lipschitz=phi.lipschitz,
        kinks=tuple(kink.location for kink in kinks),
        jump=sum(abs(kink.jumps[1]) for kink in kinks),
        curvature=_curvature(phi),
        exact=isinstance(phi, _PIECEWISE_LINEAR),
    )


@singledispatch
def _curvature(phi: Activation) -> float:
    r"""$\sup|\varphi''|$ between kinks, where it has a closed form."""
    if isinstance(phi, _PIECEWISE_LINEAR):
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
