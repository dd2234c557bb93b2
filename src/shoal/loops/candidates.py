"""Modules that may replace a loop, and how they are trained."""

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module, functional

from shoal.activations import Activation
from shoal.architectures import Architecture, ConvDEQ, ConvNet, FullyConnected
from shoal.core.words import counted
from shoal.designs import design
from shoal.loops.consistency import LoopModule, consistency_copy
from shoal.loops.decisions import IGNORED, Decisions
from shoal.loops.loop import Loop
from shoal.loops.scores import Outputs, outputs_of, scores_of
from shoal.loops.stopping import rule_for
from shoal.networks import build

_LEARNING_RATE = 0.02  # first one of plain networks, whose weights have unit variance
_RISK = 0.01  # share of samples that a stop rule may change, at least
_NO_WEIGHTS = "the loop's functions are no modules with parameters"
_SHAPES = "it is for vectors and images with one output per sample"


class Setting(NamedTuple):
    """What candidates are made from."""

    loop: Loop
    inputs: tuple[Any, ...]  # samples to train on
    outputs: Outputs  # of the original, for them
    decisions: Decisions
    labels: Tensor | None  # in the shape of the decisions
    architecture: Architecture | None  # of the original, if it is known
    activation: Activation  # of plain layers
    width: int  # units or channels of plain layers
    depths: tuple[int, ...]  # numbers of iterations to try
    tolerance: float  # largest loss of a replacement
    epochs: int
    batch_size: int
    seed: int


Candidate = tuple[str, Callable[[], Module] | str]  # its name, and what makes it, or why not


def candidates(setting: Setting) -> Iterator[Candidate]:
    """All that are tried, in the order of their cost."""
    for name, architecture in _architectures(setting).items():
        for words in ("labels", "outputs"):
            if isinstance(architecture, str):
                yield name, architecture
                break
            absent = words == "labels" and setting.labels is None
            make = partial(_trained, setting, architecture, on_labels=words == "labels")
            yield f"{name}, on {words}", "there are no labels" if absent else make
    loop, depths = setting.loop, sorted({*setting.depths, *_sufficient(setting)})
    for steps in depths:
        yield f"cut to {counted(steps, 'iteration')}", partial(LoopModule, loop, steps)

    @cache
    def trained() -> Loop:
        return consistency_copy(
            loop, setting.inputs, setting.outputs.scores, setting.decisions,
            depth=max(setting.depths), epochs=setting.epochs, batch_size=setting.batch_size,
            seed=setting.seed,
        )  # fmt: skip

    weights = any(True for module in loop.modules for _ in module.parameters())
    for steps in setting.depths:
        name = f"trained copy, {counted(steps, 'iteration')}"
        yield name, partial(lambda n: LoopModule(trained(), n), steps) if weights else _NO_WEIGHTS
    try:
        rule = rule_for(
            loop, setting.inputs, setting.decisions, risk=max(setting.tolerance, _RISK),
            steps=loop.steps or 0, seed=setting.seed,
        )  # fmt: skip
    except ValueError as error:
        yield "stop rule", str(error)
    else:
        yield "stop rule", partial(LoopModule, loop, rule.steps, rule)


def _sufficient(setting: Setting) -> Iterator[int]:
    """The fewest iterations that lose at most the tolerance on the samples to train on."""
    low, high = max(setting.depths), setting.loop.steps or 0
    while high - low > 1:  # bisection: one candidate more, which is measured like all others
        middle = (low + high) // 2
        found = outputs_of(LoopModule(setting.loop, middle), setting.inputs, setting.decisions)
        scores = scores_of(found, setting.outputs, setting.decisions, setting.labels)
        low, high = (low, middle) if scores.loss <= setting.tolerance else (middle, high)
    if low < high < (setting.loop.steps or 0):
        yield high


def _architectures(setting: Setting) -> dict[str, Architecture | str]:
    """Explicit networks by name, or the reason why there are none."""
    x, own, phi = setting.inputs[0], setting.architecture, setting.activation
    single = len(setting.inputs) == 1 and x.is_floating_point() and x.dim() in (2, 4)
    if not single or setting.outputs.decided.shape[1] != 1 or setting.decisions.custom:
        return {"plain layers": _SHAPES}
    if isinstance(own, ConvDEQ):
        options: dict[str, Any] = {
            "kernel_size": own.kernel_size, "pooling": own.pooling, "padding": own.padding
        }  # fmt: skip
        plain: list[Architecture] = [ConvNet((phi,) * depth, **options) for depth in (1, 2)]
    else:
        plain = [FullyConnected((phi,)), FullyConnected((phi, phi))]
    found: dict[str, Architecture | str] = {"plain layer": plain[0], "two plain layers": plain[1]}
    if own is not None and not isinstance(own, ConvDEQ):
        norm = float(x.flatten(1).double().square().sum(1).mean().sqrt())
        found["design"] = design(own, input_norm=norm, which="ntk").architecture
    return found


def _trained(setting: Setting, architecture: Architecture, *, on_labels: bool) -> Module:
    """An explicit network that has learned labels or the original's outputs."""
    x, scores = setting.inputs[0], setting.outputs.scores[:, 0]
    images = isinstance(architecture, ConvNet)
    whole = isinstance(architecture, ConvNet) and architecture.pooling is None
    flat = x if images else x.flatten(1)
    net = build(
        architecture, in_features=flat.shape[1], pixels=tuple(x.shape[2:]) if whole else None,
        width=setting.width, out_features=scores.shape[1], seed=setting.seed, dtype=x.dtype,
        device=x.device, readout_scale=0.0,
    )  # fmt: skip
    kind, labels = setting.decisions.kind, setting.labels
    if kind == "class":
        # the original's probabilities carry its doubts
        wanted = labels[:, 0] if on_labels and labels is not None else scores.softmax(1)
        _fit(net, flat, wanted, partial(functional.cross_entropy, ignore_index=IGNORED), setting)
    else:
        wanted = scores
        if on_labels and labels is not None:
            wanted = labels.view(scores.shape).to(scores)
        if on_labels and labels is not None and kind == "sign":
            known = torch.where(labels == IGNORED, setting.outputs.decided, labels)
            wanted = setting.decisions.threshold + 2 * known.view(scores.shape).to(scores) - 1
        size = wanted.square().mean().sqrt()  # outputs of size one are learned, as weights are
        _fit(net, flat, wanted / size, functional.mse_loss, setting)
        with torch.no_grad():
            net.readout.mul_(size)
    return net if images or x.dim() == 2 else nn.Sequential(nn.Flatten(), net)


def _fit(
    net: Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], setting: Setting
) -> None:
    """Train by Adam with a learning rate that falls to zero like a cosine."""
    generator = torch.Generator().manual_seed(setting.seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=_LEARNING_RATE)
    batches = math.ceil(len(x) / setting.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setting.epochs * batches)
    for _ in range(setting.epochs):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for chosen in order.split(setting.batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
            schedule.step()
