"""Newton's method, its linear equations solved by GMRES."""

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from shoal.core.checks import integer, real
from shoal.core.torch_compat import largest
from shoal.equilibrium.problem import Problem
from shoal.equilibrium.solver import Solver, row_sizes
from shoal.numerics.krylov import RowSpaces

_SHORTEST = 2.0**-10  # a step that is halved more often is taken anyway


@dataclass(frozen=True, eq=False)
class _Search:
    """The last step: where it began and points, how far it went, and the residual there.

    Directions and residuals are in units of the first residual's size, zero before it is known.
    """

    origin: Tensor
    direction: Tensor
    length: Tensor
    residual: Tensor
    size: Tensor


@final
@dataclass(frozen=True)
class NewtonKrylov(Solver):
    r"""Newton's method: $(I - J)s = f(z) - z$ by GMRES, then $z + s$, or less if that is worse.

    A step costs up to ``inner_steps`` products with the Jacobian, without forming it. It finds
    fixed points whether or not the map contracts there. Among several fixed points, the initial
    state determines which one it finds.

    Args:
        inner_steps: Largest number of products per step.
        inner_rtol: The relative tolerance of GMRES.

    Example:
        >>> import torch
        >>> from shoal.equilibrium import NewtonKrylov, solve
        >>> z0 = torch.full((1, 1), 2.0, dtype=torch.float64)
        >>> solution = solve(lambda z: z**2 - 2, z0 + 1, solver=NewtonKrylov())
        >>> round(float(solution.value), 12)
        2.0
    """

    inner_steps: int = 20
    inner_rtol: float = 1e-2
    max_steps: int = field(default=50, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        steps = integer("inner_steps", self.inner_steps, at_least=1)
        object.__setattr__(self, "inner_steps", steps)
        inner = real("inner_rtol", self.inner_rtol, above=0, below=1)
        object.__setattr__(self, "inner_rtol", inner)

    def init(self, z: Tensor) -> _Search:
        """No step yet: any residual is better than an infinite one."""
        endless = torch.full_like(z[:, 0], torch.inf)
        size = torch.zeros_like(z[:, :1])
        return _Search(z, torch.zeros_like(z), torch.ones_like(endless), endless, size)

    def step(
        self,
        problem: Problem,
        state: _Search,
        z: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, _Search]:
        """Halve the last step where it made things worse; elsewhere make the next one."""
        off = value - z
        size = torch.where(state.size > 0, state.size, row_sizes(off))
        off = off / size
        residual = off.norm(dim=1)
        good = (residual < state.residual) | (state.length < _SHORTEST)
        direction = self._direction(problem, z, off)
        keep = good[:, None]
        state = _Search(
            torch.where(keep, z, state.origin),
            torch.where(keep, direction, state.direction),
            torch.where(good, 1.0, state.length / 2),
            torch.where(good, residual, state.residual),
            size,
        )
        step = state.length[:, None] * state.direction
        return torch.addcmul(state.origin, step, size), state

    def _direction(self, problem: Problem, z: Tensor, right: Tensor) -> Tensor:
        """GMRES for all rows at once, each with its own Krylov space."""
        size = right.norm(dim=1)
        spaces, product = RowSpaces(right), problem.derivative_at(z)
        for count in range(1, self.inner_steps + 1):
            last = spaces.basis[-1]
            spaces.add(last - product(last))
            weights, remaining = _least_squares(spaces.coordinates, size)
            if count == z.shape[1] or largest(remaining - self.inner_rtol * size) <= 0:
                break
        return torch.einsum("nkd,nk->nd", torch.stack(spaces.basis[:-1], 1), weights)


def _least_squares(hessenberg: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Solve the small least-squares problems of GMRES; the solutions and the residuals."""
    hessenberg = torch.nan_to_num(hessenberg.double())  # one sample's NaN must not stop the others
    right = torch.zeros_like(hessenberg[:, :, 0])
    right[:, 0] = torch.nan_to_num(size.double())
    # Directions that rounding alone has made are left out, as the space is then exhausted.
    inverse = torch.linalg.pinv(hessenberg, rtol=1e-12)
    weights = torch.einsum("nij,nj->ni", inverse, right)
    remaining = (right - torch.einsum("nij,nj->ni", hessenberg, weights)).norm(dim=1)
    return weights.to(size.dtype), remaining.to(size.dtype)
