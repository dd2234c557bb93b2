r"""Duals by Mehler's formula, $D_{jk} = \sum_n c_n(\sqrt a)\,d_n(\sqrt b)\,\rho^n$.

The Hermite coefficients $c$ of $\varphi^{(j)}$ and $d$ of $\varphi^{(k)}$ belong to one variance
each, so that pairs cost a short sum. By Cauchy and Schwarz, what a sum up to $N$ leaves out is at
most $|\rho|^{N+1}$ times the root of both rests of Parseval's sums: a bound at each pair. Sums
whose terms cancel are not taken: they would lose the digits of values far below mean squares.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.closed_forms.correlation import correlation
from shoal.activations.panels import jump
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.gaussian.hermite import expansion, smooth
from shoal.gaussian.octaves import at_octaves, octave_series, stacked
from shoal.gaussian.quadrature import DELTA_WINDOW, nearby_breaks

ORDERS = (63, 255, 1023, 4095)  # of the last coefficient, tried in turn
_ERROR = 1e-14  # bound of what is left out, relative to the root of both mean squares
_ROUNDING = 4e-16  # of Parseval's sum, relative
CANCELED = 1e-3  # a sum below this times that of its terms' absolute values is left to integrals
_MOST_VARIANCES = 1024  # beyond, tables are cheaper
_DENSE = 9  # variances of an octave from which on its series of the longest sums pays
_BLOCK = 1 << 20  # products that are formed at a time


@dataclass(frozen=True, eq=False)
class Mehler:
    """$D_{jk}$ of some variances.

    Attributes:
        phi: The activation, whose derivatives do not jump below the orders.
        orders: $j$ and $k$.
        variances: Ascending.
    """

    phi: Activation
    orders: tuple[int, int]
    variances: Tensor

    @classmethod
    def of(cls, phi: Activation, j: int, k: int, a: Tensor, b: Tensor) -> "Mehler | None":
        """The sum for some variances; ``None`` if they are too many, or derivatives jump."""
        variances = torch.cat([_collapsed(a), _collapsed(b)]).double().unique()
        if len(variances) > _MOST_VARIANCES:
            return None
        places = nearby_breaks(phi, DELTA_WINDOW * float(variances[-1].sqrt()))
        if any(jump(phi, x, n) for x in places for n in range(max(j, k))):
            return None
        return cls(phi, (j, k), variances)

    def __call__(self, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The sums at vectors of covariances, and at which of them they are accurate."""
        result, known = torch.zeros_like(a), torch.zeros_like(a, dtype=torch.bool)
        rest = torch.arange(len(a), device=a.device)  # pairs that want more coefficients
        i, j = (torch.searchsorted(self.variances, t) for t in (a, b))
        cosine = correlation(a, b, c)[0]
        for order in ORDERS:
            if not len(rest):
                break
            needed = torch.cat([i[rest], j[rest]]).unique()
            try:
                variances = self.variances[needed]
                left, right = (expanded(self.phi, n, variances, order) for n in self.orders)
            except AccuracyError:  # it grows too fast to be integrated
                break
            rows, columns = (torch.searchsorted(needed, t[rest]) for t in (i, j))
            share = cosine[rest].abs() ** (order + 1)
            inside = share * left.rest[rows] * right.rest[columns] <= _ERROR
            some, c_n, d_n = rest[inside], left.coefficients, right.coefficients
            sums, sizes = _sums(c_n, d_n, rows[inside], columns[inside], cosine[some])
            result[some], known[some] = sums, sums.abs() >= CANCELED * sizes
            rest = rest[~inside]
        return result, known


@dataclass(frozen=True, eq=False)
class _Expansion:
    """Hermite coefficients at some scales.

    Attributes:
        coefficients: Up to some order. shape: (scales, order + 1)
        rest: The root of the share of the mean square that they leave out. shape: (scales,)
    """

    coefficients: Tensor
    rest: Tensor


def expanded(phi: Activation, derivative: int, variances: Tensor, order: int) -> _Expansion:
    """Hermite coefficients of a derivative at some variances, up to an order."""
    stds = tuple(variances.sqrt().tolist())
    return _expansion(phi, derivative, stds, order, variances.device)


def octave_expansion(
    phi: Activation, derivative: int, order: int, variance: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Hermite coefficients of a derivative, and mean squares; ``None`` if they are no series.

    Returns:
        Tensors of shapes (variances, order + 1) and (variances,).
    """
    if order == ORDERS[-1]:
        if not smooth(phi, DELTA_WINDOW * math.sqrt(float(variance.max()))):
            return None  # too long
        if len(variance) < _DENSE * len(torch.frexp(variance)[1].unique()):
            return expansion(phi, variance.sqrt(), order, derivative=derivative)
    of = (phi, derivative, order)
    found = at_octaves(partial(_stack, *of), partial(_values, *of), variance)
    return None if found is None else (found[:, :-1], found[:, -1])


def _values(phi: Activation, derivative: int, order: int, variance: Tensor) -> Tensor:
    """The coefficients and the mean square. shape: (variances, order + 2)."""
    coefficients, square = expansion(phi, variance.sqrt(), order, derivative=derivative)
    return torch.cat([coefficients, square[:, None]], 1)


@cached
def _series(phi: Activation, derivative: int, order: int, exponent: int) -> Tensor | None:
    """Series of the coefficients and of the mean square on an octave of the variance."""

    def size(found: Tensor) -> Tensor:
        root = found[:, -1:].sqrt()
        return torch.cat([root.expand(-1, order + 1), found[:, -1:]], 1)

    return octave_series(partial(_values, phi, derivative, order), size, exponent)


@cached
def _stack(phi: Activation, derivative: int, order: int, octaves: tuple[int, ...]) -> Tensor | None:
    return stacked(partial(_series, phi, derivative, order), octaves)


@cached
def _expansion(
    phi: Activation, derivative: int, stds: tuple[float, ...], order: int, device: torch.device
) -> _Expansion:
    """Hermite coefficients of a derivative, kept: solvers ask for them again and again."""
    tau = torch.tensor(stds, dtype=torch.float64, device=device)
    found = octave_expansion(phi, derivative, order, tau**2)
    coefficients, square = found or expansion(phi, tau, order, derivative=derivative)
    return _Expansion(coefficients, parseval_rest(square, coefficients.square().sum(1)).sqrt())


def parseval_rest(squares: Tensor, sums: Tensor) -> Tensor:
    """The share of mean squares that sums of squared coefficients leave out."""
    return ((squares - sums) / torch.where(squares > 0, squares, 1.0)).clamp(min=_ROUNDING)


def _sums(c: Tensor, d: Tensor, i: Tensor, j: Tensor, cosine: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of products and powers of the correlations of some pairs, and of their sizes."""
    parts = [cosine.new_empty(2, 0)]
    step = _BLOCK // c.shape[1]
    for rows, columns, rho in zip(*(t.split(step) for t in (i, j, cosine)), strict=True):
        powers = rho[:, None].repeat(1, c.shape[1])
        powers[:, 0] = 1.0
        terms = (c[rows] * d[columns]).mul_(powers.cumprod(1))
        parts.append(torch.stack([terms.sum(1), terms.abs_().sum(1)]))
    sums, sizes = torch.cat(parts, dim=1)
    return sums, sizes


def _collapsed(tensor: Tensor) -> Tensor:
    """The values of an expanded tensor, each once per place it is stored at."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor.detach().reshape(-1)
