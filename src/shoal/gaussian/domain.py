"""Checks of scales and covariances."""

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from shoal.core.checks import float_tensor

_SLACK = 1e3  # |c| may exceed √(ab) by this many units of rounding of the inputs' dtype ...
_MOST_SLACK = 1e-4  # ... but not by more than this, and four units where one is larger


def scale_tensor(
    name: str, value: Tensor | float, *, at_least: float = -math.inf, above: float = -math.inf
) -> Tensor:
    """Return a float64 tensor of scales in the given range, or raise."""
    tensor = float_tensor(name, value)
    smallest = float(tensor.detach().min())
    if not (smallest >= at_least and smallest > above):
        limit = f">= {at_least:g}" if smallest < at_least else f"> {above:g}"
        raise ValueError(f"{name} must be {limit}, got {smallest:g}")
    return tensor.to(torch.float64)


@dataclass(frozen=True)
class PairCovariance:
    """Covariance matrices [[a, c], [c, b]] of Gaussian pairs, broadcast, in float64."""

    a: Tensor
    b: Tensor
    c: Tensor
    dtype: torch.dtype  # of the result

    @property
    def requires_grad(self) -> bool:
        """Whether autograd records derivatives."""
        attached = self.a.requires_grad or self.b.requires_grad or self.c.requires_grad
        return attached and torch.is_grad_enabled()

    def in_double(self) -> tuple[Tensor, Tensor, Tensor]:
        """The covariances in float64, with c within its bound."""
        return self.a, self.b, within_bound(self.a, self.b, self.c)


def covariance(a: Tensor | float, b: Tensor | float, c: Tensor | float) -> PairCovariance:
    """Check and broadcast covariances."""
    tensors = [float_tensor(name, value) for name, value in (("a", a), ("b", b), ("c", c))]
    try:
        shape = np.broadcast_shapes(*[t.shape for t in tensors])
    except ValueError:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ValueError(f"a, b and c must have broadcastable shapes, got {shapes}") from None
    devices = {t.device for t in tensors if t.dim()} or {tensors[0].device}
    if len(devices) > 1:
        raise ValueError(f"a, b and c must be on one device, got {sorted(map(str, devices))}")
    (device,) = devices
    for name, tensor in zip("ab", tensors, strict=False):
        smallest = float(tensor.detach().min())
        if smallest < 0:
            raise ValueError(f"{name} must be >= 0, got {smallest:g}")
    rounding = max([torch.finfo(t.dtype).eps for t in tensors])
    slack = max(min(_SLACK * rounding, _MOST_SLACK), 4 * rounding)
    views = [t.to(device, torch.float64).expand(shape) for t in tensors]
    first, second, third = views
    _check_covariance(first.detach(), second.detach(), third.detach(), slack=1 + slack)
    dtypes = [value.dtype for value in (a, b, c) if isinstance(value, Tensor)]
    dtype = reduce(torch.promote_types, dtypes or [torch.float64])
    return PairCovariance(first, second, third, dtype)


def _check_covariance(a: Tensor, b: Tensor, c: Tensor, *, slack: float) -> None:
    beyond = c.abs() > slack * a.sqrt() * b.sqrt()
    if bool(beyond.any()):
        where = tuple(beyond.nonzero()[0].tolist())
        raise ValueError(
            "c must satisfy |c| <= sqrt(a b), got "
            f"a = {float(a[where]):.17g}, b = {float(b[where]):.17g}, c = {float(c[where]):.17g}"
        )


def within_bound(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Set covariances that rounding has moved beyond ±√(ab) to it; derivatives stay as they are."""
    with torch.no_grad():
        bound = a.sqrt() * b.sqrt()
        beyond = c.abs() > (1 + 1e-15) * bound  # the bound itself is rounded: leave c = a = b alone
        if not bool(beyond.any()):
            return c
        excess = torch.where(beyond, bound.copysign(c) - c, 0.0)
    return c + excess
