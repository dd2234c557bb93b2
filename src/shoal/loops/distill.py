"""A cheaper replacement of a loop, chosen by measurement."""

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from shoal.activations import Activation, ReLU
from shoal.architectures import Architecture, ConvDEQ, ImplicitArchitecture
from shoal.core.checks import integer, items, real, seeded
from shoal.core.measuring import best_times, peak_memory, timed
from shoal.core.settings import in_standard_settings
from shoal.core.torch_compat import pytree
from shoal.loops.candidates import Setting, candidates
from shoal.loops.decisions import Decision, check_classes, decisions_of
from shoal.loops.distillation import Distillation, MeasuredModel, Outputs, outputs_of, scores_of
from shoal.loops.find import find_loop
from shoal.loops.loop import Loop, LoopModule, rows_of
from shoal.loops.stopping import check_decided, check_loop
from shoal.loops.trace import batch_of, first_samples, rows_of_inputs
from shoal.networks import Network
from shoal.networks.modules import evaluating

_TRACED = 32  # samples of a trace
_TIMED = 1024  # samples in a batch that is timed


@in_standard_settings
@torch.enable_grad()
def distill(
    model: Module | Loop,
    x: Any,
    y: Tensor | None = None,
    *,
    held_out: float | tuple[Any, Tensor | None] = 0.25,
    tolerance: float | None = None,
    depths: Iterable[int] = (1, 2, 3),
    epochs: int = 30,
    batch_size: int = 128,
    width: int | None = None,
    architecture: Architecture | None = None,
    activation: Activation | None = None,
    decision: Decision | None = None,
    seed: int = 0,
) -> Distillation:
    """Look for a cheaper replacement of a model with a loop.

    The original is the model as it runs. Each candidate is made from the same samples and measured
    beside the original, on held-out samples and on this machine: the loop with fewer iterations;
    with a stop rule; a copy of it, trained for few iterations in the manner of Consistency Deep
    Equilibrium Models; and for vectors and images plain layers, and the layer of ``shoal.design``
    where the model is a DEQ of shoal. If no candidate is faster and near enough, the verdict is to
    keep the model, which is not modified.

    Args:
        model: A module with a loop, or a loop.
        x: Inputs: a tensor of any dtype, with samples in its first dimension, or a tuple of the
            model's arguments.
        y: Labels per sample or per decision: classes, with -100 ignored, or real targets.
        held_out: Share of samples to hold out of fitting, or separate samples, ``(x, y)``. If the
            model was trained on ``x``, pass separate ones, since it may have memorized ``x``.
        tolerance: Largest loss of accuracy, by default 0.003; without labels, the largest share of
            decisions that differ, by default 0.01. The stop rule has this risk, but at least 1%.
        depths: Numbers of iterations of the cut loop and of the trained copy.
        epochs: Number of passes over the samples in training.
        batch_size: Samples per step of training.
        width: Units of plain layers; by default the size of the model's state, at most 2048, or
            its channels.
        architecture: Architecture of the model, for the design; known for networks of ``build``.
        activation: Activation of plain layers; by default the architecture's, or else a ReLU.
        decision: How to read an output: ``"class"``, ``"sign"``, ``"value"`` or a function.
        seed: Seed of the split, weights and batches.

    Raises:
        ValueError: If the model has no loop, its samples depend on one another, or shapes do not
            fit.

    References:
        Lin, Ling, Xu and Qiu, Consistency deep equilibrium models, 2026.

    Example:
        >>> import torch, shoal
        >>> cell = lambda z, x: torch.tanh(0.5 * z.flip(1) + x)
        >>> x = torch.randn(200, 4)
        >>> loop = shoal.Loop(cell, torch.zeros_like, x, head=lambda z: z[:, :3], steps=32)
        >>> t = shoal.distill(loop, x, epochs=1)
        >>> [one.name for one in t.candidates if one.name.startswith("cut")][0]
        'cut to 1 iteration'
    """
    epochs = integer("epochs", epochs, at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    depth_items = items("depths", depths, "a collection of numbers of iterations")
    counts = tuple(integer("depths", one, at_least=1) for one in depth_items)
    (inputs, y, rows), (test_inputs, test_y, test_rows) = _split(x, y, held_out, seed)
    loop = model if isinstance(model, Loop) else find_loop(model, *first_samples(inputs, _TRACED))
    check_loop(loop)
    if loop.steps is None:
        raise ValueError(
            "model must be a loop with a known number of iterations: pass steps= to Loop"
        )
    module = LoopModule(loop, loop.steps) if isinstance(model, Loop) else model
    counts = tuple(sorted({one for one in counts if one < loop.steps}))
    if not counts:
        raise ValueError(f"depths must have numbers below the loop's {loop.steps} iterations")
    if architecture is None and isinstance(model, Network):
        architecture = model.architecture
    if architecture is not None and not isinstance(architecture, Architecture):
        raise TypeError(f"architecture must be an Architecture, got {type(architecture).__name__}")
    with torch.no_grad(), evaluating(module):
        first = module(*first_samples(inputs, _TIMED))
    decisions = decisions_of(first, None if y is None else y[:_TIMED], decision=decision)
    outputs, test_outputs = (outputs_of(module, part, decisions) for part in (inputs, test_inputs))
    check_decided(decisions, outputs.decided, rows)
    check_decided(decisions, test_outputs.decided, test_rows)
    labels, test_labels = (
        None if part is None else decisions.labels(part, like.decided)
        for part, like in ((y, outputs), (test_y, test_outputs))
    )
    for one in (labels, test_labels):
        if one is not None and decisions.kind == "class":
            check_classes(one, outputs.scores.shape[-1])
    tolerance = (0.01 if y is None else 0.003) if tolerance is None else tolerance
    if activation is None:
        activation = ReLU()
        if isinstance(architecture, ImplicitArchitecture):
            activation = architecture.layers().cells[0].activation
    if width is None:
        width = _default_width(loop, inputs, architecture)
    setting = Setting(
        loop, inputs, outputs, decisions, labels, architecture, activation,
        integer("width", width, at_least=1), counts, real("tolerance", tolerance, above=0, below=1),
        epochs, batch_size, seed,
    )  # fmt: skip
    return _compare(setting, module, test_inputs, test_outputs, test_labels)


def _split(
    x: Any, y: Tensor | None, held_out: Any, seed: int
) -> tuple[tuple[tuple[Any, ...], Tensor | None, Tensor], ...]:
    """Inputs, labels and their places in the given samples, to train on and to measure on."""
    inputs = _checked("x", x, y)
    if isinstance(held_out, tuple | list):
        if len(held_out) != 2:
            raise ValueError(f"held_out must be a share or (x, y), got {len(held_out)} entries")
        y_other = held_out[1]
        if (y is None) != (y_other is None):
            raise ValueError("held_out must have labels if, and only if, y is given")
        parts = (inputs, y), (_checked("held_out", *held_out), y_other)
        return tuple((*part, torch.arange(batch_of(part[0]))) for part in parts)
    if isinstance(held_out, Tensor):
        raise TypeError("held_out must be a share or (x, y), with y=None without labels, got x")
    share, samples = real("held_out", held_out, above=0, below=1), batch_of(inputs)
    order = torch.randperm(samples, generator=seeded("seed", seed))
    count = max(1, round(share * samples))
    if samples - count < 2:
        raise ValueError(f"x must have at least 2 samples to train on, got {samples} in all")
    return tuple(
        (rows_of_inputs(inputs, rows), None if y is None else y[rows.to(y.device)], rows)
        for rows in (order[count:], order[:count])
    )


def _checked(name: str, x: Any, y: object) -> tuple[Any, ...]:
    """A model's arguments as a tuple, and labels that fit them."""
    inputs = tuple(x) if isinstance(x, tuple | list) else (x,)
    if not any(isinstance(leaf, Tensor) and leaf.dim() for leaf in pytree.tree_leaves(inputs)):
        raise TypeError(
            f"{name} must be a tensor with samples in its first dimension, or a tuple of the "
            f"model's arguments, got {type(x).__name__}"
        )
    name = "y" if name == "x" else name
    if y is not None and not isinstance(y, Tensor):
        raise TypeError(f"{name} must have labels as a tensor, got a {type(y).__name__}")
    if y is not None and (not y.dim() or len(y) != batch_of(inputs)):
        raise ValueError(
            f"{name} must have one entry per sample, {batch_of(inputs)}, got {tuple(y.shape)}"
        )
    if y is not None and y.is_floating_point() and not bool(y.isfinite().all()):
        raise ValueError(f"{name} must have finite targets, got NaN or infinity among them")
    return inputs


@torch.no_grad()
def _default_width(loop: Loop, inputs: tuple[Any, ...], architecture: Architecture | None) -> int:
    """The size of the state, or its channels."""
    size = rows_of(loop.begin(*first_samples(inputs, 2))[0]).shape[1]
    if isinstance(architecture, ConvDEQ):
        size //= math.prod(inputs[0].shape[2:])
    return min(size, 2048)


def _compare(
    setting: Setting,
    model: Module,
    test_inputs: tuple[Any, ...],
    outputs: Outputs,
    labels: Tensor | None,
) -> Distillation:
    """Construct all candidates, and measure them beside the original."""
    device = setting.outputs.scores.device
    modules, seconds, skipped = {"original": model}, {"original": 0.0}, {}
    for name, make in candidates(setting):
        if isinstance(make, str):
            skipped[name] = make
        else:
            modules[name], seconds[name] = timed(make, device)
    batch = first_samples(test_inputs, _TIMED)
    times, peaks = _costs(modules, batch, device)
    read = partial(outputs_of, inputs=test_inputs, decisions=setting.decisions)
    original, *replacements = [
        MeasuredModel(
            name, module, scores_of(read(module), outputs, setting.decisions, labels), times[name],
            batch_of(batch), _bytes(module), peaks[name], seconds[name],
        )
        for name, module in modules.items()
    ]  # fmt: skip
    return Distillation(
        original, tuple(replacements), skipped, batch_of(test_inputs), batch_of(setting.inputs),
        setting.tolerance, setting.decisions.words, str(device), batch,
    )  # fmt: skip


@torch.no_grad()
def _costs(
    modules: Mapping[str, Module], batch: tuple[Any, ...], device: torch.device
) -> tuple[dict[str, float], dict[str, int]]:
    """The shortest of several interleaved times, and the peak of memory in bytes."""
    calls = {name: partial(module, *batch) for name, module in modules.items()}
    with ExitStack() as modes:
        for module in modules.values():
            modes.enter_context(evaluating(module))
        times = best_times(calls, device, repeats=7)
        return times, {name: peak_memory(call, device)[1] for name, call in calls.items()}


def _bytes(module: Module) -> int:
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}
    return sum(t.numel() * t.element_size() for t in tensors.values())
