"""Modules that may replace a loop, and their training."""

import copy
import math
from collections import deque
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
from shoal.loops.decisions import IGNORED, Decisions
from shoal.loops.distillation import Outputs, outputs_of, scores_of
from shoal.loops.loop import Loop, LoopModule, rows_of
from shoal.loops.stopping import rule_for
from shoal.loops.trace import batch_of, rows_of_inputs
from shoal.networks import build

_COPY_RATE = 3e-3  # largest learning rate of the copy


class Setting(NamedTuple):
    """The data and options from which candidates are constructed."""

    loop: Loop
    inputs: tuple[Any, ...]  # samples to train on
    outputs: Outputs  # the original's outputs for them
    decisions: Decisions
    labels: Tensor | None  # in the shape of the decisions
    architecture: Architecture | None  # the original's architecture
    activation: Activation  # activation of plain layers
    width: int  # units or channels of plain layers
    depths: tuple[int, ...]  # numbers of iterations to try
    tolerance: float  # largest loss of a replacement
    epochs: int
    batch_size: int
    seed: int


Candidate = tuple[str, Callable[[], Module] | str]  # name, and constructor or reason against it


def candidates(setting: Setting) -> Iterator[Candidate]:
    """All candidates, in the order of their cost."""
    for name, architecture in _architectures(setting).items():
        for words in ("labels", "outputs"):
            if isinstance(architecture, str):
                yield name, architecture
                break
            unlabeled = words == "labels" and setting.labels is None
            make = partial(_trained, setting, architecture, on_labels=words == "labels")
            yield f"{name}, on {words}", "there are no labels" if unlabeled else make
    loop, depths = setting.loop, sorted({*setting.depths, *_sufficient(setting)})
    for steps in depths:
        yield f"cut to {counted(steps, 'iteration')}", partial(LoopModule, loop, steps)

    trained = cache(partial(_consistency_copy, setting))
    weights = any(True for module in loop.modules for _ in module.parameters())
    absent = "the loop's functions are no modules with parameters"
    for steps in setting.depths:
        name = f"trained copy, {counted(steps, 'iteration')}"
        yield name, partial(lambda n: LoopModule(trained(), n), steps) if weights else absent
    try:
        rule = rule_for(
            loop, setting.inputs, setting.decisions, risk=max(setting.tolerance, 0.01),
            steps=loop.steps or 0, seed=setting.seed,
        )  # fmt: skip
    except ValueError as error:
        yield "stop rule", str(error)
    else:
        yield "stop rule", partial(LoopModule, loop, rule.steps, rule)


def _sufficient(setting: Setting) -> Iterator[int]:
    """The fewest iterations that lose at most the tolerance on the samples to train on."""
    low, high = max(setting.depths), setting.loop.steps or 0
    while high - low > 1:  # bisection
        middle = (low + high) // 2
        outputs = outputs_of(LoopModule(setting.loop, middle), setting.inputs, setting.decisions)
        scores = scores_of(outputs, setting.outputs, setting.decisions, setting.labels)
        low, high = (low, middle) if scores.loss <= setting.tolerance else (middle, high)
    if low < high < (setting.loop.steps or 0):
        yield high


def _architectures(setting: Setting) -> dict[str, Architecture | str]:
    """Explicit networks by name, or the reason against them."""
    x, original, phi = setting.inputs[0], setting.architecture, setting.activation
    single = len(setting.inputs) == 1 and x.is_floating_point() and x.dim() in (2, 4)
    if not single or setting.outputs.decided.shape[1] != 1 or setting.decisions.custom:
        return {"plain layers": "it is for vectors and images with one output per sample"}
    if isinstance(original, ConvDEQ):
        options: dict[str, Any] = {
            name: getattr(original, name) for name in ("kernel_size", "pooling", "padding")
        }
        plain: list[Architecture] = [ConvNet((phi,) * depth, **options) for depth in (1, 2)]
    else:
        plain = [FullyConnected((phi,)), FullyConnected((phi, phi))]
    networks: dict[str, Architecture | str] = {
        "plain layer": plain[0], "two plain layers": plain[1],
    }  # fmt: skip
    if original is not None and not isinstance(original, ConvDEQ):
        norm = float(x.flatten(1).double().square().sum(1).mean().sqrt())
        networks["design"] = design(original, input_norm=norm, which="ntk").architecture
    return networks


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
        targets = labels[:, 0] if on_labels and labels is not None else scores.softmax(1)
        _fit(net, flat, targets, partial(functional.cross_entropy, ignore_index=IGNORED), setting)
    else:
        targets = scores
        if on_labels and labels is not None:
            targets = labels.view(scores.shape).to(scores)
        if on_labels and labels is not None and kind == "sign":
            signs = torch.where(labels == IGNORED, setting.outputs.decided, labels)
            targets = setting.decisions.threshold + 2 * signs.view(scores.shape).to(scores) - 1
        size = targets.square().mean().sqrt()  # the network learns outputs of size one
        _fit(net, flat, targets / size, functional.mse_loss, setting)
        with torch.no_grad():
            net.readout.mul_(size)
    return net if images or x.dim() == 2 else nn.Sequential(nn.Flatten(), net)


def _fit(
    net: Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], setting: Setting
) -> None:
    """Train by Adam with a cosine schedule of the learning rate."""
    generator = torch.Generator().manual_seed(setting.seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)  # for weights of unit variance
    batches = math.ceil(len(x) / setting.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setting.epochs * batches)
    for _ in range(setting.epochs):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for chosen in order.split(setting.batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
            schedule.step()


def _consistency_copy(setting: Setting) -> Loop:
    """Train a copy of a loop for few iterations, in the manner of Lin et al. 2026.

    The copy begins with the loop's own weights. Each of its first states is trained to approximate
    the last state of the original trajectory and the original's scores.
    """
    loop, inputs, decisions = setting.loop, setting.inputs, setting.decisions
    targets, depth = setting.outputs.scores, max(setting.depths)
    samples, generator = batch_of(inputs), torch.Generator().manual_seed(setting.seed)
    with torch.no_grad():
        ends = torch.cat([
            rows_of(deque(loop.states(*rows_of_inputs(inputs, rows)), maxlen=1)[0])
            for rows in torch.arange(samples).split(512)
        ])  # fmt: skip
    spread = float((ends - ends.mean(0)).square().mean()) or 1.0
    student = copy.deepcopy(loop)
    parameters = [p for module in student.modules for p in module.parameters()]
    weights = [p.requires_grad_() for p in parameters if p.is_floating_point()]
    optimizer = torch.optim.Adam(weights, _COPY_RATE)
    batches = -(-samples // setting.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _COPY_RATE, total_steps=setting.epochs * batches + 1
    )
    for _ in range(setting.epochs):
        for rows in torch.randperm(samples, generator=generator).split(setting.batch_size):
            here = rows.to(targets.device)
            state, context = student.begin(*rows_of_inputs(inputs, rows))
            loss = torch.zeros((), device=targets.device)
            for n in range(depth):
                state = student.step(state, context, n)
                scores = decisions.scores(student.head(state, context))
                loss = loss + _output_error(scores, targets[here], decisions)
                state_error = (rows_of(state) - ends[here]).square().mean() / spread
                loss = loss + 0.1 * state_error
            optimizer.zero_grad(set_to_none=True)
            (loss / depth).backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
    return student


def _output_error(scores: Tensor, targets: Tensor, decisions: Decisions) -> Tensor:
    """The error of scores: cross-entropy of classes, or relative squared distance."""
    if decisions.kind == "class":
        probabilities = targets.softmax(-1).flatten(0, -2)
        return functional.cross_entropy(scores.flatten(0, -2), probabilities)
    if decisions.kind == "sign" and not decisions.threshold:
        return functional.binary_cross_entropy_with_logits(scores, targets.sigmoid())
    return (scores - targets).square().mean() / (targets.square().mean() + 1e-30)
