"""Krylov methods for many vectors at once: conjugate gradients, and a basis for each row."""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]
_GAIN = 5e-4  # by which one sweep of refinement reduces residuals, about
_LOST = 1e12  # growth of a residual that no conditioning explains


class Invertible(Protocol):
    """A matrix near the one of a system, whose own systems are easy to solve."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its solutions."""
        ...

    def solve(self, vectors: Tensor, /) -> Tensor:
        """The inverse times columns."""
        ...


class LinearSolve(NamedTuple):
    r"""An approximate solution of $AX = B$.

    Attributes:
        solution: $X$. shape: (n, q)
        residuals: $\|B - AX\| / \|B\|$ of each column, computed anew at the end. shape: (q,)
        converged: Whether all of them meet the tolerance.
        steps: Number of steps.
        counts: Number of steps in which each column moved. shape: (q,)
        history: Relative residuals after each step. shape: (steps, q)
    """

    solution: Tensor
    residuals: Tensor
    converged: bool
    steps: int
    counts: Tensor
    history: Tensor


def conjugate_gradients(
    product: Map,
    b: Tensor,
    *,
    preconditioner: Invertible,
    rtol: float,
    max_steps: int,
    exact: Map | None = None,
    on_step: Callable[[int, Tensor], object] | None = None,
) -> LinearSolve:
    r"""Solve $AX = B$ for a symmetric positive definite $A$, each column by its own iteration.

    Each step is one product with all columns; those that have converged stay as they are. When all
    have, the true residuals are computed, and if they are larger than the tolerance the iteration
    starts again from them.

    With a cheaper ``product``, by a symmetric $A + E$, that is iterative refinement. A sweep that
    reduces the residuals of its own system by a factor $\eta$ leaves true ones of at most
    $\eta + (1 + \eta)\varepsilon/(1 - \varepsilon)$ times those before, where $\varepsilon =
    \|E A^{-1}\|$: what remains is $R - A\Delta = (R - (A + E)\Delta) + E\Delta$, and $E\Delta =
    EA^{-1}(I + EA^{-1})^{-1}(A + E)\Delta$. So it converges if $\varepsilon < 1/2$, however
    ill-conditioned $A$ is: for $A = K + \lambda I$ at least if the error of the products is below
    half of the ridge.

    Args:
        product: $V \mapsto AV$, perhaps in lower precision.
        b: $B$. shape: (n, q)
        preconditioner: A symmetric positive definite matrix near $A$.
        rtol: Largest $\|B - AX\| / \|B\|$ of each column.
        max_steps: Most steps.
        exact: $V \mapsto AV$ for the true residuals; ``product`` by default.
        on_step: Called after each step with its number and the relative residuals.
    """
    scale = unit(b)
    b = b / scale
    solution, residual, reached = torch.zeros_like(b), b, relative(b, b)
    direction, energy = residual, None
    counts, steps = torch.zeros_like(reached, dtype=torch.long), 0
    history: list[Tensor] = []
    aim = rtol if exact is None else _sweep(reached, rtol)

    def precondition(vectors: Tensor) -> Tensor:
        return preconditioner.solve(vectors.to(preconditioner.dtype)).to(vectors.dtype)

    while True:
        lost = ~(reached < _LOST)  # columns that run away, having no solution; NaN too
        if bool(lost.any()):
            solution, residual, direction, reached = (
                values.masked_fill(lost, 0.0) for values in (solution, residual, direction, reached)
            )
        moving = reached > aim
        if steps >= max_steps or not bool(moving.any()):
            residual = b - (exact or product)(solution)
            reached = relative(residual, b)
            moving = ~(reached <= rtol)
            if steps >= max_steps or not bool(moving.any()):
                past = torch.stack(history) if history else b[:0]
                converged = not bool(moving.any())
                return LinearSolve(solution * scale, reached, converged, steps, counts, past)
            energy, aim = None, rtol if exact is None else _sweep(reached, rtol)
        if energy is None:
            direction = precondition(residual)
            energy = (residual * direction).sum(0)
        image = product(direction)
        curvature = (direction * image).sum(0)
        length = torch.where(moving & (curvature > 0), energy / curvature, 0.0)
        solution, residual = solution + length * direction, residual - length * image
        gradient = precondition(residual)
        before, energy = energy, (residual * gradient).sum(0)
        ratio = torch.where(moving & (before > 0), energy / before, 0.0)
        direction = gradient + ratio * direction
        reached, counts, steps = relative(residual, b), counts + moving, steps + 1
        history.append(reached)
        if on_step is not None:
            on_step(steps, reached)


def _sweep(reached: Tensor, rtol: float) -> float:
    """The residual at which a sweep of refinement ends: those left gain about as much."""
    target = rtol / 2  # one more look at true residuals costs more than a step
    largest = float(reached.max())
    if not target < largest:  # NaN too
        return target
    sweeps = math.ceil(math.log(target / largest) / math.log(_GAIN))
    return float(largest * (target / largest) ** (1 / sweeps))


def unit(b: Tensor) -> Tensor:
    """Divisors of columns: powers of two where squares would overflow or underflow, or one."""
    largest = b.abs().amax(0)
    low, high = torch.finfo(b.dtype).tiny ** 0.25, torch.finfo(b.dtype).max ** 0.25
    ordinary = (largest == 0) | ((largest >= low) & (largest <= high))
    powers = largest / (2 * torch.frexp(largest).mantissa)
    return torch.where(ordinary, 1.0, powers)


def relative(residual: Tensor, b: Tensor) -> Tensor:
    """Norms of columns relative to those of others; a column of zeros has none."""
    scale, tiny = unit(b), torch.finfo(b.dtype).tiny
    size: Tensor = torch.linalg.vector_norm(b / scale, dim=0)
    result: Tensor = torch.linalg.vector_norm(residual / scale, dim=0) / size.clamp_min(tiny)
    return result


class RowSpaces:
    """An orthonormal basis for each row, which grows by one vector at a time (Arnoldi's method).

    Args:
        start: The first vectors, of any length, one in each row.

    Attributes:
        basis: The vectors, in rows; zeros where there was nothing new.
    """

    def __init__(self, start: Tensor) -> None:
        self.basis = [_normalized(start)[0]]
        self._columns: list[Tensor] = []

    def add(self, rows: Tensor) -> Tensor:
        """Add the new part of further vectors, and return its length."""
        space = torch.stack(self.basis, 1)  # shape: (n, count, size)
        components = torch.zeros_like(space[:, :, 0])
        for _ in range(2):  # once leaves what rounding left
            part = torch.einsum("nkd,nd->nk", space, rows)
            rows = rows - torch.einsum("nkd,nk->nd", space, part)
            components = components + part
        new, lengths = _normalized(rows)
        self._columns.append(torch.cat([components, lengths[:, None]], 1))
        self.basis.append(new)
        return lengths

    @property
    def coordinates(self) -> Tensor:
        """Coordinates of all that was added, in columns. shape: (n, count + 1, count)."""
        height = len(self.basis)
        pad = torch.nn.functional.pad
        return torch.stack([pad(c, (0, height - c.shape[1])) for c in self._columns], 2)


def _normalized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length one, zeros where there is none, and the lengths."""
    lengths = torch.linalg.vector_norm(rows, dim=1)
    return rows / torch.where(lengths > 0, lengths, 1.0)[:, None], lengths
