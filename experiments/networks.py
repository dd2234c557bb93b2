"""Networks that experiments compare: DEQs, their designs and rivals; how they are trained."""

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import shoal
from experiments.experiment import Experiment, Point
from shoal.activations import Activation
from shoal.architectures import DEQ, Architecture
from shoal.networks import EquilibriumNetwork, Network

_ROWS = 8192  # at a time: bounds the memory
TITLES = {
    "deq": "DEQ",
    "ntk-design": "NTK design",
    "ck-design": "CK design",
    "moments": "CK design by moments",
    "naive": "the same activation, one layer",
    "naive2": "the same activation, two layers",
}


def by_name(activations: Sequence[Activation]) -> dict[str, Activation]:
    """Activations by the lower-case names of their classes."""
    return {type(activation).__name__.lower(): activation for activation in activations}


def activation_title(activation: Activation) -> str:
    """The name of an activation in figures."""
    slope = getattr(activation, "slope", None)
    return type(activation).__name__ + (f" ({slope:g})" if slope is not None else "")


class DEQs(Experiment):
    """An experiment whose points have an ``activation``, the name of that of a DEQ."""

    activations: tuple[Activation, ...] = (shoal.activations.ReLU(), shoal.activations.Tanh())
    recurrent_variance: float = 0.2
    input_variance: float = 0.8

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(by_name(self.activations))

    def activation(self, point: Point) -> Activation:
        return by_name(self.activations)[point["activation"]]

    def point_title(self, point: Point) -> str:
        """The name of a point's activation in figures."""
        return activation_title(self.activation(point))

    def deq(self, point: Point) -> DEQ:
        return DEQ(self.activation(point), self.recurrent_variance, self.input_variance)


@lru_cache(maxsize=64)
def designed(architecture: Architecture, which: str, method: str) -> shoal.designs.Design:
    """The design for inputs of norm 1, made once."""
    return shoal.design(architecture, input_norm=1.0, which=which, method=method)


def rival(name: str, deq: DEQ) -> Architecture:
    """A network to be compared with a DEQ, for inputs of norm 1; ``"deq"`` is the DEQ itself.

    ``"ntk-design"``, ``"ck-design"``: one layer that has its NTK or CK on the sphere.
    ``"moments"``: layers with the high-dimensional coefficients of its CK. ``"naive"``,
    ``"naive2"``: one or two layers with its activation as it is.
    """
    if name == "deq":
        return deq
    if name in ("ntk-design", "ck-design"):
        return designed(deq, name.removesuffix("-design"), "sphere").architecture
    if name == "moments":
        return designed(deq, "ck", "moments").architecture
    # centered activations without their shift and scale
    plain = (
        phi.activation if isinstance(phi, shoal.activations.Affine) else phi
        for phi in deq.activations
    )
    return shoal.FullyConnected((*plain,) * (2 if name == "naive2" else 1))


def wide_kernels(name: str, deq: DEQ, x: Tensor) -> shoal.kernels.Kernels:
    r"""The kernels of a rival of infinite width, all weights being trained, for ``x`` of norm 1.

    Those of the designs on the sphere are kernels of the DEQ, which are computed much faster: the
    CK design has the NTK of the DEQ whose recurrent weights are frozen. (The CK returned for the
    NTK design is the DEQ's, which the design does not have.)
    """
    if name == "ntk-design":
        return shoal.kernel(deq, x)
    if name == "ck-design":
        return shoal.kernel(deq, x, trainable={"readout", "input"})
    return shoal.kernel(rival(name, deq), x)


def network_for(architecture: Architecture, x: Tensor, **options: Any) -> Network:
    """Build a network for inputs like ``x``, in their dtype and where they are."""
    if x.dim() > 2:
        options["pixel_axes"] = x.dim() - 2
    options |= {"in_features": x.shape[1], "dtype": x.dtype, "device": x.device}
    return shoal.build(architecture, **options)


def make(architecture: Architecture, x: Tensor, **options: Any) -> Network:
    """Like :func:`network_for`, to train: equilibria that are not found give a warning."""
    if isinstance(architecture, DEQ):
        return network_for(architecture, x, on_failure="warn", **options)
    options.pop("warm_start", None)
    return network_for(architecture, x, **options)


def full_batch(
    network: Network, x: Tensor, y: Tensor, *, step_size: float, steps: Sequence[int],
    from_zero: bool, watched: Tensor | None = None,
) -> tuple[Tensor, float]:  # fmt: skip
    r"""Gradient descent for the loss $\frac1{2n}\|f - y\|_F^2$, with all samples in each step.

    Returns the outputs for ``watched``, or else for ``x``, after the numbers of ``steps``, and the
    time of a step. With ``from_zero`` the network's initial function is subtracted from it.
    """
    groups = [p for p in network.parameters() if p.requires_grad]
    kept: list[Tensor] = []
    with torch.no_grad():
        initial = network(x) if from_zero else x.new_zeros(())
        shift = network(watched) if from_zero and watched is not None else x.new_zeros(())
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
                for weights, gradient in zip(groups, gradients, strict=True):
                    weights.add_(gradient, alpha=-step_size)
    synchronize(x)
    return torch.stack(kept), (time.perf_counter() - start) / max(last - 1, 1)


def mini_batches(
    network: Network, x: Tensor, y: Tensor, *, step_size: float, momentum: float, batch: int,
    steps: int, seed: int,
) -> None:  # fmt: skip
    r"""Stochastic gradient descent for $\frac1{2b}\|f - y\|_F^2$ over batches of $b$ samples."""
    optimizer = torch.optim.SGD(network.parameters(), lr=step_size, momentum=momentum)
    generator = torch.Generator().manual_seed(seed)
    batch = min(batch, len(x))
    order = torch.empty(0, dtype=torch.long, device=x.device)
    for _ in range(steps):
        if len(order) < batch:  # shuffled anew in every epoch
            order = torch.randperm(len(x), generator=generator).to(x.device)
        chosen, order = order[:batch], order[batch:]
        optimizer.zero_grad()
        outputs = network(x[chosen])
        outputs.backward((outputs.detach() - y[chosen]) / batch)
        optimizer.step()


def synchronize(x: Tensor) -> None:
    """Wait until the device of ``x`` has finished its work."""
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)


@torch.no_grad()
def features(network: Network, x: Tensor) -> Tensor:
    """The inputs of a network's readout, in the scale of the conjugate kernel."""
    if isinstance(network, EquilibriumNetwork):
        return network.solve(x).value
    return network.trace(x).features.detach()


@torch.no_grad()
def ridge_readout(network: Network, x: Tensor, y: Tensor, ridge: float) -> Tensor:
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
def accuracy(network: Network, x: Tensor, labels: Tensor, readout: Tensor | None) -> float:
    """The share of inputs whose largest output, of the network's own readout or this, is right."""
    right = 0
    for rows, classes in zip(x.split(_ROWS), labels.split(_ROWS), strict=True):
        outputs = network(rows) if readout is None else features(network, rows).double() @ readout
        right += int((outputs.argmax(1) == classes).sum())
    return right / len(x)
