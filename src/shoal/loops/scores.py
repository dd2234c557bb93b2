"""How near a replacement's outputs are to the original's, and to labels."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from shoal.loops.curve import Quality
from shoal.loops.decisions import Decisions, tensor_of
from shoal.loops.trace import batch_of, rows_of_inputs
from shoal.networks.modules import evaluating

_BLOCK = 1024  # samples that are run at once


class Scores(NamedTuple):
    """Fidelity and accuracy on held-out samples.

    Attributes:
        agreement: Share of the decisions that are the original's; for values, of the samples whose
            output is within 1% of the outputs' spread.
        samples_agree: Share of the samples of which all decisions are the original's.
        output_error: Distance of the outputs from the original's, relative to their norm. Scores
            of classes count up to a constant for each decision.
        accuracy: Share of right decisions, or of the variance of real targets that is explained;
            ``None`` without labels.
        accuracy_loss: Accuracy of the original minus this one.
        uncertainty: Standard error of the loss; ``None`` for real targets.
    """

    agreement: float
    samples_agree: float
    output_error: float
    accuracy: float | None
    accuracy_loss: float | None
    uncertainty: float | None

    @property
    def loss(self) -> float:
        """The loss of accuracy, or without labels the share of decisions that differ."""
        if not math.isfinite(self.output_error):
            return math.inf
        return 1 - self.agreement if self.accuracy_loss is None else self.accuracy_loss


class Outputs(NamedTuple):
    """The outputs of a model for all samples.

    Attributes:
        scores: Numbers behind the decisions; shape (samples, decisions, numbers).
        decided: The decisions.
    """

    scores: Tensor
    decided: Tensor


@torch.no_grad()
def outputs_of(module: Module, inputs: tuple[Any, ...], decisions: Decisions) -> Outputs:
    """Run a module in evaluation mode."""
    scores, decided = [], []
    with evaluating(module):
        for rows in torch.arange(batch_of(inputs)).split(_BLOCK):
            output = module(*rows_of_inputs(inputs, rows))
            plain = decisions.kind == "label"
            found = tensor_of(output).flatten(1)[:, None] if plain else decisions.scores(output)
            scores.append(found)
            decided.append(decisions(output))
    return Outputs(torch.cat(scores), torch.cat(decided))


def scores_of(
    found: Outputs, original: Outputs, decisions: Decisions, labels: Tensor | None
) -> Scores:
    """Compare outputs with the original's and with labels of the shape of the decisions."""
    alike = decisions.same(found.decided, original.decided)
    ours, theirs = (_centered(one.scores.double(), decisions) for one in (found, original))
    error = float((ours - theirs).norm()) / (float(theirs.norm()) or 1.0)
    accuracy = loss = None
    lost: Tensor | None = (~alike).double().mean(1)
    if labels is not None:
        quality = Quality(decisions, labels, None, found.decided)
        (right, weights), (before, _) = (quality(None, one.decided) for one in (found, original))
        accuracy = float((right * weights).sum() / weights.sum())
        lost = (before - right) * weights * (len(weights) / weights.sum())
        loss = float(lost.mean())
        if decisions.kind == "value":
            lost = None
            if not bool((labels != labels[0]).any()):
                raise ValueError("y must have at least two distinct held-out targets, got one")
    uncertainty = None
    if lost is not None:
        spread = float(lost.std()) / len(lost) ** 0.5 if len(lost) > 1 else 1.0
        uncertainty = max(spread, 1 / len(lost))  # one sample more or less, at least
    return Scores(
        *(float(alike.double().mean()), float(alike.all(1).double().mean()), error),
        *(accuracy, loss, uncertainty),
    )


def _centered(scores: Tensor, decisions: Decisions) -> Tensor:
    return scores - scores.mean(-1, keepdim=True) if decisions.kind == "class" else scores
