"""Anderson acceleration."""

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from shoal.core.checks import integer, real
from shoal.equilibrium.problem import Problem
from shoal.equilibrium.solver import Solver, row_sizes

_RIDGE = 10.0  # in units of the rounding error: what keeps dependent differences harmless


@dataclass(frozen=True, eq=False)
class _History:
    """Differences of the last iterates and residuals, newest last.

    Attributes:
        z: The last iterate, none before the first step.
        residual: Its residual, in units of the first one's size, like their differences.
        size: That size for each row.
        dz: Differences of iterates.
        dr: Differences of residuals.
        gram: Inner products of the latter, of shape (samples, k, k), once there are any.
    """

    z: tuple[Tensor, ...] = ()
    residual: tuple[Tensor, ...] = ()
    size: tuple[Tensor, ...] = ()
    dz: tuple[Tensor, ...] = ()
    dr: tuple[Tensor, ...] = ()
    gram: tuple[Tensor, ...] = ()

    def extended(self, z: Tensor, residual: Tensor, history: int) -> "_History":
        """This history with one more iterate, and no more than ``history`` differences."""
        size = self.size or (row_sizes(residual),)
        residual = residual / size[0]
        if not self.z:
            return _History((z,), (residual,), size)
        dz = (*self.dz, z - self.z[0])[-history:]
        dr = (*self.dr, residual - self.residual[0])[-history:]
        row = _products(dr, dr[-1])
        if len(dr) == 1:
            return _History((z,), (residual,), size, dz, dr, (row[:, :, None],))
        old = self.gram[0][:, 1 - len(dr) :, 1 - len(dr) :]
        upper = torch.cat([old, row[:, :-1, None]], 2)
        gram = torch.cat([upper, row[:, None]], 1)
        return _History((z,), (residual,), size, dz, dr, (gram,))

    def weights(self) -> Tensor:
        r"""The $\gamma$ that minimizes $\|r - \Delta R\gamma\|$ for each row; (samples, k)."""
        gram = self.gram[0]
        # Columns of unit length: their Gram matrix is as well conditioned as scaling can make it.
        lengths = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
        ridge = _RIDGE * torch.finfo(gram.dtype).eps
        eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
        gram = gram * inverse[:, :, None] * inverse[:, None, :] + ridge * eye
        right = _products(self.dr, self.residual[0]) * inverse
        factor, _ = torch.linalg.cholesky_ex(gram)
        return torch.cholesky_solve(right[:, :, None], factor)[:, :, 0] * inverse


def _products(vectors: tuple[Tensor, ...], other: Tensor) -> Tensor:
    """Inner products with each of several vectors, row by row; shape (samples, k).

    Those of half precision are in float32: squares would leave its range, and no device factorizes
    matrices in it.
    """
    if other.dtype.itemsize < 4:
        other = other.float()
    return torch.stack([(vector * other).sum(1) for vector in vectors], 1)


@final
@dataclass(frozen=True)
class Anderson(Solver):
    r"""Anderson acceleration: the combination of the last iterates whose residual is smallest.

    With residuals $r_k = f(z_k) - z_k$ and differences $\Delta$ of the last iterates,
    $z_{k+1} = z_k + \beta r_k - (\Delta Z + \beta \Delta R)\gamma$, where $\gamma$ minimizes
    $\|r_k - \Delta R\gamma\|$, separately for each sample. It helps if a few directions contract
    slowly, as after training. It also finds fixed points of some maps that expand.

    Args:
        history: Number of differences to keep.
        mixing: $\beta$, above 0.

    Example:
        >>> import torch
        >>> from shoal.equilibrium import Anderson, solve
        >>> z0 = torch.zeros(1, 2, dtype=torch.float64)
        >>> solution = solve(lambda z: 0.999 * z + 1, z0, solver=Anderson())
        >>> [round(t, 6) for t in solution.value[0].tolist()], int(solution.steps)
        ([1000.0, 1000.0], 2)
    """

    history: int = 5
    mixing: float = 1.0
    max_steps: int = field(default=200, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        object.__setattr__(self, "history", integer("history", self.history, at_least=1))
        object.__setattr__(self, "mixing", real("mixing", self.mixing, above=0))

    def init(self, z: Tensor) -> _History:  # noqa: ARG002
        """No differences yet."""
        return _History()

    def step(
        self,
        problem: Problem,  # noqa: ARG002
        state: _History,
        z: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, _History]:
        """Combine."""
        residual = value - z
        state = state.extended(z, residual, self.history)
        new = value if self.mixing == 1 else z + self.mixing * residual
        if not state.dr:
            return new, state
        gamma = state.weights().to(z.dtype)
        for column, (dz, dr) in enumerate(zip(state.dz, state.dr, strict=True)):
            factor = gamma[:, column, None]
            new = new - factor * torch.addcmul(dz, dr, state.size[0], value=self.mixing)
        return new, state
