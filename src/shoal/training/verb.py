"""Train networks on all their samples, and watch what the theory promises."""

import math
import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from shoal.checks import integer, one_of, real
from shoal.convergence.arguments import checked_labels
from shoal.exceptions import ConvergenceWarning
from shoal.kernels.arguments import as_tensor
from shoal.models import EquilibriumNetwork, Network
from shoal.models.files import checksum
from shoal.training.bounds import Bounds, Conclusion, limits_of, promises_of
from shoal.training.checkpoint import Checkpoint
from shoal.training.collect import collect
from shoal.training.curvature import largest_eigenvalue
from shoal.training.ledger import Ledger
from shoal.training.monitor import Monitor, Watch, as_monitor
from shoal.training.objective import Objective
from shoal.training.progress import TrainingProgress, reporter
from shoal.training.result import TrainingError, TrainingRun
from shoal.training.session import Session
from shoal.training.steppers import Descent, Flow

__all__ = ["train"]

_RTOL = 1e-3  # of the flow


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
            default that of the certificate.
        method: ``"descent"`` or ``"flow"``, $\dot\theta = -\nabla\Phi$, integrated with steps that
            adapt to it.
        monitor: Whether to watch, after how many steps (10 by default), or a :class:`Monitor`.
        reduction: ``"sum"``: $\Phi = \frac12\|f - y\|^2$. ``"mean"``: that divided by n.
        certificate: What ``certify`` says of this network and data. If its conclusion for the
            method, and for this step size, holds, its promises are watched instead: the rate of the
            loss, the gain, and how far each group of weights travels.
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
        ValueError: If an argument is out of range, or the checkpoint is of another run.
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
    one_of("method", method, ("descent", "flow"))
    one_of("on_violation", on_violation, ("record", "stop", "raise"))
    objective = _objective(net, x, y, reduction)
    conclusion = _conclusion(certificate, method, reduction)
    size = _step_size(step_size, conclusion, objective)
    tolerance = _tolerance(rtol, method)
    if method == "descent" and conclusion is not None and conclusion.step_size != size:
        conclusion = None  # it is about another step size
    rate = None if conclusion is None else conclusion.rate
    limits = {} if conclusion is None else limits_of(conclusion, objective.scales())
    options, eigenvalue = as_monitor(monitor), _eigenvalue(least_eigenvalue, rate, monitor)
    promises = _promises(options, net, eigenvalue, conclusion, limits)
    facts = {
        "method": method,
        "step_size": size,
        "reduction": reduction,
        # sets have another order in every process
        "monitor": options and (options.every, sorted(promises)),
        "least_eigenvalue": eigenvalue,
        "rate": rate,
        "limits": sorted(limits.items()),
        "rtol": tolerance,
    }
    with reporter(progress) as report:
        session = Session(
            objective=objective,
            stepper=Descent(size) if method == "descent" else Flow(size, tolerance),
            method=method,
            step_size=size,
            steps=integer("steps", steps, at_least=0),
            ledger=Ledger(promises),
            watch=None if options is None else Watch(objective),
            every=1 if options is None else options.every,
            bounds=partial(Bounds, method, size, objective.divisor, rate=rate, limits=limits),
            eigenvalue=eigenvalue,
            stop=on_violation != "record",
            checkpoint=_checkpoint(checkpoint, checkpoint_seconds, objective, facts),
            report=report,
        )
        outcome = session.run()
    run = collect(session, outcome, arrays=isinstance(y, np.ndarray))
    if on_violation == "raise" and run.status != "finished":
        raise TrainingError(run.message, run=run)
    if run.status == "diverged":
        warnings.warn(f"the training diverged: {run.message}", ConvergenceWarning, stacklevel=2)
    return run


def _objective(net: Network[Any], x: object, y: object, reduction: str) -> Objective:
    """What is to be minimized."""
    if not isinstance(net, Network):
        raise TypeError(f"net must be a network made by shoal.build, got {net!r}")
    one_of("reduction", reduction, ("sum", "mean"))
    inputs = net.check_input(as_tensor(x)).detach()
    labels = checked_labels("y", y, len(inputs)).to(inputs)
    labels = labels[:, None] if labels.dim() == 1 else labels
    if labels.shape[1] != net.spec.out_features:
        raise ValueError(
            f"y must have one column for each of the network's {net.spec.out_features} outputs, "
            f"got shape {tuple(labels.shape)}"
        )
    return Objective(net, inputs, labels, float(len(inputs)) if reduction == "mean" else 1.0)


def _conclusion(certificate: Any, method: str, reduction: str) -> Conclusion | None:
    """What a certificate concludes for the method; nothing if that is not established."""
    if certificate is None:
        return None
    if reduction != "sum":
        raise ValueError("certificate is for reduction='sum', got reduction='mean'")
    conclusion: Conclusion = getattr(certificate, f"gradient_{method}")
    return conclusion if conclusion.holds else None


def _step_size(given: object, conclusion: Conclusion | None, objective: Objective) -> float:
    if isinstance(given, str):
        one_of("step_size", given, ("auto",))
        largest = largest_eigenvalue(objective)
        if largest <= 0:
            raise ValueError("step_size='auto' needs a network whose NTK is not zero")
        return objective.divisor / largest
    if given is not None:
        return real("step_size", given, above=0)
    if conclusion is None or conclusion.step_size is None:
        raise ValueError(
            "step_size must be given, or 'auto', unless a certificate for gradient descent holds"
        )
    return conclusion.step_size


def _tolerance(rtol: float | None, method: str) -> float:
    if rtol is None:
        return _RTOL
    if method != "flow":
        raise ValueError("rtol is for method='flow', got method='descent'")
    return real("rtol", rtol, above=0, below=1)


def _eigenvalue(given: float | None, rate: float | None, monitor: object) -> float | None:
    r"""$\lambda_0$ where it is known before; NaN where the rate alone is, and is enough."""
    if given is not None:
        return real("least_eigenvalue", given, above=0)
    return math.nan if rate is not None and not monitor else None


def _promises(
    monitor: Monitor | None,
    net: Network[Any],
    eigenvalue: float | None,
    conclusion: Conclusion | None,
    limits: Mapping[str, float],
) -> frozenset[str]:
    """What is to be kept, as far as it is looked at."""
    promises = promises_of(net)
    if monitor is None:
        return promises & ({"equilibrium"} if eigenvalue is None else {"loss", "equilibrium"})
    if monitor.promises is not None:
        return monitor.promises
    if conclusion is not None:
        return promises & {"loss", "gain", "equilibrium"} | set(limits)
    return promises


def _checkpoint(
    path: str | os.PathLike[str] | None,
    seconds: float,
    objective: Objective,
    facts: Mapping[str, object],
) -> Checkpoint | None:
    """The file of the run, with all that its numbers depend on."""
    seconds = real("checkpoint_seconds", seconds, at_least=0)
    if path is None:
        return None
    net = objective.network
    solves = ""
    if isinstance(net, EquilibriumNetwork):
        solves = repr((net.options.solver, net.options.gradient, net.warm_start, net.training))
    weights = {name: tensor.detach().cpu() for name, tensor in net.state_dict().items()}
    parts = {
        "architecture": repr(net.architecture),
        "trained": " ".join(objective.weights),
        "solves": solves,
    }
    identity = {
        "net": checksum(parts, weights),
        "x": checksum({}, {"x": objective.x.cpu()}),
        "y": checksum({}, {"y": objective.y.cpu()}),
        **{name: repr(value) for name, value in facts.items()},
    }
    return Checkpoint(Path(path), identity, seconds)
