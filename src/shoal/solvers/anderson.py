"""Anderson acceleration."""

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from shoal.checks import integer, real
from shoal.solvers.base import Solver
from shoal.solvers.problem import Evaluation, Problem

__all__ = ["Anderson", "History", "weights"]

_RIDGE = 10.0  # in units of the rounding error: what keeps dependent differences harmless


@dataclass(frozen=True, eq=False)
class History:
    """Differences of the last iterates and residuals, newest last.

    Attributes:
        z: The last iterate, none before the first step.
        residual: Its residual.
        dz: Differences of iterates.
        dr: Differences of residuals.
    """

    z: tuple[Tensor, ...] = ()
    residual: tuple[Tensor, ...] = ()
    dz: tuple[Tensor, ...] = ()
    dr: tuple[Tensor, ...] = ()

    def extended(self, z: Tensor, residual: Tensor, memory: int) -> "History":
        """With one more iterate, and no more than ``memory`` differences."""
        dz, dr = self.dz, self.dr
        if self.z:
            dz = (*dz, z - self.z[0])[-memory:]
            dr = (*dr, residual - self.residual[0])[-memory:]
        return History((z,), (residual,), dz, dr)


@final
@dataclass(frozen=True)
class Anderson(Solver):
    r"""Anderson acceleration: the combination of the last iterates whose residual is smallest.

    With residuals $r_k = f(z_k) - z_k$ and differences $\Delta$ of the last iterates,
    $z_{k+1} = z_k + \beta r_k - (\Delta Z + \beta \Delta R)\gamma$, where $\gamma$ minimizes
    $\|r_k - \Delta R\gamma\|$, separately for each sample. It helps where a few directions contract
    slowly, as after training, and finds fixed points of some maps that expand.

    Args:
        memory: How many differences are kept.
        mixing: $\beta$, above 0.

    Example:
        >>> import torch
        >>> from shoal.solvers import Anderson, solve
        >>> z0 = torch.zeros(1, 2, dtype=torch.float64)
        >>> solution = solve(lambda z: 0.999 * z + 1, z0, solver=Anderson())
        >>> [round(t, 6) for t in solution.value[0].tolist()], int(solution.steps)
        ([1000.0, 1000.0], 2)
    """

    memory: int = 5
    mixing: float = 1.0
    max_steps: int = field(default=200, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        object.__setattr__(self, "memory", integer("memory", self.memory, at_least=1))
        object.__setattr__(self, "mixing", real("mixing", self.mixing, above=0))

    def init(self, z: Tensor) -> History:  # noqa: ARG002
        """No differences yet."""
        return History()

    def step(
        self,
        problem: Problem,  # noqa: ARG002
        state: History,
        z: Tensor,
        evaluation: Evaluation,
        excess: float,  # noqa: ARG002
    ) -> tuple[Tensor, History, int]:
        """Combine."""
        residual = evaluation.value - z
        state = state.extended(z, residual, self.memory)
        new = evaluation.value if self.mixing == 1 else z + self.mixing * residual
        if not state.dr:
            return new, state, 0
        gamma = weights(state.dr, residual)
        for column, (dz, dr) in enumerate(zip(state.dz, state.dr, strict=True)):
            factor = gamma[:, column, None]
            new = new - factor * (dz + dr if self.mixing == 1 else dz + self.mixing * dr)
        return new, state, 0


def weights(differences: tuple[Tensor, ...], residual: Tensor) -> Tensor:
    r"""The $\gamma$ that minimizes $\|r - \Delta R \gamma\|$ for each row; shape (samples, k)."""
    # Columns of unit length: their Gram matrix is as well conditioned as scaling can make it.
    lengths = torch.stack([d.norm(dim=1) for d in differences], 1)  # shape: (n, k)
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    rows = [
        torch.stack([(d * e).sum(1) for e in differences[: i + 1]], 1)
        for i, d in enumerate(differences)
    ]
    count = len(differences)
    gram = torch.stack([torch.nn.functional.pad(r, (0, count - r.shape[1])) for r in rows], 1)
    gram = gram + gram.tril(-1).transpose(1, 2)
    gram = gram * inverse[:, :, None] * inverse[:, None, :]
    ridge = _RIDGE * torch.finfo(residual.dtype).eps
    gram = gram + ridge * torch.eye(count, dtype=gram.dtype, device=gram.device)
    right = torch.stack([(d * residual).sum(1) for d in differences], 1) * inverse
    factor, _ = torch.linalg.cholesky_ex(gram)
    return torch.cholesky_solve(right[:, :, None], factor)[:, :, 0] * inverse
