"""Broyden's method with a limited memory."""

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from shoal.core.checks import integer
from shoal.equilibrium.problem import Problem
from shoal.equilibrium.solver import Solver, row_sizes


@dataclass(frozen=True, eq=False)
class _Inverse:
    r"""The approximate inverse of $I - J$, $I + \sum_i u_i v_i^\top$, and what updates it.

    All vectors are in units of the first residual's size, which the inverse does not depend on.
    """

    z: tuple[Tensor, ...] = ()
    residual: tuple[Tensor, ...] = ()
    size: tuple[Tensor, ...] = ()
    left_vectors: tuple[Tensor, ...] = ()
    right_vectors: tuple[Tensor, ...] = ()

    def apply(self, vector: Tensor) -> Tensor:
        out = vector
        for u, v in zip(self.left_vectors, self.right_vectors, strict=True):
            out = out + u * (v * vector).sum(1, keepdim=True)
        return out

    def apply_transposed(self, vector: Tensor) -> Tensor:
        out = vector
        for u, v in zip(self.left_vectors, self.right_vectors, strict=True):
            out = out + v * (u * vector).sum(1, keepdim=True)
        return out


@final
@dataclass(frozen=True)
class Broyden(Solver):
    r"""Broyden's good method: a quasi-Newton method with an approximate inverse Jacobian.

    The inverse $H \approx (I - J)^{-1}$ starts as the identity, so the first step is Picard's. Each
    step adds a rank-one update. Near a fixed point convergence is superlinear.

    Args:
        history: Number of updates to keep before it restarts.

    Example:
        >>> import torch
        >>> from shoal.equilibrium import Broyden, solve
        >>> z0 = torch.ones(1, 1, dtype=torch.float64)
        >>> solution = solve(lambda z: 1 + 1 / z, z0, solver=Broyden())
        >>> round(float(solution.value), 9)
        1.618033989
    """

    history: int = 20
    max_steps: int = field(default=200, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        object.__setattr__(self, "history", integer("history", self.history, at_least=1))

    def init(self, z: Tensor) -> _Inverse:  # noqa: ARG002
        """The identity."""
        return _Inverse()

    def step(
        self,
        problem: Problem,  # noqa: ARG002
        state: _Inverse,
        z: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, _Inverse]:
        """Update the inverse, then make Newton's step with it."""
        residual = value - z
        size = state.size or (row_sizes(residual),)
        residual = residual / size[0]
        left_vectors, right_vectors = state.left_vectors, state.right_vectors
        if len(left_vectors) >= self.history:
            state, left_vectors, right_vectors = _Inverse(), (), ()
        if state.z:
            # dr = (I - J) dz
            dz, dr = (z - state.z[0]) / size[0], state.residual[0] - residual
            v = state.apply_transposed(dz)
            curvature = (v * dr).sum(1, keepdim=True)
            safe = curvature.abs() > torch.finfo(z.dtype).eps * v.norm(dim=1, keepdim=True) * (
                dr.norm(dim=1, keepdim=True)
            )
            u = (dz - state.apply(dr)) / torch.where(safe, curvature, 1.0)
            left_vectors, right_vectors = (
                (*left_vectors, torch.where(safe, u, 0.0)),
                (*right_vectors, v),
            )
        state = _Inverse((z,), (residual,), size, left_vectors, right_vectors)
        return torch.addcmul(z, state.apply(residual), size[0]), state
