"""Moments of an activation and its derivatives under a Gaussian."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.core.caches import cached
from shoal.core.settings import in_standard_settings
from shoal.gaussian.closed_forms import closed_form
from shoal.gaussian.domain import scale_tensor
from shoal.gaussian.octaves import at_octaves, octave_series, stacked
from shoal.gaussian.smoothing import Derivative, Square, smoothed
from shoal.numerics import differentiate


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
    if not phi.positively_homogeneous:
        return _mean_square_at(phi, variance)
    slope = (_sides(phi, variance) ** 2).sum() / 2
    return slope * variance, slope.expand_as(variance)


def _sides(phi: Activation, like: Tensor) -> Tensor:
    r"""$\varphi(1)$ and $\varphi(-1)$: all that there is of a positively homogeneous activation.

    Its moments are exact to the last bit, which equations near the edge of existence amplify.
    """
    return phi(torch.tensor([1.0, -1.0], dtype=torch.float64, device=like.device)).to(like)


def _mean_square_at(phi: Activation, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Both, by series where there are some, or by quadrature."""
    if not (variance.requires_grad and torch.is_grad_enabled()):
        both = at_octaves(
            partial(_square_stack, phi),
            lambda few: torch.stack(_integrated_squares(phi, few), -1),
            variance.reshape(-1),
        )
        if both is not None:
            return both[:, 0].view(variance.shape), both[:, 1].view(variance.shape)
    return _integrated_squares(phi, variance)


def _integrated_squares(phi: Activation, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Both by quadrature, apart: whoever needs gradients of one does not pay for the other's."""
    square, zero = Square(phi), torch.zeros_like(variance)
    return smoothed(square, zero, variance), smoothed(square, zero, variance, order=2) / 2


@cached
def _square_stack(phi: Activation, octaves: tuple[int, ...]) -> Tensor | None:
    """Both in one series, as solving for a variance asks for them again and again."""
    return stacked(partial(_square_series, phi), octaves)


@cached
def _square_series(phi: Activation, exponent: int) -> Tensor | None:
    """Both on one octave; the integral of the derivative cancels where an activation saturates."""
    values = octave_series(partial(_square, phi), torch.abs, exponent)
    if values is None:
        return None
    slopes = differentiate(values, 1) * 2.0 ** (2 - exponent)
    return torch.stack([values, torch.nn.functional.pad(slopes, (0, 1))], -1)


def _square(phi: Activation, variance: Tensor) -> Tensor:
    """The mean square, in closed form if there is one."""
    closed = closed_form(phi)
    if closed is not None:
        return closed.dual(variance, variance, variance)
    return smoothed(Square(phi), torch.zeros_like(variance), variance)


def slope_square(phi: Activation, variance: Tensor) -> Tensor:
    r"""$\mathbb{E}[\varphi'(\sqrt a\,\xi)^2]$, unchecked; infinite if $\varphi$ jumps."""
    if any(kink.jumps[0] for kink in phi.kinks):
        return torch.zeros_like(variance) + math.inf
    return derivative_square(phi, 1, variance)


def derivative_square(phi: Activation, order: int, variance: Tensor) -> Tensor:
    r"""$\mathbb{E}[\varphi^{(k)}(\sqrt a\,\xi)^2]$ of the smooth pieces, unchecked."""
    square = Square(Derivative(phi, order) if order else phi)
    return smoothed(square, torch.zeros_like(variance), variance)


@cached
@in_standard_settings
def normalization(phi: Activation) -> float:
    r"""$c_\varphi = 1/\mathbb{E}[\varphi(\xi)^2]$, kept, as each pass of a network wants it."""
    return float(1 / moments(phi, 1.0).square)
