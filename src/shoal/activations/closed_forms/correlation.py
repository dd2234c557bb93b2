"""The correlation of a Gaussian pair, without cancellation."""

import torch
from torch import Tensor


def correlation(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle between the pair, the sine without cancellation.

    The determinant ab - c² is formed with the rounding errors of both products (Dekker), so the
    sine has full relative accuracy down to the last representable distance from c = ±√(ab).
    Where a variance vanishes the angle is a right one.
    """
    product = a * b
    if bool(((product < 1e-250) | (product > 1e250)).any()):
        a, b, c = _rescaled(a, b, c)
        product = a * b
    degenerate = product <= 0
    scale = torch.where(degenerate, 1.0, product).sqrt()
    cosine = torch.where(degenerate, 0.0, (c / scale).clamp(-1.0, 1.0))
    sine = torch.where(degenerate, 1.0, (determinant(a, b, c).sqrt() / scale).clamp(max=1.0))
    return cosine, sine


def determinant(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The determinant ab - c², at least zero, with full relative accuracy; differentiable."""
    product, square = a * b, c * c
    with torch.no_grad():
        # in one order, so that the result is exactly symmetric
        lost = _product_error(torch.maximum(a, b), torch.minimum(a, b)) - _product_error(c, c)
        exact = ((product - square) + lost).clamp(min=0.0)
    naive = product - square
    return naive + (exact - naive).detach() if naive.requires_grad else exact


def _rescaled(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same correlation with variances near one, by powers of two."""
    halves = [torch.frexp(t)[1] // 2 for t in (a, b)]
    near_a, near_b = (torch.ldexp(t, -2 * half) for t, half in zip((a, b), halves, strict=True))
    return near_a, near_b, torch.ldexp(torch.ldexp(c, -halves[0]), -halves[1])


def _product_error(x: Tensor, y: Tensor) -> Tensor:
    """The exact error of the rounded product (Dekker)."""
    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    return ((x_high * y_high - x * y) + x_high * y_low + x_low * y_high) + x_low * y_low


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Veltkamp's splitting into halves of 26 bits."""
    scaled = x * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - x)
    return high, x - high
