"""The loop of ``train``: evaluate, watch, step; and how it goes on after an interruption."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from shoal.core.exceptions import ConvergenceError
from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.ntk.exact import forget
from shoal.training.batches import Batches
from shoal.training.checkpoint import Checkpoint, Snapshot
from shoal.training.flow import LostEquilibriumError
from shoal.training.objective import Evaluation
from shoal.training.optimizers import Stepper
from shoal.training.progress import TrainingProgress
from shoal.training.result import TrainingStatus
from shoal.training.watch import Watch, describe

_HINT = " A smaller step_size changes these weights less."


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: TrainingStatus
    message: str


class _DivergenceError(Exception):
    """There is nothing to go on with."""


@dataclass(eq=False)
class TrainingLoop:
    """A run.

    Attributes:
        watch: What observes it.
        stepper: What moves the weights.
        steps: How many steps to make.
        batches: The samples of each step, if not all.
        whole: Whether a step is made for the loss that is watched: that of all samples, where
            nothing is random.
        every: After how many steps monitors look, if there are any.
        stop: Whether a violation ends the run.
        checkpoint: The file to go on from.
        report: Called at each step.
        made: How many steps were made.
        batch_losses: What each was made for, if not ``whole``.
        seconds: The time that it took.
        monitor_seconds: How much of it was for the monitors.
    """

    watch: Watch
    stepper: Stepper
    steps: int
    batches: Batches | None
    whole: bool
    every: int | None
    stop: bool
    checkpoint: Checkpoint | None
    report: Callable[[TrainingProgress], object]
    made: int = field(default=0, init=False)
    batch_losses: list[float] = field(default_factory=list, init=False)
    seconds: float = field(default=0.0, init=False)
    monitor_seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """See what is trained."""
        self._objective = self.watch.objective
        # equilibria of the step before are of use only for the same inputs
        alone = self._objective.processes.size == 1  # of several, each has some of the inputs
        self._warm = (
            alone and self.whole and isinstance(self._objective.network, EquilibriumNetwork)
        )

    def run(self) -> Outcome:
        """Make all steps, or as many as the run survives."""
        forget(self._objective.network)  # what came before is no part of the run
        self._resume()
        self._start = time.perf_counter() - self.seconds
        try:
            return self._loop()
        except _DivergenceError as error:
            return Outcome("diverged", str(error))
        finally:
            self.seconds = time.perf_counter() - self._start

    def _loop(self) -> Outcome:
        watch = self.watch
        while True:
            self._save()
            now = self._watched_step() if self.whole else self._hidden_step()
            loss = self._last_loss if now is None else now.loss
            self.report(TrainingProgress(self.made, self.steps, loss, len(watch.violations)))
            if self.stop and watch.violations:
                return Outcome("stopped", describe(watch.violations))
            if now is None or self.made >= self.steps:
                return Outcome("finished", describe(watch.violations))
            self._step(now)

    @property
    def _due(self) -> bool:
        """Whether it is time to look: for monitors, or else at the start and at the end."""
        again = self.made == 0 if self.every is None else self.made % self.every == 0
        return again or self.made == self.steps

    def _watched_step(self) -> Evaluation:
        """The loss that the next step is made for, which is watched."""
        measure = self._due and self.every is not None
        now = self._evaluate(None, together=not measure)  # monitors see all equilibria
        start = time.perf_counter()
        error = self.stepper.output_error
        self.watch.note(self.made, now, self._objective, measure=measure, step_error=error)
        self.monitor_seconds += time.perf_counter() - start if measure else 0.0
        return now

    def _hidden_step(self) -> Evaluation | None:
        """The loss that the next step is made for, if there is one; all samples are watched."""
        if self._due:
            start = time.perf_counter()
            try:
                row = self.watch.see(self.made, measure=self.every is not None)
            except ConvergenceError as error:
                raise _DivergenceError(f"at step {self.made}: {error}{self._hint}") from error
            self._last_loss = row["loss"]
            self.monitor_seconds += time.perf_counter() - start
        if self.made == self.steps:
            return None
        rows = None if self.batches is None else self.batches.take(self._objective.x.first.device)
        now = self._evaluate(rows)
        if not now.converged:
            self.watch.lose("equilibrium", self.made)
        self.batch_losses.append(now.loss)
        return now

    def _evaluate(self, rows: Tensor | None, *, together: bool = True) -> Evaluation:
        if not self._warm:
            forget(self._objective.network)
        try:
            now = (self._objective.shared if together else self._objective.evaluate)(rows)
        except ConvergenceError as error:
            self.watch.lose("equilibrium", self.made)
            raise _DivergenceError(f"at step {self.made}: {error}{self._hint}") from error
        if not now.finite:
            self.watch.lose("loss", self.made)
            raise _DivergenceError(f"the loss at step {self.made} is {now.loss}")
        return now

    @property
    def _hint(self) -> str:
        return _HINT if self.made else ""

    def _step(self, now: Evaluation) -> None:
        try:
            converged = self.stepper.advance(self._objective, now)
        except ConvergenceError as error:
            if isinstance(error, LostEquilibriumError):
                self.watch.lose("equilibrium", self.made + 1)
            raise _DivergenceError(f"after step {self.made}: {error}") from error
        self.made += 1
        if not converged:
            self.watch.lose("equilibrium", self.made)

    def _save(self) -> None:
        """Write a checkpoint if one is due, and always before the last step is looked at."""
        if self.checkpoint is None or not self.made:
            return
        if self.checkpoint.due or self.made == self.steps:
            self.checkpoint.write(self._snapshot())

    def _snapshot(self) -> Snapshot:
        watched = self.watch.state_dict()
        facts: dict[str, Any] = {
            "made": self.made,
            "violations": watched.pop("violations"),
            "seconds": time.perf_counter() - self._start,
            "monitor_seconds": self.monitor_seconds,
        }
        parts: dict[str, dict[str, Tensor]] = {
            "weight": tensors_of(self._objective.network),
            "watch": watched,
            "stepper": self.stepper.state(),
            "batches": {} if self.batches is None else self.batches.state(),
            "run": {"batch_losses": torch.tensor(self.batch_losses, dtype=torch.float64)},
        }
        network, device = self._objective.network, self._objective.x.first.device
        if not isinstance(network, Network):
            parts["random"] = {"cpu": torch.get_rng_state()}
            if device.type == "cuda":
                parts["random"]["cuda"] = torch.cuda.get_rng_state(device)
        tensors = {f"{part}.{n}": t for part, state in parts.items() for n, t in state.items()}
        return Snapshot(facts, tensors)

    @torch.no_grad()
    def _resume(self) -> None:
        """Take over the state in the checkpoint, if there is one."""
        network, x = self._objective.network, self._objective.x.first
        snapshot = None if self.checkpoint is None else self.checkpoint.read()
        snapshot = self._objective.processes.of_first(snapshot)  # which the first has read
        if snapshot is None:
            return
        facts = snapshot.facts
        parts = _split({name: tensor.to(x.device) for name, tensor in snapshot.tensors.items()})
        if facts["made"] > self.steps:
            raise ValueError(
                f"steps must be >= {facts['made']}, which the checkpoint has made already"
            )
        for name, tensor in tensors_of(network).items():
            tensor.copy_(parts["weight"][name])
        self.made, self.batch_losses = facts["made"], parts["run"]["batch_losses"].tolist()
        self.seconds, self.monitor_seconds = facts["seconds"], facts["monitor_seconds"]
        self.watch.load_state_dict({**parts["watch"], "violations": facts["violations"]})
        self.stepper.restore(parts.get("stepper", {}))
        if self.batches is not None:
            self.batches.restore(parts["batches"])
        if "random" in parts:
            torch.set_rng_state(parts["random"]["cpu"].cpu())
            if x.is_cuda:
                torch.cuda.set_rng_state(parts["random"]["cuda"].cpu(), x.device)


def tensors_of(network: Module) -> dict[str, Tensor]:
    """The parameters and buffers of a network, frozen ones too."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _split(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors by the part of the run that they belong to."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    return parts
