r"""Duals of activations, $D_\varphi(a, b, c) = \mathbb{E}[\varphi(u)\varphi(v)]$."""

import math
from typing import Any

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.closed_forms import correlation
from shoal.activations.names import as_activation
from shoal.core.caches import cached
from shoal.core.checks import real
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.gaussian.broken_lines import broken_line
from shoal.gaussian.closed_forms import closed_dual, closed_form
from shoal.gaussian.domain import Covariance, covariance
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.moments import derivative_square
from shoal.gaussian.table import Table

_FINEST = 1e-13  # what the quadrature guarantees ...
_TABULATED = 5e-13  # ... and a table
_BLOCK = 1 << 16  # triples that are evaluated together
_MANY = 128  # triples from which on a table pays


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
    used where they exist, quadrature split at the kinks otherwise, and from a few thousand triples
    on a table with a verified error (with kinks away from zero, at angles between 1/4 and π - 1/4
    only). Memory beyond the result does not grow with the number of triples. All of it is
    differentiable to any order, by $\partial_c D_{\varphi\psi} = D_{\varphi'\psi'}$ and
    $\partial_a D_{\varphi\psi} = \tfrac12 D_{\varphi''\psi}$ with the kinks' jumps included.

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
    closed = closed_form(phi)
    if closed is not None and closed.analytic and pair.requires_grad:
        value = closed_dual(closed, order, *pair.in_double())
    elif pair.requires_grad:
        value = _mixed(*pair.in_double(), phi, (order, order), tolerance)
    else:
        value = _evaluate(phi, order, order, pair, tolerance=tolerance)
    infinite = order > 0 and any(kink.jumps[0] for kink in phi.kinks)
    ends = [float(end) for end in torch.aminmax(value.detach())]
    if any(math.isnan(end) or (math.isinf(end) and not infinite) for end in ends):
        largest = max(float(pair.a.detach().max()), float(pair.b.detach().max()))
        raise AccuracyError(f"the dual of {phi!r} overflows at variances up to {largest:g}")
    return value.to(pair.dtype)


def _mixed(
    a: Tensor, b: Tensor, c: Tensor, phi: Activation, orders: tuple[int, int], tolerance: float
) -> Tensor:
    """$D_{jk}$, differentiable."""
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
        pair = Covariance(a, b, c, torch.float64)
        if pair.shape.numel() == 1 and a.device.type == "cpu":
            value = _evaluate_one(phi, orders, a.item(), b.item(), c.item(), tolerance)
            return a.new_tensor(value).view(pair.shape)
        return _evaluate(phi, *orders, pair, tolerance=tolerance)

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


@cached
def _evaluate_one(
    phi: Activation, orders: tuple[int, int], a: float, b: float, c: float, tolerance: float
) -> float:
    """$D_{jk}$ at one triple: derivatives of implicit functions ask for the same ones again."""
    triple = torch.tensor([[a], [b], [c]], dtype=torch.float64)
    pair = Covariance(triple[0], triple[1], triple[2], torch.float64)
    return float(_evaluate(phi, *orders, pair, tolerance=tolerance))


def _evaluate(phi: Activation, j: int, k: int, pair: Covariance, *, tolerance: float) -> Tensor:
    """Evaluate $D_{jk}$ by closed form, table or quadrature, block by block."""
    result = torch.empty(pair.shape, dtype=torch.float64, device=pair.a.device)
    closed = closed_form(phi) if j == k < 2 else None
    line = broken_line(phi) if j == k < 2 and closed is None else None
    table = None
    if closed is None and line is None and pair.shape.numel() >= _MANY and tolerance >= _TABULATED:
        table = _table(phi, j, k, pair)
    for index in pair.blocks(_BLOCK):
        a, b, c = (t.reshape(-1) for t in pair[index])
        if closed is not None:
            value = closed_dual(closed, j, a, b, c)
        elif line is not None:
            value = line.at_covariances(a, b, c)[j]
        else:
            value = _evaluate_block(phi, j, k, (a, b, c), table)
        result[index] = value.view(result[index].shape)
    return result


def _table(phi: Activation, j: int, k: int, pair: Covariance) -> Table | None:
    """The table for all variances but zero."""
    ends = [
        torch.stack(torch.aminmax(t.detach()[t.detach() > 0]))
        for t in (pair.a, pair.b)
        if bool(t.any())
    ]
    orders = ((0, 0), (1, 1)) if j == k < 2 else ((max(j, k), min(j, k)),)
    if (
        not ends
        or (j + k) % 2
        or (j == k < 2 and bool(((pair.a == pair.b) & (pair.c == pair.a)).all()))
    ):
        return None
    return Table.of(phi, orders, torch.cat(ends).double())


def _evaluate_block(
    phi: Activation, j: int, k: int, triple: tuple[Tensor, Tensor, Tensor], table: Table | None
) -> Tensor:
    """$D_{jk}$ at vectors; where u = v, $D_{jj}$ is the mean square, a one-dimensional integral."""
    a, b, c = triple
    value, others = torch.empty_like(a), torch.ones_like(a, dtype=torch.bool)
    if j == k and j < 2:
        same = (a == b) & (c == a)
        if bool(same.any()):
            distinct, inverse = a[same].unique(return_inverse=True)
            value[same] = _mean_squares(phi, j, distinct)[inverse]
            others = ~same
    if table is not None:
        known = others & (a > 0) & (b > 0)
        x, y, z = a[known], b[known], c[known]
        if j < k:
            x, y = y, x
        elif j == k:  # an exactly symmetric result
            x, y = torch.maximum(x, y), torch.minimum(x, y)
        cosine, sine = correlation(x, y, z)
        value[known] = table((max(j, k), min(j, k)), x, y, torch.atan2(sine, cosine))
        others &= ~known
    if bool(others.any()):
        value[others] = mixed_dual(phi, j, k, a[others], b[others], c[others])
    return value


def _mean_squares(phi: Activation, j: int, variance: Tensor) -> Tensor:
    """$D_{jj}$ where u = v."""
    if j and any(kink.jumps[0] for kink in phi.kinks):
        return torch.full_like(variance, math.inf)
    try:
        return derivative_square(phi, j, variance)
    except AccuracyError:  # a square may grow too fast for what its root is not
        return mixed_dual(phi, j, j, variance, variance, variance)
