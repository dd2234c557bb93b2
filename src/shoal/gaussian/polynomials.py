"""Hermite polynomials of the probabilists, and activations that are finite sums of them."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.activations import Activation, Affine, Hermite


def probabilists_hermite(x: Tensor, degree: int) -> Tensor:
    r"""The polynomial $He_n(x)$, leading coefficient one."""
    before, value = torch.zeros_like(x), torch.ones_like(x)
    for k in range(degree):
        before, value = value, x * value - k * before
    return value


def normalized_hermite(x: Tensor, start: Tensor) -> Iterator[Tensor]:
    r"""Yield ``start`` times $h_k(x) = He_k(x) / \sqrt{k!}$ for k = 0, 1, 2, ... without end."""
    before, value = torch.zeros_like(x), start
    for k in range(10**9):
        yield value
        before, value = value, (x * value - math.sqrt(k) * before) / math.sqrt(k + 1)


def as_series(phi: Activation) -> Hermite | None:
    """The activation as a Hermite series, if it is one up to scale and shift."""
    if isinstance(phi, Hermite):
        return phi
    if isinstance(phi, Affine):
        inner = as_series(phi.activation)
        if inner is not None:
            first, *rest = (phi.scale * s for s in inner.coefficients)
            return Hermite((first + phi.shift, *rest), inner.scale)
    return None
