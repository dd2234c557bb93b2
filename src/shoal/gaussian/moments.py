"""Moments of an activation and its derivatives under a Gaussian."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.core.settings import in_standard_settings
from shoal.gaussian.closed_forms import closed_form
from shoal.gaussian.domain import scale_tensor
from shoal.gaussian.smoothing import Derivative, Square, smoothed
from shoal.numerics import chebyshev_nodes, coefficients_from_values, differentiate, off_grid

_DEGREE = 28  # on octaves; the next singularity is zero: terms fall by a factor of 5.8 at least
_CHECKS = 7  # variances, off the grid, at which the error of a series is measured
_ERROR = 1e-14  # largest relative error of a series
_SMALLEST, _NO_OCTAVE = 1e-140, -(2**12)  # variances below have no series; the octave they get


@dataclass(frozen=True)
class Moments:
    r"""Expectations at $\tau\xi$, $\xi \sim N(0, 1)$, derivatives in the sense of distributions.

    Attributes:
        mean: $\mathbb{E}[\varphi]$.
        first: $\mathbb{E}[\varphi']$.
        second: $\mathbb{E}[\varphi'']$.
        third: $\mathbb{E}[\varphi''']$.
        square: $\mathbb{E}[\varphi^2]$.
        first_square: $\mathbb{E}[\varphi'^2]$; infinite if $\varphi$ jumps.
        square_second: $\mathbb{E}[(\varphi^2)'']$.
    """

    mean: Tensor
    first: Tensor
    second: Tensor
    third: Tensor
    square: Tensor
    first_square: Tensor
    square_second: Tensor


@in_standard_settings
def moments(phi: Activation, tau: Tensor | float) -> Moments:
    r"""Moments of $\varphi(\tau\xi)$ and its derivatives; see :class:`Moments`.

    Kinks are exact: $\varphi^{(k)}$ is integrated piece by piece and each jump adds its own term,
    so nothing cancels at small $\tau$. Differentiable in ``tau``.

    Args:
        phi: The activation.
        tau: The scale $\tau > 0$; a float or a floating-point tensor of any shape.

    Returns:
        Moments in float64, each of the shape of ``tau``.

    Raises:
        ValueError: If ``tau`` is not positive and finite.

    Example:
        >>> import shoal
        >>> m = shoal.gaussian.moments(shoal.activations.ReLU(), 2.0)
        >>> f"{m.square:.3f} {m.first:.3f} {m.second:.5f}"  # E[ReLU''] is a delta: 1/(2√(2π))
        '2.000 0.500 0.19947'
    """
    phi = as_activation("phi", phi)
    scale = scale_tensor("tau", tau, above=0.0)
    zero, variance = torch.zeros_like(scale), scale**2
    first_square = slope_square(phi, variance)  # looks at kinks, hence at whether phi is finite
    return Moments(
        mean=smoothed(phi, zero, variance),
        first=smoothed(phi, zero, variance, order=1),
        second=smoothed(phi, zero, variance, order=2),
        third=smoothed(phi, zero, variance, order=3),
        square=smoothed(Square(phi), zero, variance),
        first_square=first_square,
        square_second=smoothed(Square(phi), zero, variance, order=2),
    )


def mean(phi: Activation, variance: Tensor) -> Tensor:
    r"""$\mathbb{E}[\varphi(\sqrt a\,\xi)]$, unchecked."""
    if phi.positively_homogeneous:
        return variance.sqrt() * _sides(phi, variance).sum() / math.sqrt(2 * math.pi)
    return smoothed(phi, torch.zeros_like(variance), variance)


def mean_square(phi: Activation, variance: Tensor) -> tuple[Tensor, Tensor]:
    r"""$\mathbb{E}[\varphi(\sqrt a\,\xi)^2]$ and its derivative in $a$, unchecked."""
    if phi.positively_homogeneous:
        slope = (_sides(phi, variance) ** 2).sum() / 2
        return slope * variance, slope.expand_as(variance)
    square = Square(phi)
    if variance.requires_grad and torch.is_grad_enabled():
        return _integrated(square, variance, 0), _integrated(square, variance, 2) / 2
    values, slopes = _on_octaves(square, variance.reshape(-1)).unbind(1)
    return values.view(variance.shape), slopes.view(variance.shape)


def _sides(phi: Activation, like: Tensor) -> Tensor:
    r"""$\varphi(1)$ and $\varphi(-1)$, which determine a positively homogeneous activation.

    Its moments are exact to the last bit, which equations near the edge of existence amplify.
    """
    return phi(torch.tensor([1.0, -1.0], dtype=torch.float64, device=like.device)).to(like)


def _integrated(square: Square, variance: Tensor, order: int) -> Tensor:
    """The mean of a square, or of its derivative, by quadrature."""
    return smoothed(square, torch.zeros_like(variance), variance, order=order)


def _on_octaves(square: Square, variance: Tensor) -> Tensor:
    """Means of a square and their derivatives, by series on octaves $[2^{e-1}, 2^e]$ of variances.

    Where there is no series, quadrature takes its place. shape: (n, 2)
    """
    result, basis = variance.new_empty(len(variance), 2), _octave_basis(variance)
    exponent = torch.frexp(variance)[1].masked_fill(variance < _SMALLEST, _NO_OCTAVE)
    octaves, place = exponent.unique(return_inverse=True)
    for number, octave in enumerate(octaves.tolist()):
        here = (place == number).nonzero()[:, 0]
        series = None if octave == _NO_OCTAVE else _octave_series(square, octave)
        if series is None:
            some, inverse = variance[here].unique(return_inverse=True)
            means = _integrated(square, some, 0), _integrated(square, some, 2) / 2
            result[here] = torch.stack(means, -1)[inverse]
        else:
            result[here] = basis[here] @ series.to(variance.device)
    return result


@cached
def _octave_series(square: Square, exponent: int) -> Tensor | None:
    """Both on one octave; ``None`` if a series does not meet the mean to rounding.

    The mean is analytic in the variance away from zero, so that some thirty integrals determine
    it on a whole octave. The integral of the derivative cancels where an activation saturates; the
    derivative of the series does not.
    """
    off = off_grid(((0.5, 1.0),), _CHECKS)[0]
    mantissa = torch.cat([chebyshev_nodes(_DEGREE, 0.5, 1.0), off])
    try:
        values = _mean(square, mantissa * 2.0**exponent)
    except (AccuracyError, ConvergenceError):  # the end of the octave may be out of reach
        return None
    nodes, exact = values.tensor_split([_DEGREE + 1])
    series = coefficients_from_values(nodes)
    if not bool(((_octave_basis(off) @ series - exact).abs() <= _ERROR * exact.abs()).all()):
        return None
    slopes = differentiate(series) * 2.0 ** (2 - exponent)
    return torch.stack([series, torch.nn.functional.pad(slopes, (0, 1))], -1)


def _octave_basis(variance: Tensor) -> Tensor:
    """The polynomials at the places of variances in their octaves. shape: (n, degree + 1)."""
    degrees = torch.arange(_DEGREE + 1, dtype=variance.dtype, device=variance.device)
    place = (4 * torch.frexp(variance)[0] - 3).clamp(min=-1.0)  # zero has no octave
    return torch.cos(place.acos()[:, None] * degrees)  # as exact where series decay


def _mean(square: Square, variance: Tensor) -> Tensor:
    """The mean of a square, in closed form if there is one."""
    closed = None if isinstance(square.inner, Derivative) else closed_form(square.inner)
    if closed is not None:
        return closed.dual(variance, variance, variance)
    return _integrated(square, variance, 0)


def slope_square(phi: Activation, variance: Tensor) -> Tensor:
    r"""$\mathbb{E}[\varphi'(\sqrt a\,\xi)^2]$, unchecked; infinite if $\varphi$ jumps."""
    if any(kink.jumps[0] for kink in phi.kinks):
        return torch.zeros_like(variance) + math.inf
    return derivative_square(phi, 1, variance)


def derivative_square(phi: Activation, order: int, variance: Tensor) -> Tensor:
    r"""$\mathbb{E}[\varphi^{(k)}(\sqrt a\,\xi)^2]$ of the smooth pieces, unchecked."""
    square = Square(Derivative(phi, order) if order else phi)
    if variance.requires_grad and torch.is_grad_enabled():
        return _integrated(square, variance, 0)
    return _on_octaves(square, variance.reshape(-1))[:, 0].view(variance.shape)


@cached
@in_standard_settings
def normalization(phi: Activation) -> float:
    r"""$c_\varphi = 1/\mathbb{E}[\varphi(\xi)^2]$, cached for the passes of networks."""
    return float(1 / moments(phi, 1.0).square)
