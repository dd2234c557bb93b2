r"""Kernels as short sums of products, represented once and evaluated on whole matrices.

Divided by the root of its diagonal, $\sqrt{\kappa(a, a, a)\,\kappa(b, b, b)}$, a kernel is a smooth
function of the logarithms $u$, $v$ of two norms and the angle $\theta$,

$\hat\kappa(u, v, \theta) \approx \sum_{r,s,k} C_{rsk}\, f_r(u)\, f_s(v)\, T_k(\theta),$

with few functions $f_r$, since kernels change slowly with the norms. For inputs of one norm, and of
any norms if the activations are positively homogeneous, there is one $f$, the constant.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from shoal.activations.panels import breaks, reach
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.kernels.angles import HalfAngle
from shoal.kernels.arguments import CLOSE, PolarInputs, on_host
from shoal.kernels.function import KernelFunction
from shoal.numerics import chebyshev_basis, chebyshev_nodes, coefficients_from_values, fit, off_grid

Span: TypeAlias = tuple[float, float]

ANY_ANGLE: Span = (0.0, math.pi)
_DEGREE = 96, 2048  # the largest of lines, in the norms and in the angle
_FIRST = 32  # the least degree of lines: many points at once are fast
_CHECKS = 6  # norms, off the grid, at which the error is measured, at as many angles as it has
_CHEAP = 3  # equations of a surface for the cost of one entry alone
_GRID = 4  # ranges of norms end at multiples of 1/4 in log₂
_ALL = 512  # rows and columns whose angles all count; of more, half as many are sampled
_STEP = 1 / 8  # ranges of angles end at multiples of it, and are at least four steps wide
_LOGGER = logging.getLogger(__name__)
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-7}
ANGULAR_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-8}
_ONE_NORM = {torch.float64: 1e-13, torch.float32: 1e-6}  # spread of norms that count as one
_NORM_STEPS = {torch.float64: 2**44, torch.float32: 2**24}  # of a common norm, in each octave
_SMOOTH = 0.25  # angles from 0 and π, from which on kinks do no harm where norms differ
_MANY = 100_000  # log a warning if more pairs are computed one by one


@dataclass(frozen=True, eq=False)
class Surface:
    r"""CK and NTK, divided by the roots of their diagonals, on a box of norms and angles.

    Attributes:
        norms: Range of $\log_2$ of the norms; ``None`` if norms do not matter.
        angles: Range of the angles.
        basis: Chebyshev coefficients of the functions $f_r$. shape: (rank, degree + 1)
        coefficients: $C$ of both kernels. shape: (2, rank, rank, angular degree + 1)
        error: Largest error found at points off the grid, relative to the diagonal.
        diagonal: Both kernels of an input with itself; ``None`` if they depend on the norm.
    """

    norms: Span | None
    angles: Span
    basis: Tensor
    coefficients: Tensor
    error: float
    diagonal: tuple[float, float] | None = None

    @property
    def rank(self) -> int:
        """How many functions of a norm there are."""
        return len(self.basis)

    @property
    def cosines(self) -> Span:
        """The range of cosines of its angles that determine them well."""
        low, high = self.angles
        return max(math.cos(high), CLOSE - 1), min(math.cos(low), 1 - CLOSE)

    def covers(self, cosines: Span) -> bool:
        """Whether it covers all from the least to the largest of some cosines."""
        return self.cosines[0] <= cosines[0] and cosines[1] <= self.cosines[1]

    def features(self, norm: Tensor) -> Tensor:
        """The functions $f_r$ at some norms, in float64. shape: (len(norm), rank)."""
        if self.norms is None:
            return norm.new_ones(len(norm), 1, dtype=torch.float64)
        t = to_unit(norm.double().log2(), self.norms)
        return (self.basis.to(norm.device) @ chebyshev_basis(t, self.basis.shape[1] - 1)).T

    def rows(self, features: Tensor) -> Tensor:
        """Coefficients in the angle and the other norm. shape: (n, 2, rank, angular degree + 1)."""
        return torch.einsum("nr,qrsk->nqsk", features, self.coefficients.to(features.device))

    @cached
    def restricted(self, angles: Span, tolerance: float) -> "Surface":
        """The surface for fewer angles, by a shorter series."""
        degree = self.coefficients.shape[-1] - 1
        nodes = to_unit(chebyshev_nodes(degree, *angles), self.angles)
        values = self.coefficients @ chebyshev_basis(nodes, degree)
        coefficients, left_out = shortened(values, tolerance)
        return replace(self, angles=angles, coefficients=coefficients, error=self.error + left_out)

    def pairs(self, row_features: Tensor, column_features: Tensor, angle: Tensor) -> Tensor:
        """Values at single pairs, given their features and angles. shape: (2, n).

        Consecutive pairs with the same features of the first norm share a series.
        """
        t = to_unit(angle.double(), self.angles)
        basis = chebyshev_basis(t, self.coefficients.shape[-1] - 1).T
        distinct, counts = row_features.unique_consecutive(return_counts=True, dim=0)
        parts = (features.split(counts.tolist()) for features in (column_features, basis))
        values = [
            (partners @ self.rows(series_features[None])[0]).mul_(polynomials).sum(-1)
            for series_features, partners, polynomials in zip(distinct, *parts, strict=True)
        ]
        return torch.cat(values, 1)


def shortened(values: Tensor, tolerance: float) -> tuple[Tensor, float]:
    """Series through values at Chebyshev nodes, and the size of the terms left out."""
    return trimmed(coefficients_from_values(values), tolerance)


def trimmed(coefficients: Tensor, tolerance: float) -> tuple[Tensor, float]:
    """Series without negligible last terms, and the size of the terms left out."""
    tails = coefficients.abs().flatten(0, -2).amax(0).flip(0).cumsum(0).flip(0)
    needed = max(1, int((tails > tolerance / 8).sum()))
    left_out = float(tails[needed]) if needed < len(tails) else 0.0
    return coefficients[..., :needed].contiguous(), left_out


def to_unit(x: Tensor, span: Span) -> Tensor:
    """Places in a span, scaled to [-1, 1]; exact near both ends."""
    low, high = span
    return (((x - low) - (high - x)) / (high - low)).clamp(-1.0, 1.0)


def padded(coefficients: Tensor, size: int) -> Tensor:
    """A series padded with zeros to ``size`` coefficients."""
    return torch.nn.functional.pad(coefficients, (0, size - coefficients.shape[-1]))


def diagonal(function: KernelFunction, norm: Tensor) -> Tensor:
    """Both kernels of each input with itself, given its norm in float64. shape: (2, n)."""
    distinct, inverse = norm.unique(return_inverse=True)
    kernels = torch.stack(tuple(function.diagonal(*on_host(distinct**2))))
    return kernels.to(norm.device)[:, inverse]


def _norm_span(least: float, largest: float) -> Span:
    """A range of log₂ of norms, rounded outwards so that surfaces are shared."""
    low, high = math.log2(least), math.log2(largest)
    first = math.floor(low * _GRID) / _GRID
    return first, max(math.ceil(high * _GRID) / _GRID, first + 1 / _GRID)


@cached
def angular_surface(function: KernelFunction, squared_norm: float, tolerance: float) -> Surface:
    """The surface for inputs of one norm, exact at all angles; kept for later calls."""

    def kernels(angle: Tensor) -> Tensor:
        return torch.stack(tuple(function.at_angles(squared_norm, HalfAngle.from_angle(angle))))

    diagonals = diagonal(function, torch.tensor([squared_norm], dtype=torch.float64).sqrt())
    unit = torch.where(diagonals == 0, 1.0, diagonals)
    series = fit(
        lambda x: kernels(x) / unit, ANY_ANGLE, tolerance=tolerance, first_degree=2 * _FIRST
    )
    constant = torch.ones(1, 1, dtype=torch.float64)
    coefficients = series.coefficients[:, None, None].contiguous()
    ck, ntk = diagonals[:, 0].tolist()
    return Surface(None, ANY_ANGLE, constant, coefficients, series.error, (ck, ntk))


def surface(
    function: KernelFunction, norms: Span, angles: Span, tolerance: float, entries: int
) -> Surface:
    """The surface for inputs of different norms; kept for later calls.

    Raises:
        AccuracyError: If the kernel is too rough on this box, or the surface needs more solutions
            of scalar equations than there are entries.
    """
    error, most = math.inf, 2 ** math.floor(math.log2(max(_CHEAP * entries / 64, _FIRST)))
    for sample in dict.fromkeys((nearby(function), function)):
        degrees = _degrees(sample, norms, angles, tolerance, most)
        if isinstance(degrees, str):
            raise AccuracyError(degrees)
        equations = _Sampler.equations(*degrees)
        if equations > _CHEAP * entries:
            raise AccuracyError(f"a surface costs {equations} equations, the entries {entries}")
        result = _surface(function, norms, angles, tolerance, degrees)
        if result.error <= 10 * tolerance:
            return result
        error = min(error, result.error)
    raise AccuracyError(
        f"the kernel of {function.architecture!r} at norms from {2 ** norms[0]:.3g} to "
        f"{2 ** norms[1]:.3g} is met to {error:.1e} only"
    )


def nearby(function: KernelFunction) -> KernelFunction:
    """The function at variances on a grid of half octaves, whose degrees its neighbors share."""
    architecture = function.architecture
    values = {name: getattr(architecture, name) for name in architecture.variances}
    rounded = {
        name: 2 ** (math.floor(math.log2(value) * 2) / 2)
        for name, value in values.items()
        if value > 0
    }
    return replace(function, architecture=replace(architecture, **rounded))


@cached
def _degrees(
    function: KernelFunction, norms: Span, angles: Span, tolerance: float, most: int
) -> tuple[int, int] | str:
    """The degrees that lines through the box need, or why there are none; cached."""
    try:
        return _Sampler(function, norms, angles).degrees(tolerance, min(most, _DEGREE[1]))
    except AccuracyError as error:
        return str(error)


@cached
def _surface(
    function: KernelFunction, norms: Span, angles: Span, tolerance: float, degrees: tuple[int, int]
) -> Surface:
    values, off = _Sampler(function, norms, angles).grid(*degrees)
    for dim in (1, 2, 3):
        values = coefficients_from_values(values, dim)
    basis, core = compressed(values, tolerance)
    rough = Surface(norms, angles, basis, core, 0.0)
    return replace(rough, error=off.deviation(rough))


class _Off(NamedTuple):
    """Values at points off a grid: pairs of norms, each at the same angles."""

    pairs: tuple[Tensor, Tensor]
    angle: Tensor
    values: Tensor

    def deviation(self, approximation: Surface) -> float:
        """The largest error there."""
        first, second = (approximation.features(u.exp2()) for u in self.pairs)
        series = torch.einsum("nqsk,ns->qnk", approximation.rows(first), second)
        t = to_unit(self.angle, approximation.angles)
        values = series @ chebyshev_basis(t, series.shape[-1] - 1)
        return float((values - self.values).abs().max())


@dataclass(frozen=True)
class _Sampler:
    """Values of a normalized kernel function."""

    function: KernelFunction
    norms: Span
    angles: Span

    def values(self, u: Tensor, v: Tensor, angle: Tensor) -> Tensor:
        """Both kernels at broadcastable points. shape: (2, ...)."""
        first, second = torch.exp2(u), torch.exp2(v)
        kernels = self.function(first**2, second**2, first * second * angle.cos())
        sides = first.numel(), second.numel()
        squares = torch.cat([first.flatten(), second.flatten()]) ** 2
        self_kernels = torch.stack(tuple(self.function.diagonal(squares))).sqrt()
        roots = [
            r.view(2, *t.shape)
            for r, t in zip(self_kernels.split(sides, 1), (first, second), strict=True)
        ]
        tiny = math.sqrt(torch.finfo(torch.float64).tiny)
        return torch.stack(
            [k / (d * e).clamp(min=tiny) for k, d, e in zip(kernels, *roots, strict=True)]
        )

    @staticmethod
    def equations(norm_degree: int, angle_degree: int) -> int:
        """The number of equations to solve for a surface of some degrees."""
        return (math.comb(norm_degree + 2, 2) + math.comb(_CHECKS + 1, 2)) * (angle_degree + 1)

    def degrees(self, tolerance: float, most: int) -> tuple[int, int]:
        """The degrees that lines through the box need, in the norms and in the angle."""
        spans = self.norms, self.angles
        few, mid = (torch.linspace(*span, 3, dtype=torch.float64) for span in spans)
        norm_lines, angle_lines = (
            lambda x: self.values(x, few[:, None, None], mid[:, None]),
            lambda x: self.values(few[:, None, None], few[:, None], x),
        )
        return (
            _needed(norm_lines, self.norms, tolerance, _DEGREE[0]),
            _needed(angle_lines, self.angles, tolerance, most),
        )

    def grid(self, norm_degree: int, angle_degree: int) -> tuple[Tensor, _Off]:
        """Values at the Chebyshev nodes, and at other points, as dense as these near the ends.

        All are solved together: equations are cheaper by the thousand. shape of the first:
        (2, across + 1, across + 1, around + 1)
        """
        norm, angle = (
            chebyshev_nodes(norm_degree, *self.norms),
            chebyshev_nodes(angle_degree, *self.angles),
        )
        off_norm = off_grid((self.norms,), _CHECKS)[0]
        off_angle = off_grid((self.norms, self.angles), angle_degree + 1)[1]
        i, j = torch.triu_indices(norm_degree + 1, norm_degree + 1)
        k, m = torch.triu_indices(_CHECKS, _CHECKS)
        first, second = torch.cat([norm[i], off_norm[k]]), torch.cat([norm[j], off_norm[m]])
        angles = torch.cat([angle.expand(len(i), -1), off_angle.expand(len(k), -1)])
        half, off = self.values(first[:, None], second[:, None], angles).split([len(i), len(k)], 1)
        values = half.new_empty(2, norm_degree + 1, norm_degree + 1, angle_degree + 1)
        values[:, i, j], values[:, j, i] = half, half
        return values, _Off((off_norm[k], off_norm[m]), off_angle, off)


def _needed(lines: Callable[[Tensor], Tensor], span: Span, tolerance: float, most: int) -> int:
    """The degree that a family of lines needs; the surface is verified as a whole."""
    series = fit(
        lines, span, tolerance=2 * tolerance, max_degree=most, first_degree=_FIRST, check_points=0
    )
    return series.coefficients.shape[-1] - 1 + 2  # a margin


def compressed(coefficients: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Common functions of both norms and both kernels, and the coefficients of their products."""
    unfolded = coefficients.movedim(1, 0).flatten(1)
    left_vectors, singular, _ = torch.linalg.svd(torch.linalg.qr(unfolded.T, mode="r")[1].T)
    tails = singular.square().flip(0).cumsum(0).flip(0).sqrt()
    basis = left_vectors[:, : max(1, int((tails > tolerance / 8).sum()))].T.contiguous()
    core = torch.einsum("ri,sj,qijk->qrsk", basis, basis, coefficients)
    return basis, core.contiguous()


def typical_angles(rows: PolarInputs, columns: PolarInputs) -> Span:
    """A range that holds nearly all angles of a sample, rounded outwards.

    Nearly parallel or opposite pairs, one for each input at most, do not count: the same inputs may
    be among the rows and among the columns.
    """
    row_sample = _sample(rows)
    column_sample = row_sample if rows is columns else _sample(columns)
    cosine = rows.unit[row_sample] @ columns.unit[column_sample].T
    self_pairs = torch.eye(*cosine.shape, dtype=torch.bool, device=cosine.device)
    self_pairs &= rows is columns
    left_out = self_pairs | (cosine.abs() > 1 - CLOSE)
    close, all_left_out = torch.stack([(left_out ^ self_pairs).sum(), left_out.all()]).tolist()
    if close > max(cosine.shape):
        left_out = self_pairs
    elif all_left_out:
        return ANY_ANGLE
    ends = cosine.masked_fill(left_out, 1.0).min(), cosine.masked_fill(left_out, -1.0).max()
    least, most = (min(max(end, -1.0), 1.0) for end in torch.stack(ends).tolist())
    first, last = math.acos(most), math.acos(least)
    sampled = max(len(rows), len(columns)) > _ALL
    margin = max(_STEP / 2, 0.35 * (last - first) / 2 if sampled else 0.0)  # normal tails
    low = math.floor((first - margin) / _STEP) * _STEP
    high = math.ceil((last + margin) / _STEP) * _STEP
    widened = max(0.0, (4 * _STEP - (high - low)) / 2)
    return max(low - widened, 0.0), min(high + widened, math.pi)


def _sample(inputs: PolarInputs) -> Tensor:
    """Some inputs that are not zero."""
    numbers = _sample_numbers(len(inputs), inputs.points.device)
    return numbers[inputs.norm[numbers] > 0] if inputs.range[2] else numbers


@cached
def _sample_numbers(count: int, device: torch.device) -> Tensor:
    """Indices of a sample of ``count`` inputs, or of all if these are few."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order[: _ALL if count <= _ALL else _ALL // 2].to(device)


def chosen_surface(
    function: KernelFunction, rows: PolarInputs, columns: PolarInputs, few: int
) -> tuple[Surface | None, Surface | None]:
    """The surface for nearly all entries, and one for the others; ``None``: pair by pair.

    Args:
        function: The kernels.
        rows: The inputs of the rows.
        columns: The inputs of the columns; the same object if the matrix is symmetric.
        few: Pairs of different norms that are computed one by one.
    """
    dtype = rows.points.dtype
    least = min(rows.range[0], columns.range[0])
    largest = max(rows.range[1], columns.range[1])
    if not largest or (columns is rows and len(rows) == 1):  # no angle, or none but its own
        return None, None
    squared_norm = common_norm(function, rows, columns)
    pairs = len(rows) * (len(rows) + 1) // 2 if columns is rows else len(rows) * len(columns)
    try:
        if squared_norm is not None:
            tolerance = ANGULAR_TOLERANCE[dtype]
            wide = angular_surface(function, squared_norm, tolerance)
            return wide.restricted(typical_angles(rows, columns), tolerance), wide
        if pairs <= few:
            return None, None
        low, high = typical_angles(rows, columns)
        if _has_kinks(function):
            low, high = max(low, _SMOOTH), min(high, math.pi - _SMOOTH)
        if low < high:
            norms = _norm_span(least, largest)
            return surface(function, norms, (low, high), TOLERANCE[dtype], pairs), None
    except AccuracyError as error:
        _LOGGER.log(
            logging.WARNING if pairs > _MANY else logging.INFO,
            "the entries of the kernel of %r are computed one by one, which is slow: %s",
            function.architecture,
            error,
        )
    return None, None


def _has_kinks(function: KernelFunction) -> bool:
    """Whether an activation is not analytic, so that kernels change fast next to 0 and π."""
    return any(bool(breaks(phi, reach(phi))) for phi in function.architecture.cell_activations)


def common_norm(function: KernelFunction, rows: PolarInputs, columns: PolarInputs) -> float | None:
    """The squared norm of all inputs but zero, or one if norms are only factors.

    ``None`` if norms differ. It is rounded, so that batches share series.
    """
    if function.architecture.positively_homogeneous:
        return 1.0
    dtype = rows.points.dtype
    least = min(rows.range[0], columns.range[0])
    largest = max(rows.range[1], columns.range[1])
    if not 0 <= largest - least <= _ONE_NORM[dtype] * largest:  # or all are zero
        return None
    fraction, exponent = math.frexp((least + largest) / 2)
    steps = _NORM_STEPS[dtype]
    return math.ldexp(round(fraction * steps) / steps, exponent) ** 2
