"""The equilibria of a loop: what each solver makes of it, and how many there are."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.measuring import peak_memory, timed
from shoal.equilibrium import (
    Anderson,
    Broyden,
    DampedPicard,
    NewtonKrylov,
    Picard,
    Solution,
    Solver,
    Status,
)
from shoal.equilibrium.driver import drive
from shoal.equilibrium.problem import Problem

SOLVERS: tuple[Solver, ...] = (
    Picard(max_steps=500),
    DampedPicard(max_steps=500),
    Anderson(),
    Broyden(),
    NewtonKrylov(),
)
_ZERO = 1e-3  # of the largest start: the size below which sizes do not count
_APART = 1e-2  # of the states' size: two equilibria and not one
_SURE = 2.0  # times what both may be off


class SolverCost(NamedTuple):
    """What a solver makes of the loop, from its own start.

    Attributes:
        solver: The method.
        converged: How many samples it solved.
        failures: How the others ended.
        evaluations: Of the cell, or products with its Jacobian, for the whole batch.
        steps: The most that a sample took.
        seconds: Of one solve.
        residual: The largest residual of the samples that it solved, relative to the state.
        peak: The most bytes that a solve holds at once, besides parameters and inputs.
    """

    solver: Solver
    converged: int
    failures: dict[Status, int]
    evaluations: int
    steps: int
    seconds: float
    residual: float
    peak: int

    @property
    def name(self) -> str:
        """The name of the method."""
        return type(self.solver).__name__


@dataclass(frozen=True, eq=False)
class Equilibria:
    """The equilibria that were found.

    Attributes:
        counts: For each sample, how many that differ.
        starts: From how many starts they were looked for.
        states: Of each sample one row for each equilibrium that was found.
        contraction: ``"certified"``, if a bound proves that the loop contracts, so that there is
            one equilibrium; ``"refuted"``, if two states, or a direction, were found that it moves
            apart; else ``"unknown"``.
        expansion: The largest factor by which distances were seen to grow.
        errors: How far off each sample's first equilibrium may be, relative to its size, by
            Newton's estimate; not a number where none was found.
    """

    counts: tuple[int, ...]
    starts: int
    states: tuple[Tensor, ...]
    contraction: str
    expansion: float
    errors: tuple[float, ...]

    @property
    def unique(self) -> bool | None:
        """Whether there is one for each sample: proved, refuted by a second one, or not known."""
        if any(count > 1 for count in self.counts):
            return False
        return True if self.contraction == "certified" else None


def solver_costs(
    problem: Problem, start: Tensor, solvers: tuple[Solver, ...] = SOLVERS
) -> tuple[tuple[SolverCost, ...], tuple[Solution, ...]]:
    """What each solver costs, and what it finds.

    Args:
        problem: The map.
        start: Where to begin, in rows.
        solvers: The methods.
    """
    costs, found = [], []
    drive(problem, Picard(max_steps=2), start)  # once before, for fair times
    for solver in solvers:
        solve = partial(drive, problem, solver, start)
        outcome, seconds = timed(solve, start.device)
        _, peak = peak_memory(solve, start.device)
        solution = outcome.solution
        done = solution.converged
        size = torch.linalg.vector_norm(solution.value, dim=1).clamp_min(1e-300)
        relative = (solution.residual / size)[done]
        costs.append(
            SolverCost(
                solver,
                int(done.sum()),
                solution.failures,
                solution.evaluations,
                int(solution.steps.max()),
                seconds,
                float(relative.max()) if len(relative) else float("nan"),
                peak,
            )
        )
        found.append(solution)
    return tuple(costs), tuple(found)


def first_found(solutions: tuple[Solution, ...]) -> Tensor:
    """The first equilibrium found for each sample, in rows; NaN if none was found."""
    value = torch.full_like(solutions[0].value, torch.nan)
    for one in reversed(solutions):
        value = torch.where(one.converged[:, None], one.value, value)
    return value


def distinct_equilibria(
    problem: Problem,
    starts: list[Tensor],
    found: list[Tensor],
    *,
    certified: bool,
    norm: float,
) -> Equilibria:
    """Which equilibria differ, and whether the loop contracts.

    Args:
        problem: The map.
        starts: States from which it was solved.
        found: Equilibria, in rows; not a number where there was none.
        certified: Whether a contraction was proved.
        norm: The largest norm of a Jacobian that was seen.
    """
    several = torch.stack([one.cpu() for one in found], 1)
    errors = torch.stack([newton_errors(problem, one).cpu() for one in found], 1)
    largest = torch.stack([torch.linalg.vector_norm(z.cpu(), dim=1) for z in starts]).amax(0)
    rows = zip(several, errors, largest, strict=True)
    states, relative = zip(*(_apart(z, e, _ZERO * float(s)) for z, e, s in rows), strict=True)
    expansion = max(norm, _expansion(problem, starts))
    contraction = "certified" if certified else "refuted" if expansion >= 1 else "unknown"
    counts = tuple(map(len, states))
    return Equilibria(counts, len(starts), states, contraction, expansion, relative)


def _apart(states: Tensor, errors: Tensor, least: float) -> tuple[Tensor, float]:
    """The distinct finite states of a sample, and the error of the first.

    Args:
        states: The states, in rows.
        errors: How far off they may be.
        least: The size below which sizes do not count.
    """
    there = states.isfinite().all(1)
    states, errors = states[there], errors[there]
    sizes = torch.linalg.vector_norm(states, dim=1, dtype=torch.float64).clamp_min(least)
    kept: list[int] = []
    for i, z in enumerate(states):
        distances = torch.linalg.vector_norm(z - states[kept], dim=1, dtype=torch.float64)
        same = _APART * torch.maximum(sizes[i], sizes[kept])
        if bool((distances > torch.maximum(same, _SURE * (errors[i] + errors[kept]))).all()):
            kept.append(i)
    return states[kept], float(errors[0] / sizes[0]) if len(kept) else torch.nan


@torch.no_grad()
def newton_errors(problem: Problem, states: Tensor) -> Tensor:
    r"""How far off equilibria are: $\|(I - J)^{-1}(f(z) - z + e)\|$, $e$ of rounding's size."""
    z = states.nan_to_num()
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(z.shape[1])).to(z)
    size = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    noise *= torch.finfo(z.dtype).eps * size / torch.linalg.vector_norm(noise, dim=1, keepdim=True)
    newton = NewtonKrylov()
    value = problem.evaluate(z) + noise
    better, _ = newton.step(problem, newton.init(z), z, value)
    off: Tensor = torch.linalg.vector_norm(better - z, dim=1, dtype=torch.float64)
    return off


@torch.no_grad()
def _expansion(problem: Problem, states: list[Tensor]) -> float:
    """The largest factor by which a step changed the distance of two states."""
    images = [problem.evaluate(z) for z in states]
    largest = 0.0
    for i, first in enumerate(states):
        for j in range(i):
            before = torch.linalg.vector_norm(first - states[j], dim=1)
            after = torch.linalg.vector_norm(images[i] - images[j], dim=1)
            ratios = (after / before)[before > 0]
            largest = max(largest, float(ratios.nan_to_num().max()) if len(ratios) else 0.0)
    return largest
