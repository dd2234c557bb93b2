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
from .sampling import Function, Samples, off_grid, sampled_function
from .series import coefficients_from_values, supremum

_MAX_DEGREE = (1024, 256, 64)
"""Largest degree per axis for one, two, three variables: up to 300 000 values of the function."""
_FLAT = 0.8
"""Ratio of dyadic sums of coefficients from which on they count as not decaying."""
_EPSILON = torch.finfo(torch.float64).eps


def fit(
    function: Function,
    box: Sequence[Sequence[float]],
    *,
    tolerance: float,
    max_degree: int | Sequence[int] | None = None,
    first_degree: int = 8,
    check_points: int | None = None,
) -> Chebyshev:
    """Return Chebyshev series within ``tolerance`` of smooth functions on a closed box.

    The error that the result reports adds up what was cut off, an extrapolation of what was never
    seen, the largest residual at check points off the grid, and rounding. A function that hides
    between all the points (a peak far narrower than their distance) cannot be caught. Several
    functions that are computed together have the same degrees, those that the worst of them needs.

    Args:
        function: Called with the float64 nodes of each axis; returns the values on their tensor
            grid, of shape (n_0, n_1, ...), or of several functions in dimensions before these.
        box: Lower and upper end per axis, one to three axes.
        tolerance: Largest error of each, absolute.
        max_degree: Largest degree tried, for all axes or for each.
        first_degree: The least degree tried, which is then doubled. A function that is computed
            faster at many points than at few wants a larger one.
        check_points: How many points off the grid there are for each axis at which the error is
            measured; up to 1000 in all by default. Few are enough for functions that are
            expensive, if it is known that no narrow peaks hide between the nodes; none if what is
            made of the series is verified as a whole.

    Raises:
        AccuracyError: The tolerance cannot be met; the message says why and what may help.
        ValueError: An argument is out of range, or a value of the function is not finite.

    Example:
        >>> wave = fit(lambda x, y: torch.cos(torch.outer(x, y)), ((0.0, 1.0), (0.0, 3.0)),
        ...            tolerance=1e-10)
        >>> x, y = torch.tensor([0.5, 2.0], dtype=torch.float64)
        >>> bool((wave(x, y) - (x * y).cos()).abs() <= wave.error)
        True
        >>> both = fit(lambda x: torch.stack([x.sin(), x.cos()]), ((0.0, 1.0),), tolerance=1e-10)
        >>> both.coefficients.shape, both.error < 1e-10
        (torch.Size([2, 10]), True)
    """
    box = checked_box(box)
    tolerance = checks.real("tolerance", tolerance, above=0.0)
    max_degrees = _checked_degrees(max_degree, len(box))
    first_degree = checks.integer("first_degree", first_degree, at_least=4)
    if check_points is not None:
        checks.room("check_points", checks.integer("check_points", check_points, at_least=0))
    samples = Samples.first(sampled_function(function), box, max_degrees, first_degree)
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
                raise AccuracyError(_shortfall(samples, tolerance, found.error, axes[0], cause))
        for axis in axes:
            samples = samples.refined(axis)


def _shortfall(samples: Samples, tolerance: float, error: float, axis: int, cause: str) -> str:
    """Why one series does not do, with a remedy."""
    remedies = {
        "rounding": "rounding errors leave no more digits; ask for a larger tolerance",
        "steep": "the coefficients still decay fast; raise max_degree",
        "slow": "the coefficients decay slowly, as at a kink or singularity; cut the box there, or "
        "ask for a larger tolerance",
        "flat": "the coefficients do not decay: a jump, noise, or fast oscillations; "
        "raise max_degree, cut the box, or compute the function more accurately",
    }
    return (
        f"the function on {samples.box} is not met to tolerance {tolerance:.2g}: the error "
        f"reached is about {error:.2g}; axis {axis}, sampled to degree {samples.degrees[axis]}, "
        f"is to blame: {remedies[cause]}"
    )


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


def _checked_degrees(max_degree: int | Sequence[int] | None, axes: int) -> tuple[int, ...]:
    """Return the largest degree for each axis."""
    if max_degree is None:
        max_degree = _MAX_DEGREE[axes - 1]
    one = isinstance(max_degree, Integral)
    degrees = (max_degree,) * axes if one else checks.items("max_degree", max_degree)
    if len(degrees) != axes:
        raise ValueError(f"max_degree must be one number or {axes}, got {max_degree!r}")
    return tuple(checks.integer("max_degree", degree, at_least=4) for degree in degrees)
