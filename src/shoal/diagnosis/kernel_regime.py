"""How far training has moved a model from the kernel that it began with."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from shoal.diagnosis.model_loop import ModelLoop
from shoal.networks.empirical_kernel import empirical_kernel
from shoal.networks.modules import ModuleInputs, evaluating

_SAMPLES = 32


class KernelChange(NamedTuple):
    r"""How far the empirical NTK $K$ is from $K_0$, that of the initial weights.

    Attributes:
        relative: $\|K - K_0\| / \|K_0\|$, in the Frobenius norm.
        alignment: $\langle K, K_0 \rangle / \|K\| \|K_0\|$: one if they differ by a factor.
        centered_alignment: The same of the kernels with their means removed (CKA).
        weights: How far the parameters moved, relative to their initial norm.
        samples: On how many samples.
    """

    relative: float
    alignment: float
    centered_alignment: float
    weights: float
    samples: int


def kernel_change(loop: ModelLoop, model: object, x: Any, reference: object) -> KernelChange:
    """Compare the kernels of a model and of the weights it began with.

    Args:
        loop: The loop of the model.
        model: The model.
        x: What it is called with: tensors, or trees of them, with samples in the first dimension.
        reference: The same model before training, or its state dictionary.
    """
    if loop.whole is None or not isinstance(model, Module):
        raise ValueError(
            "reference must be left out for a cell, which has no kernel of its own: diagnose the "
            "whole model as shoal.diagnose(model, None, x, reference=...)"
        )
    before = _before(model, reference)
    some = ModuleInputs.checked("inputs", x)[:_SAMPLES]
    by_place, _ = some.arguments
    given = by_place[0] if len(by_place) == 1 else by_place
    with evaluating(model), evaluating(before):
        new, old = (empirical_kernel(one, given).ntk.detach().double() for one in (model, before))
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    moves = [((p - q).detach().double().norm(), q.detach().double().norm()) for p, q in pairs]
    moved, size = (torch.stack(column).norm() for column in zip(*moves, strict=True))
    return KernelChange(
        float((new - old).norm() / old.norm()),
        _alignment(new, old),
        _alignment(_centered(new), _centered(old)),
        float(moved / size),
        len(some),
    )


def _before(model: Module, reference: object) -> Module:
    if isinstance(reference, Mapping):
        before = copy.deepcopy(model)
        try:
            before.load_state_dict(reference)
        except RuntimeError as error:
            raise ValueError(
                f"reference must be a state dictionary of the model: {error}"
            ) from None
        return before
    if not isinstance(reference, Module):
        raise TypeError(
            f"reference must be a module or a state dictionary, got {type(reference).__name__}"
        )
    shapes = [[tuple(p.shape) for p in one.parameters()] for one in (model, reference)]
    if shapes[0] != shapes[1]:
        raise ValueError("reference must have parameters of the shapes of the model's")
    return reference


def _alignment(first: Tensor, second: Tensor) -> float:
    return float((first * second).sum() / (first.norm() * second.norm()))


def _centered(kernel: Tensor) -> Tensor:
    return kernel - kernel.mean(0) - kernel.mean(1, keepdim=True) + kernel.mean()
