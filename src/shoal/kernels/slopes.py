"""Derivatives of kernels in norms and variances: exact at nodes, as series in between."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.approximation import (
    PiecewiseChebyshev,
    chebyshev_nodes,
    coefficients_from_values,
    fit_piecewise,
    off_grid_error,
)
from shoal.caches import cached
from shoal.exceptions import AccuracyError
from shoal.kernels.adjoint import padded
from shoal.kernels.function import KernelFunction
from shoal.kernels.result import Kernels
from shoal.kernels.surface import (
    Span,
    Surface,
    angular_surface,
    norm_span,
)

__all__ = ["Slopes", "angular_slopes", "derivatives", "own_slopes"]

_FEW = 64  # norms whose diagonal is differentiated one by one
_DEGREES = (24, 48, 96, 192)  # of the derivative in one norm
_MARGIN = 2  # degrees beyond those that it needs
_TOLERANCE = 1e-10  # error of derivatives, relative to the diagonal


@dataclass(frozen=True, eq=False)
class Slopes:
    """A surface and its derivatives, as coefficients of the same products.

    Attributes:
        surface: The kernels.
        radial: The coefficients of the derivative in the logarithm of one norm, at inputs of one
            norm; ``None`` if the surface's own functions of the norm tell it.
    """

    surface: Surface
    radial: Tensor | None = None

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


@cached
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


@cached
def angular_slopes(
    function: KernelFunction, squared_norm: float, angles: Span, tolerance: float
) -> Slopes:
    """Those for inputs of one norm, or any norms if the kernel is positively homogeneous.

    Args:
        function: The kernels.
        squared_norm: The squared norm.
        angles: Range of the angles, without 0 and π.
        tolerance: Largest error of the values.
    """
    surface = angular_surface(function, squared_norm, tolerance).restricted(angles, tolerance)
    if function.architecture.positively_homogeneous:
        return Slopes(surface, surface.coefficients)
    own = torch.tensor([d or 1.0 for d in surface.diagonal or (1.0, 1.0)], dtype=torch.float64)
    log_norm = math.log(squared_norm) / 2

    def kernels(f: KernelFunction, log: Tensor, angle: Tensor) -> Kernels:
        square = torch.exp(2 * log)
        return f(square, square, square * angle.detach().cos())

    def line(angle: Tensor) -> Tensor:  # half of the derivative in both norms
        point = (torch.full_like(angle, log_norm), angle)
        return derivatives(function, (), kernels, *point)[1][0] / (2 * own[:, None])

    radial = _series(line, angles)[:, None, None]
    size = max(radial.shape[-1], surface.coefficients.shape[-1])
    surface = replace(surface, coefficients=padded(surface.coefficients, size))
    return Slopes(surface, padded(radial, size))


def _series(line: Callable[[Tensor], Tensor], span: Span) -> Tensor:
    """Chebyshev coefficients of lines that are expensive to evaluate."""
    for degree in _DEGREES:
        coefficients = coefficients_from_values(line(chebyshev_nodes(degree, *span)))
        rest = coefficients.abs().flip(-1).cumsum(-1).flip(-1).flatten(0, -2).amax(0)
        needed = int((rest > _TOLERANCE).sum())
        if needed + _MARGIN <= degree:
            kept = coefficients[..., : needed + _MARGIN]
            if off_grid_error(line, kept, span) <= 10 * _TOLERANCE:
                return kept
    raise AccuracyError(f"the derivative in the norm needs a degree above {_DEGREES[-1]}")
