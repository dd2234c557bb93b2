"""A copy of a loop, trained to reach the end of its trajectory in a few iterations."""

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, functional

from shoal.loops.decisions import Decisions
from shoal.loops.loop import Loop, rows_of
from shoal.loops.trace import batch_of, rows_of_inputs

_LEARNING_RATE = 3e-3  # largest one
_STATE_WEIGHT = 0.1  # of the error of states, beside that of outputs
_BLOCK = 512


class LoopModule(Module):
    """A loop as a module, for a number of iterations or until a stop rule.

    Args:
        loop: The loop; its modules become parts of this one.
        steps: Number of iterations.
        rule: A rule that stops samples earlier.
    """

    def __init__(self, loop: Loop, steps: int, rule: Any = None) -> None:
        super().__init__()
        self.loop, self.steps, self.rule = loop, steps, rule
        self.parts = torch.nn.ModuleList(loop.modules)

    def forward(self, *inputs: Any) -> Any:
        """Return the model's output."""
        return self.loop.run(*inputs, steps=self.steps, until=self.rule)


def consistency_copy(
    loop: Loop,
    inputs: tuple[Any, ...],
    targets: Tensor,
    decisions: Decisions,
    *,
    depth: int,
    epochs: int,
    batch_size: int,
    seed: int,
) -> Loop:
    """Train a copy of a loop for few iterations, in the manner of Lin et al. 2026.

    The copy begins with the loop's own weights. Each of its first states is trained to be the end
    of the original trajectory, and to give the original's output, so that the copy can be stopped
    after any of them.

    Args:
        loop: The loop.
        inputs: Samples to train on.
        targets: Scores of the original's outputs for them.
        decisions: How an output is read.
        depth: Number of iterations.
        epochs: Number of passes over the samples.
        batch_size: Samples per step of training.
        seed: Seed of the batches.
    """
    samples, generator = batch_of(inputs), torch.Generator().manual_seed(seed)
    ends = _ends(loop, inputs)
    spread = float((ends - ends.mean(0)).square().mean()) or 1.0
    student = copy.deepcopy(loop)
    parameters = [p for module in student.modules for p in module.parameters()]
    weights = [p.requires_grad_() for p in parameters if p.is_floating_point()]
    optimizer = torch.optim.Adam(weights, _LEARNING_RATE)
    batches = -(-samples // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=epochs * batches + 1
    )
    for _ in range(epochs):
        for rows in torch.randperm(samples, generator=generator).split(batch_size):
            here = rows.to(targets.device)
            state, context = student.begin(*rows_of_inputs(inputs, rows))
            loss = torch.zeros((), device=targets.device)
            for n in range(depth):
                state = student.step(state, context, n)
                scores = decisions.scores(student.head(state, context))
                loss = loss + _output_error(scores, targets[here], decisions)
                apart = (rows_of(state) - ends[here]).square().mean() / spread
                loss = loss + _STATE_WEIGHT * apart
            optimizer.zero_grad(set_to_none=True)
            (loss / depth).backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
    return student


@torch.no_grad()
def _ends(loop: Loop, inputs: tuple[Any, ...]) -> Tensor:
    """The last states of all samples, one row each."""
    found = []
    for rows in torch.arange(batch_of(inputs)).split(_BLOCK):
        state, context = loop.begin(*rows_of_inputs(inputs, rows))
        for n in range(loop.steps or 0):
            state = loop.step(state, context, n)
        found.append(rows_of(state))
    return torch.cat(found)


def _output_error(scores: Tensor, targets: Tensor, decisions: Decisions) -> Tensor:
    """How far scores are from the original's: cross-entropy of classes, or squared distance."""
    if decisions.kind == "class":
        wanted = targets.softmax(-1).flatten(0, -2)
        return functional.cross_entropy(scores.flatten(0, -2), wanted)
    if decisions.kind == "sign" and not decisions.threshold:
        return functional.binary_cross_entropy_with_logits(scores, targets.sigmoid())
    return (scores - targets).square().mean() / (targets.square().mean() + 1e-30)
