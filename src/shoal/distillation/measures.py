"""What is measured of a model beside the original: fidelity, accuracy, latency, memory."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from shoal.core.measuring import best_times, peak_memory
from shoal.distillation.samples import Samples
from shoal.networks.modules import evaluating

_BINS = 15  # of the calibration error
_TIMED = 1024  # samples in a batch that is timed
_REPEATS = 7


class Scores(NamedTuple):
    """How good a model is on held-out samples.

    Attributes:
        agreement: The share of samples whose largest output is the original's; ``None`` if there
            is one output.
        output_error: The distance of all outputs from the original's, relative to their norm. The
            scores of classes count up to a constant for each sample, which their chances do not
            depend on.
        accuracy: The share of right classes, or of the variance of targets that is explained;
            ``None`` without labels.
        calibration_error: The expected calibration error of class probabilities; ``None`` if
            labels are no classes.
        accuracy_loss: How much less accurate than the original it is.
        uncertainty: The standard error of that, from the samples that only one of them has right.
    """

    agreement: float | None
    output_error: float
    accuracy: float | None
    calibration_error: float | None
    accuracy_loss: float | None
    uncertainty: float | None


class Measured(NamedTuple):
    """A model with all that was measured of it.

    Attributes:
        name: What it is.
        module: The model, a plain module of one tensor.
        scores: On held-out samples.
        seconds: For a batch of ``batch`` held-out samples, the shortest of several.
        batch: How many samples that are.
        parameter_bytes: Of all its parameters and buffers.
        peak_bytes: The most that the batch takes at once, besides parameters and inputs.
        training_seconds: That it took to make it.
    """

    name: str
    module: Module
    scores: Scores
    seconds: float
    batch: int
    parameter_bytes: int
    peak_bytes: int
    training_seconds: float

    @property
    def loss(self) -> float:
        """What is lost with it: accuracy, or without labels agreement, or the output's error.

        All, if it says something that is no number.
        """
        scores = self.scores
        if not math.isfinite(scores.output_error):
            return math.inf
        if scores.accuracy_loss is not None:
            return scores.accuracy_loss
        return scores.output_error if scores.agreement is None else 1 - scores.agreement


def scores(outputs: Tensor, held: Samples) -> Scores:
    """How good outputs are."""
    several = outputs.shape[1] > 1
    agreement = float((outputs.argmax(1) == held.outputs.argmax(1)).double().mean())
    error = float((_stated(outputs, held) - _stated(held.outputs, held)).norm())
    error /= float(_stated(held.outputs, held).norm()) or 1.0
    accuracy = calibration = loss = uncertainty = None
    if held.y is not None and held.classes:
        right, before = (o.argmax(1) == held.y for o in (outputs, held.outputs))
        accuracy = float(right.double().mean())
        calibration = _calibration_error(outputs, held.y)
        difference = before.double() - right.double()
        loss = float(difference.mean())
        count = len(difference)  # one sample more or less, at least
        uncertainty = max(float(difference.std() / count**0.5) if count > 1 else 0.0, 1 / count)
    elif held.y is not None:
        accuracy = _explained(outputs, held.y)
        loss = _explained(held.outputs, held.y) - accuracy
    return Scores(agreement if several else None, error, accuracy, calibration, loss, uncertainty)


def _stated(outputs: Tensor, held: Samples) -> Tensor:
    """Outputs without what says nothing: of the scores of classes, their mean over classes."""
    return outputs - outputs.mean(1, keepdim=True) if held.classes else outputs


def _explained(outputs: Tensor, y: Tensor) -> float:
    spread = (y - y.mean(0)).square().sum()
    if not bool(spread > 0):
        raise ValueError("y must have held-out targets that differ, got one value")
    return float(1 - (outputs - y).square().sum() / spread)


def _calibration_error(outputs: Tensor, y: Tensor) -> float:
    """The mean distance of confidence and accuracy, over samples of similar confidence."""
    confidence, chosen = outputs.double().softmax(1).max(1)
    if not bool(confidence.isfinite().all()):
        return math.nan
    right = (chosen == y).double()
    place = (confidence * _BINS).long().clamp(max=_BINS - 1)
    gaps = torch.zeros(_BINS, dtype=torch.float64, device=outputs.device)
    gaps = gaps.index_add(0, place, confidence - right)
    return float(gaps.abs().sum() / len(y))


@torch.no_grad()
def latencies(modules: Mapping[str, Module], x: Tensor) -> tuple[dict[str, float], int]:
    """The shortest of several times of each module for a batch, taken in turns; its size."""
    batch = x[:_TIMED]
    with ExitStack() as modes:
        for module in modules.values():
            modes.enter_context(evaluating(module))
        calls = {name: partial(module, batch) for name, module in modules.items()}
        return best_times(calls, x.device, repeats=_REPEATS), len(batch)


@torch.no_grad()
def peaks(modules: Mapping[str, Module], x: Tensor) -> dict[str, int]:
    """The most bytes that each module holds at once for the batch that is timed."""
    found = {}
    for name, module in modules.items():
        with evaluating(module):
            found[name] = peak_memory(partial(module, x[:_TIMED]), x.device)[1]
    return found
