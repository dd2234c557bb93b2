"""Train networks, and watch what the theory promises."""

import os
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from shoal.core.checks import instance, integer, one_of, real
from shoal.core.exceptions import ConvergenceWarning
from shoal.core.processes import ALONE, Group, Processes, fingerprint, processes
from shoal.networks.module_inputs import Inputs
from shoal.networks.ntk.exact import mixing_submodule
from shoal.training.batches import Batches
from shoal.training.checkpoint import Checkpoint, described
from shoal.training.flow import Flow
from shoal.training.laws import make_law
from shoal.training.measures import Measures
from shoal.training.monitor import Monitor, as_monitor
from shoal.training.objective import Loss, Objective
from shoal.training.optimizers import (
    Descent,
    OptimizerFactory,
    OptimizerSteps,
    Stepper,
    plain_step_size,
)
from shoal.training.progress import TrainingProgress, reporter
from shoal.training.result import TrainingError, TrainingRun
from shoal.training.training_loop import Outcome, TrainingLoop, tensors_of
from shoal.training.watch import Watch

_RTOL = 1e-3  # of the flow


def train(
    net: Module,
    x: Inputs,
    y: Tensor,
    *,
    steps: int,
    step_size: float | Literal["auto"] | None = None,
    method: Literal["descent", "flow"] = "descent",
    optimizer: OptimizerFactory | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    monitor: bool | int | Monitor = True,
    reduction: Literal["sum", "mean"] = "sum",
    certificate: Any = None,
    least_eigenvalue: float | None = None,
    on_violation: Literal["record", "stop", "raise"] = "record",
    rtol: float | None = None,
    progress: bool | Callable[[TrainingProgress], object] = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    checkpoint_tag: str = "",
    process_group: Group = "auto",
) -> TrainingRun:
    r"""Train a network in place: by gradient descent, gradient flow, or an optimizer of PyTorch.

    The monitors compare the run with what the theorems of Ling 2023, Gao 2022 and Du 2018 promise,
    given $\lambda_0$, the least eigenvalue of their Gram matrix $G$: the loss falls at least like
    $(1 - \eta\lambda_0/2)^k$ (the flow's like $e^{-\lambda_0 t}$), the recurrent layer stays a
    contraction, $\lambda_{\min}(G) \ge \lambda_0/2$, $\|\nabla\Phi\|^2 \ge \lambda_0\Phi$ and, but
    for the DEQ, $\|G - G(0)\| \le \lambda_0/4$. They use the equilibria of the step itself and go
    on from their last look. Build implicit networks with ``warm_start=True``. Nothing is promised
    of other optimizers, mini-batches, losses and modules but that recurrent layers of networks stay
    contractions and have equilibria; what can be measured there is.

    Args:
        net: A network made by ``build``, or any module; its weights that require a gradient are
            trained.
        x: Inputs; of other modules any tensor with samples in its first dimension, a tuple of such
            tensors for ``net(*x)``, or a dictionary for ``net(**x)``.
        y: Labels, of shape (n,) or (n, outputs); of other modules in the shape of their outputs.
        steps: How many steps to make.
        step_size: $\eta$; for the flow, the time between two steps, which says where losses are
            recorded. ``"auto"``: one over the largest eigenvalue of the network's NTK. By
            default that of the certificate, for descent.
        method: ``"descent"`` or ``"flow"``, $\dot\theta = -\nabla\Phi$, integrated with steps that
            adapt to it.
        optimizer: What moves the weights instead, made of a list of parameters: a class such as
            ``torch.optim.Adam``, or ``lambda p: torch.optim.Adam(p, lr=1e-3)``; it has its own step
            size. One that is gradient descent, ``torch.optim.SGD`` without momentum and decay, is
            promised what that is.
        batch_size: How many samples each step is made for, by default all. The loss of a batch is
            scaled to estimate $\Phi$: by the number of all samples over that of the batch.
        seed: Of the order of mini-batches.
        loss: Another loss, a function of outputs and labels; ``y`` is whatever it takes.
        monitor: Whether to watch, after how many steps (10 by default), or a :class:`Monitor`.
        reduction: ``"sum"``: $\Phi = \frac12\|f - y\|^2$. ``"mean"``: that divided by n.
        certificate: What ``certify`` says of this network, as it is before training, and of these
            data; one of others is refused, and so are optimizers and mini-batches, which no
            certificate is about. If its conclusion for the method, and for this step
            size, holds, its promises are watched instead: the rate of the loss, the gain, how far
            each group of weights travels and, for a DEQ, the least eigenvalue.
        least_eigenvalue: $\lambda_0$; by default the least eigenvalue of $G$ at the start.
        on_violation: What to do about a broken promise: ``"record"`` it, ``"stop"`` there, or
            ``"raise"`` a :class:`TrainingError`. A run that diverges ends in any case, with a
            ``ConvergenceWarning`` unless it raises.
        rtol: The flow's tolerance, relative to the way of the weights; 1e-3 by default. Where an
            activation has kinks, the gradient jumps whenever a unit crosses one, and a small
            tolerance takes a search for each crossing.
        progress: Whether to show a bar on stderr, or what to call at each step.
        checkpoint: A file with the state of the run, written on the way as a whole. If it exists,
            the run continues from it: repeat the call with a network built in the same way. The
            names and shapes of weights, the method, the number of samples and the tag must agree;
            the state of the optimizer, its learning rate included, comes from the file.
        checkpoint_seconds: Least time between two checkpoints.
        checkpoint_tag: Any text that identifies the run, such as the name of the data or a hash of
            a configuration; a checkpoint with another one is refused.
        process_group: The processes that share the samples of each step, and all make this call
            with the same arguments: those of ``torch.distributed`` or ``torchrun`` by default, with
            ``None`` this one alone. All have the same weights after it, but for rounding those of
            one process. Monitors, losses of one's own and modules in which samples see each other
            are computed by each; the first reports progress and has the checkpoint.

    Raises:
        TrainingError: If a promise is broken, or the run diverges, and ``on_violation`` is
            ``"raise"``.
        ValueError: If an argument is out of range, or the checkpoint is of another run, or the
            certificate of another network or other data.
        TypeError: If an argument is not of its kind.

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
    shared = processes(process_group)
    shown = progress if shared.first or not (progress is True or callable(progress)) else False
    with torch.inference_mode(mode=False), reporter(shown) as report, shared.collective():
        one_of("on_violation", on_violation, ("record", "stop", "raise"))
        one_of("method", method, ("descent", "flow"))
        steps, rtol = integer("steps", steps, at_least=0), _tolerance(rtol, method)
        checkpoint_seconds = real("checkpoint_seconds", checkpoint_seconds, at_least=0)
        watched = as_monitor(monitor)
        objective = Objective.checked(net, x, y, reduction=reduction, loss=loss)
        batches = None if batch_size is None else Batches(len(objective.x), batch_size, seed)
        mover = None if optimizer is None else OptimizerSteps(optimizer, objective)
        mixing = mixing_submodule(objective.network) is not None
        whole = batches is None and not mixing
        objective.processes = ALONE if mixing else _agreed(shared, objective, (steps, method, seed))
        _check_together(method, step_size, certificate, mover=mover, whole=whole)
        size: Any = step_size
        if mover is not None:
            size = plain_step_size(mover.optimizer, objective, certificate)
        measures = None if watched is None else Measures(objective, watched.gram)
        law = make_law(
            objective,
            method=method if whole and (mover is None or size is not None) else None,
            step_size=size,
            certificate=certificate,
            least_eigenvalue=least_eigenvalue,
            promises=None if watched is None else watched.promises,
            gram=measures is not None and measures.gram is not None,
        )
        name = method if mover is None else type(mover.optimizer).__name__
        about = {
            "checkpoint_tag": repr(instance("checkpoint_tag", checkpoint_tag, str)),
            "method": name,
            "samples": repr(len(objective.x)),
            "batch_size": repr(batch_size),
            "monitor": repr(watched),
            "promises": ", ".join(sorted(law.promises)),
            **described(tensors_of(objective.network)),
        }
        loop = TrainingLoop(
            watch=Watch.following(objective, law, measures, arrays=isinstance(y, np.ndarray)),
            stepper=mover or _stepper(method, law.step_size, rtol),
            steps=steps,
            batches=batches,
            whole=whole,
            every=None if watched is None else watched.every,
            stop=on_violation != "record",
            checkpoint=None
            if checkpoint is None or not shared.first
            else Checkpoint(checkpoint, about, checkpoint_seconds),
            report=report,
        )
        outcome = loop.run()
    run = _result(loop, outcome, name)
    if on_violation == "raise" and run.status != "finished":
        raise TrainingError(run.message, run=run)
    if run.status == "diverged" and shared.first:
        warnings.warn(f"the training diverged: {run.message}", ConvergenceWarning, stacklevel=2)
    return run


def _agreed(shared: Processes, objective: Objective, settings: object) -> Processes:
    """The processes, if all train the same."""
    if shared.size > 1:
        same = {n: fingerprint(p) for n, p in objective.weights.items()}
        given = {**objective.x.named("x"), "y": objective.y}
        same |= {name: fingerprint(tensor) for name, tensor in given.items()}
        shared.agree({**same, "steps, method, seed": settings})
    return shared


def _check_together(
    method: str, step_size: object, certificate: Any, *, mover: OptimizerSteps | None, whole: bool
) -> None:
    """Refuse arguments that contradict each other."""
    if mover is not None and step_size is not None:
        raise ValueError("step_size is the optimizer's own, got both step_size and optimizer")
    if method == "flow" and (mover is not None or not whole):
        raise ValueError(
            "method='flow' is for all samples at once and nothing random, got an optimizer, "
            "batch_size, or a module with dropout or batch normalization in training mode"
        )
    if certificate is not None and not whole:
        raise ValueError(
            "certificate is about full-batch gradient descent and gradient flow, got batch_size: "
            "it promises nothing of mini-batches"
        )
    if mover is None and not whole and step_size is None:
        raise ValueError("step_size must be given, or an optimizer, with batch_size")


def _tolerance(rtol: float | None, method: str) -> float:
    if rtol is None:
        return _RTOL
    if method != "flow":
        raise ValueError("rtol is for method='flow', got method='descent'")
    return real("rtol", rtol, above=0, below=1)


def _stepper(method: str, step_size: float | None, rtol: float) -> Stepper:
    assert step_size is not None
    return Flow(step_size, rtol) if method == "flow" else Descent(step_size)


def _result(loop: TrainingLoop, outcome: Outcome, method: str) -> TrainingRun:
    columns, size = loop.watch.columns(), loop.watch.law.step_size
    batch_losses = None if loop.whole else loop.watch.column(loop.batch_losses)
    return TrainingRun(
        **columns,
        method=method,
        step_size=size,
        steps=max(len(columns["losses"]) - 1, 0) if loop.whole else loop.made,
        times=loop.watch.column([(size or 1.0) * k for k in columns["loss_steps"].tolist()]),
        batch_losses=batch_losses,
        status=outcome.status,
        message=outcome.message,
        seconds=loop.seconds,
        monitor_seconds=loop.monitor_seconds,
    )
