"""Derivatives of kernels in norms and variances: exact at nodes, as series in between."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from shoal.approximation import (
    PiecewiseChebyshev,
    chebyshev_nodes,
    coefficients_from_values,
    fit_piecewise,
)
from shoal.exceptions import AccuracyError
from shoal.kernels.adjoint import padded
from shoal.kernels.function import KernelFunction
from shoal.kernels.result import Kernels
from shoal.kernels.surface import (
    Span,
    Surface,
    angular_surface,
    compressed,
    needed_degree,
    norm_span,
)

__all__ = ["Slopes", "angular_slopes", "derivatives", "norm_slopes", "own_slopes"]

_FEW = 64  # norms whose diagonal is differentiated one by one
_TOLERANCE = 1e-10  # error of derivatives, relative to the diagonal
_CHECKS = 64  # points off the grid at which it is measured


@dataclass(frozen=True, eq=False)
class Slopes:
    """A surface and its derivatives, as coefficients of the same products.

    Attributes:
        surface: The kernels.
        radial: The coefficients of the derivative in the logarithm of one norm; ``None`` if the
            surface's own functions of the norm tell it.
        variances: Those of the derivatives in variances. shape: (names, 2, rank, rank, terms)
    """

    surface: Surface
    radial: Tensor | None
    variances: Tensor

    @property
    def angles(self) -> Span:
        """Range of the angles."""
        return self.surface.angles


def derivatives(
    function: KernelFunction,
    names: tuple[str, ...],
    kernels: Callable[..., Kernels],
    *point: Tensor,
) -> tuple[Tensor, Tensor]:
    """Both kernels and their derivatives in the point and in variances, elementwise.

    Args:
        function: Whose variances they are.
        names: Of the variances.
        kernels: Maps a function, in which tensors stand for the variances, and a point to kernels.
        point: Tensors of one shape, in float64.

    Returns:
        Values, of shape (2, ...), and derivatives, of shape (len(point) + len(names), 2, ...).
    """
    values = [torch.full_like(point[0], getattr(function.architecture, name)) for name in names]
    with torch.enable_grad():
        leaves = [t.detach().clone().requires_grad_() for t in (*point, *values)]
        tensors = tuple(zip(names, leaves[len(point) :], strict=True))
        found = kernels(replace(function, variances=tensors), *leaves[: len(point)])
        slopes = [
            torch.stack(
                torch.autograd.grad(k.sum(), leaves, retain_graph=True, materialize_grads=True)
            )
            for k in found
        ]
    return torch.stack([k.detach() for k in found]), torch.stack(slopes, dim=1)


def own_slopes(function: KernelFunction, names: tuple[str, ...], norm: Tensor) -> Tensor:
    """Kernels of inputs with themselves: values, derivatives in the norm's log and in variances.

    Args:
        function: The kernels.
        names: Of the variances.
        norm: Norms in float64, none of them zero. shape: (n,)

    Returns:
        All of them. shape: (2 + len(names), 2, n)
    """
    if function.architecture.positively_homogeneous:
        return _own_slopes(function, names, norm.new_zeros(1)) * norm**2
    distinct, inverse = norm.unique(return_inverse=True)
    log = distinct.log2()
    if len(distinct) > _FEW:
        series = _own_series(function, names, norm_span(distinct))
        if series is not None:
            found = torch.stack([s(log) for s in series])
            return found.view(2 + len(names), 2, -1)[..., inverse]
    return _own_slopes(function, names, log)[..., inverse]


def _own_slopes(function: KernelFunction, names: tuple[str, ...], log_norm: Tensor) -> Tensor:
    """The same one by one, given log₂ of the norms."""

    def kernels(f: KernelFunction, log: Tensor) -> Kernels:
        return f.own(torch.exp(2 * log))

    values, slopes = derivatives(function, names, kernels, log_norm * math.log(2))
    return torch.cat([values[None], slopes])


@lru_cache(maxsize=32)
def _own_series(
    function: KernelFunction, names: tuple[str, ...], norms: Span
) -> list[PiecewiseChebyshev] | None:
    """The same as functions of log₂ of the norm; ``None`` if one is rough."""
    ends = torch.tensor(norms, dtype=torch.float64)
    sizes = _own_slopes(function, names, ends).abs().amax(-1).flatten().tolist()

    def value(log_norm: Tensor, row: int) -> Tensor:
        return _own_slopes(function, names, log_norm).flatten(0, 1)[row]

    try:
        return [
            fit_piecewise(
                lambda x, row=row: value(x, row), (norms,), tolerance=0.01 * _TOLERANCE * (s or 1.0)
            )
            for row, s in enumerate(sizes)
        ]
    except (AccuracyError, ValueError):
        return None


@lru_cache(maxsize=64)
def angular_slopes(
    function: KernelFunction,
    squared_norm: float,
    names: tuple[str, ...],
    angles: Span,
    tolerance: float,
) -> Slopes:
    """Those for inputs of one norm, or any norms if the kernel is positively homogeneous.

    Args:
        function: The kernels.
        squared_norm: The squared norm.
        names: Of the variances.
        angles: Range of the angles, without 0 and π.
        tolerance: Largest error of the values.
    """
    surface = angular_surface(function, squared_norm, tolerance).restricted(angles, tolerance)
    homogeneous = function.architecture.positively_homogeneous
    if homogeneous and not names:
        return Slopes(surface, surface.coefficients, surface.coefficients[None][:0])
    own = torch.tensor([d or 1.0 for d in surface.diagonal or (1.0, 1.0)], dtype=torch.float64)
    log_norm = math.log(squared_norm) / 2

    def kernels(f: KernelFunction, log: Tensor, angle: Tensor) -> Kernels:
        square = torch.exp(2 * log)
        return f(square, square, square * angle.cos())

    def lines(angle: Tensor) -> Tensor:
        point = (torch.full_like(angle, log_norm), angle)
        slopes = derivatives(function, names, kernels, *point)[1]
        return torch.cat([slopes[:1] / 2, slopes[2:]]) / own[:, None]

    degree = needed_degree(lines, angles, _TOLERANCE)
    found = coefficients_from_values(lines(chebyshev_nodes(degree, *angles)))[:, :, None, None]
    size = max(degree + 1, surface.coefficients.shape[-1])
    surface = replace(surface, coefficients=padded(surface.coefficients, size))
    found = padded(found, size)
    return Slopes(surface, surface.coefficients if homogeneous else found[0], found[1:])


@lru_cache(maxsize=16)
def norm_slopes(
    function: KernelFunction, surface: Surface, names: tuple[str, ...], tolerance: float
) -> Slopes:
    """Those for inputs of different norms, on the box of a surface.

    Raises:
        AccuracyError: If the derivatives in variances are too rough.
    """
    if not names:
        return Slopes(surface, None, surface.coefficients[None][:0])
    assert surface.norms is not None
    spans = (surface.norms, surface.norms, surface.angles)
    few, mid = (torch.linspace(*s, 3, dtype=torch.float64) for s in (spans[0], surface.angles))

    def values(u: Tensor, v: Tensor, angle: Tensor) -> Tensor:
        return _normalized(function, names, u, v, angle)

    across = needed_degree(
        lambda x: values(x, few[:, None, None], mid[:, None]), spans[0], tolerance
    )
    around = needed_degree(
        lambda x: values(few[:, None, None], few[:, None], x), spans[2], tolerance
    )
    norm, angle = chebyshev_nodes(across, *spans[0]), chebyshev_nodes(around, *spans[2])
    i, j = torch.triu_indices(across + 1, across + 1)
    half = values(norm[i, None], norm[j, None], angle)
    grid = half.new_empty(len(half), across + 1, across + 1, around + 1)
    grid[:, i, j], grid[:, j, i] = half, half
    for dim in (1, 2, 3):
        grid = coefficients_from_values(grid, dim)
    basis, core = compressed(grid, tolerance)
    core = core.view(1 + len(names), 2, *core.shape[1:])
    found = Slopes(replace(surface, basis=basis, coefficients=core[0]), None, core[1:])
    _check(function, names, found, tolerance)
    return found


def _normalized(
    function: KernelFunction, names: tuple[str, ...], u: Tensor, v: Tensor, angle: Tensor
) -> Tensor:
    """Values and derivatives in variances, over the root of the diagonal. shape: (2 + 2k, ...)."""
    u, v, angle = torch.broadcast_tensors(u, v, angle)
    left, right = u.exp2(), v.exp2()

    def kernels(f: KernelFunction, a: Tensor, b: Tensor, c: Tensor) -> Kernels:
        return f(a.detach(), b.detach(), c.detach())

    point = (left**2, right**2, left * right * angle.cos())
    found, slopes = derivatives(function, names, kernels, *point)
    every = torch.cat([found[None], slopes[3:]])
    own = [torch.stack(tuple(function(n**2, n**2, n**2))) for n in (left, right)]
    scale = (own[0] * own[1]).sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    return (every / scale).flatten(0, 1)


def _check(
    function: KernelFunction, names: tuple[str, ...], slopes: Slopes, tolerance: float
) -> None:
    """Compare with exact derivatives at quasi-random points."""
    surface = slopes.surface
    assert surface.norms is not None
    share = torch.quasirandom.SobolEngine(3, scramble=True, seed=0).draw(
        _CHECKS, dtype=torch.float64
    )
    u, v, angle = (
        low + (high - low) * t
        for t, (low, high) in zip(
            share.T, (surface.norms, surface.norms, surface.angles), strict=True
        )
    )
    expected = _normalized(function, names, u, v, angle).view(1 + len(names), 2, -1)
    features = surface.features(u.exp2()), surface.features(v.exp2())
    for core, exact in zip((surface.coefficients, *slopes.variances), expected, strict=True):
        found = replace(surface, coefficients=core).pairs(*features, angle)
        error = float((found - exact).abs().max())
        if error > 100 * tolerance:
            raise AccuracyError(f"derivatives in variances are met to {error:.1e} only")
