"""Samples to train on, samples to measure on, and what a model says of them."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from shoal.core.checks import float_tensor, real, seeded
from shoal.equilibrium.solution import SolveLog
from shoal.networks.modules import evaluating, solve_options

_BATCH = 4096

Split = tuple[Tensor, Tensor | None]


class Samples(NamedTuple):
    """Samples with what a model says of them.

    Attributes:
        x: Inputs.
        y: Labels: classes as integers, or targets of the outputs' shape; ``None`` if there are
            none.
        outputs: Those of the model; shape (samples, outputs).
        unsolved: Of how many its own solver found no equilibrium.
    """

    x: Tensor
    y: Tensor | None
    outputs: Tensor
    unsolved: int

    @property
    def classes(self) -> bool:
        """Whether labels are classes, so that outputs are logarithms of their chances."""
        return self.y is not None and not self.y.is_floating_point()


def split(x: Tensor, y: Tensor | None, held_out: float | Split, seed: int) -> tuple[Split, Split]:
    """Samples to train on, and samples to measure on."""
    _check_count("y", x, y)
    if isinstance(held_out, tuple | list):
        if len(held_out) != 2:
            raise ValueError(f"held_out must be a share or (x, y), got {len(held_out)} entries")
        x_test, y_test = float_tensor("held_out", held_out[0]), held_out[1]
        if (y is None) != (y_test is None):
            raise ValueError("held_out must have labels if, and only if, y is given")
        if x_test.shape[1:] != x.shape[1:] or x_test.dtype != x.dtype:
            raise ValueError(
                f"held_out must have samples like x, of shape {tuple(x.shape[1:])} and {x.dtype}, "
                f"got {tuple(x_test.shape[1:])} and {x_test.dtype}"
            )
        _check_count("held_out", x_test, y_test)
        if (
            y is not None
            and y_test is not None
            and y.dtype.is_floating_point != (y_test.dtype.is_floating_point)
        ):
            raise ValueError("held_out must have labels like y, classes or targets")
        return (x, y), (x_test, y_test)
    share = real("held_out", held_out, above=0, below=1)
    order = torch.randperm(len(x), generator=seeded("seed", seed)).to(x.device)
    count = max(1, round(share * len(x)))
    if count >= len(x):
        raise ValueError(f"x must have samples for both parts, got {len(x)}")
    test, rest = order[:count], order[count:]
    labels = (None, None) if y is None else (y[rest], y[test])
    return (x[rest], labels[0]), (x[test], labels[1])


def _check_count(name: str, x: Tensor, y: object) -> None:
    if y is None:
        return
    if not isinstance(y, Tensor):
        raise TypeError(
            f"{name} must have labels as a tensor, of integers for classes or of real targets, got "
            f"a {type(y).__name__}"
        )
    if not y.dim() or len(y) != len(x):
        raise ValueError(
            f"{name} must have one entry per sample, {len(x)}, got shape {tuple(y.shape)}"
        )


def samples_of(model: Module, given: Split, name: str) -> Samples:
    """What a model says of samples, with labels that fit to it.

    Args:
        model: The model.
        given: Inputs and labels.
        name: Of the labels, for messages.
    """
    x, y = given
    failed = _failed_solves(model)
    outputs = outputs_of(model, x)
    unsolved = _failed_solves(model) - failed
    bad = int((~outputs.isfinite().all(1)).sum())
    if bad:
        raise ValueError(f"model must return finite outputs, got NaN or infinity for {bad} samples")
    if y is not None:
        y = _targets(name, y, outputs) if y.is_floating_point() else _classes(name, y, outputs)
    return Samples(x, y, outputs, unsolved)


def _failed_solves(model: Module) -> int:
    """How many samples all equilibria in a model have not been found of, as their logs say."""
    found = []
    for one in model.modules():
        options = solve_options(one)
        found.append(getattr(one, "log", None) if options is None else options.log)
    return sum(log.failures["forward"].total() for log in found if isinstance(log, SolveLog))


@torch.no_grad()
def outputs_of(module: Module, x: Tensor) -> Tensor:
    """The outputs of a module in evaluation mode, of shape (samples, outputs)."""
    with evaluating(module):
        parts = [module(part) for part in x.split(_BATCH)]
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(f"model must return a tensor, got {type(part).__name__}")
    whole = torch.cat(parts)
    if len(whole) != len(x):
        raise ValueError(f"model must return {len(x)} outputs, one per sample, got {len(whole)}")
    return whole.flatten(1) if whole.dim() > 1 else whole[:, None]


def _targets(name: str, y: Tensor, outputs: Tensor) -> Tensor:
    if y.numel() != outputs.numel():
        raise ValueError(
            f"{name} must have targets like the model's outputs, {tuple(outputs.shape)}, got shape "
            f"{tuple(y.shape)}; classes are integers"
        )
    if not bool(y.isfinite().all()):
        raise ValueError(f"{name} must have finite targets, got NaN or infinity among them")
    return y.reshape(outputs.shape).to(outputs)


def _classes(name: str, y: Tensor, outputs: Tensor) -> Tensor:
    count = outputs.shape[1]
    if count == 1:
        raise ValueError(f"{name} must have real targets for a model of one output, got {y.dtype}")
    if y.dim() != 1 or y.is_complex():
        raise ValueError(
            f"{name} must have classes as integers of shape ({len(y)},), got {y.dtype} of shape "
            f"{tuple(y.shape)}"
        )
    y = y.to(outputs.device, torch.long)
    if not 0 <= int(y.min()) <= int(y.max()) < count:
        raise ValueError(
            f"{name} must have classes from 0 to {count - 1}, one for each output, got "
            f"{int(y.min())} to {int(y.max())}"
        )
    return y
