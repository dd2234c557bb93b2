"""The loop of a training: evaluate, watch, step; and how it goes on after an interruption."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.core.checkpoints import Checkpoint, Snapshot
from shoal.core.exceptions import ConvergenceError
from shoal.networks import EquilibriumNetwork
from shoal.training.ledger import Ledger
from shoal.training.monitor import Watch
from shoal.training.objective import Evaluation, Objective
from shoal.training.plan import Plan
from shoal.training.progress import TrainingProgress
from shoal.training.result import TrainingStatus
from shoal.training.steppers import LostEquilibriumError, Stepper

__all__ = ["OnViolation", "Outcome", "Session"]

OnViolation = Literal["record", "stop", "raise"]

_WORDS = {
    "loss": "the loss exceeded its bound",
    "gain": "the recurrent layer is no longer certain to be a contraction",
    "equilibrium": "an equilibrium, or its gradient, was not found",
    "least_eigenvalue": "the least eigenvalue of the Gram matrix fell below its bound",
    "pl_ratio": "the gradient became smaller than the loss allows",
    "drift": "the Gram matrix moved farther than its bound",
}
_HINT = " A smaller step_size changes these weights less."


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: TrainingStatus
    message: str


@dataclass(eq=False)
class Session:
    """A run.

    Attributes:
        objective: What is trained.
        plan: How, and what is to be kept.
        steps: How many steps to make.
        stop: Whether a violation ends the run.
        checkpoint: The file to go on from.
        report: Called at each step.
        stepper: What moves the weights.
        ledger: Where all is written down.
        watch: The monitors, if there are any.
        seconds: The time that it took.
        monitor_seconds: How much of it was for the monitors.
    """

    objective: Objective
    plan: Plan
    steps: int
    stop: bool
    checkpoint: Checkpoint | None
    report: Callable[[TrainingProgress], object]
    stepper: Stepper = field(init=False)
    ledger: Ledger = field(init=False)
    watch: Watch | None = field(init=False)
    seconds: float = field(default=0.0, init=False)
    monitor_seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Open the books."""
        self.stepper, self.ledger = self.plan.stepper(), Ledger(self.plan.promises)
        self.watch = None if self.plan.monitor is None else Watch(self.objective)

    def run(self) -> Outcome:
        """Make all steps, or as many as the run survives."""
        self._resume()
        self._start = time.perf_counter() - self.seconds
        try:
            return self._loop()
        except ConvergenceError as error:
            if isinstance(error, LostEquilibriumError):
                self.ledger.lose_equilibrium()
            return Outcome("diverged", f"after step {self.ledger.step}: {error}")
        finally:
            self.seconds = time.perf_counter() - self._start

    def _loop(self) -> Outcome:
        while True:
            self._save()
            where = len(self.ledger.losses)
            try:
                now = self.objective.evaluate()
            except ConvergenceError as error:
                self.ledger.lose_equilibrium()
                return Outcome("diverged", f"at step {where}: {error}{_HINT if where else ''}")
            if not now.finite:
                self.ledger.lose_loss()
                return Outcome("diverged", f"the loss at step {where} is {now.loss}")
            self._record(now)
            self.report(self._progress())
            if self.stop and self.ledger.violations:
                return Outcome("stopped", describe(self.ledger.violations))
            if self.ledger.step >= self.steps:
                return Outcome("finished", describe(self.ledger.violations))
            if not self.stepper.advance(self.objective, now):
                self.ledger.lose_equilibrium()

    def _record(self, now: Evaluation) -> None:
        """Write down all that is known of this step."""
        ledger, divisor = self.ledger, self.objective.divisor
        ledger.losses.append(now.loss)
        measured = self._look(now)
        eigenvalue = self.plan.eigenvalue
        if eigenvalue is None and measured:
            eigenvalue = measured["least_eigenvalue"]
        if ledger.bounds is None and eigenvalue is not None:
            ledger.bounds = self.plan.bounds(divisor, ledger.losses[0], eigenvalue)
        if measured:
            ledger.look(measured)
        ledger.judge_equilibrium(converged=now.converged)
        if ledger.exceeds():  # then it matters how well the loss is known
            error = self.objective.output_error(now)
            error += self.stepper.output_error(self.objective, now)
            ledger.judge_loss(error, divisor)

    def _look(self, now: Evaluation) -> dict[str, float]:
        """What the monitors see, if it is their turn."""
        step, monitor = self.ledger.step, self.plan.monitor
        if self.watch is None or monitor is None:
            return {}
        if step % monitor.every and step != self.steps:
            return {}
        start = time.perf_counter()
        measured = self.watch.measure(now)
        self.monitor_seconds += time.perf_counter() - start
        return measured

    def _progress(self) -> TrainingProgress:
        ledger = self.ledger
        return TrainingProgress(ledger.step, self.steps, ledger.losses[-1], len(ledger.violations))

    def _save(self) -> None:
        """Write a checkpoint if one is due, and always before the last step is looked at."""
        if self.checkpoint is None or not self.ledger.losses:
            return
        if self.checkpoint.due or len(self.ledger.losses) == self.steps:
            self.checkpoint.write(self._snapshot())

    def _snapshot(self) -> Snapshot:
        network, ledger = self.objective.network, self.ledger
        tensors: dict[str, Tensor] = {f"weight.{n}": p for n, p in self.objective.weights.items()}
        parts: dict[str, dict[str, Tensor]] = {"ledger": ledger.state()}
        if isinstance(network, EquilibriumNetwork):
            parts["warm"] = network.recalled()
        if self.watch is not None:
            parts["watch"] = self.watch.state()
        for part, state in parts.items():
            tensors |= {f"{part}.{name}": tensor for name, tensor in state.items()}
        facts: dict[str, Any] = {
            "violations": ledger.violations,
            "size": self.stepper.size,
            "seconds": time.perf_counter() - self._start,
            "monitor_seconds": self.monitor_seconds,
            "eigenvalue": None if ledger.bounds is None else ledger.bounds.least_eigenvalue,
        }
        return Snapshot(facts, tensors)

    @torch.no_grad()
    def _resume(self) -> None:
        """Take over the state in the checkpoint, if there is one."""
        network = self.objective.network
        if isinstance(network, EquilibriumNetwork):
            network.forget()  # what came before is no part of the run
        snapshot = (
            None if self.checkpoint is None else self.checkpoint.read(self.objective.x.device)
        )
        if snapshot is None:
            return
        facts, parts = snapshot.facts, _split(snapshot.tensors)
        done = len(parts["ledger"]["losses"])
        if done > self.steps:
            raise ValueError(f"steps must be >= {done}, which the checkpoint has made already")
        for name, parameter in self.objective.weights.items():
            parameter.copy_(parts["weight"][name])
        self.ledger.restore(parts["ledger"], facts["violations"])
        self.stepper.size = facts["size"]
        self.seconds, self.monitor_seconds = facts["seconds"], facts["monitor_seconds"]
        if facts["eigenvalue"] is not None:
            self.ledger.bounds = self.plan.bounds(
                self.objective.divisor, self.ledger.losses[0], facts["eigenvalue"]
            )
        if self.watch is not None:
            self.watch.restore(parts["watch"])
        if isinstance(network, EquilibriumNetwork) and "warm" in parts:
            network.recall(self.objective.x, parts["warm"])


def describe(violations: dict[str, int]) -> str:
    """The violations in words."""
    if not violations:
        return "no promise was broken"
    return "; ".join(f"{_words(name)} at step {step}" for name, step in violations.items())


def _words(name: str) -> str:
    group = name.removeprefix("distance.")
    return _WORDS[name] if group == name else f"the weights {group} traveled too far"


def _split(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors by the part of the run that they belong to."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    return parts
