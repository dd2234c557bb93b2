"""Tables of piecewise polynomials, and their evaluation.

In float64 a table holds the pieces as they are, and a search finds the piece. In float32 and below
a search costs more than all the rest: a function that is smooth between its ends is then tabulated
anew, by cubic polynomials on cells that the leading bits of x / end tell at once: 2^k equal cells
in each octave, so that they are finest at zero, as the pieces are.
"""

import logging
import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.core.caches import cached
from shoal.core.settings import in_standard_settings

if TYPE_CHECKING:
    from shoal.activations.piecewise_polynomial import PiecewisePolynomial

_LOGGER = logging.getLogger(__name__)

_VALUE, _SLOPE = 5e-7, 1e-5  # what cubics may miss: of the value nearby, of the largest slope
_OCTAVES = range(4, 26, 2)
_CELL_BITS = range(3, 9)  # k, for 2^k cells in each octave
_MANTISSA = 23  # bits of the mantissa of a float32
_BIAS = 127  # of its exponent
_CHUNK = 32768  # entries for each thread at once, which its cache holds with all that is computed
_ALIGNED = 8  # entries of a row on a GPU: it is read as a whole


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
        """What the leading bits of the last number of the cell next to zero say."""
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
class Table:
    """Polynomials in s = scale x + offset.

    Attributes:
        cells: How to find a polynomial: by knots, or by bits.
        scale: Of each polynomial; one if ``None``.
        offset: Of each polynomial.
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

    def to(self, device: torch.device, dtype: torch.dtype) -> "Table":
        """The table on another device, or in another dtype."""
        cells = self.cells.to(device, dtype) if isinstance(self.cells, Tensor) else self.cells
        scale = None if self.scale is None else self.scale.to(device, dtype)
        return Table(cells, scale, self.offset.to(device, dtype), self.powers.to(device, dtype))

    def derivative(self) -> "Table":
        """The table of the derivative, in place of the polynomials'."""
        j = torch.arange(1, len(self.powers), dtype=self.powers.dtype)
        powers = self.powers[1:] * j[:, None] * (1.0 if self.scale is None else self.scale)
        if not len(powers):
            powers = torch.zeros_like(self.powers[:1])
        return Table(self.cells, self.scale, self.offset, powers)


def evaluate(phi: "PiecewisePolynomial", order: int, x: Tensor, weight: Tensor | None) -> Tensor:
    """A derivative at each entry, times the entry of ``weight``; without a gradient."""
    found = table(phi, order, x.dtype, x.device)
    x = x.detach().contiguous()
    weight = None if weight is None else weight.detach().contiguous()
    fused = _fused() if x.device.type == "cuda" and found.scale is None else None
    result = torch.empty_like(x)
    if fused is not None:
        fused.evaluate_fused(found, x, weight, result)
        return result
    step = _CHUNK * torch.get_num_threads() if x.device.type == "cpu" else max(1, x.numel())
    parts = x.view(-1).split(step), result.view(-1).split(step)
    weights = [None] * len(parts[0]) if weight is None else weight.view(-1).split(step)
    for entries, out, factor in zip(*parts, weights, strict=True):
        value = found(entries.to(found.offset.dtype))
        out.copy_(value if factor is None else value * factor)
    return result


@lru_cache(maxsize=1)
def _fused() -> ModuleType | None:
    """The pass of a GPU, where its compiler is installed."""
    try:
        from shoal.activations import fused_lookup
    except ImportError:
        _LOGGER.warning("triton is not installed: tables are evaluated step by step, more slowly")
        return None
    return fused_lookup


@cached
@in_standard_settings
def table(
    phi: "PiecewisePolynomial", order: int, dtype: torch.dtype, device: torch.device
) -> Table:
    """The table of a derivative for arguments of a dtype."""
    double = dtype == torch.float64
    found = _pieces(phi) if double else (_graded(phi) or _pieces(phi))
    for _ in range(order):
        found = found.derivative()
    found = found.to(device, dtype if double else torch.float32)
    if device.type == "cuda" and found.scale is None:  # offset and powers of a cell side by side
        columns = torch.cat([found.offset[None], found.powers])
        rows = columns.new_zeros(columns.shape[1], _ALIGNED)
        rows[:, : len(columns)] = columns.T
        offset, powers = rows[:, 0], rows[:, 1 : len(columns)].T
        return Table(found.cells, None, offset, powers)
    return found


def _pieces(phi: "PiecewisePolynomial") -> Table:
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
    return Table(knots, scale, offset, powers)


@cached
def _graded(phi: "PiecewisePolynomial") -> Table | None:
    """Cubics on graded cells, ``None`` if there are kinks or there would be too many cells."""
    end = phi.knots[-1]
    if phi.corners is None or {-end, end, *phi.corners} != {-end, end} or phi.knots[0] != -end:
        return None
    exact = _pieces(phi)
    slopes = exact.derivative()
    cells = [GradedCells(end, *shape) for shape in product(_OCTAVES, _CELL_BITS)]
    tries = (_cubics(c, exact, slopes) for c in sorted(cells, key=lambda c: c.count))
    return next((found for found in tries if found is not None), None)


def _cubics(cells: GradedCells, exact: Table, slopes: Table) -> Table | None:
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
    return Table(cells, None, torch.cat(offsets), torch.cat(powers, dim=1))
