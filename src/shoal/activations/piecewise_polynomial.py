"""Piecewise polynomials as activations: any function, at the price of a table."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from shoal.activations.base import Activation
from shoal.checks import real

__all__ = ["PiecewisePolynomial", "lookup_table"]


@dataclass(frozen=True, repr=False, eq=False)
class PiecewisePolynomial(Activation):
    r"""A continuous function that is a polynomial between knots, and linear beyond the last ones.

    Between $t_i$ and $t_{i+1}$ it is $\sum_j p_{ij} s^j$ with $s \in [-1, 1]$ the place between the
    two knots. Below the first knot and above the last it goes on with its value and slope there.

    Args:
        knots: $t_0 < t_1 < \dots$; at least two.
        pieces: The coefficients $p_{i0}, p_{i1}, \dots$ of each piece, equally many.
        corners: The places where it is not smooth, if at other knots the pieces fit to rounding,
            derivatives included; all knots by default.

    Example:
        >>> import torch
        >>> from shoal.activations import PiecewisePolynomial
        >>> bump = PiecewisePolynomial((-1.0, 1.0), ((1.0, 0.0, -1.0),))  # 1 - x², tangents outside
        >>> bump(torch.tensor([-2.0, 0.0, 0.5, 2.0]))
        tensor([-2.0000,  1.0000,  0.7500, -2.0000])
        >>> bump.lipschitz
        2.0
    """

    knots: tuple[float, ...]
    pieces: tuple[tuple[float, ...], ...]
    corners: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        knots = _numbers("knots", self.knots)
        if len(knots) < 2 or any(a >= b for a, b in pairwise(knots)):
            raise ValueError(f"knots must be at least two, ascending, got {knots}")
        if isinstance(self.pieces, str) or not isinstance(self.pieces, Iterable):
            raise TypeError(f"pieces must be a sequence of sequences, got {self.pieces!r}")
        pieces = tuple(_numbers(f"pieces[{i}]", piece) for i, piece in enumerate(self.pieces))
        if len(pieces) != len(knots) - 1:
            raise ValueError(
                f"pieces must be one fewer than the {len(knots)} knots, got {len(pieces)}"
            )
        if len({len(piece) for piece in pieces}) != 1 or not pieces[0]:
            raise ValueError("pieces must have equally many coefficients, at least one")
        object.__setattr__(self, "knots", knots)
        object.__setattr__(self, "pieces", pieces)
        if self.corners is not None:
            object.__setattr__(self, "corners", _numbers("corners", self.corners))

    def __repr__(self) -> str:
        """Say what matters and leave out the numbers."""
        low, high = self.knots[0], self.knots[-1]
        degree = len(self.pieces[0]) - 1
        mark = zlib.crc32(repr((self.knots, self.pieces)).encode())  # the same in every process
        return (
            f"PiecewisePolynomial({len(self.pieces)} pieces of degree {degree} "
            f"on [{low:.6g}, {high:.6g}], hash {mark:08x})"
        )

    def function(self, x: Tensor) -> Tensor:
        """Look up each entry's piece and evaluate it by Horner's rule."""
        result: Tensor = _Lookup.apply(x, self, 0)  # type: ignore[no-untyped-call]
        return result

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative; at a knot, that of the piece above it."""
        result: Tensor = _Lookup.apply(x, self, 1)  # type: ignore[no-untyped-call]
        return result

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """The corners."""
        return self.knots if self.corners is None else self.corners


class _Lookup(torch.autograd.Function):
    """A derivative of the function; its own derivative is the next one, from the same table."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, phi: PiecewisePolynomial, order: int) -> Tensor:
        knots, slope, offset, rows = lookup_table(phi, order, x.dtype, x.device)
        index = torch.bucketize(x.detach(), knots, right=True)
        s = x * slope[index] + offset[index]
        value = rows[-1][index]
        for row in reversed(rows[:-1]):
            value = torch.addcmul(row[index], value, s)
        return value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[0])
        ctx.arguments = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        phi, order = ctx.arguments
        return grad * _Lookup.apply(x, phi, order + 1), None, None  # type: ignore[no-untyped-call]


@lru_cache(maxsize=256)
def lookup_table(
    phi: PiecewisePolynomial, order: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Knots, the map from x to each piece's s, and the coefficients of a derivative, by power.

    The first and the last piece are the linear continuations, with s = x less the knot.
    """
    knots = torch.tensor(phi.knots, dtype=torch.float64)
    p = torch.tensor(phi.pieces, dtype=torch.float64)
    half = (knots[1:] - knots[:-1]) / 2
    ends = []
    for piece, side, width in ((p[0], -1.0, half[0]), (p[-1], 1.0, half[-1])):
        j = torch.arange(p.shape[1], dtype=torch.float64)
        signs = side**j
        slope = (j * piece * signs * side).sum() / width
        ends.append(torch.stack([(piece * signs).sum(), slope]))
    table = torch.zeros(len(p) + 2, max(2, p.shape[1]), dtype=torch.float64)
    table[0, :2], table[-1, :2], table[1:-1, : p.shape[1]] = ends[0], ends[1], p
    one = half.new_ones(1)
    slope = torch.cat([one, 1 / half, one])
    offset = torch.cat([-knots[:1], -(knots[1:] + knots[:-1]) / (2 * half), -knots[-1:]])
    for _ in range(order):
        j = torch.arange(1, table.shape[1], dtype=torch.float64)
        table = table[:, 1:] * j * slope[:, None]
        if table.shape[1] == 0:
            table = slope.new_zeros(len(slope), 1)
    rows = tuple(row.contiguous().to(device, dtype) for row in table.T)
    return knots.to(device, dtype), slope.to(device, dtype), offset.to(device, dtype), rows


def _numbers(name: str, values: object) -> tuple[float, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of numbers, got {values!r}")
    return tuple(real(f"{name}[{k}]", value) for k, value in enumerate(values))
