r"""Both duals of an activation at pairs of some variances, for covariances that move.

Solving for a fixed point asks for $D_\varphi$ and $D_{\varphi'}$ at the same variances and at other
covariances in each step. They are closed forms where there are some; otherwise every pair has its
series in the angle, out of a table (:mod:`shoal.gaussian.table`), or is integrated.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.closed_forms import correlation
from shoal.gaussian.broken_lines import broken_line
from shoal.gaussian.closed_forms import closed_form
from shoal.gaussian.dual import dual, dual_derivative
from shoal.gaussian.table import Sections, Table, unit
from shoal.numerics import chebyshev_basis

_FEW = 16  # covariances that are integrated one by one
_BLOCK = 1 << 21  # numbers of series that are formed together ...
_MOST = 1 << 23  # ... and that are kept


class Duals:
    """An activation at pairs of some variances.

    Args:
        phi: The activation.
        variances: All different ones. shape: (v,)
        places: Which of them both sides of each pair have; sizes of one stand for as many equal
            ones as there are covariances. shape: (2, ...)
    """

    def __init__(self, phi: Activation, variances: Tensor, places: Tensor) -> None:
        self.phi, self.variances, self.places = phi, variances, places
        self._kept: dict[tuple[int, int], list[Tensor]] = {}
        self._last: tuple[Tensor, Tensor, Callable[[], Tensor]] | None = None  # a solver's result

    def __call__(self, covariance: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """The dual at some covariances, and what computes that of the derivative."""
        if self._last is None or not torch.equal(self._last[0], covariance):
            table = self._known if covariance.numel() <= _FEW else self._table
            self._last = covariance, *(self._by_series if table else self._exact)(covariance)
        return self._last[1:]

    def _exact(self, covariance: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        triple = *(self.variances[place].expand_as(covariance) for place in self.places), covariance
        line = None if closed_form(self.phi) is not None else broken_line(self.phi)
        if line is None:
            return dual(self.phi, *triple), lambda: dual_derivative(self.phi, *triple)
        both = line.at_covariances(*(t.reshape(-1) for t in triple)).view(2, *covariance.shape)
        return both[0], lambda: both[1]

    @cached_property
    def _sections(self) -> tuple[Sections, ...]:
        assert self._table is not None
        return self._table.sections(self.variances.clamp(min=2.0 ** self._table.span[0]))

    @cached_property
    def _table(self) -> Table | None:
        return self._of(known=False)

    @property
    def _known(self) -> Table | None:
        """A table that is there already: a few pairs are integrated faster than one is made."""
        return self.__dict__.get("_table") or self._of(known=True)

    def _of(self, *, known: bool) -> Table | None:
        if closed_form(self.phi) is not None or broken_line(self.phi) is not None:
            return None
        some = self.variances[self.variances > 0]
        return Table.of(self.phi, ((0, 0), (1, 1)), some, known=known)

    def _by_series(self, covariance: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """Both by the series of every pair, block by block."""
        places = self._places(covariance)
        c = covariance.reshape(places.shape[1], -1)
        found, terms = c.new_empty(2, *c.shape), self._sections[1].rows.shape[-1]
        step = max(1, _BLOCK // (terms * c.shape[1]))
        for first in range(0, len(c), step):
            some = slice(first, first + step)
            found[:, some] = self._block(
                self._series((first, len(c)), places[:, some]), places[:, some], c[some]
            )
        nothing = (self.variances[places] == 0).any(0)
        value, slope = found.view(2, *covariance.shape)
        if not bool(nothing.any()):
            return value, lambda: slope
        where = nothing[:, None].expand_as(c).reshape(covariance.shape)
        triple = (
            *(self.variances[t].broadcast_to(covariance.shape)[where] for t in self.places),
            covariance[where],
        )
        value[where] = dual(self.phi, *triple)
        return value, lambda: slope.masked_scatter(where, dual_derivative(self.phi, *triple))

    def _places(self, covariance: Tensor) -> Tensor:
        """The places of all pairs that have covariances of their own. shape: (2, pairs)."""
        places = self.places
        if places.shape[-1] > 1 or places.ndim < covariance.ndim + 1:  # a pair has one covariance
            return places.expand(2, *covariance.shape).reshape(2, -1)
        return places.expand(2, *covariance.shape[: places.ndim - 2], 1).reshape(2, -1)

    def _series(self, number: tuple[int, int], places: Tensor) -> list[Tensor]:
        """Those of a block of pairs, by its number, kept if all of them are not too large."""
        if number in self._kept:
            return self._kept[number]
        series = [section.series(places) for section in self._sections]
        if number[1] * series[1].shape[1] <= _MOST:
            self._kept[number] = series
        return series

    def _block(self, series: list[Tensor], places: Tensor, c: Tensor) -> Tensor:
        """Both duals of some pairs. shape: (2, *c.shape)."""
        assert self._table is not None
        a, b = (self.variances[place][:, None].expand_as(c) for place in places)
        cosine, sine = correlation(a, b, c)
        t = unit(torch.atan2(sine, cosine), self._table.width)
        basis = chebyshev_basis(t.flatten(), max(each.shape[-1] for each in series) - 1)
        basis = basis.view(len(basis), *c.shape).transpose(0, 1)
        sums = [torch.bmm(each[:, None], basis[:, : each.shape[-1]])[:, 0] for each in series]
        return torch.stack(sums)
