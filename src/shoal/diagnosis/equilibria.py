"""The equilibria of a loop: what each solver makes of it, and how many there are."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.timing import timed
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

__all__ = ["Equilibria", "SolverCost", "distinct_equilibria", "first_found", "solver_costs"]

SOLVERS: tuple[Solver, ...] = (
    Picard(max_steps=500),
    DampedPicard(max_steps=500),
    Anderson(),
    Broyden(),
    NewtonKrylov(),
)
_ZERO = 1e-3  # of the largest start: the size below which sizes do not count
_APART = 1e-2  # of the states' size: two equilibria and not one


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
    """

    solver: Solver
    converged: int
    failures: dict[Status, int]
    evaluations: int
    steps: int
    seconds: float
    residual: float

    @property
    def name(self) -> str:
        """Of the method."""
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
    """

    counts: tuple[int, ...]
    starts: int
    states: tuple[Tensor, ...]
    contraction: str
    expansion: float

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
    for solver in solvers:
        outcome, seconds = timed(partial(drive, problem, solver, start), start.device)
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
            )
        )
        found.append(solution)
    return tuple(costs), tuple(found)


def first_found(solutions: tuple[Solution, ...]) -> Tensor:
    """For each sample the first equilibrium that was found, in rows; not a number if none was."""
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
    largest = torch.stack([torch.linalg.vector_norm(z.cpu(), dim=1) for z in starts]).amax(0)
    states = tuple(_apart(z, _ZERO * float(s)) for z, s in zip(several, largest, strict=True))
    expansion = max(norm, _expansion(problem, starts))
    contraction = "certified" if certified else "refuted" if expansion >= 1 else "unknown"
    counts = tuple(map(len, states))
    return Equilibria(counts, len(starts), states, contraction, expansion)


def _apart(states: Tensor, least: float) -> Tensor:
    """Those of a sample's states that are finite and differ, each once.

    Args:
        states: The states, in rows.
        least: The size below which sizes do not count.
    """
    kept: list[Tensor] = []
    for z in states[states.isfinite().all(1)]:
        sizes = [max(float(z.norm()), float(other.norm()), least) for other in kept]
        far = [float((z - k).norm()) > _APART * s for k, s in zip(kept, sizes, strict=True)]
        if all(far):
            kept.append(z)
    return torch.stack(kept) if kept else states[:0]


@torch.no_grad()
def _expansion(problem: Problem, states: list[Tensor]) -> float:
    """The largest factor by which a step changed the distance of two states."""
    images = [problem.evaluate(z).value for z in states]
    largest = 0.0
    for i, first in enumerate(states):
        for j in range(i):
            before = torch.linalg.vector_norm(first - states[j], dim=1)
            after = torch.linalg.vector_norm(images[i] - images[j], dim=1)
            ratios = (after / before)[before > 0]
            largest = max(largest, float(ratios.nan_to_num().max()) if len(ratios) else 0.0)
    return largest
