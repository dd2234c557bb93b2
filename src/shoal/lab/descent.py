"""Training of finite networks: gradient descent without waits for the device, and readouts."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import shoal
from shoal.architectures import DEQ, Architecture
from shoal.core.torch_internals import foreach_add_
from shoal.networks import EquilibriumNetwork, Network

_ROWS = 8192  # at a time: bounds the memory


class Descent(NamedTuple):
    """A network's training by full batches.

    Attributes:
        outputs: The outputs at the steps asked for, of shape (steps, samples, outputs).
        seconds: The time that a step took, on average, without the first one.
    """

    outputs: Tensor
    seconds: float


def network_for(architecture: Architecture, x: Tensor, **options: Any) -> Network[Any]:
    """Build a network for inputs like ``x``, in their dtype and where they are."""
    if x.dim() > 2:
        options["pixel_axes"] = x.dim() - 2
    options |= {"in_features": x.shape[1], "dtype": x.dtype, "device": x.device}
    return shoal.build(architecture, **options)


def make(architecture: Architecture, x: Tensor, **options: Any) -> Network[Any]:
    """Like :func:`network_for`, to train: equilibria that are not found give a warning."""
    if isinstance(architecture, DEQ):
        options = {"on_failure": "warn"} | options
    else:
        options.pop("warm_start", None)
    return network_for(architecture, x, **options)


def full_batch(
    network: Network[Any],
    x: Tensor,
    y: Tensor,
    *,
    step_size: float,
    steps: Sequence[int],
    from_zero: bool,
    watched: Tensor | None = None,
) -> Descent:
    r"""Gradient descent for the loss $\frac1{2n}\|f - y\|_F^2$, with all samples in each step.

    Args:
        network: What is trained.
        x: Inputs.
        y: Targets.
        step_size: $\eta$.
        steps: After which numbers of steps outputs are kept, ascending.
        from_zero: Whether the network's initial function is subtracted from it.
        watched: The inputs at which outputs are kept, instead of ``x``.
    """
    groups: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
    kept: list[Tensor] = []
    initial = shift = torch.zeros((), dtype=x.dtype, device=x.device)
    if from_zero:
        with torch.no_grad():
            initial = network(x)
            shift = initial if watched is None else network(watched)
    last, start = max(steps), time.perf_counter()
    for step in range(last + 1):
        if step == 1:  # the first one warms up
            synchronize(x)
            start = time.perf_counter()
        if step in steps and watched is not None:
            with torch.no_grad():
                kept.append(network(watched) - shift)
        outputs = network(x) - initial
        if step in steps and watched is None:
            kept.append(outputs.detach())
        if step < last:
            gradients = torch.autograd.grad(outputs, groups, (outputs.detach() - y) / len(x))
            with torch.no_grad():
                foreach_add_(groups, gradients, alpha=-step_size)
    synchronize(x)
    return Descent(torch.stack(kept), (time.perf_counter() - start) / max(last - 1, 1))


def mini_batches(
    network: Network[Any],
    x: Tensor,
    y: Tensor,
    *,
    step_size: float,
    momentum: float,
    batch: int,
    steps: int,
    seed: int,
) -> float:
    r"""Stochastic gradient descent for $\frac1{2b}\|f - y\|_F^2$ over batches of $b$ samples.

    Samples are shuffled anew in every epoch.

    Returns:
        The time that a step took, on average.
    """
    optimizer = torch.optim.SGD(network.parameters(), lr=step_size, momentum=momentum)
    generator = torch.Generator().manual_seed(seed)
    batch = min(batch, len(x))
    synchronize(x)
    start = time.perf_counter()
    order = torch.empty(0, dtype=torch.long, device=x.device)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(len(x), generator=generator).to(x.device)
        chosen, order = order[:batch], order[batch:]
        optimizer.zero_grad()
        outputs = network(x[chosen])
        outputs.backward((outputs.detach() - y[chosen]) / batch)
        optimizer.step()
    synchronize(x)
    return (time.perf_counter() - start) / steps


def synchronize(x: Tensor) -> None:
    """Wait until the device of ``x`` has done all it was given."""
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)


@torch.no_grad()
def features(network: Network[Any], x: Tensor) -> Tensor:
    """What the readout of a network sees, in the scale of the conjugate kernel."""
    if isinstance(network, EquilibriumNetwork):
        return network.solve(x).value
    return network.trace(x).features.detach()


@torch.no_grad()
def ridge_readout(network: Network[Any], x: Tensor, y: Tensor, ridge: float) -> Tensor:
    r"""The readout $W$ with the least $\|ZW - Y\|_F^2 + \lambda\|W\|_F^2$, in float64.

    Sums over samples are float64 too: the features' Gram matrix is nearly singular.
    """
    width = network.spec.width
    gram = torch.zeros(width, width, dtype=torch.float64, device=x.device)
    moments = torch.zeros(width, y.shape[1], dtype=torch.float64, device=x.device)
    for rows, targets in zip(x.split(_ROWS), y.split(_ROWS), strict=True):
        z = features(network, rows).double()
        gram.addmm_(z.t(), z)
        moments.addmm_(z.t(), targets.double())
    gram.diagonal().add_(ridge)
    return torch.cholesky_solve(moments, torch.linalg.cholesky(gram))


@torch.no_grad()
def accuracy(network: Network[Any], x: Tensor, labels: Tensor, readout: Tensor | None) -> float:
    """The share of images whose largest output is that of their class.

    Args:
        network: The network.
        x: The images.
        labels: Their classes.
        readout: In place of the network's own.
    """
    right = torch.zeros((), dtype=torch.long, device=x.device)
    for rows, classes in zip(x.split(_ROWS), labels.split(_ROWS), strict=True):
        outputs = network(rows) if readout is None else features(network, rows).double() @ readout
        right += (outputs.argmax(1) == classes).sum()
    return right.item() / len(x)
