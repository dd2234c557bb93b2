r"""Values and slopes of activations with bounds of their errors.

Platforms say nothing about the errors of their elementary functions. Those used here are made of
sums, products and quotients alone, which err by a factor of $1 + u$ at most:

- $e^{-x} = (e^{-x/2^7})^{128}$ for $0 \le x \le 64$, the inner one by 14 terms of Taylor's series
  at $x/2^7 \le \frac12$. These leave out less than $u$, and 43 roundings, relative to a sum that is
  smaller than its terms by a factor of $e$ at most, make $117u$. A square doubles the relative
  error and adds $u$: $2^7 (118u + u) < 2^{14} u$ in the end.
- $\log(1 + y) = 2 \operatorname{artanh} w$, $w = y/(2 + y) \le \frac13$, by 17 terms of its series,
  which leave out less than $u$ and err by less than $128u$.
"""

import math
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.activations import Activation, Affine, Sigmoid, Softplus, Tanh
from shoal.certificates.rounding import UNIT
from shoal.certificates.smoothness import smoothness

__all__ = ["Evaluated", "evaluate"]

_FARTHEST = 64.0  # e^-64 is less than all errors
_SQUARINGS, _TERMS, _LOG_TERMS = 7, 14, 17
_ERROR = 2.0**15 * UNIT  # twice that of the exponential: room for what is made of it


class Evaluated(NamedTuple):
    """An activation at certain points.

    Attributes:
        values: Its values.
        slopes: Those of its derivative.
        error: How far each value may be off.
        slope_error: The same for slopes.
        proved: Whether these bounds are proved.
    """

    values: Tensor
    slopes: Tensor
    error: Tensor
    slope_error: Tensor
    proved: bool


@singledispatch
def evaluate(phi: Activation, x: Tensor) -> Evaluated:
    """Evaluate an activation at float64 points.

    Example:
        >>> import torch
        >>> from shoal.activations import Tanh
        >>> found = evaluate(Tanh(), torch.tensor([0.5], dtype=torch.float64))
        >>> bool((found.values - torch.tanh(torch.tensor([0.5]).double())).abs() < 1e-11)
        True
    """
    values, slopes = phi(x), phi.derivative(x)
    known = smoothness(phi).exact
    share = UNIT if known else 64 * UNIT
    error = share * (values.abs() + (0.0 if known else x.abs() + 1))
    return Evaluated(values, slopes, error, share * slopes.abs() + (0.0 if known else share), known)


def _exponential(x: Tensor) -> Tensor:
    r"""$e^{-x}$ for nonnegative $x$."""
    r = -x.clamp(max=_FARTHEST) / 2**_SQUARINGS
    total = torch.ones_like(r)
    for term in range(_TERMS, 0, -1):
        total = 1 + total * r / term
    for _ in range(_SQUARINGS):
        total = total * total
    return total


def _logarithm(y: Tensor) -> Tensor:
    r"""$\log(1 + y)$ for $0 \le y \le 1$."""
    w = y / (2 + y)
    square, total = w * w, torch.zeros_like(w)
    for term in range(2 * _LOG_TERMS - 1, 0, -2):
        total = total * square + 1 / term
    return 2 * w * total


def _bounded(values: Tensor, slopes: Tensor) -> Evaluated:
    error = torch.full_like(values, _ERROR)
    return Evaluated(values, slopes, error, error, proved=True)


@evaluate.register
def _tanh(phi: Tanh, x: Tensor) -> Evaluated:  # noqa: ARG001
    e = _exponential(2 * x.abs())
    return _bounded(x.sign() * (1 - e) / (1 + e), 4 * e / (1 + e) ** 2)


@evaluate.register
def _sigmoid(phi: Sigmoid, x: Tensor) -> Evaluated:  # noqa: ARG001
    e = _exponential(x.abs())
    return _bounded(torch.where(x >= 0, 1.0, e) / (1 + e), e / (1 + e) ** 2)


@evaluate.register
def _softplus(phi: Softplus, x: Tensor) -> Evaluated:  # noqa: ARG001
    e = _exponential(x.abs())
    values = x.clamp(min=0) + _logarithm(e)
    found = _bounded(values, torch.where(x >= 0, 1.0, e) / (1 + e))
    return found._replace(error=found.error + 2 * UNIT * values)


@evaluate.register
def _affine(phi: Affine, x: Tensor) -> Evaluated:
    inner = evaluate(phi.activation, x)
    values, slopes = phi.scale * inner.values + phi.shift, phi.scale * inner.slopes
    size = math.fabs(phi.scale)
    rounding = 4 * UNIT * (size * inner.values.abs() + math.fabs(phi.shift))
    return Evaluated(
        values,
        slopes,
        size * inner.error + rounding,
        size * inner.slope_error + 4 * UNIT * slopes.abs(),
        inner.proved,
    )
