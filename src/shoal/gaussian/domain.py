"""Checks of scales and covariances."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from shoal.core.checks import float_tensor

_BLOCK = 1 << 16  # entries that are checked together
_SLACK = 1e3  # |c| may exceed √(ab) by this many units of rounding of the inputs' dtype ...
_MOST_SLACK = 1e-4  # ... but not by more than this, and four units where one is larger


def scale_tensor(
    name: str, value: Tensor | float, *, at_least: float = -math.inf, above: float = -math.inf
) -> Tensor:
    """Return a float64 tensor of scales in the given range, or say why it is not one."""
    tensor = float_tensor(name, value)
    smallest = float(tensor.detach().min())
    if not (smallest >= at_least and smallest > above):
        limit = f">= {at_least:g}" if smallest < at_least else f"> {above:g}"
        raise ValueError(f"{name} must be {limit}, got {smallest:g}")
    return tensor.to(torch.float64)


@dataclass(frozen=True)
class Covariance:
    """Covariance matrices [[a, c], [c, b]] of Gaussian pairs, broadcast without a copy."""

    a: Tensor
    b: Tensor
    c: Tensor
    dtype: torch.dtype  # of the result

    @property
    def shape(self) -> torch.Size:
        """The broadcast shape."""
        return self.a.shape

    @property
    def requires_grad(self) -> bool:
        """Whether autograd wants derivatives."""
        wanted = any(t.requires_grad for t in (self.a, self.b, self.c))
        return wanted and torch.is_grad_enabled()

    def in_double(self) -> tuple[Tensor, Tensor, Tensor]:
        """All of them in float64, none beyond its bound."""
        return self[()]

    def __getitem__(self, index: tuple[int | slice, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """A block of them in float64, none beyond its bound."""
        a, b, c = (t[index].to(torch.float64) for t in (self.a, self.b, self.c))
        return a, b, within_bound(a, b, c)

    def blocks(self, size: int) -> Iterator[tuple[int | slice, ...]]:
        """Indices of blocks of at most ``size`` entries, in order."""
        yield from _blocks(tuple(self.shape), size)


def _blocks(shape: tuple[int, ...], size: int) -> Iterator[tuple[int | slice, ...]]:
    inner = math.prod(shape[1:])
    if math.prod(shape) <= size:
        yield ()
    elif inner <= size:
        rows = size // inner
        for start in range(0, shape[0], rows):
            yield (slice(start, start + rows),)
    else:
        for row in range(shape[0]):
            for rest in _blocks(shape[1:], size):
                yield (row, *rest)


def covariance(a: Tensor | float, b: Tensor | float, c: Tensor | float) -> Covariance:
    """Check and broadcast covariances; memory beyond the arguments is that of a block."""
    tensors = [float_tensor(name, value) for name, value in (("a", a), ("b", b), ("c", c))]
    try:
        shape = np.broadcast_shapes(*(t.shape for t in tensors))
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
    rounding = max(torch.finfo(t.dtype).eps for t in tensors)
    slack = max(min(_SLACK * rounding, _MOST_SLACK), 4 * rounding)
    views = [t.to(device).expand(shape) for t in tensors]
    given = [value.dtype for value in (a, b, c) if isinstance(value, Tensor)]
    dtype = reduce(torch.promote_types, given or [torch.float64])
    pair = Covariance(views[0], views[1], views[2], dtype)
    for index in pair.blocks(_BLOCK):
        block = [t.detach()[index].to(torch.float64) for t in views]
        _check_covariance(block[0], block[1], block[2], 1 + slack)
    return pair


def _check_covariance(a: Tensor, b: Tensor, c: Tensor, slack: float) -> None:
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
