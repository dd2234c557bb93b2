r"""Duals at few variances and many covariances: one series in the angle per pair of variances.

The nodes of an approximation in norms and angles are such points, and solving an equation there
asks for the same variances again and again, with other covariances.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.approximation import chebyshev_nodes, coefficients_from_values
from shoal.exceptions import AccuracyError
from shoal.gaussian.composites import Derivative, Square
from shoal.gaussian.domain import Covariance, correlation
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.polar import resolving_rule
from shoal.gaussian.smoothing import smoothed

__all__ = ["CUTS", "Sections", "part_of"]

CUTS = (0.0, 0.25, math.pi - 0.25, math.pi)  # of the angle: at large variances its ends are rough
_MARGIN = 1e-6  # the angle of a point may be rounded to the other side of a cut
_MOST_VARIANCES = 72
_MOST_POINTS = 1 << 21
_DEGREES = (16, 32, 64, 128, 256)
_CHECKS = 12  # points at which sections are compared with the other quadrature


@dataclass(frozen=True, eq=False)
class Sections:
    """$D_{jj}$ at all pairs of some variances, as series in the angle."""

    variances: Tensor  # ascending
    parts: dict[int, Tensor]  # coefficients by part of the angle. shapes: (degree + 1, pairs)

    @classmethod
    def of(cls, phi: Activation, j: int, pair: Covariance, tolerance: float) -> "Sections | None":
        """Those for some covariances; ``None`` if there are too many variances or it fails."""
        if math.prod(pair.shape) > _MOST_POINTS:
            return None
        distinct = torch.cat([_collapsed(pair.a), _collapsed(pair.b)]).double().unique()
        if len(distinct) > _MOST_VARIANCES or float(distinct[0]) < 2.0**-22:
            return None
        if float(distinct[-1]) > 2.0**26:
            return None
        a, b, c = pair[()]
        needed = part_of(a, b, c).unique().tolist()
        values = tuple(distinct.tolist())
        made = {part: _series(phi, j, values, part, tolerance) for part in needed}
        kept = {part: series for part, series in made.items() if series is not None}
        if len(kept) < len(made):
            return None
        return cls(distinct, {part: series.to(a.device) for part, series in kept.items()})

    def __call__(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Evaluate at vectors of covariances."""
        a, b = torch.maximum(a, b), torch.minimum(a, b)  # so that the result is symmetric
        i, j = (torch.searchsorted(self.variances, t) for t in (a, b))
        number, part = i * len(self.variances) + j, part_of(a, b, c)
        cosine, sine = correlation(a, b, c)
        angle, result = torch.atan2(sine, cosine), torch.empty_like(a)
        for p, coefficients in self.parts.items():
            inside = part == p
            if bool(inside.any()):
                low, high = _span(p)
                x = angle[inside]
                t = (((x - low) - (high - x)) / (high - low)).clamp(-1.0, 1.0)
                result[inside] = _clenshaw(coefficients, number[inside], t)
        return result


def part_of(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The part of the angle, 0, 1 or 2, of each pair."""
    bound = math.cos(CUTS[1]) * a.sqrt() * b.sqrt()
    return 1 - (c > bound).long() + (c < -bound).long()


def _span(part: int) -> tuple[float, float]:
    return max(0.0, CUTS[part] - _MARGIN), min(math.pi, CUTS[part + 1] + _MARGIN)


def _collapsed(tensor: Tensor) -> Tensor:
    """The values of an expanded tensor, each once per place it is stored at."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor.detach().reshape(-1)


def _clenshaw(coefficients: Tensor, number: Tensor, t: Tensor) -> Tensor:
    """The series of each point's own pair."""
    twice, first, second = 2 * t, torch.zeros_like(t), torch.zeros_like(t)
    for row in coefficients[1:].flip(0):
        first, second = twice * first + (row[number] - second), first
    return t * first + (coefficients[0][number] - second)


@lru_cache(maxsize=64)
def _series(
    phi: Activation, j: int, variances: tuple[float, ...], part: int, tolerance: float
) -> Tensor | None:
    """The coefficients on one part of the angle; ``None`` if they are not accurate."""
    v = torch.tensor(variances, dtype=torch.float64)
    square = Square(Derivative(phi, j) if j else phi)
    try:
        norm = smoothed(square, torch.zeros_like(v), v).sqrt()
        rule = resolving_rule(phi, j, j, variances[-1], variances[-1], tolerance / 32)
    except AccuracyError:
        return None
    size = torch.outer(norm, norm)[..., None]
    if not bool((size > 0).all()):
        return None
    span, values = _span(part), None
    for degree in _DEGREES:
        nodes = chebyshev_nodes(degree, *span)
        if values is None:
            values = rule.square_grid(phi, j, v, nodes) / size
        else:
            finer = values.new_empty(len(v), len(v), degree + 1)
            finer[..., ::2] = values
            finer[..., 1::2] = rule.square_grid(phi, j, v, nodes[1::2]) / size
            values = finer
        coefficients = coefficients_from_values(values)
        tail = coefficients[..., 3 * degree // 4 :].abs().sum(-1)
        if float(tail.max()) <= tolerance / 4:
            series = (coefficients * size).flatten(0, 1).T.contiguous()
            return series if _agrees(phi, j, v, norm, span, series, tolerance) else None
    return None


def _agrees(
    phi: Activation,
    j: int,
    v: Tensor,
    norm: Tensor,
    span: tuple[float, float],
    series: Tensor,
    tolerance: float,
) -> bool:
    """Whether the series agree with the other quadrature at points off their nodes."""
    generator = torch.Generator().manual_seed(0)
    i, k = (torch.randint(len(v), (_CHECKS,), generator=generator) for _ in range(2))
    t = 2 * torch.rand(_CHECKS, dtype=torch.float64, generator=generator) - 1
    angle = (span[0] + span[1]) / 2 + t * (span[1] - span[0]) / 2
    exact = mixed_dual(phi, j, j, v[i], v[k], angle.cos() * (v[i] * v[k]).sqrt())
    found = _clenshaw(series, i * len(v) + k, t)
    return float(((found - exact).abs() / (norm[i] * norm[k])).max()) <= tolerance
