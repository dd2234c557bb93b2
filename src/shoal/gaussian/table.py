r"""Duals at any variances of a range and at any angles, by one series of three variables.

Duals of analytic activations, or of those that are analytic on both sides of zero, are analytic in
the standard deviations, $\log\sqrt a$ far from zero, and in $\theta$, up to $\theta = 0$ and $\pi$.
One table serves all pairs of variances in its range: of pixels of images, or of the steps of an
optimizer. Its values are divided by the roots of the mean squares, roughly,
since these have zeros off the real axis, next to which series decay slowly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.gaussian.grids import Orders, can_grid, grid
from shoal.numerics import chebyshev_basis, chebyshev_nodes, coefficients_from_values, off_grid

Span: TypeAlias = tuple[int, int]

_SMALLEST, _LARGEST = -40, 48
_SHIFT = 0.25  # added to standard deviations: duals depend on the logarithm of large ones
_SIZES = 6  # degree of the logarithms of the divisors of values
_ACROSS = (24, 32, 48, 64, 96)  # degrees in the variances ...
_AROUND = (64, 128, 256, 512)  # ... and in the angle that are tried
_DECAYED = 0.92  # share of the coefficients after which the last ones are negligible
_NEGLIGIBLE = 2e-14  # largest sum of coefficients that are left out
_ROUNDING = 8e-15  # rounding error of a coefficient
_ERROR = 2e-13  # largest, relative to the root of both mean squares
_CHECKS = 5  # variances and angles, off the grid, at which a table is verified
_SHARED = 4  # pairs for each variance from which on they are grouped
_LAYER = 2.0  # width of the layers at the ends of the angle, times the largest standard deviation
_BISECTIONS = 60
_BLOCK = 1 << 13  # points that are evaluated together: their products stay in the cache


@dataclass(frozen=True, eq=False)
class Sections:
    """Duals of one order at some variances.

    Attributes:
        rows: Coefficients in functions of the second variance, and in the angle.
            shape: (v, rank, terms)
        features: These functions at the variances. shape: (v, rank)
    """

    rows: Tensor
    features: Tensor

    def series(self, places: Tensor) -> Tensor:
        """Coefficients in the angle of pairs out of the variances. shape: (pairs, terms)."""
        i, j = places
        used, counts = i.unique(return_counts=True)
        if len(i) < _SHARED * len(used):
            return torch.bmm(self.features[j, None], self.rows[i])[:, 0]
        order = i.argsort()  # pairs that share a side share a matrix product
        result = self.rows.new_empty(len(i), self.rows.shape[-1])
        groups = zip(used.tolist(), order.split(counts.tolist()), strict=True)
        for first, group in groups:
            result[group] = self.features[j[group]] @ self.rows[first]
        return result


@dataclass(frozen=True, eq=False)
class Table:
    r"""Duals $D_{jk}$ of some orders.

    Attributes:
        orders: The orders $(j, k)$.
        span: The range of $\log_2$ of the variances.
        width: Width of the layers at the ends of the angle.
        sizes: Series of the logarithms of about the roots of mean squares, by derivative.
        sides: For both sides, functions of a variance, by order. shapes: (rank, terms)
        cores: Coefficients of their products, by order. shapes: (rank, rank, angular terms)
    """

    orders: Orders
    span: Span
    width: float
    sizes: dict[int, Tensor]
    sides: tuple[tuple[Tensor, Tensor], ...]
    cores: tuple[Tensor, ...]

    @classmethod
    def from_variances(
        cls, phi: Activation, orders: Orders, variances: Tensor, *, existing: bool = False
    ) -> "Table | None":
        """A table for some variances, kept for later calls; ``None`` if there is none.

        Args:
            phi: The activation.
            orders: The orders $(j, k)$.
            variances: The variances. shape: (n,)
            existing: Whether to return only a table that an earlier call has made.
        """
        if not len(variances):
            return None
        low, high = (float(end) for end in torch.aminmax(variances.detach()))
        if not 2.0**_SMALLEST <= low <= high <= 2.0**_LARGEST:
            return None
        first = math.floor(math.log2(low))
        last = max(math.ceil(math.log2(high)), first + 1)
        tables = _tables(phi, orders)
        for span, table in tables.items():
            if span[0] <= first and last <= span[1]:
                return table
        if not existing and can_grid(phi, orders, 2.0**last):
            tables[first, last] = _table(phi, orders, (first, last))
        return tables.get((first, last))

    def sections(self, variances: Tensor) -> tuple["Sections", ...]:
        """The duals of each order at some variances, as functions of the angle."""
        basis, sections = self._basis(variances), []
        for (j, k), (left, right), core in zip(self.orders, self.sides, self.cores, strict=True):
            first = (left.to(basis) @ basis).mul_(self._size(j, basis)).T
            second = (right.to(basis) @ basis).mul_(self._size(k, basis)).T
            rows = torch.einsum("vr,rsk->vsk", first, core.to(basis))
            sections.append(Sections(rows, second.contiguous()))
        return tuple(sections)

    def __call__(self, order: tuple[int, int], a: Tensor, b: Tensor, angle: Tensor) -> Tensor:
        """One of the duals at vectors of variances and angles."""
        q = self.orders.index(order)
        (left, right), core = self.sides[q], self.cores[q]
        left, right, core = (t.to(a) for t in (left, right, core.movedim(-1, 0).flatten(1)))
        result = torch.empty_like(a)
        blocks = (t.split(_BLOCK) for t in (a, b, angle, result))
        for first, second, theta, out in zip(*blocks, strict=True):
            one, other = self._basis(first), self._basis(second)
            products = ((left @ one)[:, None] * (right @ other)).flatten(0, 1)
            around = chebyshev_basis(unit(theta, self.width), len(core) - 1)
            sizes = self._size(order[0], one) * self._size(order[1], other)
            out.copy_((core @ products).mul_(around).sum(0).mul_(sizes))
        return result

    def _basis(self, variance: Tensor) -> Tensor:
        low, high = _ends(self.span)
        t = (2 * (variance.sqrt() + _SHIFT).log() - (low + high)) / (high - low)
        return chebyshev_basis(t.clamp(-1, 1), self.sides[0][0].shape[1] - 1)

    def _size(self, order: int, basis: Tensor) -> Tensor:
        return (self.sizes[order].to(basis) @ basis[: _SIZES + 1]).exp()


@cached
def _tables(phi: Activation, orders: Orders) -> dict[Span, Table | None]:  # noqa: ARG001
    """All tables of an activation that were made, and the spans that have none."""
    return {}


@in_standard_settings
def _table(phi: Activation, orders: Orders, span: Span) -> Table | None:
    """Make a table of the degrees that lines through it need, and verify it off its grid."""
    try:
        return _fitted(phi, orders, span)
    except AccuracyError:
        return None


def _ends(span: Span) -> tuple[float, float]:
    """The range of the logarithms of the shifted standard deviations."""
    return math.log(2 ** (span[0] / 2) + _SHIFT), math.log(2 ** (span[1] / 2) + _SHIFT)


def _variances(t: Tensor) -> Tensor:
    """The variances of some of these logarithms."""
    return (t.exp() - _SHIFT).square()


def _fitted(phi: Activation, orders: Orders, span: Span) -> Table:
    few = torch.tensor([0.0, 0.1, math.pi / 2], dtype=torch.float64)
    width = min(_LAYER, _LAYER / 2.0 ** (span[1] / 2))
    rough = grid(phi, orders, _variances(chebyshev_nodes(_SIZES, *_ends(span))), few[:1])[1]
    size_series = {order: coefficients_from_values(size.log()) for order, size in rough.items()}

    def scaled(degree: int, angles: Tensor) -> Tensor:
        values, sizes = grid(phi, orders, _variances(chebyshev_nodes(degree, *_ends(span))), angles)
        basis = chebyshev_basis(chebyshev_nodes(degree), _SIZES)
        ratios = {order: size / (size_series[order] @ basis).exp() for order, size in sizes.items()}
        values *= torch.stack([torch.outer(ratios[j], ratios[k]) for j, k in orders])[..., None]
        return values

    across = next((degree for degree in _ACROSS if _decays(scaled(degree, few).mT)), None)
    if across is None:
        raise AccuracyError("a table of duals has no series in the variances")
    series = _around(lambda angles: scaled(across, angles), width)
    for dim in (1, 2):
        series = coefficients_from_values(series, dim)
    sides, cores = zip(*map(_compressed, series), strict=True)
    table = Table(orders, span, width, size_series, sides, cores)
    _verify(table, phi)
    return table


def _around(function: Callable[[Tensor], Tensor], width: float) -> Tensor:
    """The series in the angle of values at angles up to π/2 and at their supplements."""
    values = function(_nodes(_AROUND[0], width))
    for degree in _AROUND:
        line = torch.cat([values[0], values[1][..., :-1].flip(-1)], -1)
        if _decays(line):
            return coefficients_from_values(line)
        between = function(_nodes(2 * degree, width)[1::2])
        pairs = torch.stack([values[..., :-1], between], -1).flatten(-2)
        values = torch.cat([pairs, values[..., -1:]], -1)
    raise AccuracyError("a table of duals has no series in the angle")


def _decays(values: Tensor) -> bool:
    """Whether the last coefficients of lines are negligible, given values at the nodes."""
    size = coefficients_from_values(values).abs().flatten(0, -2).amax(0)
    last = size[math.ceil(_DECAYED * len(size)) :]
    return bool((last.where(last > _ROUNDING, 0.0).sum() <= _NEGLIGIBLE).all())


def _compressed(coefficients: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Common functions of each variance, and the coefficients of their products."""
    sides = []
    for dim in (0, 1):
        vectors, singular, _ = torch.linalg.svd(
            coefficients.movedim(dim, 0).flatten(1), full_matrices=False
        )
        tail = singular.square().flip(0).cumsum(0).flip(0).sqrt()
        sides.append(vectors[:, : max(1, int((tail > _NEGLIGIBLE).sum()))].T.contiguous())
    core = torch.einsum("ri,sj,ijk->rsk", sides[0], sides[1], coefficients)
    beyond = core.abs().flatten(0, 1).sum(0).flip(0).cumsum(0).flip(0)
    return (sides[0], sides[1]), core[..., : max(1, int((beyond > _NEGLIGIBLE).sum()))].contiguous()


def _verify(table: Table, phi: Activation) -> None:
    """Compare a table with duals off its grid."""
    logs, angles = off_grid((_ends(table.span), (0.0, math.pi / 2)), _CHECKS)
    variances = _variances(logs)
    (near, far), sizes = grid(phi, table.orders, variances, angles)
    places = torch.cartesian_prod(*[torch.arange(_CHECKS)] * 2).T
    for q, (j, k) in enumerate(table.orders):
        series = table.sections(variances)[q].series(places)
        bound = torch.outer(sizes[j], sizes[k]).flatten()[:, None]
        for exact, theta in ((near[q], angles), (far[q], math.pi - angles)):
            value = series @ chebyshev_basis(unit(theta, table.width), series.shape[-1] - 1)
            error = float((value / bound - exact.flatten(0, 1)).abs().max())
            if not error <= _ERROR:
                raise AccuracyError(f"a table of duals of {phi!r} is met to {error:.1g} only")


def unit(angle: Tensor, width: float) -> Tensor:
    """Angles between 0 and π as numbers between -1 and 1, stretched next to both ends.

    Args:
        angle: The angles.
        width: Width of the layers at both ends.
    """
    stretched = (angle / width).asinh() - ((math.pi - angle) / width).asinh()
    return (stretched / math.asinh(math.pi / width)).clamp(-1.0, 1.0)


def _nodes(degree: int, width: float) -> Tensor:
    """The angles of the Chebyshev nodes up to π/2, by bisection."""
    t = chebyshev_nodes(degree)[: degree // 2 + 1]
    low, high = torch.zeros_like(t), torch.full_like(t, math.pi / 2)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = unit(middle, width) < t
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    angle = (low + high) / 2
    angle[0], angle[-1] = 0.0, math.pi / 2
    return angle
