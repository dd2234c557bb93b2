r"""Duals of activations, $D_\varphi(a, b, c) = \mathbb{E}[\varphi(u)\varphi(v)]$, by one chain.

Closed forms come first, those of broken lines and finite Hermite series (Mehler's formula) among
them; then, for many pairs, a table with a verified error (:mod:`shoal.gaussian.table`); then
quadrature, pair by pair (:mod:`shoal.gaussian.mixed`).
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.closed_forms import ClosedForm, correlation
from shoal.activations.names import as_activation
from shoal.activations.piecewise_polynomial import PiecewisePolynomial
from shoal.core.caches import cached
from shoal.core.checks import real
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.gaussian.closed_forms import BrokenLine, closed_dual, dual_form
from shoal.gaussian.domain import covariance
from shoal.gaussian.hermite import hermite
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.moments import derivative_square
from shoal.gaussian.table import Sections, Table, unit
from shoal.numerics import chebyshev_basis

Triple: TypeAlias = tuple[Tensor, Tensor, Tensor]

_FINEST = 1e-13  # smallest tolerance that the quadrature meets ...
_TABULATED = 5e-13  # ... and that a table meets
_BLOCK = 1 << 16  # triples that are evaluated together
_DEGREE = 1024  # degree of power series in the cosine, whose remainder ...
_WIDE = 0.965  # ... is below rounding at cosines up to this: 0.965¹⁰²⁴ is 1e-16
_ROWS = 1 << 12  # cosines whose powers are formed together
_FEW = 16  # triples that are integrated one by one, unless there is a table already
_NUMBERS = 1 << 21  # largest number of coefficients that are formed together ...
_MOST = 1 << 23  # ... and that are kept


@in_standard_settings
def dual(
    phi: Activation,
    a: Tensor | float,
    b: Tensor | float,
    c: Tensor | float,
    *,
    tolerance: float = 1e-12,
) -> Tensor:
    r"""The dual $D_\varphi(a, b, c) = \mathbb{E}[\varphi(u)\varphi(v)]$ of an activation.

    $(u, v)$ is a centred Gaussian pair with variances $a$, $b$ and covariance $c$. Closed forms are
    used where they exist, quadrature split at the kinks otherwise, and for many triples a table
    with a verified error, if no kinks lie away from zero. All of it is differentiable to any order,
    by $\partial_c D_{\varphi\psi} = D_{\varphi'\psi'}$ and $\partial_a D_{\varphi\psi} = \tfrac12
    D_{\varphi''\psi}$ with the kinks' jumps included.

    Args:
        phi: The activation.
        a: Variances of $u$, at least zero.
        b: Variances of $v$, at least zero.
        c: Covariances, $|c| \le \sqrt{ab}$ up to rounding.
        tolerance: Largest error, relative to the root of
            $\mathbb{E}[\varphi(u)^2]\,\mathbb{E}[\varphi(v)^2]$.

    Returns:
        The dual in the broadcast shape and the widest dtype of the arguments; computed in float64.

    Raises:
        ValueError: If an argument is not finite, empty, not broadcastable or no covariance.
        TypeError: If an argument is not a float or a floating-point tensor.
        AccuracyError: If the tolerance cannot be met.

    Example:
        >>> import torch, shoal
        >>> shoal.gaussian.dual("relu", 1.0, 1.0, torch.tensor([-1.0, 0.0, 1.0]).double())
        tensor([0.0000, 0.1592, 0.5000], dtype=torch.float64)
    """
    return _differentiable(phi, 0, a, b, c, tolerance)


@in_standard_settings
def dual_derivative(
    phi: Activation,
    a: Tensor | float,
    b: Tensor | float,
    c: Tensor | float,
    *,
    tolerance: float = 1e-12,
) -> Tensor:
    r"""The dual of the derivative, $\mathbb{E}[\varphi'(u)\varphi'(v)] = \partial_c D_\varphi$.

    Arguments, result and errors are those of :func:`dual`. For an activation that jumps it is
    infinite where $u = v$.

    Example:
        >>> import torch, shoal
        >>> shoal.gaussian.dual_derivative("relu", 1.0, 1.0, torch.tensor([0.0, 1.0]))
        tensor([0.2500, 0.5000])
    """
    return _differentiable(phi, 1, a, b, c, tolerance)


def _differentiable(
    phi: Activation,
    order: int,
    a: Tensor | float,
    b: Tensor | float,
    c: Tensor | float,
    tolerance: float,
) -> Tensor:
    """Check the arguments and evaluate $D_{jj}$, j = ``order``."""
    phi = as_activation("phi", phi)
    tolerance = real("tolerance", tolerance, above=0.0)
    if tolerance < _FINEST:
        raise AccuracyError(f"tolerance {tolerance:g} is below {_FINEST:g}, the best in float64")
    pair = covariance(a, b, c)
    closed = dual_form(phi)
    if closed is not None and closed.analytic and pair.requires_grad:
        value = closed_dual(closed, order, *pair.in_double())
    elif pair.requires_grad:
        value = _mixed(*pair.in_double(), phi, (order, order), tolerance)
    else:
        value = _evaluate(phi, order, order, pair.in_double(), tolerance=tolerance)
    infinite = order > 0 and any(kink.jumps[0] for kink in phi.kinks)
    low, high = map(float, torch.aminmax(value.detach()))
    if math.isnan(low) or (not infinite and (math.isinf(low) or math.isinf(high))):
        largest = max(float(pair.a.detach().max()), float(pair.b.detach().max()))
        raise AccuracyError(f"the dual of {phi!r} overflows at variances up to {largest:g}")
    return value.to(pair.dtype)


def _mixed(
    a: Tensor, b: Tensor, c: Tensor, phi: Activation, orders: tuple[int, int], tolerance: float
) -> Tensor:
    value: Tensor = _Dual.apply(  # type: ignore[no-untyped-call]
        a, b, c, phi, orders, tolerance
    )
    return value


class _Dual(torch.autograd.Function):
    """$D_{jk}$ with its derivatives, which are duals of higher derivatives."""

    @staticmethod
    def forward(
        a: Tensor,
        b: Tensor,
        c: Tensor,
        phi: Activation,
        orders: tuple[int, int],
        tolerance: float,
    ) -> Tensor:
        return _evaluate(phi, *orders, (a, b, c), tolerance=tolerance)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:3])
        ctx.arguments = inputs[3:]

    @staticmethod
    @in_standard_settings
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        a, b, c = ctx.saved_tensors
        phi, (j, k), tolerance = ctx.arguments
        into: list[Tensor | None] = []
        for needed, orders, factor in zip(
            ctx.needs_input_grad[:3],
            ((j + 2, k), (j, k + 2), (j + 1, k + 1)),
            (0.5, 0.5, 1.0),
            strict=True,
        ):
            slope = _mixed(a, b, c, phi, orders, tolerance) if needed else None
            into.append(None if slope is None else factor * grad * slope)
        return (*into, None, None, None)


def _evaluate(phi: Activation, j: int, k: int, triple: Triple, *, tolerance: float) -> Tensor:
    """Evaluate $D_{jk}$ by closed form, table or quadrature, block by block."""
    shape, flat = triple[2].shape, [t.detach().reshape(-1) for t in triple]
    closed = dual_form(phi) if j == k < 2 else None
    table = None
    if closed is None and tolerance >= _TABULATED:
        table = _table(phi, j, k, flat, existing=len(flat[0]) <= _FEW)
    parts = []
    for a, b, c in zip(*[t.split(_BLOCK) for t in flat], strict=True):
        if closed is not None:
            parts.append(closed_dual(closed, j, a, b, c))
        else:
            parts.append(_evaluate_block(phi, j, k, (a, b, c), table))
    return torch.cat(parts).view(shape)


def _table(
    phi: Activation, j: int, k: int, triple: Sequence[Tensor], *, existing: bool
) -> Table | None:
    """The table for all variances but zero; only one made before if ``existing``."""
    a, b, c = triple
    some = torch.cat([a, b])
    some = some[some > 0]
    same = j == k < 2 and bool(((a == b) & (c == a)).all())
    if not len(some) or (j + k) % 2 or same:
        return None
    orders = ((0, 0), (1, 1)) if j == k < 2 else ((max(j, k), min(j, k)),)
    return Table.from_variances(phi, orders, torch.stack(torch.aminmax(some)), existing=existing)


def _evaluate_block(phi: Activation, j: int, k: int, triple: Triple, table: Table | None) -> Tensor:
    """$D_{jk}$ at vectors; where u = v, $D_{jj}$ is the mean square, a one-dimensional integral."""
    a, b, c = triple
    value, remaining = torch.empty_like(a), torch.ones_like(a, dtype=torch.bool)
    if j == k and j < 2:
        same = (a == b) & (c == a)
        if bool(same.any()):
            distinct, inverse = a[same].unique(return_inverse=True)
            value[same] = _mean_squares(phi, j, distinct)[inverse]
            remaining = ~same
    if table is not None:
        tabulated = remaining & (a > 0) & (b > 0)
        x, y, z = a[tabulated], b[tabulated], c[tabulated]
        if j < k:
            x, y = y, x
        elif j == k:  # an exactly symmetric result
            x, y = torch.maximum(x, y), torch.minimum(x, y)
        cosine, sine = correlation(x, y, z)
        value[tabulated] = table((max(j, k), min(j, k)), x, y, torch.atan2(sine, cosine))
        remaining &= ~tabulated
    if j == k < 2 and isinstance(phi, PiecewisePolynomial):  # hundreds of panels
        size = (a * b).sqrt()
        wide = remaining & (size > 0) & (c.abs() <= _WIDE * size)
        if bool(wide.any()):
            value[wide] = _pair_series(phi, a[wide], b[wide], c[wide] / size[wide], j)
        remaining &= ~wide
    if bool(remaining.any()):
        value[remaining] = mixed_dual(phi, j, k, a[remaining], b[remaining], c[remaining])
    return value


@cached
def hermite_squares(phi: Activation, variance: float) -> Tensor:
    r"""The squares of the Hermite coefficients, $D(\rho) = \sum_k c_k^2 \rho^k$."""
    return hermite(phi, math.sqrt(variance), _DEGREE) ** 2


def in_powers(phi: Activation, variance: float, cosine: Tensor, order: int) -> Tensor:
    """A dual at one variance by its power series, for cosines that are not near 1 or -1."""
    squares, degrees = hermite_squares(phi, variance), torch.arange(_DEGREE + 1)
    terms = squares if order == 0 else (degrees * squares)[1:] / variance
    return torch.cat(
        [(some[:, None] ** degrees[: len(terms)]) @ terms for some in cosine.split(_ROWS)]
    )


def _pair_series(phi: Activation, a: Tensor, b: Tensor, cosine: Tensor, order: int) -> Tensor:
    r"""A dual by its series $\sum_k c_k(\sqrt a) c_k(\sqrt b) \rho^k$, for cosines as above."""
    distinct, places = torch.cat([a, b]).unique(return_inverse=True)
    coefficients = hermite(phi, distinct.sqrt(), _DEGREE)
    degrees, parts = torch.arange(_DEGREE + 1, device=a.device), []
    first, second = places.split(len(a))
    for x, y, rho in zip(*[t.split(_ROWS) for t in (first, second, cosine)], strict=True):
        terms = coefficients[x] * coefficients[y]
        if order:
            terms = (degrees * terms)[:, 1:] / (distinct[x] * distinct[y]).sqrt()[:, None]
        parts.append((terms * rho[:, None] ** degrees[: terms.shape[1]]).sum(1))
    return torch.cat(parts)


def _mean_squares(phi: Activation, j: int, variance: Tensor) -> Tensor:
    """$D_{jj}$ where u = v."""
    if j and any(kink.jumps[0] for kink in phi.kinks):
        return torch.full_like(variance, math.inf)
    try:
        return derivative_square(phi, j, variance)
    except AccuracyError:  # the square may grow too fast to be integrated
        return mixed_dual(phi, j, j, variance, variance, variance)


class Duals:
    """Both duals of an activation at pairs of some variances, for covariances that move.

    Solving for a fixed point asks for both at the same variances and at other covariances in each
    step: without a closed form every pair has its series in the angle, out of a table.

    Args:
        phi: The activation.
        variances: The different variances. shape: (v,)
        places: The numbers of the variances of both sides of each pair; sizes of one are
            broadcast with the covariances. shape: (2, ...)
    """

    def __init__(self, phi: Activation, variances: Tensor, places: Tensor) -> None:
        self.phi, self.variances, self.places = phi, variances, places
        self._kept: dict[tuple[int, int], list[Tensor]] = {}
        self._last: tuple[Tensor, Tensor, Callable[[], Tensor]] | None = None  # a solver's result

    def __call__(self, covariance: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """The dual at some covariances, and a function that computes the derivative's dual."""
        if self._last is None or not torch.equal(self._last[0], covariance):
            table = self._existing_table if covariance.numel() <= _FEW else self._table
            self._last = covariance, *(self._by_series if table else self._exact)(covariance)
        return self._last[1:]

    def _exact(self, covariance: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        a, b = (self.variances[place].expand_as(covariance) for place in self.places)
        if isinstance(self._form, BrokenLine):
            both = self._form.duals(a, b, covariance)
            return both[0], lambda: both[1]
        return dual(self.phi, a, b, covariance), lambda: dual_derivative(self.phi, a, b, covariance)

    @cached_property
    def _form(self) -> ClosedForm | None:
        return dual_form(self.phi)

    @cached_property
    def _sections(self) -> tuple[Sections, ...]:
        assert self._table is not None
        return self._table.sections(self.variances.clamp(min=2.0 ** self._table.span[0]))

    @cached_property
    def _table(self) -> Table | None:
        return self._find_table(existing=False)

    @property
    def _existing_table(self) -> Table | None:
        """A table made before: a few pairs are integrated faster than a table is made."""
        return self.__dict__.get("_table") or self._find_table(existing=True)

    def _find_table(self, *, existing: bool) -> Table | None:
        if self._form is not None:
            return None
        some = self.variances[self.variances > 0]
        return Table.from_variances(self.phi, ((0, 0), (1, 1)), some, existing=existing)

    def _by_series(self, covariance: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """Both by the series of every pair, block by block."""
        places = self._places(covariance)
        c = covariance.reshape(places.shape[1], -1)
        both, terms = c.new_empty(2, *c.shape), self._sections[1].rows.shape[-1]
        step = max(1, _NUMBERS // (terms * c.shape[1]))
        for first in range(0, len(c), step):
            some = slice(first, first + step)
            both[:, some] = self._block(
                self._series((first, len(c)), places[:, some]), places[:, some], c[some]
            )
        nothing = (self.variances[places] == 0).any(0)
        value, slope = both.view(2, *covariance.shape)
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
        """The series of a block of pairs, kept unless all series together are too large."""
        if number in self._kept:
            return self._kept[number]
        series = [section.series(places) for section in self._sections]
        if number[1] * series[1].shape[1] <= _MOST:
            self._kept[number] = series
        return series

    def _block(self, series: list[Tensor], places: Tensor, c: Tensor) -> Tensor:
        """Both duals of some pairs. shape: (2, *c.shape)."""
        assert self._table is not None
        a, b = self.variances[places][..., None].expand(2, *c.shape)
        cosine, sine = correlation(a, b, c)
        t = unit(torch.atan2(sine, cosine), self._table.width)
        basis = chebyshev_basis(t.flatten(), max([each.shape[-1] for each in series]) - 1)
        basis = basis.view(len(basis), *c.shape).transpose(0, 1)
        sums = [torch.bmm(each[:, None], basis[:, : each.shape[-1]])[:, 0] for each in series]
        return torch.stack(sums)
