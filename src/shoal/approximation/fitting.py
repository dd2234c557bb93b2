"""Find the Chebyshev series of a function, axis by axis, and verify it off the grid.

The grid is doubled along an axis until the coefficients of *every fibre* of values along that
axis have died away; since a fibre holds true values of the function, an axis is judged whatever
the resolution of the others. Doubling keeps all values, so no point is ever computed twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from shoal.core import checks
from shoal.core.exceptions import AccuracyError

from .chebyshev import Chebyshev, checked_box, rounding
from .evaluation import Box
from .sampling import Function, Samples, check_points, sampled_function
from .series import chebyshev_basis, coefficients_from_values, supremum

__all__ = ["Shortfall", "attempt", "checked_degrees", "fit", "off_grid_error"]

DEFAULT_MAX_DEGREE = (1024, 256, 64)
"""Largest degree per axis for one, two, three variables: up to 300 000 values of the function."""
_FLAT = 0.8
"""Ratio of dyadic sums of coefficients from which on they count as not decaying."""
_FEW_CHECKS = 24
"""Off-grid points at which functions of one variable are checked that are expensive."""
_EPSILON = torch.finfo(torch.float64).eps


def fit(
    function: Function,
    box: Sequence[Sequence[float]],
    *,
    tolerance: float,
    max_degree: int | Sequence[int] | None = None,
    sampler: str = "tensor",
    device: torch.device | str = "cpu",
) -> Chebyshev:
    """Return a Chebyshev series within ``tolerance`` of a smooth function on a closed box.

    The error that the result reports adds up what was cut off, an extrapolation of what was never
    seen, the largest residual at check points off the grid, and rounding. A function that hides
    between all the points (a peak far narrower than their distance) cannot be caught.

    Args:
        function: Called with the float64 nodes of each axis; returns the values on their tensor
            grid, of shape (n_0, n_1, ...).
        box: Lower and upper end per axis, one to three axes.
        tolerance: Largest error, absolute.
        max_degree: Largest degree tried, for all axes or for each; degrees are 8, 16, 32, ...
        sampler: ``"tensor"`` hands over one vector per axis, ``"elementwise"`` the whole
            grid, one tensor per axis, as an elementwise function wants it.
        device: Where the nodes are made and the coefficients stay.

    Raises:
        AccuracyError: The tolerance cannot be met; the message says why and what may help.
        ValueError: An argument is out of range, or a value of the function is not finite.

    Example:
        >>> wave = fit(lambda x, y: torch.cos(x * y), ((0.0, 1.0), (0.0, 3.0)),
        ...            tolerance=1e-10, sampler="elementwise")
        >>> bool((wave(0.5, 2.0) - torch.tensor(1.0).double().cos()).abs() <= wave.error)
        True
        >>> wave.error < 1e-10
        True
    """
    box = checked_box(box)
    tolerance = checks.real("tolerance", tolerance, above=0.0)
    degrees = checked_degrees(max_degree, len(box), DEFAULT_MAX_DEGREE)
    values = sampled_function(function, sampler)
    outcome = attempt(values, box, tolerance=tolerance, max_degrees=degrees, device=device)
    if isinstance(outcome, Shortfall):
        raise AccuracyError(outcome.message)
    return outcome


@dataclass(frozen=True)
class Shortfall:
    """Why one series does not do: the error reached, the axis to blame, the cause."""

    box: Box
    tolerance: float
    error: float
    axis: int
    degrees: tuple[int, ...]
    cause: str

    @property
    def message(self) -> str:
        """One sentence for the user, with a remedy."""
        remedies = {
            "rounding": "rounding errors leave no more digits; ask for a larger tolerance",
            "steep": "the coefficients still decay fast; raise max_degree or use fit_piecewise",
            "slow": "the coefficients decay slowly, as at a kink or singularity; use "
            "fit_piecewise, with its place in breaks if known, or a larger tolerance",
            "flat": "the coefficients do not decay: a jump, noise, or fast oscillations; "
            "raise max_degree, use fit_piecewise, or compute the function more accurately",
        }
        return (
            f"the function on {self.box} is not met to tolerance {self.tolerance:.2g}: the error "
            f"reached is about {self.error:.2g}; axis {self.axis}, sampled to degree "
            f"{self.degrees[self.axis]}, is to blame: {remedies[self.cause]}"
        )


def attempt(
    function: Function,
    box: Box,
    *,
    tolerance: float,
    max_degrees: Sequence[int],
    device: torch.device | str,
) -> Chebyshev | Shortfall:
    """Return a series within ``tolerance``, or why there is none."""
    samples = Samples.first(function, box, max_degrees, device)
    # Unseen, cut and measured errors are each kept so small that they fit in together.
    share = tolerance / (8 * len(box))
    while True:
        decays = [_Decay.of(samples.profile(axis)) for axis in range(len(box))]
        ranked = sorted(range(len(box)), key=lambda axis: -decays[axis].unseen)
        rough = [axis for axis in ranked if decays[axis].unseen > share]
        axes = [axis for axis in rough if decays[axis].level >= _noise(samples)]
        if not axes or _stuck(samples, axes, max_degrees):
            series = _verified(samples, share, sum(decay.unseen for decay in decays))
            if series.error <= tolerance:
                return series
            lost = (bool(rough) and not axes) or 4 * rounding(series.coefficients) > series.error
            axes = rough or _aliased(samples, series, share)
            if lost or _stuck(samples, axes, max_degrees):
                cause = "rounding" if lost else decays[axes[0]].kind
                return Shortfall(box, tolerance, series.error, axes[0], samples.degrees, cause)
        for axis in axes:
            samples = samples.refined(axis)


def _stuck(samples: Samples, axes: Sequence[int], max_degrees: Sequence[int]) -> bool:
    """Return whether one of ``axes`` may not be refined."""
    return any(2 * samples.degrees[axis] > max_degrees[axis] for axis in axes)


def _noise(samples: Samples) -> float:
    """Return the size of coefficients that are rounding errors of the values."""
    return 2 * _EPSILON * samples.scale


@dataclass(frozen=True)
class _Decay:
    """How the coefficients of the worst fibres of an axis die away.

    Args:
        unseen: Estimate of the interpolation error, from the coefficients beyond the grid.
        level: Mean size of the upper half of the coefficients.
        kind: ``"steep"`` (geometric), ``"slow"`` (algebraic) or ``"flat"``.
    """

    unseen: float
    level: float
    kind: str

    @classmethod
    def of(cls, profile: Tensor) -> "_Decay":
        """Judge by sums over dyadic blocks, which even and odd functions cannot fool.

        Such sums fall by a constant ratio when the coefficients decay algebraically, so the
        geometric series of that ratio is what lies beyond; when they decay geometrically it
        is an overestimate. Aliasing takes from the last block of a slow decay, so there the ratio
        before is heard too and the result counts double (measured on kinks and cusps at random
        places). An interpolant errs by at most twice what lies beyond its degree.
        """
        n = profile.shape[0] - 1
        first, second, last = (float(profile[n // k + 1 : 2 * n // k + 1].sum()) for k in (8, 4, 2))
        recent, before = _ratio(last, second), _ratio(second, first)
        steep = 2 * recent < before
        ratio, safety = (recent, 1) if steep else (max(recent, before), 2)
        unseen = 2 * (safety * last * ratio / (1 - ratio) + float(profile[-2:].sum()))
        kind = "steep" if steep else "slow" if ratio < _FLAT else "flat"
        return cls(unseen, 2 * last / n, kind)


def _ratio(last: float, before: float) -> float:
    """Return the ratio of two sums, at most that of a flat decay."""
    return last / before if last < _FLAT * before else _FLAT


def _verified(samples: Samples, share: float, unseen: float) -> Chebyshev:
    """Return the truncated series with its error, measured at points off the grid."""
    full = samples.values
    for axis in range(full.ndim):
        full = coefficients_from_values(full, axis)
    kept = tuple(slice(_needed(samples, axis, share)) for axis in range(full.ndim))
    dropped = full.clone()
    dropped[kept] = 0.0
    series = Chebyshev(samples.box, full[kept].clone(), sampled=samples.degrees)
    residual = _residual(samples, series, check_points(samples.box, full.device))
    error = unseen + supremum(dropped) + residual + rounding(series.coefficients)
    return replace(series, error=error)


def _needed(samples: Samples, axis: int, share: float) -> int:
    """Return how many leading coefficients leave less than ``share`` out, noise not counted."""
    profile = samples.profile(axis)
    rest = profile.where(profile > _noise(samples), 0.0).flip(0).cumsum(0)
    return max(1, int((rest > share).sum()))


def _aliased(samples: Samples, series: Chebyshev, share: float) -> list[int]:
    """Return the axes along which the series misses the function between the nodes, worst first.

    Along one axis off the grid and the others on it, the residual is that axis's own.
    """
    off = check_points(samples.box, samples.values.device)
    on = [nodes[:: max(1, len(nodes) // 4)] for nodes in samples.nodes]
    residuals = {
        axis: _residual(samples, series, [*on[:axis], off[axis], *on[axis + 1 :]])
        for axis in range(len(off))
    }
    blamed = [axis for axis, residual in residuals.items() if residual > share]
    return sorted(blamed or residuals, key=lambda axis: -residuals[axis])


def _residual(samples: Samples, series: Chebyshev, points: Sequence[Tensor]) -> float:
    """Return the largest difference of function and series on a tensor grid."""
    grid = torch.meshgrid(*points, indexing="ij")
    return float((samples.function(*points) - series(*grid)).abs().max())


def off_grid_error(
    function: Callable[[Tensor], Tensor], coefficients: Tensor, span: tuple[float, float]
) -> float:
    """Return the largest error of series of one variable at a few check points off the grid.

    Args:
        function: Maps points to values of all series, points in the last dimension.
        coefficients: Those of the series, in the last dimension.
        span: Lower and upper end.

    Example:
        >>> constant = torch.ones(1, dtype=torch.float64)  # right at the nodes of degree 2
        >>> off_grid_error(lambda x: 1 + (4 * x * (x**2 - 1)), constant, (-1.0, 1.0)) > 1
        True
    """
    (points,) = check_points((span,), coefficients.device, _FEW_CHECKS)
    low, high = span
    t = ((points - low) - (high - points)) / (high - low)
    found = coefficients @ chebyshev_basis(t, coefficients.shape[-1] - 1)
    return float((function(points) - found).abs().max())


def checked_degrees(
    max_degree: int | Sequence[int] | None, axes: int, defaults: Sequence[int]
) -> tuple[int, ...]:
    """Return the largest degree for each axis."""
    if max_degree is None:
        max_degree = defaults[axes - 1]
    one = isinstance(max_degree, Integral)
    degrees = (max_degree,) * axes if one else checks.items("max_degree", max_degree)
    if len(degrees) != axes:
        raise ValueError(f"max_degree must be one number or {axes}, got {max_degree!r}")
    return tuple(checks.integer("max_degree", degree, at_least=4) for degree in degrees)
