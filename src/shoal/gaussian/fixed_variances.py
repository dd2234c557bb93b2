r"""Duals of pairs whose variances stay while covariances move, as in solving for a fixed point.

By Mehler's formula both duals are polynomials in the correlation,
$D_\varphi = \sum_n p_n \rho^n$ and, by Price's theorem, $D_{\varphi'} = \sum_n n p_n \rho^{n-1} /
\sqrt{ab}$, whose coefficients $p_n = c_n(\sqrt a)\,c_n(\sqrt b)$ are formed once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.gaussian.closed_forms import closed_form
from shoal.gaussian.dual import dual, dual_derivative
from shoal.gaussian.mehler import CANCELED, ERROR, ROUNDING, octave_expansion
from shoal.gaussian.moments import slope_square

__all__ = ["FixedVariances"]

_ORDERS = (63, 511)  # of the last coefficient, tried in turn
_MOST_PAIRS, _MOST_VARIANCES = 1 << 16, 1 << 12  # whose coefficients are kept
_NEGLIGIBLE = 1e-19  # share of products that are no terms


@dataclass(frozen=True, eq=False)
class FixedVariances:
    """An activation at pairs of some variances.

    Attributes:
        phi: The activation.
        variances: All different ones. shape: (v,)
        places: Which of them both sides of each pair have. shape: (2, n)
    """

    phi: Activation
    variances: Tensor
    places: Tensor
    _kept: dict[int, tuple[Tensor, "_Polynomials | None"]] = field(default_factory=dict, repr=False)

    def __call__(self, covariance: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """The dual at some covariances, and what computes that of the derivative. shape: (n,)."""
        rest = torch.arange(len(covariance), device=covariance.device)
        value, slope = torch.empty_like(covariance), torch.empty_like(covariance)
        for order in _ORDERS if self._expandable else ():
            polynomials = self._polynomials(order, rest)
            if polynomials is None:
                break
            some, known = polynomials(covariance[rest])
            value[rest], slope[rest] = some
            rest = rest[~known]
            if not len(rest):
                return value, lambda: slope
        triple = *self.variances[self.places[:, rest]], covariance[rest]
        value[rest] = dual(self.phi, *triple)
        return value, lambda: slope.index_copy(0, rest, dual_derivative(self.phi, *triple))

    @cached_property
    def _expandable(self) -> bool:
        few = self.places.shape[1] <= _MOST_PAIRS and len(self.variances) <= _MOST_VARIANCES
        jumps = any(kink.jumps[0] for kink in self.phi.kinks)
        return few and not jumps and closed_form(self.phi) is None

    def _polynomials(self, order: int, which: Tensor) -> "_Polynomials | None":
        """Those of some pairs, kept as long as the same ones are asked for."""
        kept = self._kept.get(order)
        if kept is None or not torch.equal(kept[0], which):
            made = _Polynomials.of(self.phi, order, self.variances, self.places[:, which])
            kept = self._kept[order] = which, made
        return kept[1]


@dataclass(frozen=True, eq=False)
class _Polynomials:
    """Polynomials in the correlation.

    Attributes:
        coefficients: Of increasing degree. shape: (n, degree + 1)
        order: Of the last coefficient that is known; beyond the degree they are nothing.
        root: The roots of both variances. shape: (n,)
        rests: Shares of the mean squares of the activation, and of its derivative, that are left
            out at a correlation of one. shape: (2, n)
    """

    coefficients: Tensor
    order: int
    root: Tensor
    rests: Tensor

    @classmethod
    def of(
        cls, phi: Activation, order: int, variances: Tensor, places: Tensor
    ) -> "_Polynomials | None":
        """Those of some pairs; ``None`` if the coefficients are not known as series."""
        expansion = octave_expansion(phi, 0, order, variances)
        if expansion is None:
            return None
        c, squares = expansion[0], torch.stack([expansion[1], slope_square(phi, variances)])
        terms = c.square()
        sums = torch.stack([terms.sum(1), terms @ _degrees(terms) / variances])
        share = ((squares - sums) / torch.where(squares > 0, squares, 1.0)).clamp(min=ROUNDING)
        beyond = terms.flip(1).cumsum(1).flip(1)
        size = max(2, int((beyond > _NEGLIGIBLE * beyond[:, :1]).any(0).sum()))
        (i, j), c, root, rest = places, c[:, :size].contiguous(), variances.sqrt(), share.sqrt()
        return cls(c[i] * c[j], order, root[i] * root[j], rest[:, i] * rest[:, j])

    def __call__(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Both duals, of shape (2, n), and where they are accurate."""
        p, cosine = self.coefficients, (covariance / self.root).clamp(-1.0, 1.0)
        powers = cosine[:, None].repeat(1, p.shape[1])
        powers[:, 0] = 1.0
        powers = powers.cumprod(1)
        slopes = (p[:, 1:] * powers[:, :-1]).mul_(_degrees(p)[1:])
        terms = p * powers
        duals, sizes = (
            torch.stack([t.sum(1) for t in both])
            for both in ((terms, slopes), (terms.abs(), slopes.abs()))
        )
        left_out = cosine.abs() ** self.order * self.rests
        known = ((left_out <= ERROR) & (duals.abs() >= CANCELED * sizes)).all(0)
        duals[1] /= self.root
        return duals, known


def _degrees(coefficients: Tensor) -> Tensor:
    size, device = coefficients.shape[1], coefficients.device
    return torch.arange(size, dtype=coefficients.dtype, device=device)
