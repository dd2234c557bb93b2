r"""Chebyshev series of one variable, and the one way to find them with a stated error.

A series of degree $n$ is $p(t) = \sum_{k=0}^{n} c_k T_k(t)$ on $[-1, 1]$. It is sampled at the
nodes of the *second kind*, the $n + 1$ extrema of $T_n$. They are nested, so that doubling the
degree keeps all values that are known, and they hold the two ends, where kernels are needed most
(equal inputs).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError

Span: TypeAlias = tuple[float, float]

_BLOCK = 2**21  # numbers of a basis that are formed together
_FLAT = 0.8  # ratio of dyadic sums of coefficients from which on they count as not decaying
_EPSILON = torch.finfo(torch.float64).eps
_IRRATIONALS = (math.sqrt(5) / 2 - 0.5, math.sqrt(2) - 1)


def chebyshev_nodes(degree: int, low: float = -1.0, high: float = 1.0) -> Tensor:
    """The ``degree + 1`` extrema of the Chebyshev polynomial, ascending, on an interval.

    The sine form of the cosines makes them symmetric about the middle to the last bit, and both
    ends exact. Degree 0 gives the middle.

    Example:
        >>> chebyshev_nodes(2, 0.0, 4.0)
        tensor([0., 2., 4.], dtype=torch.float64)
    """
    steps = torch.arange(-degree, degree + 1, 2, dtype=torch.float64)
    t = torch.sin(steps * (math.pi / (2 * max(degree, 1))))
    return (low * (1 - t) + high * (1 + t)) / 2


def off_grid(spans: Sequence[Span], count: int) -> list[Tensor]:
    """Ascending quasi-random points of each of one or two spans, denser near the ends."""
    steps = torch.arange(count, dtype=torch.float64) + 0.5
    points = []
    for (low, high), irrational in zip(spans, _IRRATIONALS, strict=False):
        t = torch.cos(math.pi * (steps * irrational).frac()).sort().values
        points.append((low * (1 - t) + high * (1 + t)) / 2)
    return points


def coefficients_from_values(values: Tensor, dim: int = -1) -> Tensor:
    """The Chebyshev coefficients of the interpolant of ``values`` at the nodes of ``dim``.

    Example:
        >>> coefficients_from_values(chebyshev_nodes(4) ** 2).abs() > 1e-9
        tensor([ True, False,  True, False, False])
    """
    degree = values.shape[dim] - 1
    if degree == 0:
        return values.clone()
    sums = _cosine_sums(values.movedim(dim, -1).flip(-1)) / degree
    sums[..., [0, -1]] /= 2
    return sums.movedim(-1, dim)


def _cosine_sums(a: Tensor) -> Tensor:
    """a_0 + (-1)^j a_n + 2 Σ a_k cos(π j k / n), j = 0..n, of the last dimension."""
    even = torch.cat([a, a[..., 1:-1].flip(-1)], dim=-1)
    sums: Tensor = torch.fft.rfft(even).real
    return sums.contiguous()


def chebyshev_basis(t: Tensor, degree: int) -> Tensor:
    """The values of all basis polynomials up to ``degree`` at points of [-1, 1], one in each row.

    The three-term recurrence is chosen over formulas that double the degree, which take fewer
    steps and lose up to a hundred times more digits inside the interval.

    Example:
        >>> chebyshev_basis(torch.tensor([0.5], dtype=torch.float64), 2).squeeze()
        tensor([ 1.0000,  0.5000, -0.5000], dtype=torch.float64)
    """
    rows = t.new_empty(degree + 1, t.shape[0])
    rows[0] = 1.0
    if degree > 0:
        rows[1] = t
    twice = 2 * t
    for k in range(1, degree):
        torch.mul(twice, rows[k], out=rows[k + 1])
        rows[k + 1].sub_(rows[k - 1])
    return rows


def differentiate(coefficients: Tensor, dim: int = -1) -> Tensor:
    """The coefficients of the derivative in t, of one degree less (degree 0 stays zero).

    Example:
        >>> differentiate(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))  # T_2' = 4 T_1
        tensor([0., 4.], dtype=torch.float64)
    """
    degree = coefficients.shape[dim] - 1
    if degree == 0:
        return torch.zeros_like(coefficients)
    column = torch.arange(degree + 1, dtype=coefficients.dtype, device=coefficients.device)
    gap = column[None, :] - column[:-1, None]  # shape: (degree, degree + 1)
    # T_p' = 2 p (T_{p-1} + T_{p-3} + ...), the term of T_0 counted half.
    matrix = torch.where((gap > 0) & (gap % 2 == 1), 2 * column, 0.0)
    matrix[0] /= 2
    product: Tensor = torch.tensordot(matrix, coefficients, dims=([1], [dim]))
    return product.movedim(0, dim)


def supremum(coefficients: Tensor) -> float:
    r"""An upper bound of the largest $|p|$ of some series, too large by $\sqrt 2$ at most.

    A polynomial of degree n is bounded by its largest value at the nodes of degree N over
    $\cos(\pi n / 2N)$ (Ehlich and Zeller, Math. Z. 86, 1964), here with N = 2n.

    Example:
        >>> supremum(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)) / 2**0.5  # 1 + T_2 <= 2
        2.0
    """
    degree = coefficients.shape[-1] - 1
    if degree == 0:
        return float(coefficients.abs().max())
    padded = torch.nn.functional.pad(coefficients, (0, degree))
    padded[..., 1:-1] /= 2
    return math.sqrt(2) * float(_cosine_sums(padded).abs().max())


@dataclass(frozen=True, eq=False)
class Chebyshev:
    """A function of one variable, or several, as Chebyshev series with a bound of their error.

    Attributes:
        span: Both ends of the interval.
        coefficients: In float64. shape: (..., degree + 1)
        error: Bound of the distance to the functions that the series stand for.

    Example:
        >>> square = Chebyshev((0.0, 2.0), torch.tensor([1.5, 2.0, 0.5], dtype=torch.float64))
        >>> square(torch.tensor([0.5, 2.0], dtype=torch.float64))
        tensor([0.2500, 4.0000], dtype=torch.float64)
    """

    span: Span
    coefficients: Tensor
    error: float = 0.0

    @property
    def degree(self) -> int:
        """The degree of all series."""
        return self.coefficients.shape[-1] - 1

    def __call__(self, x: Tensor) -> Tensor:
        """Values in float64, block by block, of shape ``(..., *x.shape)``."""
        low, high = self.span
        parts, coefficients = [], self.coefficients.to(x.device)
        for some in x.detach().double().reshape(-1).split(max(1, _BLOCK // (self.degree + 1))):
            # exact near both ends, where a series of high degree is most sensitive
            t = ((some - low) - (high - some)).div_(high - low).clamp_(-1.0, 1.0)
            parts.append(coefficients @ chebyshev_basis(t, self.degree))
        return torch.cat(parts, -1).view((*self.coefficients.shape[:-1], *x.shape))


@torch.no_grad()
def fit(
    function: Callable[[Tensor], Tensor],
    span: Span,
    *,
    tolerance: float,
    max_degree: int = 1024,
    first_degree: int = 8,
    check_points: int = 128,
) -> Chebyshev:
    """Chebyshev series within ``tolerance`` of smooth functions on a closed interval.

    The degree is doubled until the coefficients are negligible. The stated error is the sum of
    the coefficients that were left out, an extrapolation of all later ones, the largest residual
    at points off the grid, and rounding. A peak far narrower than the distance of all these points
    cannot be caught. Several functions have the degree that the worst of them needs.

    Args:
        function: Maps nodes of shape (n,) to values of shape (..., n), in float64.
        span: Both ends of the interval.
        tolerance: Largest error, absolute.
        max_degree: Largest degree that is tried.
        first_degree: Smallest degree; larger where many points cost little more than few.
        check_points: Number of points off the grid; none if the result is verified elsewhere.

    Raises:
        AccuracyError: If the tolerance cannot be met.

    Example:
        >>> both = fit(lambda x: torch.stack([x.sin(), x.cos()]), (0.0, 1.0), tolerance=1e-10)
        >>> both.coefficients.shape, both.error < 1e-10
        (torch.Size([2, 10]), True)
    """
    off = off_grid((span,), check_points)[0]
    exact = function(off) if check_points else None
    degree, share = min(first_degree, max_degree), tolerance / 8
    values = function(chebyshev_nodes(degree, *span))
    while True:
        coefficients = coefficients_from_values(values)
        # the largest coefficients of all series, by degree
        profile = coefficients.abs().reshape(-1, coefficients.shape[-1]).amax(0)
        noise = 2 * _EPSILON * float(values.abs().max())
        unseen, last = _unseen(profile), 2 * degree > max_degree
        lost = float(profile[degree // 2 + 1 :].mean()) < noise  # the last ones are rounding
        if unseen <= share or lost or last:
            tails = profile.where(profile > noise, 0.0).flip(0).cumsum(0)
            kept = max(1, int((tails > share).sum()))
            series = Chebyshev(span, coefficients[..., :kept].clone())
            dropped = coefficients.clone()
            dropped[..., :kept] = 0.0
            residual = 0.0 if exact is None else float((exact - series(off)).abs().max())
            rounding = _rounding(series)
            error = unseen + supremum(dropped) + residual + rounding
            if error <= tolerance:
                return Chebyshev(span, series.coefficients, error)
            lost = (lost and unseen > share) or 4 * rounding > error
            if lost or last:
                reason = "rounding errors leave no more digits" if lost else "it is too rough"
                raise AccuracyError(
                    f"a function on [{span[0]:g}, {span[1]:g}] is met to {error:.2g} by series of "
                    f"degree {degree}, not to {tolerance:.2g}: {reason}"
                )
        between = function(chebyshev_nodes(2 * degree, *span)[1::2])
        joined = values.new_empty(*values.shape[:-1], 2 * degree + 1)
        joined[..., ::2], joined[..., 1::2] = values, between
        values, degree = joined, 2 * degree


def _unseen(profile: Tensor) -> float:
    """An estimate of the interpolation error, from how the coefficients die away.

    Sums over dyadic blocks, which even and odd functions cannot fool, fall by a constant ratio if
    the coefficients decay algebraically: the geometric series of that ratio is what lies beyond.
    For geometric decay it is an overestimate. Aliasing takes from the last block of a slow decay,
    so there the ratio before counts too, and the result is doubled. An interpolant errs by at most
    twice what lies beyond its degree.
    """
    n = len(profile) - 1
    first, second, last = (float(profile[n // k + 1 : 2 * n // k + 1].sum()) for k in (8, 4, 2))
    recent, before = _ratio(last, second), _ratio(second, first)
    steep = 2 * recent < before
    ratio, safety = (recent, 1) if steep else (max(recent, before), 2)
    return 2 * (safety * last * ratio / (1 - ratio) + float(profile[-2:].sum()))


def _ratio(last: float, before: float) -> float:
    """The ratio of two sums, at most the ratio of a flat decay."""
    return last / before if last < _FLAT * before else _FLAT


def _rounding(series: Chebyshev) -> float:
    r"""A bound of the rounding errors of an evaluation, in practice.

    Some units in the last place of every term, and of the scaled point through the slope:
    $4 \epsilon (\sum |c| + \max |p'|)$.
    """
    sizes = series.coefficients.abs().sum(-1)
    return 4 * _EPSILON * (float(sizes.max()) + supremum(differentiate(series.coefficients)))
