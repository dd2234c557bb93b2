r"""Duals of activations, $D_\varphi(a, b, c) = \mathbb{E}[\varphi(u)\varphi(v)]$."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from shoal.activations import Activation
from shoal.checks import real
from shoal.exceptions import AccuracyError
from shoal.gaussian.closed_forms import ClosedForm, closed_form
from shoal.gaussian.domain import covariance
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.tables import tabulated_dual

__all__ = ["dual", "dual_derivative"]

_FINEST = 1e-13  # what the quadrature guarantees
_BLOCK = 1 << 16  # triples that a closed form is evaluated at together
_MANY = 4096  # triples from which on a table pays


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
    on a table with a verified error (unless the activation has kinks away from zero). Memory beyond
    the result does not grow with the number of triples. All of it is differentiable to any order,
    by $\partial_c D_{\varphi\psi} = D_{\varphi'\psi'}$ and
    $\partial_a D_{\varphi\psi} = \tfrac12 D_{\varphi''\psi}$ with the kinks' jumps included.

    Args:
        phi: The activation.
        a: Variances of $u$, at least zero.
        b: Variances of $v$, at least zero.
        c: Covariances, $|c| \le \sqrt{ab}$ up to rounding.
        tolerance: Largest error relative to $\sqrt{\mathbb{E}\varphi(u)^2\,\mathbb{E}\varphi(v)^2}$.

    Returns:
        The dual in the broadcast shape and the widest dtype of the arguments; computed in float64.

    Raises:
        ValueError: If an argument is not finite, empty, not broadcastable or no covariance.
        TypeError: If an argument is not a float or a floating-point tensor.
        AccuracyError: If the tolerance cannot be met.

    Example:
        >>> import torch, shoal
        >>> shoal.gaussian.dual(shoal.ReLU(), 1.0, 1.0, torch.tensor([-1.0, 0.0, 1.0]).double())
        tensor([0.0000, 0.1592, 0.5000], dtype=torch.float64)
    """
    return _differentiable(phi, 0, a, b, c, tolerance)


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
        >>> shoal.gaussian.dual_derivative(shoal.ReLU(), 1.0, 1.0, torch.tensor([0.0, 1.0]))
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
    if not isinstance(phi, Activation):
        raise TypeError(f"phi must be an Activation, got {phi!r}")
    tolerance = real("tolerance", tolerance, above=0.0)
    if tolerance < _FINEST:
        raise AccuracyError(f"tolerance {tolerance:g} is below {_FINEST:g}, the best in float64")
    pair = covariance(a, b, c)
    closed = closed_form(phi)
    if closed is not None and closed.analytic and pair.requires_grad:
        value = _evaluate_closed(closed, order, pair.a, pair.b, pair.c)
    else:
        value = _Dual.apply(pair.a, pair.b, pair.c, phi, (order, order), tolerance)
    if bool(value.isnan().any()):
        raise AccuracyError(f"the dual of {phi!r} overflows at variance {float(pair.a.max()):g}")
    return value.to(pair.dtype)


class _Dual(torch.autograd.Function):
    """$D_{jk}$ with its derivatives, which are duals of higher derivatives."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        phi: Activation,
        orders: tuple[int, int],
        tolerance: float,
    ) -> Tensor:
        ctx.save_for_backward(a, b, c)
        ctx.arguments = phi, orders, tolerance  # type: ignore[attr-defined]
        flat = (t.reshape(-1) for t in (a, b, c))
        return _evaluate(phi, *orders, *flat, tolerance=tolerance).view(a.shape)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, c = ctx.saved_tensors  # type: ignore[attr-defined]
        phi, (j, k), tolerance = ctx.arguments  # type: ignore[attr-defined]
        into: list[Tensor | None] = []
        for needed, orders, factor in zip(
            ctx.needs_input_grad[:3],  # type: ignore[attr-defined]
            ((j + 2, k), (j, k + 2), (j + 1, k + 1)),
            (0.5, 0.5, 1.0),
            strict=True,
        ):
            slope = _Dual.apply(a, b, c, phi, orders, tolerance) if needed else None
            into.append(None if slope is None else factor * grad * slope)
        return (*into, None, None, None)


def _evaluate(
    phi: Activation, j: int, k: int, a: Tensor, b: Tensor, c: Tensor, *, tolerance: float
) -> Tensor:
    """Evaluate $D_{jk}$ at vectors by closed form, table or quadrature."""
    closed = closed_form(phi)
    if closed is not None and j == k and j < 2:
        blocks = zip(a.split(_BLOCK), b.split(_BLOCK), c.split(_BLOCK), strict=True)
        return torch.cat([_evaluate_closed(closed, j, *block) for block in blocks])
    if len(a) >= _MANY:
        tabulated = tabulated_dual(phi, j, k, a, b, c, tolerance=tolerance)
        if tabulated is not None:
            return tabulated
    return mixed_dual(phi, j, k, a, b, c)


def _evaluate_closed(closed: ClosedForm, order: int, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return closed.derivative_dual(a, b, c) if order else closed.dual(a, b, c)
