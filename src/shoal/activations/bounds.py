r"""How far activations are from linear, and their values with bounds of their errors.

The theorems of certificates ask for them. Platforms say nothing about the errors of their
elementary functions. Those used here are made of sums, products and quotients alone, which err by a
factor of $1 + u$ at most:

- $e^{-x} = (e^{-x/2^7})^{128}$ for $0 \le x \le 64$, the inner one by 14 terms of Taylor's series
  at $x/2^7 \le \frac12$. These leave out less than $u$, and 43 roundings, relative to a sum that is
  smaller than its terms by a factor of $e$ at most, make $117u$. A square doubles the relative
  error and adds $u$: $2^7 (118u + u) < 2^{14} u$ in the end.
- $\log(1 + y) = 2 \operatorname{artanh} w$, $w = y/(2 + y) \le \frac13$, by 17 terms of its series,
  which leave out less than $u$ and err by less than $128u$.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.rounding import UNIT, up

_FARTHEST = 64.0  # e^-64 is less than all errors
_SQUARINGS, _TERMS, _LOG_TERMS = 7, 14, 17
ERROR = 2.0**15 * UNIT  # twice the error of the exponential, for further operations


@dataclass(frozen=True)
class Smoothness:
    r"""Upper bounds of an activation's derivatives.

    An activation with proved values (:class:`Evaluated`) must have proved bounds too.

    Attributes:
        lipschitz: $\sup|\varphi'|$.
        kinks: The places where $\varphi'$ jumps.
        jump: Bound of the sum of the sizes of all jumps.
        curvature: $\sup|\varphi''|$ away from the kinks; infinite if no bound is known.
    """

    lipschitz: float
    kinks: tuple[float, ...]
    jump: float
    curvature: float

    def scaled(self, scale: float) -> "Smoothness":
        """The bounds of a multiple."""
        size = math.fabs(scale)
        return Smoothness(
            _product(size, self.lipschitz),
            self.kinks,
            _product(size, self.jump),
            _product(size, self.curvature),
        )


class Evaluated(NamedTuple):
    """An activation at certain points.

    Attributes:
        values: The values.
        slopes: The values of the derivative.
        error: Bounds of the errors of the values.
        slope_error: Bounds of the errors of the slopes.
        proved: Whether these bounds are proved.
    """

    values: Tensor
    slopes: Tensor
    error: Tensor
    slope_error: Tensor
    proved: bool

    @classmethod
    def estimated(cls, values: Tensor, slopes: Tensor, x: Tensor) -> "Evaluated":
        """Values with the errors that elementary functions usually have, which is not proved."""
        share = 64 * UNIT
        error = share * (values.abs() + x.abs() + 1)
        return cls(values, slopes, error, share * (slopes.abs() + 1), proved=False)

    @classmethod
    def of_lines(cls, values: Tensor, slopes: Tensor) -> "Evaluated":
        """Values of a piecewise linear function: rounded once, with exact slopes."""
        return cls(values, slopes, UNIT * values.abs(), torch.zeros_like(slopes), proved=True)

    @classmethod
    def by_exponential(cls, values: Tensor, slopes: Tensor) -> "Evaluated":
        """Made of one :func:`exponential`, of the size of one at most."""
        error = torch.full_like(values, ERROR)
        return cls(values, slopes, error, error, proved=True)

    def affine(self, scale: float, shift: float) -> "Evaluated":
        """The same for the function times ``scale`` plus ``shift``."""
        values, slopes = scale * self.values + shift, scale * self.slopes
        size = math.fabs(scale)
        rounding = 4 * UNIT * (size * self.values.abs() + math.fabs(shift))
        return Evaluated(
            values,
            slopes,
            size * self.error + rounding,
            size * self.slope_error + 4 * UNIT * slopes.abs(),
            self.proved,
        )


def exponential(x: Tensor) -> Tensor:
    r"""$e^{-x}$ for nonnegative $x$."""
    r = -x.clamp(max=_FARTHEST) / 2**_SQUARINGS
    total = torch.ones_like(r)
    for term in range(_TERMS, 0, -1):
        total = 1 + total * r / term
    for _ in range(_SQUARINGS):
        total = total * total
    return total


def logarithm(y: Tensor) -> Tensor:
    r"""$\log(1 + y)$ for $0 \le y \le 1$."""
    w = y / (2 + y)
    square, total = w * w, torch.zeros_like(w)
    for term in range(2 * _LOG_TERMS - 1, 0, -2):
        total = total * square + 1 / term
    return 2 * w * total


def _product(scale: float, bound: float) -> float:
    """The product, rounded up where it is rounded."""
    if scale == 0 or math.isinf(bound):
        return bound if scale else 0.0
    product = scale * bound
    rounded = not math.isfinite(product) or Fraction(product) != Fraction(scale) * Fraction(bound)
    return up(product) if rounded else product
