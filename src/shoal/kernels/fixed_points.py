r"""The scalar fixed points behind the kernels of implicit networks.

Variances first, $\Lambda = \sigma_a^2 \mathbb{E}[\varphi(\sqrt{\Lambda}\xi)^2] + \sigma_b^2 a$,
one equation per input; then covariances, $\Lambda_{ij} = \sigma_a^2 D_\varphi(\Lambda_{ii},
\Lambda_{jj}, \Lambda_{ij}) + \sigma_b^2 c$, one equation per pair, independent of all others. Each
is solved by Newton's method, whose derivative Price's theorem gives, and then differentiated
implicitly: two more Newton steps from the solution, recorded by autograd, have its derivatives
up to third order. First derivatives pass through the right-hand side of the last step alone.
Covariances of pixels are solved together, as a field: an iteration of the loop maps small changes
linearly, and all iterations are a series of powers of this map.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shoal.core.exceptions import ConvergenceError

_MAX_STEPS = 200
_ROUNDING = 1e-15  # relative residual at which an equation counts as solved
_DIVERGED = 1e12  # growth, relative to the injection, after which nothing converges any more
_CHECKED_POINTS = 8  # points before a solution where an earlier fixed point is looked for
_MAX_TERMS = 20_000  # terms of a series of powers
_STALLED = 1e-12  # relative residual up to which rounding may have stopped the progress

Equation = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The right-hand side and its derivative at a guess."""


def geometric(ratio: Tensor) -> Tensor:
    """$1/(1 - r)$, the sum of all powers of the factor $r$ of an iteration of a loop."""
    largest = float(ratio.detach().max())
    if not largest < 1:
        raise ConvergenceError(
            "the kernel does not exist: the recurrent variance times E[φ'(u) φ'(v)] is "
            f"{largest:.4g} at the fixed point, and must be below 1"
        )
    return 1 / (1 - ratio)


def sum_of_powers(
    first: Tensor, linear_map: Callable[[Tensor], Tensor], negligible: float = 1e-17
) -> Tensor:
    """The sum of all powers of a linear map, applied to fields.

    Args:
        first: The fields, each with its own size. shape: (n, ...)
        linear_map: The map.
        negligible: The share of the sum below which a term is the last.
    """
    total = term = first
    for count in range(1, _MAX_TERMS):
        term = linear_map(term)
        total = total + term
        if bool((_largest(term) <= negligible * _largest(total)).all()):
            return total
        if count % 64 == 0:
            total, term = _extrapolate_slowest_mode(total, term, linear_map(term))
    raise ConvergenceError(
        "the kernel may not exist: contributions of successive iterations do not decrease. It "
        "surely exists if recurrent_variance times the squared Lipschitz constant of the "
        "activation, times the gain of the patches (patch_gain of the architecture), is below 1"
    )


def _extrapolate_slowest_mode(
    total: Tensor, term: Tensor, following: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Extrapolate the slowest mode, which dominates near the edge of existence.

    For every number $a$, $\sum_{k>0} T^k t = a\,Tt + \sum_{k>0} T^k t'$ with
    $t' = t - a(t - Tt)$. An eigenvector of $T$ with eigenvalue $\lambda$ leaves nothing if
    $a = 1/(1 - \lambda)$; here $a$ minimizes $\|t'\|$. It is not negative, so that a growing term,
    whose sum does not exist, does not shrink.

    Args:
        total: The sum so far.
        term: $t$, its last term.
        following: $Tt$.
    """
    change = term - following
    along, squares = ((change * t).flatten(1).sum(1) for t in (term, change))
    share = torch.where(along > 0, along / squares, 0.0)
    share = share.view(-1, *[1] * (term.dim() - 1))
    return total + share * following, term - share * change


def solve_linear_field(
    first: Tensor, ratio: Tensor, patches: Callable[[Tensor], Tensor], *, differentiable: bool
) -> Tensor:
    """The solution of $B = F + r P(B)$ for a field $F$, factors $r$ and sums over patches $P$.

    Args:
        first: $F$.
        ratio: $r$.
        patches: $P$, which is symmetric.
        differentiable: Whether autograd may ask for derivatives, of the first order.
    """
    with torch.no_grad():
        solution = sum_of_powers(first.detach(), lambda field: ratio.detach() * patches(field))
    if not differentiable:
        return solution
    return _with_field_gradient(
        first + ratio * patches(solution), solution, lambda g: patches(ratio.detach() * g)
    )


def solve_field(
    equation: Equation,
    start: Tensor,
    size: Tensor,
    patches: Callable[[Tensor], Tensor],
    *,
    unique: bool,
    differentiable: bool = False,
) -> Tensor:
    """Solve for all pixels together, whose equations are connected by patches.

    Newton's method, or plain iteration if the solution may not be ``unique``.

    Args:
        equation: The right-hand side, and its slope before sums over patches.
        start: Where to start. shape: (n, ...) for n fields
        size: The scale of each field, to which tolerances are relative. shape: (n,)
        patches: Sums over patches, a symmetric map.
        unique: Whether there is one solution only.
        differentiable: Whether autograd may ask for derivatives, of the first order.
    """
    with torch.no_grad():
        solution = _solved_field(equation, start.detach(), size.detach(), patches, unique=unique)
    if not differentiable:
        return solution
    value, slope = equation(solution)
    return _with_field_gradient(value, solution, lambda g: slope.detach() * patches(g))


def _solved_field(
    equation: Equation,
    start: Tensor,
    size: Tensor,
    patches: Callable[[Tensor], Tensor],
    *,
    unique: bool,
) -> Tensor:
    guess, best = start, torch.full_like(size, torch.inf)
    for _ in range(_MAX_STEPS if unique else _MAX_TERMS):
        value, slope = equation(guess)
        residual = value - guess
        error, scale = _largest(residual), torch.maximum(size, _largest(guess))
        stuck = (error >= best) & (error <= _STALLED * scale)
        if bool((stuck | (error <= _ROUNDING * scale)).all()):
            return guess
        if not bool((scale <= _DIVERGED * size.clamp(min=1.0)).all()):
            break
        best = torch.minimum(best, error)
        if unique:
            residual = sum_of_powers(residual, _linear_map(slope, patches), 1e-5)
        guess = guess + residual
    raise ConvergenceError(
        _failure_message("covariance of pixels", float(error.max()))
        + ", times the gain of the patches (patch_gain of the architecture)"
    )


def _largest(fields: Tensor) -> Tensor:
    """The largest number of each field. shape: (n,)."""
    return fields.detach().abs().flatten(1).amax(1)


def _linear_map(slope: Tensor, patches: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda change: patches(slope * change)


def _with_field_gradient(
    value: Tensor, solution: Tensor, adjoint: Callable[[Tensor], Tensor]
) -> Tensor:
    """The solution, with derivatives by the implicit function theorem."""
    result: Tensor = _FieldGradient.apply(value, solution, adjoint)  # type: ignore[no-untyped-call]
    return result


class _FieldGradient(torch.autograd.Function):
    r"""$dz = (I - J)^{-1} dw$, where $w$ is the right-hand side at the solution, held fixed."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,  # noqa: ARG004
        solution: Tensor,
        adjoint: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.adjoint = adjoint
        return solution.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise NotImplementedError("kernels of images have derivatives of the first order only")
        return sum_of_powers(gradient, ctx.adjoint), None, None


def solve(
    equation: Equation,
    start: Tensor,
    size: Tensor,
    name: str,
    *,
    differentiable: bool,
    unique: bool = True,
) -> Tensor:
    """Newton's method; where it does not reduce the residual, bisection or plain iteration.

    If the solution may not be ``unique``, it is the one that the plain iteration reaches first.
    """
    with torch.no_grad():
        solution = _newton(equation, start, size, name)
        if not unique:
            solution = _first_fixed_point(equation, start, solution, size, name)
    if differentiable:
        for _ in range(2):
            guess = _for_higher_orders(solution)
            value, slope = equation(guess)
            solution = guess - (guess - value) / (1 - _for_higher_orders(slope))
    return solution


def _for_higher_orders(tensor: Tensor) -> Tensor:
    result: Tensor = _ForHigherOrders.apply(tensor)  # type: ignore[no-untyped-call]
    return result


class _ForHigherOrders(torch.autograd.Function):
    """At a solution, Newton's step changes neither with its start nor with its slope."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.recorded = False
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:
        ctx.recorded |= torch.is_grad_enabled()  # then derivatives of derivatives may follow
        return grad if ctx.recorded else None


def _first_fixed_point(
    equation: Equation, start: Tensor, solution: Tensor, size: Tensor, name: str
) -> Tensor:
    """The first fixed point between the start and a solution, which Newton's method may skip.

    The iteration of an increasing function moves towards the solution until it meets one.
    """
    way = solution - start
    rounding = _STALLED * torch.maximum(size, solution.abs())

    def displacement(share: Tensor) -> Tensor:  # how far the iteration moves on from there
        point = start + share * way
        return (equation(point)[0] - point) * way.sign()

    share = torch.ones_like(start)
    for k in range(_CHECKED_POINTS - 1, -1, -1):
        moves_back = displacement(torch.full_like(start, k / _CHECKED_POINTS)) < -rounding
        share = torch.where(moves_back, k / _CHECKED_POINTS, share)
    if bool((share == 0).any()):
        raise ConvergenceError(
            f"the equation of the {name} has several fixed points, and the iteration leads away "
            "from the one that was found: the kernel may not exist. It surely does if "
            "recurrent_variance times the squared Lipschitz constant of the activation is below 1"
        )
    before, after = share - 1 / _CHECKED_POINTS, share
    for _ in range(60 if bool((share < 1).any()) else 0):
        middle = (before + after) / 2
        moves_back = displacement(middle) < 0
        before, after = (
            torch.where(moves_back, before, middle),
            torch.where(moves_back, middle, after),
        )
    return torch.where(share < 1, start + after * way, solution)


def _newton(equation: Equation, start: Tensor, size: Tensor, name: str) -> Tensor:
    guess, best = start, torch.full_like(start, torch.inf)
    lower, upper = -best, best  # bounds of a solution
    for _ in range(_MAX_STEPS):
        value, slope = equation(guess)
        scale = torch.maximum(size, guess.abs())
        residual = (value - guess).abs()
        solved, stuck = residual <= _ROUNDING * scale, residual >= best
        if bool((solved | (stuck & (residual <= _STALLED * scale))).all()):
            return guess
        best = torch.minimum(best, residual)
        lower = torch.where(value > guess, guess, lower)
        upper = torch.where(value < guess, guess, upper)
        middle, unsolved = (lower + upper) / 2, residual > _STALLED * scale
        safe = torch.where(unsolved & (lower < upper) & middle.isfinite(), middle, value)
        newton = guess - (guess - value) / (1 - slope)
        guess = torch.where(stuck | (slope >= 1), safe, newton)
        if not bool((guess.abs() <= _DIVERGED * size.clamp(min=1.0)).all()):
            break
    raise ConvergenceError(_failure_message(name, float(residual.max())))


def _failure_message(name: str, residual: float) -> str:
    return (
        f"the fixed point of the {name} was not reached (largest residual {residual:.2g}): the "
        "kernel may not exist. It surely does if recurrent_variance times the squared Lipschitz "
        "constant of the activation is below 1"
    )
