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
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.activations import ELU, Activation, Affine, Sigmoid, Softplus, Swish, Tanh
from shoal.certificates.rounding import UNIT
from shoal.certificates.smoothness import PIECEWISE_LINEAR

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


def evaluate(phi: Activation, x: Tensor) -> Evaluated:
    """Evaluate an activation at float64 points.

    Example:
        >>> import torch
        >>> from shoal.activations import Tanh
        >>> found = evaluate(Tanh(), torch.tensor([0.5], dtype=torch.float64))
        >>> bool((found.values - torch.tanh(torch.tensor([0.5]).double())).abs() < 1e-11)
        True
    """
    rule = _RULES.get(type(phi))  # subclasses may be anything
    if rule is not None:
        return rule(phi, x)
    values, slopes = phi(x), phi.derivative(x)
    if type(phi) in PIECEWISE_LINEAR:
        return Evaluated(values, slopes, UNIT * values.abs(), torch.zeros_like(slopes), proved=True)
    share = 64 * UNIT
    error = share * (values.abs() + x.abs() + 1)
    return Evaluated(values, slopes, error, share * (slopes.abs() + 1), proved=False)


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


def _tanh(phi: Activation, x: Tensor) -> Evaluated:  # noqa: ARG001
    e = _exponential(2 * x.abs())
    return _bounded(x.sign() * (1 - e) / (1 + e), 4 * e / (1 + e) ** 2)


def _sigmoid(phi: Activation, x: Tensor) -> Evaluated:  # noqa: ARG001
    e = _exponential(x.abs())
    return _bounded(torch.where(x >= 0, 1.0, e) / (1 + e), e / (1 + e) ** 2)


def _softplus(phi: Activation, x: Tensor) -> Evaluated:  # noqa: ARG001
    e = _exponential(x.abs())
    values = x.clamp(min=0) + _logarithm(e)
    found = _bounded(values, torch.where(x >= 0, 1.0, e) / (1 + e))
    return found._replace(error=found.error + 2 * UNIT * values)


def _swish(phi: Activation, x: Tensor) -> Evaluated:  # noqa: ARG001
    share = evaluate(Sigmoid(), x)
    values, slopes = x * share.values, share.values + x * share.slopes
    error = _ERROR * (2 + 2 * x.abs())  # roundings are a small part of it
    return Evaluated(values, slopes, error, error, proved=True)


def _elu(phi: Activation, x: Tensor) -> Evaluated:
    assert isinstance(phi, ELU)
    e = _exponential((-x).clamp(min=0))
    values = torch.where(x > 0, x, phi.alpha * (e - 1))
    slopes = torch.where(x > 0, 1.0, phi.alpha * e)
    error = torch.full_like(x, _ERROR * math.fabs(phi.alpha))
    return Evaluated(values, slopes, error, error, proved=True)


def _affine(phi: Activation, x: Tensor) -> Evaluated:
    assert isinstance(phi, Affine)
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


_RULES: dict[type[Activation], Callable[[Activation, Tensor], Evaluated]] = {
    Tanh: _tanh,
    Sigmoid: _sigmoid,
    Softplus: _softplus,
    Swish: _swish,
    ELU: _elu,
    Affine: _affine,
}
