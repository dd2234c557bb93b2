"""Conjugate gradients for several right-hand sides at once: solutions and determinants."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shoal.core.exceptions import ConvergenceError
from shoal.numerics.low_rank import Columns, Diagonal

Map = Callable[[Tensor], Tensor]
_GAIN = 5e-4  # by which one sweep of refinement reduces residuals, about
_LOST = 1e12  # growth of a residual that no conditioning explains


@dataclass(eq=False)
class Iteration:
    r"""The state of conjugate gradients for $AX = B$.

    On the way, columns whose squares would underflow or overflow are in units of :func:`unit`.

    Attributes:
        solution: $X$. shape: (n, q), like the next two
        residual: $B - AX$; by recurrence on the way, the true one at the end.
        direction: The next directions.
        energy: $\langle R, M^{-1} R \rangle$ of each column, or ``None`` before a (re)start.
        steps: How many steps were made.
        counts: In how many of them each column moved. shape: (q,)
        history: Relative residuals after each step. shapes: (q,)
        converged: Whether the true residuals met the tolerance.
        aim: The relative residual at which true ones are computed next; ``None`` before a start.
    """

    solution: Tensor
    residual: Tensor
    direction: Tensor
    energy: Tensor | None
    steps: int
    counts: Tensor
    history: list[Tensor] = field(default_factory=list)
    converged: bool = False
    aim: float | None = None

    @classmethod
    def start(cls, b: Tensor) -> "Iteration":
        """From zero."""
        counts = torch.zeros(b.shape[1], dtype=torch.long, device=b.device)
        return cls(torch.zeros_like(b), b / unit(b), torch.zeros_like(b), None, 0, counts)


def conjugate_gradients(
    product: Map,
    b: Tensor,
    *,
    precondition: Map,
    rtol: float,
    max_steps: int,
    exact: Map | None = None,
    on_step: Callable[[Iteration], object] | None = None,
) -> Iteration:
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
    half of the ridge, and also with a larger one that is small where $K$ is. Otherwise it may not,
    and then is not said to. Steps with $\eta$ far below $\varepsilon$ would be wasted, and sweeps
    end at about ``_GAIN``.

    Args:
        product: $V \mapsto AV$, perhaps in lower precision.
        b: $B$. shape: (n, q)
        precondition: $R \mapsto M^{-1} R$, for a symmetric positive definite $M$ that is near $A$.
        rtol: Largest $\|B - AX\| / \|B\|$ of each column.
        max_steps: Most steps.
        exact: $V \mapsto AV$ for the true residuals; ``product`` by default.
        on_step: Called after each step.

    Returns:
        The last iteration, which says whether it converged.
    """
    scale = unit(b)
    b = b / scale
    s = Iteration.start(b)
    if exact is None or s.aim is None:
        s.aim = rtol if exact is None else _sweep(relative(s.residual, b), rtol)
    while True:
        _stop_lost(s, b)
        moving = relative(s.residual, b) > s.aim
        if s.steps >= max_steps or not bool(moving.any()):
            true = b - (product if exact is None else exact)(s.solution)
            found = relative(true, b)
            aim = rtol if exact is None else _sweep(found, rtol)
            vars(s).update(residual=true, energy=None, aim=aim)
            moving = ~(found <= rtol)
            s.converged = not bool(moving.any())
            if s.converged or s.steps >= max_steps:
                return replace(s, solution=s.solution * scale, residual=s.residual * scale)
        step(s, product, b, precondition=precondition, moving=moving)
        if on_step is not None:
            on_step(s)


def _stop_lost(s: Iteration, b: Tensor) -> None:
    """Take columns back to zero that run away, having no solution, until all start again."""
    lost = ~(relative(s.residual, b) < _LOST)  # NaN too
    if bool(lost.any()):
        for name in ("solution", "residual", "direction"):
            setattr(s, name, getattr(s, name).masked_fill(lost, 0.0))


def _sweep(found: Tensor, rtol: float) -> float:
    """The residual at which a sweep of refinement ends: those left gain about as much."""
    wanted = rtol / 2  # one more look at true residuals costs more than a step
    largest = float(found.max())
    if not wanted < largest:  # NaN too
        return wanted
    sweeps = math.ceil(math.log(wanted / largest) / math.log(_GAIN))
    return float(largest * (wanted / largest) ** (1 / sweeps))


def step(
    s: Iteration, product: Map, b: Tensor, *, precondition: Map, moving: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of all columns that are moving; the state is changed as a whole, or not at all.

    Returns:
        How far each column went, and the ratio of its energies after and before: these are the
        entries of the tridiagonal matrix to which $M^{-1} A$ is reduced.
    """
    if s.energy is None:
        s.direction = precondition(s.residual)
        s.energy = (s.residual * s.direction).sum(0)
    image = product(s.direction)
    curvature = (s.direction * image).sum(0)
    length = torch.where(moving & (curvature > 0), s.energy / curvature, 0.0)
    residual = s.residual - length * image
    next_step = precondition(residual)
    energy = (residual * next_step).sum(0)
    ratio = torch.where(moving & (s.energy > 0), energy / s.energy, 0.0)
    # all at once: whoever keeps the state of an interrupted iteration has a whole step
    vars(s).update(
        solution=s.solution + length * s.direction,
        residual=residual,
        direction=next_step + ratio * s.direction,
        energy=energy,
        steps=s.steps + 1,
        counts=s.counts + moving,
        history=[*s.history, relative(residual, b)],
    )
    return length, ratio


def logdet_samples(
    product: Map,
    near: Columns | Diagonal,
    probes: Tensor,
    *,
    rtol: float,
    max_steps: int,
) -> Tensor:
    r"""Unbiased samples of $\log\det A$ by preconditioned Lanczos quadrature.

    $\log\det A = \log\det M + \mathrm{tr} \log(M^{-1/2} A M^{-1/2})$; conjugate gradients with the
    right-hand sides $M^{1/2} \epsilon$ give Gauss quadratures of $\epsilon^T \log(\cdot) \epsilon$.

    Args:
        product: $V \mapsto AV$.
        near: $M$.
        probes: $\epsilon$, columns of signs. shape: (n, q)
        rtol: Where the iterations end, relative to their start, in the norm of $M^{-1}$.
        max_steps: Most steps.

    Raises:
        ConvergenceError: If these are not enough.
    """
    s, moving = Iteration.start(near.root(probes)), torch.ones_like(probes[0], dtype=torch.bool)
    b, s.direction = s.residual, near.solve(s.residual)
    s.energy = first = (s.residual * s.direction).sum(0)
    found: list[tuple[Tensor, Tensor]] = []
    while bool((s.energy > rtol**2 * first).any()):
        if s.steps == max_steps:
            reached = float((s.energy / first).max().sqrt())
            raise ConvergenceError(
                f"the quadrature reached a relative residual of {reached:.1e} instead of "
                f"{rtol:.1e} in {max_steps} steps: take a better preconditioner, or a larger ridge"
            )
        found.append(step(s, product, b, precondition=near.solve, moving=moving))
    length, ratio = (torch.stack(parts, 1) for parts in zip(*found, strict=True))
    values, vectors = torch.linalg.eigh(_tridiagonals(length, ratio))
    inside: Tensor = (vectors[:, 0].square() * values.log()).sum(1)
    return near.logdet() + probes.square().sum(0) * inside


def _tridiagonals(length: Tensor, ratio: Tensor) -> Tensor:
    r"""What $M^{-1/2} A M^{-1/2}$ is in the basis of Lanczos. shapes: (q, steps)."""
    diagonal = 1 / length
    diagonal[:, 1:] += ratio[:, :-1] / length[:, :-1]
    beside = (ratio[:, :-1].sqrt() / length[:, :-1]).diag_embed(1)
    return diagonal.diag_embed() + beside + beside.mT


def unit(b: Tensor) -> Tensor:
    """Powers of two by which columns are divided where their squares are no ordinary numbers.

    All others get one, so that their iterations are those of the columns themselves.
    """
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
