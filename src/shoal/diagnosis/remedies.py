"""What to do about what was found, in the order of its promise."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from shoal.core.words import counted
from shoal.diagnosis.equilibria import SolverCost
from shoal.equilibrium import Status

if TYPE_CHECKING:
    from shoal.diagnosis.result import Diagnosis

_SHALLOW = 8  # applications that a network without a loop can make
_LAZY = 0.1  # relative change of the tangent kernel up to which training was nearly linear
ROUGH = 0.1  # relative error of a gradient that is worth a word


class Remedy(NamedTuple):
    """Something to do.

    Attributes:
        what: To do.
        why: What was measured that speaks for it.
    """

    what: str
    why: str


def remedies(found: "Diagnosis") -> tuple[Remedy, ...]:
    """What the measurements speak for, the most promising first."""
    rules = (_not_finite, _no_equilibrium, _other_solver, _several, _gradient, _cut, _lazy, _faster)
    return tuple(remedy for rule in rules for remedy in rule(found))


def best_solver(costs: tuple[SolverCost, ...]) -> SolverCost:
    """The one that solves most samples, and of those the one of fewest evaluations."""
    return min(costs, key=lambda cost: (-cost.converged, cost.evaluations))


def _not_finite(found: "Diagnosis") -> Iterator[Remedy]:
    status = Status.NOT_FINITE
    count = max(cost.failures.get(status, 0) for cost in found.solvers)
    if count:
        yield Remedy(status.remedy, f"{status.message}, for {count} of {found.samples} samples")


def _no_equilibrium(found: "Diagnosis") -> Iterator[Remedy]:
    numbers = found.iterations[0].moves[0].isfinite().tolist()  # others are no matter of weights
    counts = found.equilibria.counts
    missing = sum(count == 0 and known for count, known in zip(counts, numbers, strict=True))
    if missing:
        kinds = ", ".join(b for b in found.behaviors if b != "settles") or "settles, nearly"
        yield Remedy(
            "train it again with the weights bounded (shoal.GainConstraint), with "
            "shoal.jacobian_penalty, or with a cell that always has an equilibrium "
            "(shoal.MonotoneCell)",
            f"no solver found an equilibrium of {missing} of {found.samples} samples, and the "
            f"plain iteration {kinds}: nothing was found that its output would converge to",
        )


def _other_solver(found: "Diagnosis") -> Iterator[Remedy]:
    settling = found.iterations[0].counts.get("settles", 0)
    best = best_solver(found.solvers)
    if settling < found.solved and best.converged > settling:
        kinds = ", ".join(b for b in found.behaviors if b != "settles")
        yield Remedy(
            f"solve with shoal.Equilibrium(cell, solver=shoal.{best.name}())",
            f"the plain iteration {kinds}, but {best.name} finds the equilibrium of "
            f"{best.converged} of {found.samples} samples in "
            f"{counted(best.evaluations, 'evaluation')}",
        )


def _several(found: "Diagnosis") -> Iterator[Remedy]:
    most = max(found.equilibria.counts, default=0)
    if most > 1:
        several = sum(count > 1 for count in found.equilibria.counts)
        yield Remedy(
            "always start from the same state, or bound the weights (shoal.GainConstraint) so "
            "that there is one equilibrium",
            f"{several} of {found.samples} samples have several equilibria, of which up to {most} "
            "were found: the output depends on the start and on the solver",
        )


def _gradient(found: "Diagnosis") -> Iterator[Remedy]:
    wrong = [cost.name for cost in found.gradients if cost.wrong]
    if wrong:
        yield Remedy(
            "train with gradient=shoal.Implicit()",
            f"{', '.join(wrong)}: the gradient has an angle above 90° to the exact one, so that "
            "small steps against it make the loss that was looked at larger",
        )
        return
    rough = [c for c in found.gradients if c.relative > ROUGH]
    close = [c for c in found.gradients[1:] if c.relative <= ROUGH]
    if rough and close:
        cheap = min(close, key=lambda cost: cost.backward_evaluations)
        yield Remedy(
            f"train with {cheap.name} or Implicit, not with {rough[0].name}",
            f"{rough[0].name} is off by {rough[0].relative:.0%}, {cheap.name} by "
            f"{cheap.relative:.1%} for {counted(cheap.backward_evaluations, 'product')}",
        )


def _cut(found: "Diagnosis") -> Iterator[Remedy]:
    depth = found.depth
    if depth is None or len(depth.depths) < found.samples:
        return
    needed = depth.quantile(1.0)
    if 0 < needed <= _SHALLOW and found.equilibria.unique is not False:
        yield Remedy(
            f"run {counted(needed, 'application')} of the cell instead of a solve, or look for a "
            "replacement with shoal.distill",
            f"after {counted(needed, 'application')} the output of all samples is within "
            f"{depth.tolerance:.0%} of what it will be",
        )


def _lazy(found: "Diagnosis") -> Iterator[Remedy]:
    change = found.kernel_change
    if change is not None and change.relative <= _LAZY:
        yield Remedy(
            "replace it by the network of shoal.design for its architecture, trained alike",
            f"the tangent kernel has changed by {change.relative:.1%} in training, which then was "
            "nearly linear; wide networks of one kernel learn the same",
        )


def _faster(found: "Diagnosis") -> Iterator[Remedy]:
    plain, best = found.solvers[0], best_solver(found.solvers)
    fewer = plain.evaluations > 2 * best.evaluations and plain.seconds > best.seconds
    if 0 < plain.converged == best.converged and fewer and not any(_other_solver(found)):
        yield Remedy(
            f"solve with shoal.Equilibrium(cell, solver=shoal.{best.name}())",
            f"it takes {counted(best.evaluations, 'evaluation')} in {1e3 * best.seconds:.3g} ms, "
            f"the plain iteration {plain.evaluations} in {1e3 * plain.seconds:.3g} ms",
        )
