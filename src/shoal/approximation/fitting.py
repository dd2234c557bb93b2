"""Find the Chebyshev series of a function, axis by axis, and verify it off the grid.

The grid is doubled along an axis until the coefficients of *every fibre* of values along that
axis have died away; since a fibre holds true values of the function, an axis is judged whatever
the resolution of the others. Doubling keeps all values, so no point is ever computed twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from shoal.core import checks
from shoal.core.exceptions import AccuracyError

from .chebyshev import Chebyshev, checked_box, rounding
from .evaluation import Box
from .sampling import Function, Samples, off_grid, sampled_function
from .series import coefficients_from_values, supremum

__all__ = ["Shortfall", "attempt", "checked_degrees", "fit", "fit_together"]

DEFAULT_MAX_DEGREE = (1024, 256, 64)
"""Largest degree per axis for one, two, three variables: up to 300 000 values of the function."""
FIRST_DEGREE = 8
_FLAT = 0.8
"""Ratio of dyadic sums of coefficients from which on they count as not decaying."""
_EPSILON = torch.finfo(torch.float64).eps


def fit(
    function: Function,
    box: Sequence[Sequence[float]],
    *,
    tolerance: float,
    max_degree: int | Sequence[int] | None = None,
    sampler: str = "tensor",
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
    values = sampled_function(function, sampler)
    return fit_together(values, box, tolerance=tolerance, max_degree=max_degree)


def fit_together(
    function: Function,
    box: Sequence[Sequence[float]],
    *,
    tolerance: float,
    max_degree: int | Sequence[int] | None = None,
    first_degree: int = FIRST_DEGREE,
    check_points: int | None = None,
) -> Chebyshev:
    """Return the Chebyshev series of several functions that are computed together, as one value.

    They have the same degrees, those that the worst of them needs.

    Args:
        function: Called with the float64 nodes of each axis; returns the values on their tensor
            grid, of shape (..., n_0, n_1, ...), the first dimensions being those of the functions.
        box: See `fit`.
        tolerance: Largest error of each, absolute.
        max_degree: See `fit`.
        first_degree: The least degree tried. A function that is computed faster at many points than
            at few wants a larger one.
        check_points: How many points off the grid there are for each axis at which the error is
            measured; up to 1000 in all by default. Few are enough for functions that are
            expensive, if it is known that no narrow peaks hide between the nodes; none if what is
            made of the series is verified as a whole.

    Raises:
        AccuracyError: As `fit`.
        ValueError: As `fit`.

    Example:
        >>> both = fit_together(lambda x: torch.stack([x.sin(), x.cos()]), ((0.0, 1.0),),
        ...                     tolerance=1e-10)
        >>> both.coefficients.shape, both.error < 1e-10
        (torch.Size([2, 10]), True)
    """
    box = checked_box(box)
    tolerance = checks.real("tolerance", tolerance, above=0.0)
    degrees = checked_degrees(max_degree, len(box), DEFAULT_MAX_DEGREE)
    first_degree = checks.integer("first_degree", first_degree, at_least=4)
    if check_points is not None:
        checks.room("check_points", checks.integer("check_points", check_points, at_least=0))
    values = sampled_function(function, "tensor", several=True)
    outcome = attempt(
        values,
        box,
        tolerance=tolerance,
        max_degrees=degrees,
        first_degree=first_degree,
        check_points=check_points,
    )
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
            "fit_piecewise, or a larger tolerance",
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
    first_degree: int = FIRST_DEGREE,
    check_points: int | None = None,
) -> Chebyshev | Shortfall:
    """Return series within ``tolerance``, or why there are none."""
    samples = Samples.first(function, box, max_degrees, first_degree)
    # Unseen, cut and measured errors are each kept so small that they fit in together.
    share = tolerance / (8 * len(box))
    while True:
        decays = [_Decay.of(samples.profile(axis)) for axis in range(len(box))]
        ranked = sorted(range(len(box)), key=lambda axis: -decays[axis].unseen)
        rough = [axis for axis in ranked if decays[axis].unseen > share]
        axes = [axis for axis in rough if decays[axis].level >= _noise(samples)]
        if not axes or _stuck(samples, axes, max_degrees):
            off = off_grid(box, check_points)
            found = _verified(samples, share, sum(decay.unseen for decay in decays), off)
            if found.error <= tolerance:
                return found
            noise = rounding(found.coefficients, len(box))
            lost = (bool(rough) and not axes) or 4 * noise > found.error
            axes = rough or _aliased(samples, found, share, off)
            if lost or _stuck(samples, axes, max_degrees):
                cause = "rounding" if lost else decays[axes[0]].kind
                return Shortfall(box, tolerance, found.error, axes[0], samples.degrees, cause)
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


def _verified(samples: Samples, share: float, unseen: float, off: Sequence[Tensor]) -> Chebyshev:
    """Return the truncated series with their error, measured at points off the grid."""
    full, axes = samples.values, len(samples.box)
    for dim in range(-axes, 0):
        full = coefficients_from_values(full, dim)
    kept = [slice(None)] * (full.ndim - axes)
    kept += [slice(_needed(samples, axis, share)) for axis in range(axes)]
    dropped = full.clone()
    dropped[tuple(kept)] = 0.0
    found = Chebyshev(samples.box, full[tuple(kept)].clone(), sampled=samples.degrees)
    noise = rounding(found.coefficients, axes)
    error = unseen + supremum(dropped, axes) + _residual(samples, found, off) + noise
    return replace(found, error=error)


def _needed(samples: Samples, axis: int, share: float) -> int:
    """Return how many leading coefficients leave less than ``share`` out, noise not counted."""
    profile = samples.profile(axis)
    rest = profile.where(profile > _noise(samples), 0.0).flip(0).cumsum(0)
    return max(1, int((rest > share).sum()))


def _aliased(samples: Samples, found: Chebyshev, share: float, off: Sequence[Tensor]) -> list[int]:
    """Return the axes along which the series miss the functions between the nodes, worst first.

    Along one axis off the grid and the others on it, the residual is that axis's own.
    """
    on = [nodes[:: max(1, len(nodes) // 4)] for nodes in samples.nodes]
    residuals = {
        axis: _residual(samples, found, [*on[:axis], off[axis], *on[axis + 1 :]])
        for axis in range(len(off))
    }
    blamed = [axis for axis, residual in residuals.items() if residual > share]
    return sorted(blamed or residuals, key=lambda axis: -residuals[axis])


def _residual(samples: Samples, found: Chebyshev, points: Sequence[Tensor]) -> float:
    """Return the largest difference of functions and series on a tensor grid."""
    if not all(map(len, points)):
        return 0.0
    return float((samples.function(*points) - found.on_grid(points)).abs().max())


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
