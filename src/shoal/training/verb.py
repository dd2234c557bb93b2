"""Train networks on all their samples, and watch what the theory promises."""

import os
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.activations.description import description
from shoal.core.checkpoints import Checkpoint
from shoal.core.checks import integer, one_of, real
from shoal.core.exceptions import ConvergenceWarning
from shoal.core.files import checksum
from shoal.networks import EquilibriumNetwork, Network
from shoal.training.collect import collect
from shoal.training.monitor import Monitor, as_monitor
from shoal.training.objective import Objective
from shoal.training.plan import Plan, make_plan
from shoal.training.problem import Problem
from shoal.training.progress import TrainingProgress, reporter
from shoal.training.result import TrainingError, TrainingRun
from shoal.training.session import Session

__all__ = ["train"]


def train(
    net: Network[Any],
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    step_size: float | Literal["auto"] | None = None,
    method: Literal["descent", "flow"] = "descent",
    monitor: bool | int | Monitor = True,
    reduction: Literal["sum", "mean"] = "sum",
    certificate: Any = None,
    least_eigenvalue: float | None = None,
    on_violation: Literal["record", "stop", "raise"] = "record",
    rtol: float | None = None,
    progress: bool | Callable[[TrainingProgress], object] = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
) -> TrainingRun:
    r"""Train a network in place by gradient descent or gradient flow, on all samples at once.

    The monitors compare the run with what the theorems of Ling 2023, Gao 2022 and Du 2018 promise,
    given $\lambda_0$, the least eigenvalue of their Gram matrix $G$: the loss falls at least like
    $(1 - \eta\lambda_0/2)^k$ (the flow's like $e^{-\lambda_0 t}$), the recurrent layer stays a
    contraction, $\lambda_{\min}(G) \ge \lambda_0/2$, $\|\nabla\Phi\|^2 \ge \lambda_0\Phi$ and, but
    for the DEQ, $\|G - G(0)\| \le \lambda_0/4$. They use the equilibria of the step itself and go
    on from their last look. Build implicit networks with ``warm_start=True``.

    Args:
        net: A network made by ``build``; its weights that require a gradient are trained.
        x: Inputs.
        y: Labels, of shape (n,) or (n, outputs).
        steps: How many steps to make.
        step_size: $\eta$; for the flow, the time between two steps, which says where losses are
            recorded. ``"auto"``: one over the largest eigenvalue of the network's NTK. By
            default that of the certificate, for descent.
        method: ``"descent"`` or ``"flow"``, $\dot\theta = -\nabla\Phi$, integrated with steps that
            adapt to it.
        monitor: Whether to watch, after how many steps (10 by default), or a :class:`Monitor`.
        reduction: ``"sum"``: $\Phi = \frac12\|f - y\|^2$. ``"mean"``: that divided by n.
        certificate: What ``certify`` says of this network, as it is before training, and of these
            data; one of others is refused. If its conclusion for the method, and for this step
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
        checkpoint: A file to go on from if it is there, written on the way. A run that was killed
            goes on with the same numbers to the last bit if the call is made again, with the
            network as it was before.
        checkpoint_seconds: How much time passes between two checkpoints at least.

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
    with torch.inference_mode(mode=False), reporter(progress) as report:
        one_of("on_violation", on_violation, ("record", "stop", "raise"))
        steps = integer("steps", steps, at_least=0)
        problem = Problem.checked(net, x, y)
        objective = _objective(problem, reduction)
        plan = make_plan(
            objective,
            method=method,
            step_size=step_size,
            monitor=as_monitor(monitor),
            certificate=certificate,
            least_eigenvalue=least_eigenvalue,
            rtol=rtol,
        )
        session = Session(
            objective=objective,
            plan=plan,
            steps=steps,
            stop=on_violation != "record",
            checkpoint=_checkpoint(checkpoint, checkpoint_seconds, objective, plan),
            report=report,
        )
        outcome = session.run()
    run = collect(session, outcome, arrays=isinstance(y, np.ndarray))
    if on_violation == "raise" and run.status != "finished":
        raise TrainingError(run.message, run=run)
    if run.status == "diverged":
        warnings.warn(f"the training diverged: {run.message}", ConvergenceWarning, stacklevel=2)
    return run


def _objective(problem: Problem, reduction: str) -> Objective:
    """What is to be minimized."""
    one_of("reduction", reduction, ("sum", "mean"))
    net, x, y = problem
    x = x.clone() if x.is_inference() else x  # to be differentiated
    return Objective(net, x, y, float(len(x)) if reduction == "mean" else 1.0)


def _checkpoint(
    path: str | os.PathLike[str] | None,
    seconds: float,
    objective: Objective,
    plan: Plan,
) -> Checkpoint | None:
    """The file of the run, with all that its numbers depend on."""
    seconds = real("checkpoint_seconds", seconds, at_least=0)
    if path is None:
        return None
    identity = {
        "net": _network_checksum(objective),
        "x": checksum({}, {"x": objective.x.cpu()}),
        "y": checksum({}, {"y": objective.y.cpu()}),
        "reduction": repr(objective.divisor),
        **plan.identity(),
    }
    return Checkpoint(path, "training", identity, seconds)


def _network_checksum(objective: Objective) -> str:
    """Of the weights, and of all that says what is computed with them."""
    net = objective.network
    solves: tuple[Any, ...] = ()
    if isinstance(net, EquilibriumNetwork):
        how = net.options
        solves = (how.solver, how.gradient, how.on_failure, net.warm_start, net.training)
    # parametrizations of weights are modules, whose settings are plain attributes
    modules = [
        (name, type(module).__qualname__, {k: v for k, v in vars(module).items() if _plain(v)})
        for name, module in net.named_modules()
        if module is not net
    ]
    parts = {
        "architecture": description(net.architecture),
        "trained": " ".join(objective.weights),
        "solves": description(solves),
        "modules": description(modules),
    }
    return checksum(parts, {n: tensor.detach().cpu() for n, tensor in net.state_dict().items()})


def _plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str)
