r"""The scalar fixed points behind a DEQ's kernels.

Variances first, $\Lambda = \sigma_a^2 \mathbb{E}[\varphi(\sqrt{\Lambda}\xi)^2] + \sigma_b^2 a$,
one equation per input; then covariances, $\Lambda_{ij} = \sigma_a^2 D_\varphi(\Lambda_{ii},
\Lambda_{jj}, \Lambda_{ij}) + \sigma_b^2 c$, one equation per pair, independent of all others. Each
is solved by Newton's method, whose derivative Price's theorem gives, and then differentiated
implicitly: two more Newton steps from the solution, recorded by autograd, have its derivatives
up to third order.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.approximation import Chebyshev, PiecewiseChebyshev, fit_piecewise
from shoal.exceptions import AccuracyError, ConvergenceError
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.domain import within_bound
from shoal.gaussian.moments import mean_square
from shoal.kernels.section import HalfAngle, Section

__all__ = ["fixed_covariance", "fixed_half_angle", "fixed_variance", "solve"]

_MOST_STEPS = 200
_SMALLEST = 1e-300  # a variance of zero
_FEW = 64  # variances that are solved one by one
_GRID = 8  # ranges of interpolated variances end at multiples of 1/8 in log₂
_GAIN = 1e-13  # error of the interpolated logarithm
_ROUNDING = 1e-15  # relative residual at which an equation counts as solved
_DIVERGED = 1e12  # growth, relative to what is injected, after which nothing converges any more
_LOOKS = 8  # places on the way to a solution at which another one is looked for ...
_HALVINGS = 60  # ... and how it is found
_STALLED = 1e-12  # relative residual up to which rounding may have stopped the progress

Equation = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The right-hand side and its derivative at a guess."""


def fixed_variance(
    phi: Activation, recurrent: Tensor, injected: Tensor, *, differentiable: bool
) -> Tensor:
    r"""Solve $\Lambda = \sigma_a^2\,\mathbb{E}[\varphi(\sqrt{\Lambda}\xi)^2] + \beta$ elementwise.

    Args:
        phi: The activation $\varphi$.
        recurrent: $\sigma_a^2$, a scalar tensor.
        injected: $\beta = \sigma_b^2 \|x\|^2$, float64.
        differentiable: Whether autograd may ask for derivatives of the solution.

    Returns:
        The fixed point that the iteration from $\beta$ reaches; the only one if
        $\sigma_a^2 L^2 < 1$.

    Raises:
        ConvergenceError: If the iteration does not converge: the kernel may not exist.
    """
    if differentiable or injected.numel() <= _FEW:
        return _fixed_variance(phi, recurrent, injected, differentiable=differentiable)
    distinct, inverse = injected.unique(return_inverse=True)
    if len(distinct) > _FEW:
        with suppress(AccuracyError, ConvergenceError):  # the range is wider than the data
            first = _fixed_variance(phi, recurrent, distinct[:1], differentiable=False)  # may be 0
            others = _interpolated_variance(phi, float(recurrent), distinct[1:])
            return torch.cat([first, others])[inverse]
    return _fixed_variance(phi, recurrent, distinct, differentiable=False)[inverse]


def _fixed_variance(
    phi: Activation, recurrent: Tensor, injected: Tensor, *, differentiable: bool
) -> Tensor:
    """The same by one equation per element."""

    def equation(guess: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = mean_square(phi, guess.clamp(min=_SMALLEST))
        return recurrent * value + injected, recurrent * slope

    return solve(
        equation,
        injected,
        injected,
        "variance",
        differentiable=differentiable,
        unique=_contracts(phi, recurrent),
    )


def _interpolated_variance(phi: Activation, recurrent: float, injected: Tensor) -> Tensor:
    r"""The same at many points, by a series of $\log\Lambda - \log\beta$ in $\log\beta$."""
    low, high = math.log2(float(injected[0])), math.log2(float(injected[-1]))
    span = (math.floor(low * _GRID) / _GRID, math.ceil(high * _GRID) / _GRID)
    gain = _gain(phi, recurrent, span)
    return injected * gain(injected.log2()).exp2()


@lru_cache(maxsize=64)
def _gain(
    phi: Activation, recurrent: float, span: tuple[float, float]
) -> Chebyshev | PiecewiseChebyshev:
    """The series for one range, kept for later calls."""
    factor = torch.tensor(recurrent, dtype=torch.float64)

    def gain(log_injected: Tensor) -> Tensor:
        injected = log_injected.exp2()
        return (_fixed_variance(phi, factor, injected, differentiable=False) / injected).log2()

    return fit_piecewise(gain, (span,), tolerance=_GAIN)


def fixed_covariance(
    phi: Activation,
    recurrent: Tensor,
    a: Tensor,
    b: Tensor,
    injected: Tensor,
    *,
    differentiable: bool,
) -> Tensor:
    r"""Solve $\Lambda = \sigma_a^2 D_\varphi(a, b, \Lambda) + \gamma$ elementwise.

    Args:
        phi: The activation $\varphi$.
        recurrent: $\sigma_a^2$, a scalar tensor.
        a: Fixed variances of the first inputs.
        b: Fixed variances of the second inputs.
        injected: $\gamma = \sigma_b^2 \langle x, x' \rangle$.
        differentiable: Whether autograd may ask for derivatives of the solution.

    Raises:
        ConvergenceError: If the iteration does not converge.
    """
    bound = a.sqrt() * b.sqrt()

    def equation(guess: Tensor) -> tuple[Tensor, Tensor]:
        inside = within_bound(a, b, guess)
        value = recurrent * dual(phi, a, b, inside) + injected
        return value, recurrent * dual_derivative(phi, a, b, inside)

    solution = solve(
        equation,
        injected,
        bound,
        "covariance",
        differentiable=differentiable,
        unique=_contracts(phi, recurrent),
    )
    return within_bound(a, b, solution)


def _contracts(phi: Activation, recurrent: Tensor) -> bool:
    """Whether an equation surely has one solution."""
    return float(recurrent.detach().max()) * phi.lipschitz**2 < 1


def fixed_half_angle(
    duals: Section, recurrent: float, injected: float, half: HalfAngle
) -> HalfAngle:
    r"""Solve for the angle at the fixed variance, given that between two inputs of one norm.

    In $x = \sin^2\tfrac\psi2$ the equation is $x (1 - \sigma_a^2 I(\psi)) = (\beta/A) \sin^2
    \tfrac\theta2$, and in $y = \cos^2\tfrac\psi2$ it is $y (1 - \sigma_a^2 J(\psi)) =
    \sigma_a^2 R/A + (\beta/A) \cos^2\tfrac\theta2$: the smaller of the two keeps its digits.
    The derivative of the right-hand sides is $\sigma_a^2 E(\psi)$.
    """
    ratio = injected / duals.variance
    rest = recurrent * duals.remainder / duals.variance
    wide = half.sine2 > half.cosine2
    target = torch.where(wide, rest + ratio * half.cosine2, ratio * half.sine2)

    def complete(part: Tensor) -> HalfAngle:
        part = part.clamp(0.0, 1.0)
        return HalfAngle(torch.where(wide, 1 - part, part), torch.where(wide, part, 1 - part))

    def equation(part: Tensor) -> tuple[Tensor, Tensor]:
        angle = complete(part).angle
        mean = torch.where(wide, duals.mean_after(angle), duals.mean_before(angle))
        return recurrent * part * mean + target, recurrent * duals.slope(angle)

    part = solve(equation, target, target, "angle", differentiable=False)
    return complete(part)


def solve(
    equation: Equation,
    start: Tensor,
    size: Tensor,
    name: str,
    *,
    differentiable: bool,
    unique: bool = True,
) -> Tensor:
    """Newton's method, with plain iteration wherever it does not reduce the residual.

    If the solution may not be ``unique``, it is the one that the plain iteration reaches first.
    """
    with torch.no_grad():
        solution = _converged(equation, start, size, name)
        if not unique:
            solution = _first(equation, start, solution, size, name)
    if differentiable:
        for _ in range(2):
            value, slope = equation(solution)
            solution = solution - (solution - value) / (1 - slope)
    return solution


def _first(equation: Equation, start: Tensor, solution: Tensor, size: Tensor, name: str) -> Tensor:
    """The first fixed point on the way to a solution: a long step of Newton's may have passed it.

    The iteration of an increasing function moves towards the solution until it meets one.
    """
    way = solution - start
    rounding = _STALLED * torch.maximum(size, solution.abs())

    def ahead(share: Tensor) -> Tensor:  # how far the iteration moves on from there
        point = start + share * way
        return (equation(point)[0] - point) * way.sign()

    share = torch.ones_like(start)
    for k in range(_LOOKS - 1, -1, -1):
        back = ahead(torch.full_like(start, k / _LOOKS)) < -rounding
        share = torch.where(back, k / _LOOKS, share)
    if bool((share == 0).any()):
        raise ConvergenceError(
            f"the equation of the {name} has several fixed points, and the iteration leads away "
            "from the one that was found: the kernel may not exist. It surely does if "
            "recurrent_variance times the squared Lipschitz constant of the activation is below 1"
        )
    before, after = share - 1 / _LOOKS, share
    for _ in range(_HALVINGS if bool((share < 1).any()) else 0):
        middle = (before + after) / 2
        back = ahead(middle) < 0
        before, after = torch.where(back, before, middle), torch.where(back, middle, after)
    return torch.where(share < 1, start + after * way, solution)


def _converged(equation: Equation, start: Tensor, size: Tensor, name: str) -> Tensor:
    guess, best = start, torch.full_like(start, torch.inf)
    for _ in range(_MOST_STEPS):
        value, slope = equation(guess)
        scale = torch.maximum(size, guess.abs())
        residual = (value - guess).abs()
        solved, stuck = residual <= _ROUNDING * scale, residual >= best
        if bool((solved | (stuck & (residual <= _STALLED * scale))).all()):
            return guess
        best = torch.minimum(best, residual)
        newton = guess - (guess - value) / (1 - slope)
        guess = torch.where(stuck | (slope >= 1), value, newton)
        if not bool((guess.abs() <= _DIVERGED * size.clamp(min=1.0)).all()):
            break
    raise ConvergenceError(
        f"the fixed point of the {name} was not reached (largest residual "
        f"{float(residual.max()):.2g}): the kernel may not exist. It surely does if "
        "recurrent_variance times the squared Lipschitz constant of the activation is below 1"
    )
