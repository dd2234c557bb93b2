r"""The scalar fixed points behind the kernels of implicit networks.

Variances first, $\Lambda = \sigma_a^2 \mathbb{E}[\varphi(\sqrt{\Lambda}\xi)^2] + \sigma_b^2 a$,
one equation per input; then covariances, $\Lambda_{ij} = \sigma_a^2 D_\varphi(\Lambda_{ii},
\Lambda_{jj}, \Lambda_{ij}) + \sigma_b^2 c$, one equation per pair, independent of all others. Each
is solved by Newton's method, whose derivative Price's theorem gives, and then differentiated
implicitly: two more Newton steps from the solution, recorded by autograd, have its derivatives
up to third order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.exceptions import ConvergenceError

__all__ = ["geometric", "solve"]

_MOST_STEPS = 200
_ROUNDING = 1e-15  # relative residual at which an equation counts as solved
_DIVERGED = 1e12  # growth, relative to what is injected, after which nothing converges any more
_STALLED = 1e-12  # relative residual up to which rounding may have stopped the progress

Equation = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The right-hand side and its derivative at a guess."""


def geometric(ratio: Tensor) -> Tensor:
    """$1/(1 - r)$, the sum of all powers of what one turn of a loop multiplies changes by."""
    largest = float(ratio.detach().max())
    if not largest < 1:
        raise ConvergenceError(
            "the kernel does not exist: the recurrent variance times E[φ'(u) φ'(v)] is "
            f"{largest:.4g} at the fixed point, and must be below 1"
        )
    return 1 / (1 - ratio)


def solve(
    equation: Equation, start: Tensor, size: Tensor, name: str, *, differentiable: bool
) -> Tensor:
    """Newton's method, with plain iteration wherever it does not reduce the residual."""
    with torch.no_grad():
        solution = _converged(equation, start, size, name)
    if differentiable:
        for _ in range(2):
            value, slope = equation(solution)
            solution = solution - (solution - value) / (1 - slope)
    return solution


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
