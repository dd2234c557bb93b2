r"""Functions of one variance, as Chebyshev series on its octaves $[2^{e-1}, 2^e]$.

Moments and Hermite coefficients of an activation depend on the variance of its argument alone, and
are analytic in it away from zero: some thirty integrals tell them on a whole octave, whatever the
weights of a network are. The exponent of a floating-point number is its octave and the mantissa
its place there, so that the variable of the series is exact.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.numerics import chebyshev_nodes, coefficients_from_values, off_grid

_DEGREE = 28  # the next singularity is zero, so that terms fall by a factor of 5.8 at least
_CHECKS = 7  # variances, off the grid, at which the error is measured
_ERROR = 1e-14  # largest, relative to the size of the values
_FEW = 1 << 18  # numbers of series that are copied for each variance
SMALLEST = 1e-140  # variances below have no octaves


def octave_series(
    function: Callable[[Tensor], Tensor], size: Callable[[Tensor], Tensor], *exponents: int
) -> Tensor | None:
    """The series of a function on octaves; ``None`` if they do not meet it to rounding.

    Args:
        function: Maps variances, of shape (n,), to values, of shape (n, ...).
        size: Maps values to what their errors are relative to, which broadcasts with them.
        exponents: Of the upper ends of the octaves.

    Returns:
        Their coefficients. shape: (octaves, degree + 1, ...)
    """
    off = off_grid(((0.5, 1.0),), _CHECKS)[0]
    mantissa = torch.cat([chebyshev_nodes(_DEGREE, 0.5, 1.0), off])
    several = torch.tensor(exponents).repeat_interleave(len(mantissa))
    try:
        values = function(torch.ldexp(mantissa.repeat(len(exponents)), several))
    except (AccuracyError, ConvergenceError):  # an end may be out of reach, unlike the variance
        return None
    nodes, exact = values.unflatten(0, (len(exponents), -1)).tensor_split([_DEGREE + 1], 1)
    series = coefficients_from_values(nodes, 1)
    found, exact = torch.einsum("ck,ok...->oc...", _basis(off), series), exact.flatten(0, 1)
    met = (found.flatten(0, 1) - exact).abs() <= _ERROR * size(exact)
    return series if bool(met.all()) else None


def stacked(series: Callable[[int], Tensor | None], octaves: tuple[int, ...]) -> Tensor | None:
    """The series of some octaves. shape: (octaves, degree + 1, ...); ``None`` if one has none."""
    found = [each for each in map(series, octaves) if each is not None]
    return torch.cat(found) if len(found) == len(octaves) else None


def at_octaves(
    series: Callable[[tuple[int, ...]], Tensor | None],
    function: Callable[[Tensor], Tensor],
    variance: Tensor,
) -> Tensor | None:
    """The values at some variances; ``None`` if an octave has no series.

    Args:
        series: Those of octaves, as :func:`octave_series` or :func:`stacked` make them.
        function: What they stand for; it serves variances of next to nothing.
        variance: The variances. shape: (n,)

    Returns:
        Values of shape (n, ...), where the series are those of values of shape (...).
    """
    tiny = variance < SMALLEST
    if bool(tiny.any()):
        distinct, inverse = variance[tiny].unique(return_inverse=True)
        few = function(distinct)[inverse]
        if bool(tiny.all()):
            return few
        others = at_octaves(series, function, variance[~tiny])
        if others is None:
            return None
        values = few.new_empty(len(variance), *few.shape[1:])
        values[tiny], values[~tiny] = few, others
        return values
    mantissa, exponent = torch.frexp(variance)
    octaves, place = exponent.unique(return_inverse=True)
    found = series(tuple(octaves.tolist()))
    if found is None:
        return None
    basis = _basis(mantissa)
    known = found.to(variance.device).reshape(len(found), _DEGREE + 1, -1)
    if len(variance) * known[0].numel() <= _FEW:
        values = torch.bmm(basis[:, None], known[place])[:, 0]
    else:
        values = basis.new_empty(len(variance), known.shape[2])
        for number, each in enumerate(known):
            here = (place == number).nonzero()[:, 0]
            values[here] = basis[here] @ each
    return values.view(len(variance), *found.shape[2:])


def _basis(mantissa: Tensor) -> Tensor:
    """The polynomials at mantissas between 1/2 and 1. shape: (n, degree + 1)."""
    degrees = torch.arange(_DEGREE + 1, dtype=mantissa.dtype, device=mantissa.device)
    return torch.cos((4 * mantissa - 3).acos()[:, None] * degrees)  # as exact where series decay
