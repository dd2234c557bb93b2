"""A shallow replacement of a trained model, chosen by measurement."""

import math
from collections.abc import Iterable

from torch import Tensor
from torch.nn import Module

from shoal.activations import Activation, ReLU
from shoal.architectures import Architecture, ConvDEQ, ImplicitArchitecture
from shoal.core.checks import float_tensor, instance, integer, items, real
from shoal.core.measuring import timed
from shoal.core.settings import in_standard_settings
from shoal.distillation.candidates import Setting, candidates
from shoal.distillation.measures import Measured, latencies, peaks, scores
from shoal.distillation.model_loop import loop_of
from shoal.distillation.result import Distillation
from shoal.distillation.samples import Samples, Split, outputs_of, samples_of, split
from shoal.networks import Network

_WIDEST = 2048  # units of explicit networks, by default at most


@in_standard_settings
def distill(
    model: Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    held_out: float | Split = 0.25,
    tolerance: float | None = None,
    architecture: Architecture | None = None,
    activation: Activation | None = None,
    width: int | None = None,
    depths: Iterable[int] = (1, 2, 3, 5),
    epochs: int = 30,
    batch_size: int = 128,
    learning_rate: float = 0.02,
    seed: int = 0,
) -> Distillation:
    """Look for a shallow network that can replace a trained deep equilibrium model.

    Each candidate is made from the same samples and measured beside the model, on held-out samples
    and on the same machine: one and two plain layers, and the layer of ``shoal.design`` that has
    the model's tangent kernel, each trained on labels and on the model's outputs; and the model's
    own loop, cut after a few applications, with a linear correction of the last state. If none is
    faster and near enough, the answer is to keep the model. The model is not changed.

    Args:
        model: A module of one tensor, with one equilibrium inside, as for ``diagnose``.
        x: Inputs, of shape (samples, ...).
        y: Labels: classes as integers of shape (samples,), or real targets like the outputs.
        held_out: The share of samples that nothing is fitted to, or other samples, ``(x, y)``. If
            the model was trained on ``x``, give others: it remembers those, replacements do not.
        tolerance: How much may be lost of the accuracy, or of the explained variance, by default
            0.003; without labels, the share of samples whose largest output may differ, or the
            relative error of a single output, by default 0.01.
        architecture: What the model is an example of, for the design; known for networks of
            ``build``.
        activation: Of plain layers; that of the architecture by default, or else a ReLU.
        width: Of explicit networks; by default the size of the model's state, at most 2048, or
            for an architecture of images its channels.
        depths: After how many applications the loop is cut.
        epochs: How often explicit networks see all samples, by Adam with a cosine schedule.
        batch_size: In batches of how many.
        learning_rate: The first one, for weights of unit variance.
        seed: Of the split, weights and batches.

    Raises:
        TypeError: If an argument is not of its kind.
        ValueError: If shapes do not fit, or the model has no equilibrium inside.

    Example:
        >>> import torch, shoal
        >>> deq = shoal.DEQ("tanh", recurrent_variance=0.1, input_variance=0.9)
        >>> net = shoal.build(deq, in_features=3, width=32, out_features=2)
        >>> x = torch.nn.functional.normalize(torch.randn(200, 3))
        >>> twin = shoal.distill(net, x, epochs=2, depths=(1, 4))
        >>> [one.name for one in twin.candidates][-1]
        'cut to 4 applications'
    """
    instance("model", model, Module)
    float_tensor("x", x)
    epochs = integer("epochs", epochs, at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    rate = real("learning_rate", learning_rate, above=0)
    counts = items("depths", depths, "a collection of numbers of applications")
    steps = tuple(integer("depths", step, at_least=0) for step in counts)
    train, rest = split(x, y, held_out, seed)
    own = architecture or (model.architecture if isinstance(model, Network) else None)
    if own is not None and not isinstance(own, Architecture):
        raise TypeError(f"architecture must be an Architecture, got {type(own).__name__}")
    loop = loop_of(model, None, (train[0][:2],))
    size = loop.layout.rows(loop.z0).shape[1]
    if isinstance(own, ConvDEQ):
        size //= math.prod(train[0].shape[2:])
    setting = Setting(
        model, samples_of(model, train, "y"), own, activation or _activation(own),
        min(size, _WIDEST) if width is None else integer("width", width, at_least=1),
        steps, epochs, batch_size, rate, seed,
    )  # fmt: skip
    held = samples_of(model, rest, "y" if isinstance(held_out, float) else "held_out")
    if tolerance is None:
        tolerance = 0.01 if y is None else 0.003
    return _measured(setting, held, real("tolerance", tolerance, at_least=0))


def _activation(architecture: Architecture | None) -> Activation:
    if isinstance(architecture, ImplicitArchitecture):
        return architecture.layers().cells[0].activation
    return ReLU()


def _measured(setting: Setting, held: Samples, tolerance: float) -> Distillation:
    """Make all candidates, and measure them beside the original."""
    modules, seconds, skipped = {"original": setting.model}, {"original": 0.0}, {}
    for name, make in candidates(setting):
        if isinstance(make, str):
            skipped[name] = make
        else:
            modules[name], seconds[name] = timed(make, held.x.device)
    times, batch = latencies(modules, held.x)
    memory = peaks(modules, held.x)
    original, *found = [
        Measured(
            name,
            module,
            scores(outputs_of(module, held.x), held),
            times[name],
            batch,
            _bytes(module),
            memory[name],
            seconds[name],
        )
        for name, module in modules.items()
    ]
    device = str(held.x.device)
    counts = (len(held.x), len(setting.samples.x))
    return Distillation(original, tuple(found), skipped, *counts, tolerance, device, held.unsolved)


def _bytes(module: Module) -> int:
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}
    return sum(t.numel() * t.element_size() for t in tensors.values())
