"""Shallow networks that may replace a model, and how they are trained."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module

from shoal.activations import Activation
from shoal.architectures import Architecture, ConvDEQ, ConvNet, FullyConnected
from shoal.core.words import counted
from shoal.designs import design
from shoal.distillation.cut_loop import cut_loop
from shoal.distillation.samples import Samples
from shoal.networks import build

Loss = Callable[[Tensor, Tensor], Tensor]
_TANGENT = "each sample takes the model's own equilibrium and a gradient: it cannot be faster"


class Setting(NamedTuple):
    """What candidates are made from.

    Attributes:
        model: The original.
        samples: What to train on, with what the original says of it.
        architecture: That of the original, if it is known.
        activation: Of plain layers.
        width: Of all explicit networks, units or channels.
        depths: After how many applications the loop is cut.
        epochs: How often all samples are trained on.
        batch_size: In batches of how many.
        learning_rate: The first one.
        seed: Of weights and batches.
    """

    model: Module
    samples: Samples
    architecture: Architecture | None
    activation: Activation
    width: int
    depths: tuple[int, ...]
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int


Candidate = tuple[str, Callable[[], Module] | str]  # what it is, and what makes it, or why not


def candidates(setting: Setting) -> Iterator[Candidate]:
    """All that are tried, in the order of their cost."""
    for name, architecture in _architectures(setting).items():
        if isinstance(architecture, str):
            yield name, architecture
            continue
        for words, labels in (("labels", True), ("outputs", False)):
            make = partial(_trained, setting, architecture, labels=labels)
            absent = labels and setting.samples.y is None
            yield f"{name}, on {words}", "there are no labels" if absent else make
    yield "linearization around the trained weights", _TANGENT
    for steps in setting.depths:
        yield (
            f"cut to {counted(steps, 'application')}",
            partial(cut_loop, setting.model, setting.samples.x, steps),
        )


def _architectures(setting: Setting) -> dict[str, Architecture | str]:
    """Explicit networks by what they are, or why there are none."""
    own, phi = setting.architecture, setting.activation
    plain: list[Architecture]
    if isinstance(own, ConvDEQ):
        plain = [
            ConvNet(
                (phi,) * depth,
                kernel_size=own.kernel_size,
                pooling=own.pooling,
                padding=own.padding,
            )
            for depth in (1, 2)
        ]
        designed: Architecture | str = "there is none for the tangent kernel of a convolutional DEQ"
    else:
        plain = [FullyConnected((phi,)), FullyConnected((phi, phi))]
        designed = "the architecture is not known: give architecture="
        if own is not None:
            norm = float(setting.samples.x.flatten(1).double().square().sum(1).mean().sqrt())
            designed = design(own, input_norm=norm, which="ntk").architecture
    return {"plain layer": plain[0], "two plain layers": plain[1], "design": designed}


def _trained(setting: Setting, architecture: Architecture, *, labels: bool) -> Module:
    """A network that has learned labels, or what the original says."""
    x, y, outputs, _ = setting.samples
    images = isinstance(architecture, ConvNet)
    whole = isinstance(architecture, ConvNet) and architecture.pooling is None
    x = x if images else x.flatten(1)
    net = build(
        architecture,
        in_features=x.shape[1],
        pixels=tuple(x.shape[2:]) if whole else None,
        width=setting.width,
        out_features=outputs.shape[1],
        seed=setting.seed,
        dtype=x.dtype,
        device=x.device,
        readout_scale=0.0,
    )
    if setting.samples.classes:
        # the original's probabilities: what it is unsure of is worth as much as what it says
        wanted = y if labels and y is not None else outputs.softmax(1)
        _fit(net, x, wanted, nn.functional.cross_entropy, setting)
    elif labels and y is not None:
        _fit(net, x, y, nn.functional.mse_loss, setting)
    else:
        # outputs of size one, as weights are; the readout then makes them what they were
        size = outputs.square().mean().sqrt()
        _fit(net, x, outputs / size, nn.functional.mse_loss, setting)
        with torch.no_grad():
            net.readout.mul_(size)
    return net if images or setting.samples.x.dim() == 2 else nn.Sequential(nn.Flatten(), net)


def _fit(net: Module, x: Tensor, y: Tensor, loss: Loss, setting: Setting) -> None:
    """Train by Adam with a learning rate that falls to zero like a cosine."""
    generator = torch.Generator().manual_seed(setting.seed)
    rate = setting.learning_rate
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    batches = math.ceil(len(x) / setting.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setting.epochs * batches)
    for _ in range(setting.epochs):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for chosen in order.split(setting.batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
            schedule.step()
