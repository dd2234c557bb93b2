"""Picard iteration, plain and damped."""

from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from shoal.checks import real
from shoal.solvers.base import Solver
from shoal.solvers.problem import Problem

__all__ = ["DampedPicard", "Picard"]


@final
@dataclass(frozen=True)
class Picard(Solver):
    r"""$z \leftarrow f(z)$: one evaluation and nothing else.

    It converges if $f$ contracts, at the rate $\rho$, the spectral radius of the Jacobian. For
    weights that are independent random numbers nothing that uses as many products does much
    better: the vectors $J^k r$ are nearly orthogonal, of norms $\rho^k$, so the best combination
    of them, which Krylov methods find, is smaller than the last one by $\sqrt{1 - \rho^2}$ only.

    Example:
        >>> import torch
        >>> from shoal.solvers import Picard, solve
        >>> z0 = torch.zeros(1, 1, dtype=torch.float64)
        >>> round(float(solve(torch.cos, z0, solver=Picard()).value), 12)
        0.739085133215
    """

    max_steps: int = field(default=1000, kw_only=True)

    @property
    def steady(self) -> bool:
        """It is."""
        return True

    def init(self, z: Tensor) -> None:
        """Nothing is remembered."""

    def step(
        self,
        problem: Problem,  # noqa: ARG002
        state: None,  # noqa: ARG002
        z: Tensor,  # noqa: ARG002
        value: Tensor,
    ) -> tuple[Tensor, None, int]:
        """Go where the map says."""
        return value, None, 0


@final
@dataclass(frozen=True)
class DampedPicard(Solver):
    r"""$z \leftarrow (1 - \beta) z + \beta f(z)$: for maps that overshoot.

    It converges if the eigenvalues $\lambda$ of the Jacobian satisfy
    $|1 - \beta + \beta\lambda| < 1$, for instance for any real $\lambda < 1$ if $\beta$ is small.

    Args:
        damping: $\beta$, above 0 and at most 1.

    Example:
        >>> import torch
        >>> from shoal.solvers import DampedPicard, solve
        >>> z0 = torch.zeros(1, 1, dtype=torch.float64)
        >>> solution = solve(lambda z: 3 - 2 * z, z0, solver=DampedPicard(damping=0.3))
        >>> round(float(solution.value), 9)
        1.0
    """

    damping: float = 0.5
    max_steps: int = field(default=1000, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        damping = real("damping", self.damping, above=0, at_most=1)
        object.__setattr__(self, "damping", damping)

    @property
    def steady(self) -> bool:
        """It is."""
        return True

    def init(self, z: Tensor) -> None:
        """Nothing is remembered."""

    def step(
        self,
        problem: Problem,  # noqa: ARG002
        state: None,  # noqa: ARG002
        z: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, None, int]:
        """Go part of the way."""
        return z.lerp(value, self.damping), None, 0
