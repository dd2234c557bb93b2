"""How series of a surface are summed on a GPU: powers or Chebyshev polynomials, and how many.

A sum of powers takes half of the operations, where coefficients do not grow much by it.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.polynomial.chebyshev import cheb2poly
from torch import Tensor

from shoal.core.caches import cached
from shoal.kernels.approximations.surface import Span, Surface, padded
from shoal.kernels.backends.blocks import CUT, first_order

UNROLLED = 4  # steps of the recurrence
_GROWTH = 4.0  # of the coefficients, up to which series are summed as powers


class SeriesForm(NamedTuple):
    """How series of a surface are summed on a GPU.

    Attributes:
        of_angle: Whether they are in the angle; otherwise they are in the cosine.
        powers: Whether they are sums of powers; otherwise they are Chebyshev series.
        ends: The middle of the range of that variable, 2 / width, and the least and the largest
            cosine that the surface knows.
        falling: What Chebyshev coefficients contribute to those that are summed, the highest terms
            first, for each function of a column's norm. shape: (rank, terms, terms)
        groups: How many of the terms matter for each of these functions, in fours.
        terms: How many there are.
    """

    of_angle: bool
    powers: bool
    ends: Tensor
    falling: Tensor
    groups: Tensor
    terms: int


@cached
def values_form(
    surface: Surface, dtype: torch.dtype, device: torch.device
) -> tuple[SeriesForm, Tensor]:
    """The form of both kernels that is cheapest, and what functions of a row's norm contribute.

    The latter are coefficients of both kernels in turn. shape: (rank, rank * terms * 2)
    """
    cut = CUT[dtype] if surface.rank > 1 else CUT[dtype] / 10  # series of one norm are better
    core, (low, high) = surface.in_cosines(cut), surface.angles
    if core is None:
        core = surface.coefficients
        form = _form(surface, core, cut, surface.angles)
    else:
        form = _form(surface, core, cut, (math.cos(high), math.cos(low)))
    series = torch.einsum("qrsk,skp->rspq", padded(core, form.terms), form.falling)
    return _on_device(form, dtype, device), series.flatten(1).to(dtype).contiguous().to(device)


@cached
def slopes_form(surface: Surface, dtype: torch.dtype, device: torch.device) -> SeriesForm:
    """The form of both kernels and their derivatives, as series in the angle."""
    core = first_order(surface).flatten(0, 1)
    cut = CUT[dtype] * max(1.0, float(core.abs().max()))
    return _on_device(_form(surface, core, cut, surface.angles), dtype, device)


def _form(surface: Surface, core: Tensor, cut: float, span: Span) -> SeriesForm:
    """The form of series in the angle or the cosine. shape: (several, rank, rank, terms)."""
    most = surface.basis.abs().sum(1)  # of the functions of a norm
    size = torch.einsum("r,qrsk,s->sqk", most, core.abs(), most).amax(1)
    needed = (size.flip(1).cumsum(1).flip(1) > cut / 2 / surface.rank).sum(1)
    groups = (needed + UNROLLED - 1) // UNROLLED
    terms = UNROLLED * max(1, int(groups.max()))  # a kernel may be zero
    used = torch.arange(terms) < UNROLLED * groups[:, None]
    polynomials = [np.pad(p, (0, terms - len(p))) for p in map(cheb2poly, np.eye(terms))]
    basis, known = torch.from_numpy(np.stack(polynomials)), padded(core, terms) * used
    powers = bool((known @ basis).abs().sum() <= _GROWTH * known.abs().sum())
    if not powers:
        basis = torch.eye(terms, dtype=torch.float64)
    ends = [sum(span) / 2, 2 / (span[1] - span[0]), *surface.cosines]
    falling = basis.flip(1) * used[..., None]
    numbers = torch.tensor(ends, dtype=torch.float64)
    return SeriesForm(span == surface.angles, powers, numbers, falling, groups.int(), terms)


def _on_device(form: SeriesForm, dtype: torch.dtype, device: torch.device) -> SeriesForm:
    """The same in a dtype of a device."""
    return form._replace(
        ends=form.ends.to(device, dtype),
        falling=form.falling.to(device, dtype),
        groups=form.groups.to(device),
    )
