"""Piecewise polynomials as activations: any function, at the price of a table.

In float64 the table holds the pieces as they are, and a search finds the piece. In float32 and
below a search costs more than all the rest: a function that is smooth between its ends is then
tabulated anew, by cubic polynomials on cells that the leading bits of x / end tell at once: 2^k
equal cells in each octave, so that they are finest at zero, as the pieces are.
"""

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from shoal.activations.base import Activation
from shoal.core.caches import cached
from shoal.core.checks import items, real
from shoal.core.settings import in_standard_settings
from shoal.core.torch_compat import is_batched_by_autograd, uncompiled

_PANEL_DEGREE = 16  # squares of such pieces are integrated exactly on a panel
_VALUE, _SLOPE = 5e-7, 1e-5  # errors of cubics, relative to nearby values and to the largest slope
_OCTAVES = range(4, 26, 2)
_CELL_BITS = range(3, 9)  # k, for 2^k cells in each octave
_MANTISSA, _BIAS = 23, 127  # bits of the mantissa of a float32; bias of its exponent
_CHUNK = 32768  # entries for each thread at once, few enough for its cache


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

    __slots__ = ("_hash",)

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

    def __hash__(self) -> int:
        """A hash of all numbers, computed once."""
        kept: int | None = getattr(self, "_hash", None)
        if kept is None:
            kept = hash((self.knots, self.pieces, self.corners))
            object.__setattr__(self, "_hash", kept)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone."""
        return vars(self)

    def __repr__(self) -> str:
        """The number of pieces, their range and a checksum."""
        low, high = self.knots[0], self.knots[-1]
        degree = len(self.pieces[0]) - 1
        mark = zlib.crc32(repr((self.knots, self.pieces)).encode())  # the same in every process
        return (
            f"PiecewisePolynomial({len(self.pieces)} pieces of degree {degree} "
            f"on [{low:.6g}, {high:.6g}], hash {mark:08x})"
        )

    def function(self, x: Tensor) -> Tensor:
        """Look up each entry's piece and evaluate it by Horner's rule."""
        return self._bisected(x) if torch.compiler.is_exporting() else _lookup(x, None, self, 0)

    def _bisected(self, x: Tensor) -> Tensor:
        """The same in operations that every exported program knows."""
        knots, pieces = x.new_tensor(self.knots), x.new_tensor(self.pieces)
        place, last = torch.zeros_like(x, dtype=torch.int64), len(self.knots) - 1
        for power in reversed(range(last.bit_length())):
            further = (place + 2**power).clamp(max=last)
            place = torch.where(knots[further] <= x, further, place)
        place = place.clamp(max=last - 1)
        s = 2 * (x - knots[place]) / (knots[place + 1] - knots[place]) - 1
        inside = s.clamp(-1, 1)
        value = slope = torch.zeros_like(x)
        for power in reversed(range(pieces.shape[1])):
            slope = slope * inside + value
            value = value * inside + pieces[:, power][place]
        return value + slope * (s - inside)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative; at a knot, the derivative of the piece above it."""
        return _lookup(x, None, self, 1)

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """The corners."""
        return self.knots if self.corners is None else self.corners

    @property
    def panel_edges(self) -> tuple[float, ...] | None:
        """The knots, unless pieces have so high a degree that their squares need finer panels."""
        return self.knots if len(self.pieces[0]) <= _PANEL_DEGREE + 1 else None


class _Lookup(torch.autograd.Function):
    """A derivative of the function times a weight; its derivatives are of the same kind.

    Only arguments are saved, and each gradient is one more pass over them.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor | None, phi: PiecewisePolynomial, order: int) -> Tensor:
        return evaluate(phi, order, x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.arguments = inputs[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        into_x, into_weight, *_ = ctx.needs_input_grad
        x, weight = ctx.saved_tensors
        return (
            _differential(x, weight, grad, *ctx.arguments) if into_x else None,
            _lookup(x, grad, *ctx.arguments) if into_weight else None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, change: Tensor | None, *_: None) -> Tensor:
        x, weight = ctx.saved_tensors
        moved = None if tangent is None else _differential(x, weight, tangent, *ctx.arguments)
        if change is None:
            return torch.zeros_like(x) if moved is None else moved
        other = _lookup(x, change, *ctx.arguments)
        return other if moved is None else moved + other

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor | None, *settings: Any
    ) -> tuple[Tensor, int]:
        x = _batched(x, in_dims[0], info.batch_size)
        if weight is not None:
            weight = _batched(weight, in_dims[1], info.batch_size)
        return _lookup(x, weight, *settings), 0


def _batched(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


@uncompiled  # a graph would take in how the table is made
def _lookup(x: Tensor, weight: Tensor | None, phi: PiecewisePolynomial, order: int) -> Tensor:
    if weight is not None and is_batched_by_autograd(weight):
        return weight * _lookup(x, None, phi, order)  # no rule for those of is_grads_batched
    result: Tensor = _Lookup.apply(x, weight, phi, order)  # type: ignore[no-untyped-call]
    return result


def _differential(
    x: Tensor, weight: Tensor | None, tangent: Tensor, phi: PiecewisePolynomial, order: int
) -> Tensor:
    """The change of the weighted derivative with ``x``."""
    return _lookup(x, tangent if weight is None else tangent * weight, phi, order + 1)


def _numbers(name: str, values: object) -> tuple[float, ...]:
    return tuple(
        real(f"{name}[{k}]", value)
        for k, value in enumerate(items(name, values, "a sequence of numbers"))
    )


@dataclass(frozen=True)
class GradedCells:
    """Cells on both sides of zero: one next to it, ``2**bits`` in each octave, the tangent.

    Attributes:
        end: Where the tangents begin.
        octaves: How many octaves there are below the end.
        bits: The binary logarithm of the number of cells in each.
    """

    end: float
    octaves: int
    bits: int

    @property
    def count(self) -> int:
        """How many cells there are on one side."""
        return (self.octaves << self.bits) + 2

    @property
    def first(self) -> int:
        """The leading bits of the last number in the cell next to zero."""
        return ((_BIAS - self.octaves) << self.bits) - 1

    def locate(self, x: Tensor) -> Tensor:
        """The number of each entry's cell; those of negative entries come second."""
        bits = (x * (1 / self.end)).view(torch.int32)
        cell = (bits & 0x7FFFFFFF) >> (_MANTISSA - self.bits)
        cell = cell.sub_(self.first).clamp_(0, self.count - 1)
        return cell.sub_(bits >> 31, alpha=self.count)  # the sign, shifted in: 0 or -1

    def edges(self) -> Tensor:
        """The edges of the cells from zero to the end."""
        octave = 1 + torch.arange(1 << self.bits, dtype=torch.float64) / (1 << self.bits)
        powers = 2.0 ** torch.arange(-self.octaves, 0, dtype=torch.float64)
        inner = torch.outer(powers, octave).flatten()
        return self.end * torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)])


@dataclass(frozen=True, eq=False)
class PolynomialTable:
    """Polynomials in s = scale x + offset.

    Attributes:
        cells: The knots, or graded cells, by which a polynomial is found.
        scale: The scale of each polynomial; one if ``None``.
        offset: The offset of each polynomial.
        powers: The coefficients, by power. shape: (degree + 1, polynomials)
    """

    cells: Tensor | GradedCells
    scale: Tensor | None
    offset: Tensor
    powers: Tensor

    def locate(self, x: Tensor) -> Tensor:
        """The number of each entry's polynomial."""
        if isinstance(self.cells, GradedCells):
            return self.cells.locate(x)
        return torch.bucketize(x, self.cells, right=True, out_int32=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate at a vector."""
        number = self.locate(x)
        if self.scale is None:
            s = x + self.offset.index_select(0, number)
        else:
            offset = self.offset.index_select(0, number)
            s = torch.addcmul(offset, x, self.scale.index_select(0, number))
        value = self.powers[-1].index_select(0, number)
        for power in reversed(self.powers[:-1].unbind()):
            value = torch.addcmul(power.index_select(0, number), value, s)
        return value

    def to(self, device: torch.device, dtype: torch.dtype) -> "PolynomialTable":
        """The table on another device, or in another dtype."""
        cells = self.cells.to(device, dtype) if isinstance(self.cells, Tensor) else self.cells
        scale = None if self.scale is None else self.scale.to(device, dtype)
        return PolynomialTable(
            cells, scale, self.offset.to(device, dtype), self.powers.to(device, dtype)
        )

    def derivative(self) -> "PolynomialTable":
        """The table of the derivative, in place of the polynomials'."""
        j = torch.arange(1, len(self.powers), dtype=self.powers.dtype)
        powers = self.powers[1:] * j[:, None] * (1.0 if self.scale is None else self.scale)
        if not len(powers):
            powers = torch.zeros_like(self.powers[:1])
        return PolynomialTable(self.cells, self.scale, self.offset, powers)


def evaluate(phi: PiecewisePolynomial, order: int, x: Tensor, weight: Tensor | None) -> Tensor:
    """A derivative at each entry, times the entry of ``weight``; without a gradient."""
    pieces = table(phi, order, x.dtype, x.device)
    x = x.detach().contiguous()
    weight = None if weight is None else weight.detach().contiguous()
    result = torch.empty_like(x)
    step = _CHUNK * torch.get_num_threads() if x.device.type == "cpu" else max(1, x.numel())
    parts = x.view(-1).split(step), result.view(-1).split(step)
    weights = [None] * len(parts[0]) if weight is None else weight.view(-1).split(step)
    for entries, out, factor in zip(*parts, weights, strict=True):
        value = pieces(entries.to(pieces.offset.dtype))
        out.copy_(value if factor is None else value * factor)
    return result


@cached
@in_standard_settings
def table(
    phi: PiecewisePolynomial, order: int, dtype: torch.dtype, device: torch.device
) -> PolynomialTable:
    """The table of a derivative for arguments of a dtype."""
    double = dtype == torch.float64
    pieces = _pieces(phi) if double else (_graded(phi) or _pieces(phi))
    for _ in range(order):
        pieces = pieces.derivative()
    return pieces.to(device, dtype if double else torch.float32)


def _pieces(phi: PiecewisePolynomial) -> PolynomialTable:
    """The pieces as they are, between two tangents, whose s is x less the knot."""
    knots = torch.tensor(phi.knots, dtype=torch.float64)
    p = torch.tensor(phi.pieces, dtype=torch.float64).T
    half = (knots[1:] - knots[:-1]) / 2
    powers = torch.zeros(max(2, len(p)), p.shape[1] + 2, dtype=torch.float64)
    powers[: len(p), 1:-1] = p
    j = torch.arange(len(p), dtype=torch.float64)
    for end, side in ((0, -1.0), (-1, 1.0)):
        terms = p[:, end] * side**j
        powers[0, end], powers[1, end] = terms.sum(), side * (j * terms).sum() / half[end]
    one = half.new_ones(1)
    scale = torch.cat([one, 1 / half, one])
    offset = torch.cat([-knots[:1], -(knots[1:] + knots[:-1]) / (2 * half), -knots[-1:]])
    return PolynomialTable(knots, scale, offset, powers)


@cached
def _graded(phi: PiecewisePolynomial) -> PolynomialTable | None:
    """Cubics on graded cells, ``None`` if there are kinks or there would be too many cells."""
    end = phi.knots[-1]
    if phi.corners is None or {-end, end, *phi.corners} != {-end, end} or phi.knots[0] != -end:
        return None
    exact = _pieces(phi)
    slopes = exact.derivative()
    cells = [GradedCells(end, *shape) for shape in product(_OCTAVES, _CELL_BITS)]
    tries = (_cubics(c, exact, slopes) for c in sorted(cells, key=lambda c: c.count))
    return next((table for table in tries if table is not None), None)


def _cubics(
    cells: GradedCells, exact: PolynomialTable, slopes: PolynomialTable
) -> PolynomialTable | None:
    """The cubics with the values and slopes at the edges; ``None`` if they are not accurate."""
    edges = cells.edges()
    steepest = float(slopes(torch.cat([edges, -edges])).abs().max())
    offsets, powers = [], []
    for side in (1.0, -1.0):
        x = side * edges
        v, d, h, middle = exact(x), slopes(x), x.diff() / 2, (x[1:] + x[:-1]) / 2
        rise, turn, mean = v.diff(), d.diff(), d[1:] + d[:-1]
        cubics = torch.stack(
            [
                (v[1:] + v[:-1]) / 2 - h * turn / 4,
                3 * rise / (4 * h) - mean / 4,
                turn / (4 * h),
                (mean - rise / h) / (4 * h**2),
            ]
        )
        size = torch.maximum(v[1:].abs(), v[:-1].abs())
        if bool(((cubics[0] - exact(middle)).abs() > _VALUE * size).any()):
            return None
        for t in (h / math.sqrt(3), -h / math.sqrt(3)):  # where the slope is off most
            slope = cubics[1] + 2 * cubics[2] * t + 3 * cubics[3] * t**2
            if bool(((slope - slopes(middle + t)).abs() > _SLOPE * steepest).any()):
                return None
        # about zero next to it, where an odd function is to keep its relative accuracy
        cubics[:3, 0] = torch.stack([v[0], d[0], cubics[2, 0] - 3 * cubics[3, 0] * middle[0]])
        middle[0] = 0.0
        tangent = torch.stack([v[-1], d[-1], d.new_zeros(()), d.new_zeros(())])
        offsets += [-middle, -x[-1:]]
        powers += [cubics, tangent[:, None]]
    return PolynomialTable(cells, None, torch.cat(offsets), torch.cat(powers, dim=1))
