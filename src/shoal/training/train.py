"""Train a network, and compare the run with the promises of the theory."""

import math
import os
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import SGD, Optimizer

from shoal.core.checks import as_path, function, instance, integer, one_of, real, seeded
from shoal.core.exceptions import ConvergenceError, ConvergenceWarning
from shoal.core.files import write_whole
from shoal.networks.modules import Inputs, mixing_submodule
from shoal.training.objective import Evaluation, Loss
from shoal.training.records import TrainingError, TrainingRun, TrainingStatus
from shoal.training.watch import Watch

OptimizerFactory = Callable[[list[Parameter]], Optimizer]


class TrainingProgress(NamedTuple):
    """Progress of a training.

    Attributes:
        step: The number of steps made.
        steps: The number of steps to make.
        loss: The last loss.
        violations: The number of broken promises so far.
    """

    step: int
    steps: int
    loss: float
    violations: int


def train(
    net: Module,
    x: Inputs,
    y: Tensor,
    *,
    steps: int,
    step_size: float | Literal["auto"] | None = None,
    optimizer: OptimizerFactory | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    monitor: bool | int = True,
    promises: Iterable[str] | None = None,
    certificate: Any = None,
    least_eigenvalue: float | None = None,
    on_violation: Literal["record", "stop", "raise"] = "record",
    progress: Callable[[TrainingProgress], object] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    checkpoint_tag: str = "",
) -> TrainingRun:
    r"""Train a network in place, by gradient descent or an optimizer of PyTorch.

    A :class:`Watch` compares the run with the theorems of Ling 2023, Gao 2022 and Du 2018, given
    $\lambda_0$, the least eigenvalue of their Gram matrix $G$. They promise that the loss falls at
    least like $(1 - \eta\lambda_0/2)^k$, that the recurrent layer stays a contraction, that
    $\lambda_{\min}(G) \ge \lambda_0/2$ and $\|\nabla\Phi\|^2 \ge \lambda_0\Phi$ and, except for the
    DEQ, that $\|G - G(0)\| \le \lambda_0/4$. Build implicit networks with ``warm_start=True``: each
    solve then begins at the last equilibrium. No theorems cover other optimizers, mini-batches,
    losses or modules, but all measurements are recorded.

    Args:
        net: A network made by ``build``, or any module; its weights that require a gradient are
            trained.
        x: Inputs; for other modules any tensor with samples in its first dimension, a tuple of such
            tensors for ``net(*x)``, or a dictionary for ``net(**x)``.
        y: Labels, of shape (n,) or (n, outputs); for other modules in the shape of their outputs.
        steps: The number of steps.
        step_size: $\eta$. ``"auto"``: one over the largest eigenvalue of the network's NTK. By
            default the certificate's.
        optimizer: An optimizer instead of gradient descent, as a callable
            ``params -> Optimizer``: a class such as ``torch.optim.Adam``, or
            ``lambda p: torch.optim.Adam(p, lr=1e-3)``. ``torch.optim.SGD`` without momentum and
            weight decay is gradient descent.
        batch_size: Number of samples of each step; by default all. The loss of a batch is scaled to
            estimate $\Phi$: by the ratio of the numbers of samples.
        seed: Seed of the order of mini-batches.
        loss: A custom loss, a function of outputs and labels; ``y`` then has the form that it
            expects. The default is $\Phi = \frac12\|f - y\|^2$, a sum over samples.
        monitor: Whether to measure everything, or the number of steps between two times; 10 by
            default. The loss is recorded at every step.
        promises: The promises to judge, as in :class:`Watch`; by default the theorem's.
        certificate: Result of ``certify`` for this network before training and these data. It is
            rejected for other networks, data and optimizers, and for mini-batches. If its
            conclusion holds for this step size, its promises are checked instead: the rate of the
            loss, the gain, the distance of each group of weights from its start and, for a DEQ, the
            least eigenvalue.
        least_eigenvalue: $\lambda_0$; by default the least eigenvalue of $G$ at the start.
        on_violation: ``"record"`` a broken promise, ``"stop"`` there, or ``"raise"`` a
            :class:`TrainingError`. A run that diverges ends in any case, with a
            ``ConvergenceWarning`` unless it raises.
        progress: Function to call with a :class:`TrainingProgress` at each step, such as ``print``.
        checkpoint: A file for the state of the run. If it exists, the run continues from it: repeat
            the call with a network built in the same way.
        checkpoint_seconds: Least time between two checkpoints; one is always written at the end.
        checkpoint_tag: A text that identifies the run, such as the name of the data or a hash of a
            configuration. A checkpoint with another tag is refused.

    Raises:
        TrainingError: If a promise is broken, or the run diverges, and ``on_violation`` is
            ``"raise"``.
        ValueError: If an argument is out of range, or the checkpoint is of another run, or the
            certificate of another network or other data.
        TypeError: If an argument has the wrong type.

    Example:
        >>> import torch, shoal
        >>> net = shoal.build(
        ...     shoal.ImplicitNetwork(gamma=0.2), in_features=3, width=256, dtype=torch.float64
        ... )
        >>> x, y = torch.eye(3).double(), torch.tensor([1.0, -1.0, 0.5]).double()
        >>> run = shoal.train(net, x, y, step_size="auto", steps=20)
        >>> run.status, bool(run.losses[-1] < 0.1 * run.losses[0])
        ('finished', True)
    """
    one_of("on_violation", on_violation, ("record", "stop", "raise"))
    function("progress", progress)
    steps = integer("steps", steps, at_least=0)
    every = 10 * monitor if isinstance(monitor, bool) else integer("monitor", monitor, at_least=1)
    seconds = real("checkpoint_seconds", checkpoint_seconds, at_least=0)
    with torch.inference_mode(mode=False):
        whole = batch_size is None and mixing_submodule(instance("net", net, Module)) is None
        if optimizer is not None and step_size is not None:
            raise ValueError(
                "step_size must be None with an optimizer, which has its learning rate"
            )
        if certificate is not None and not whole:
            raise ValueError(
                "certificate covers full-batch gradient descent alone: remove batch_size, and "
                "layers such as dropout or batch normalization"
            )
        mover = None if optimizer is None else _optimizer(optimizer, net)
        watch = Watch(
            net,
            x,
            y,
            loss=loss,
            optimizer=mover if whole else None,
            step_size=step_size if whole else None,
            certificate=certificate,
            least_eigenvalue=least_eigenvalue,
            promises=promises,
            gram=None if every else False,
        )
        size: Any = watch.step_size if whole else step_size
        if mover is None:
            if size is None:
                raise ValueError("step_size must be given, or an optimizer or a certificate")
            size = real("step_size", size, above=0)
            mover = SGD(list(watch.objective.weights.values()), lr=size)
        batches = None if whole else _batches(len(watch.objective.x), batch_size, seed)
        training = _Run(watch, mover, batches, instance("checkpoint_tag", checkpoint_tag, str))
        if checkpoint is not None:
            training.restore(checkpoint, steps, seconds)
        start = time.perf_counter()
        try:
            status = training.run(steps, every, progress, stop=on_violation != "record")
            message = watch.summary
        except ConvergenceError as error:
            hint = "; a smaller step_size changes these weights less" if training.step else ""
            status, message = "diverged", f"{error}{hint}"
    run = TrainingRun(
        **vars(watch.records),
        method="descent" if optimizer is None else type(mover).__name__,
        step_size=size,
        steps=training.step,
        batch_losses=None if whole else torch.tensor(training.batch_losses, dtype=torch.float64),
        status=status,
        message=message,
        seconds=time.perf_counter() - start,
    )
    if on_violation == "raise" and status != "finished":
        raise TrainingError(message, run=run)
    if status == "diverged":
        warnings.warn(f"the training diverged: {message}", ConvergenceWarning, stacklevel=2)
    return run


def _optimizer(factory: object, net: Module) -> Optimizer:
    """The optimizer of the trained parameters."""
    trained = [p for p in net.parameters() if p.requires_grad]
    if isinstance(factory, Optimizer) or not callable(factory):
        raise TypeError(
            "optimizer must be a callable params -> Optimizer, such as torch.optim.Adam or "
            f"lambda p: torch.optim.Adam(p, lr=1e-3), got {type(factory).__name__}"
        )
    optimizer = factory(trained)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must return a torch.optim.Optimizer, got {optimizer!r}")
    identities = {id(p) for p in trained}
    if any(id(p) not in identities for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("optimizer must move trained parameters of net only, got others")
    return optimizer


def _batches(samples: int, size: object, seed: object) -> Iterator[Tensor | None]:
    """All samples in a new order each time, in parts; the last part of an order may be smaller."""
    if size is None:
        return repeat(None)
    count, generator = integer("batch_size", size, at_least=1), seeded("seed", seed)
    if count > samples:
        raise ValueError(f"batch_size must be <= {samples}, the samples, got {count}")
    orders = (torch.randperm(samples, generator=generator) for _ in repeat(None))
    return (rows for order in orders for rows in order.split(count))


@dataclass(eq=False)
class _Run:
    """A training run; its checkpoint is the states of network, optimizer and watch.

    Attributes:
        batches: The samples of each step; ``None`` if each step uses the loss that is watched, of
            all samples with nothing random.
        tag: The user's tag of the run.
        step: The number of steps made.
        batch_losses: The loss of each step's batch, if there are ``batches``.
        save: Function that writes a checkpoint if it is due.
    """

    watch: Watch
    optimizer: Optimizer
    batches: Iterator[Tensor | None] | None
    tag: str
    step: int = 0
    batch_losses: list[float] = field(default_factory=list)
    save: Callable[[bool], None] | None = None

    def run(
        self,
        steps: int,
        every: int,
        report: Callable[[TrainingProgress], object] | None,
        *,
        stop: bool,
    ) -> TrainingStatus:
        """Make all steps, or as many as the promises allow.

        Args:
            steps: The number of steps to make.
            every: The number of steps between two times that everything is measured; 0 for never.
            report: Called at each step.
            stop: Whether a violation ends the run.
        """
        watch, loss = self.watch, math.nan
        while True:
            last = self.step == steps
            if self.save is not None:
                self.save(last)
            due = last or self.step % (every or steps) == 0
            if self.batches is None:
                now = watch.evaluate(self.step)
                loss = watch.note(self.step, now, measure=due and every > 0)["loss"]
            else:
                if due:
                    loss = watch.look(self.step, measure=every > 0)["loss"]
                if not last:
                    now = watch.evaluate(self.step, next(self.batches))
                    self.batch_losses.append(loss := now.loss)
            if report is not None:
                report(TrainingProgress(self.step, steps, loss, len(watch.violations)))
            if stop and watch.violations:
                return "stopped"
            if last:
                return "finished"
            self.move(now)

    def move(self, now: Evaluation) -> None:
        """One step; an optimizer that evaluates the loss again does so for the same samples."""
        weights, evaluations = self.watch.objective.weights.values(), [now]

        def closure() -> float:
            if evaluations:
                evaluation = evaluations.pop()
            else:
                evaluation = self.watch.evaluate(self.step, now.rows)
            if not evaluation.converged:
                self.watch.lose("equilibrium", self.step)
            for weight, gradient in zip(weights, evaluation.gradients, strict=True):
                weight.grad = gradient
            return evaluation.loss

        self.optimizer.step(closure)
        for weight in weights:
            weight.grad = None
        self.step += 1

    def description(self) -> dict[str, str]:
        """The facts that a run shares with its checkpoint."""
        model = self.watch.objective.network.state_dict()
        shapes = {name: f"{tuple(t.shape)} {t.dtype}" for name, t in model.items()}
        optimizer = type(self.optimizer).__name__
        return {"checkpoint_tag": repr(self.tag), "optimizer": optimizer, **shapes}

    def restore(self, checkpoint: str | os.PathLike[str], steps: int, seconds: float) -> None:
        """Continue from a checkpoint if the file exists, and write it from now on.

        Args:
            checkpoint: The file.
            steps: The number of steps to make.
            seconds: Least time between two checkpoints.
        """
        path = as_path("checkpoint", checkpoint)
        folder = path.absolute().parent
        if not folder.is_dir() or path.is_dir() or not os.access(folder, os.W_OK):
            raise ValueError(
                "checkpoint must be a file in a folder that exists and can be written to, got "
                f"{str(checkpoint)!r}"
            )
        network = self.watch.objective.network
        if path.exists():
            state = _read(path, self.description())
            if state["step"] > steps:
                raise ValueError(f"steps must be >= {state['step']}, as in {path}, got {steps}")
            network.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.watch.load_state_dict(state["watch"])
            self.step, self.batch_losses = state["step"], state["batch_losses"]
            if self.batches is not None:
                self.batches = islice(self.batches, self.step, None)
        written = time.monotonic()

        def save(last: bool) -> None:
            nonlocal written
            if not self.step or (not last and time.monotonic() - written < seconds):
                return
            buffer = BytesIO()
            state = {
                "run": self.description(),
                "step": self.step,
                "model": network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "watch": self.watch.state_dict(),
                "batch_losses": self.batch_losses,
            }
            torch.save(state, buffer)
            write_whole(path, lambda file: file.write_bytes(buffer.getbuffer()))
            written = time.monotonic()

        self.save = save


def _read(path: Path, here: dict[str, str]) -> dict[str, Any]:
    """The state in a checkpoint of a run with this description."""
    try:
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()  # torch does not check the checksums
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        there = dict(state["run"])
    except Exception as error:  # whatever is in the file
        raise ValueError(f"{path} is damaged or not a checkpoint: {error}") from error
    if damaged is not None:
        raise ValueError(f"{path} is damaged: {damaged} has another checksum")
    for name in {**here, **there}:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"checkpoint {str(path)!r} belongs to another run: {name} is "
                f"{there.get(name)} in the file and {here.get(name)} here"
            )
    return state
