"""Gradient descent on finite networks, without a wait for the device in between."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import shoal
from shoal.architectures import DEQ, Architecture
from shoal.networks import Network

__all__ = ["Descent", "full_batch", "make", "mini_batches", "network_for", "synchronize"]


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
                torch._foreach_add_(groups, gradients, alpha=-step_size)
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
