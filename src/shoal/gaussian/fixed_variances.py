r"""Duals of pairs whose variances stay while covariances move, as in solving for a fixed point.

By Mehler's formula both duals are polynomials in the correlation,
$D_\varphi = \sum_n p_n \rho^n$ and, by Price's theorem, $D_{\varphi'} = \sum_n n p_n \rho^{n-1} /
\sqrt{ab}$, whose coefficients $p_n = c_n(\sqrt a)\,c_n(\sqrt b)$ are formed once. Where each
pair of variances has many covariances, series in the angle are shorter (see
:mod:`shoal.gaussian.angular_series`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import breaks, reach
from shoal.gaussian.angular_series import AngularSeries
from shoal.gaussian.closed_forms import closed_form
from shoal.gaussian.dual import dual, dual_derivative
from shoal.gaussian.mehler import CANCELED, ORDERS, octave_expansion, parseval_rest
from shoal.gaussian.moments import slope_square

_LONGEST = 64  # variances whose longest sums are kept
_MOST_PAIRS, _MOST_VARIANCES = 1 << 16, 1 << 12  # whose coefficients are kept
_ERROR = 1e-13  # bound of what is left out, relative to the root of both mean squares
_ODD = 1e-28  # the share of an even part that is rounding
_MANY = 32  # one pair out of so many that is not known, at most
_NEGLIGIBLE = 1e-16  # the same of terms that are never formed
_BLOCK = 32  # powers that are formed at once, ...
_FEW = 1 << 14  # ... for so many correlations at most
_GRID = 1 << 10  # covariances that pay for series in the angle, ...
_ROW = 8  # ... if each pair has at least so many
_INSETS = (0.8, 0.2, 0.0)  # of the angles that they know; the last where there are no kinks
_NEARER = 1.2  # angles may be so much smaller at the next step


class FixedVariances:
    """An activation at pairs of some variances.

    Args:
        phi: The activation.
        variances: All different ones. shape: (v,)
        places: Which of them both sides of each pair have; sizes of one stand for as many equal
            ones as there are covariances. shape: (2, ...)
        angular: Whether series in the angle may serve.
    """

    def __init__(
        self, phi: Activation, variances: Tensor, places: Tensor, *, angular: bool = True
    ) -> None:
        self.phi, self.variances, self.places = phi, variances, places
        few = places[0].numel() <= _MOST_PAIRS and len(variances) <= _MOST_VARIANCES
        jumps = any(kink.jumps[0] for kink in phi.kinks)
        self._expandable = few and not jumps and closed_form(phi) is None
        self._analytic = not breaks(phi, reach(phi))
        self._angular = angular and self._expandable
        self._in_angle: AngularSeries | None = None
        self._levels: Tensor | None = None  # of the orders that rows of pairs need
        self._kept: dict[int, tuple[Tensor, _Polynomials | None]] = {}
        self._last: tuple[Tensor, Tensor, Callable[[], Tensor]] | None = None  # a solver's result

    def __call__(self, covariance: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """The dual at some covariances, and what computes that of the derivative."""
        if self._last is None or not torch.equal(self._last[0], covariance):
            self._last = covariance, *self._at(covariance)
        return self._last[1:]

    def _at(self, covariance: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        places = self.places
        if places.shape[-1] > 1 or places.ndim < covariance.ndim + 1:
            places = places.expand(2, *covariance.shape)[..., None]
        places = places.expand(2, *covariance.shape[: places.ndim - 2], 1).reshape(2, -1, 1)
        c = covariance.reshape(places.shape[1], -1)
        duals, known = self._short_sums(places[..., 0], c) or self._sums(places, c)
        value, slope = duals.view(2, *covariance.shape)
        rest = ~known
        if not bool(rest.any()):
            return value, lambda: slope
        if self._analytic and int(rest.sum()) * _MANY > rest.numel():
            self._expandable = False  # variances are so large that tables for all pairs pay
            rest = torch.ones_like(rest)
        triple = *(self.variances[places].expand(2, *c.shape)[:, rest]), c[rest]
        rest = rest.view_as(covariance)
        value[rest] = dual(self.phi, *triple)
        return value, lambda: slope.masked_scatter(rest, dual_derivative(self.phi, *triple))

    def _short_sums(self, places: Tensor, c: Tensor) -> tuple[Tensor, Tensor] | None:
        """Both duals, (2, *c.shape), and where they are known, by series in the angle."""
        if not self._angular or c.numel() < _GRID or c.shape[1] < _ROW:
            return None
        if self._in_angle is None:
            insets = _INSETS if self._analytic else _INSETS[:-1]
            roots = self.variances[places].prod(0).sqrt()[:, None]
            nearest = math.acos(min(float((c / roots).abs().max()), 1.0))
            inset = next((k for k in insets if _NEARER * k <= nearest), insets[-1])
            self._in_angle = AngularSeries.of(self.phi, self.variances, places, inset, _exact_duals)
        found = None if self._in_angle is None else self._in_angle(c)
        self._angular = found is not None and int((~found[1]).sum()) * _MANY <= c.numel()
        return found if self._angular else None

    def _sums(self, places: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The same by sums of Hermite coefficients."""
        duals, known = c.new_empty(2, *c.shape), torch.zeros_like(c, dtype=torch.bool)
        if self._levels is None or len(self._levels) != len(c):
            self._levels = torch.zeros(len(c), dtype=torch.long, device=c.device)
        for level, order in enumerate(ORDERS if self._expandable else ()):
            # one of kinks may be known at some correlations of a row only
            rows = self._levels == level if self._analytic else ~known.all(1)
            polynomials = self._polynomials(order, places, rows) if bool(rows.any()) else None
            if polynomials is None:
                continue
            duals[:, rows], known[rows], short = polynomials(c[rows])
            if level + 1 < len(ORDERS):
                self._levels[rows] += short.long()
        return duals, known

    def _polynomials(self, order: int, places: Tensor, rows: Tensor) -> "_Polynomials | None":
        """Polynomials of some rows of pairs, kept as long as the same rows are asked for."""
        kept = self._kept.get(order)
        if kept is None or not torch.equal(kept[0], rows):
            made = _Polynomials.of(self.phi, order, self.variances, places[:, rows])
            kept = self._kept[order] = rows, made
        return kept[1]


def _exact_duals(phi: Activation, variances: Tensor, places: Tensor, c: Tensor) -> Tensor:
    """Both duals without series in the angle. shape: (2, *c.shape)."""
    value, slope = FixedVariances(phi, variances, places[..., None], angular=False)(c)
    return torch.stack([value, slope()])


@dataclass(frozen=True, eq=False)
class _Polynomials:
    """Polynomials in the correlation.

    Attributes:
        coefficients: Of increasing degree; of odd degrees only, if the activation is odd.
            shape: (terms, n, 1)
        odd: Whether it is.
        order: Of the last coefficient that is known; beyond the degree they are nothing.
        root: The roots of both variances.
        sizes: The roots of the mean squares of the activation, and of its derivative.
        rests: Shares of these that are left out at a correlation of one.
    """

    coefficients: Tensor
    odd: bool
    order: int
    root: Tensor
    sizes: Tensor
    rests: Tensor

    @classmethod
    def of(
        cls, phi: Activation, order: int, variances: Tensor, places: Tensor
    ) -> "_Polynomials | None":
        """The sums of some pairs; ``None`` if the coefficients are not known as series."""
        used, places = places.unique(return_inverse=True)
        if order == ORDERS[-1] and len(used) > _LONGEST:
            return None  # such sums are left to single pairs
        variances = variances[used]
        expansion = octave_expansion(phi, 0, order, variances)
        if expansion is None:
            return None
        c, squares = expansion[0], torch.stack([expansion[1], slope_square(phi, variances)])
        terms, n = c.square(), torch.arange(order + 1, dtype=c.dtype, device=c.device)
        sums = torch.stack([terms.sum(1), terms @ n / variances])
        rest = parseval_rest(squares, sums)
        beyond = (terms * n).flip(1).cumsum(1).flip(1)
        size = max(2, int((beyond > _NEGLIGIBLE * beyond[:, :1]).any(0).sum()))
        i, j = places[..., 0]
        odd = float(terms[:, ::2].sum()) <= _ODD * float(terms.sum())
        c = c[:, 1:size:2] if odd else c[:, :size]
        products = (c[i] * c[j]).T.contiguous()[..., None]
        others = [(v[..., i] * v[..., j]).sqrt()[..., None] for v in (variances, squares, rest)]
        return cls(products, odd, order, *others)

    def __call__(self, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both duals, of shape (2, n, m), where they are accurate, and which rows are too short."""
        cosine = (covariance / self.root).clamp(-1.0, 1.0)
        duals = self._sums(self.coefficients, cosine)
        duals[1] /= self.root
        known = cosine.abs() ** self.order * self.rests.amax(0) <= _ERROR
        short = ~known.all(1)
        small = (duals.abs() < CANCELED * self.sizes).any(0) & known
        if bool(small.any()):  # by its nature, or since terms have canceled?
            p = self.coefficients.expand(-1, *cosine.shape)[:, small].abs()
            terms = self._sums(p, cosine[small].abs())
            terms[1] /= self.root.expand_as(cosine)[small]
            known[small] = (duals[:, small].abs() >= CANCELED * terms).all(0)
        return duals, known, short

    def _sums(self, coefficients: Tensor, x: Tensor) -> Tensor:
        """The polynomials and their derivatives. shape: (2, ...)."""
        t = x * x if self.odd else x
        long = len(coefficients) > 4 * _BLOCK and x.numel() <= _FEW
        result = (_sums_in_blocks if long else _sums_by_terms)(coefficients, t)
        value, slope = result
        if self.odd:  # x p(x²)
            torch.addcmul(value, slope, t, value=2, out=slope)
            value *= x
        return result


def _sums_by_terms(coefficients: Tensor, x: Tensor) -> Tensor:
    """Polynomials and their derivatives, by Horner's scheme. shape: (2, ...)."""
    result = torch.zeros(2, *x.shape, dtype=x.dtype, device=x.device)
    value, slope = result
    value += coefficients[-1]
    for each in coefficients[:-1].flip(0):
        torch.addcmul(value, slope, x, out=slope)
        torch.addcmul(each, value, x, out=value)
    return result


def _sums_in_blocks(coefficients: Tensor, x: Tensor) -> Tensor:
    """Sums of power series by products with low powers, and Horner's scheme in high ones.

    For long series at few places, where it matters how many operations there are.
    """
    values = coefficients.flatten(1)  # shape: (terms, n)
    terms, count = values.shape
    t = x.reshape(count, -1)
    degree = torch.arange(1, terms, dtype=x.dtype, device=x.device)[:, None]
    slopes = torch.nn.functional.pad(values[1:] * degree, (0, 0, 0, 1))
    both = torch.nn.functional.pad(torch.stack([values, slopes]), (0, 0, 0, -terms % _BLOCK))
    left = both.view(2, -1, _BLOCK, count).permute(3, 1, 0, 2).reshape(count, -1, _BLOCK)
    powers = t[:, None].repeat(1, _BLOCK, 1)
    powers[:, 0] = 1.0
    powers = powers.cumprod(1)
    parts = torch.bmm(left, powers).view(count, -1, 2, t.shape[1])
    total, next_power = parts[:, -1], (powers[:, -1] * t)[:, None]
    for part in parts[:, :-1].flip(1).unbind(1):
        total = torch.addcmul(part, total, next_power)
    return total.transpose(0, 1).reshape(2, *x.shape)
