"""A loop that is cut after a few applications, its last state corrected by a linear map."""

import torch
from torch import Tensor
from torch.nn import Module

from shoal.distillation.model_loop import ModelLoop, loop_of, solved_by
from shoal.equilibrium.state import State

_FITTED = 8192  # samples that the correction is fitted to, at most
_WIDEST = 4096  # entries of a state beyond which there is no correction
_RIDGE = 1e-6  # over the mean square of the states


class CutLoop(Module):
    r"""A model whose loop is $k$ applications of its cell, and a linear correction of the last.

    It has no solver: the same work for every input. The model that it was made of is a part of it.

    Args:
        model: The model, with one equilibrium inside.
        steps: $k$.
        weight: The matrix of the correction, $z \mapsto Az + b$; ``None`` for no correction.
        bias: $b$.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self, model: Module, steps: int, weight: Tensor | None, bias: Tensor | None
    ) -> None:
        super().__init__()
        self.model, self.steps = model, steps
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """The model's output."""
        with solved_by(self.model, self._solve):
            output: Tensor = self.model(x)
        return output

    def _solve(self, loop: ModelLoop) -> State:
        state = _applied(loop, self.steps)
        if self.weight is None or self.bias is None:
            return state
        return loop.layout.state(torch.addmm(self.bias, loop.layout.rows(state), self.weight.t()))


@torch.no_grad()
def cut_loop(model: Module, x: Tensor, steps: int) -> CutLoop:
    """Cut the loop of a model, and fit the correction by least squares to its equilibria.

    Args:
        model: The model, with one equilibrium inside.
        x: Inputs to fit to.
        steps: How many applications are left.
    """
    loop = loop_of(model, None, (x[:_FITTED],))
    size = loop.layout.rows(loop.z0).shape[1]
    if size > _WIDEST:
        return CutLoop(model, steps, None, None)
    with loop.evaluating():
        limit = loop.layout.rows(loop.layer(loop.z0, *loop.inputs))
        rows = loop.layout.rows(_applied(loop, steps))
    assert loop.layer.solution is not None
    there = loop.layer.solution.converged
    if not bool(there.any()):
        return CutLoop(model, steps, None, None)
    weight, bias = _least_squares(rows[there].double(), limit[there].double())
    return CutLoop(model, steps, weight.to(rows), bias.to(rows))


def _applied(loop: ModelLoop, steps: int) -> State:
    """The state after some applications of the cell."""
    state = loop.z0
    for _ in range(steps):
        state = loop.layer.cell(state, *loop.inputs)
    return state


def _least_squares(given: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The linear map from one set of rows to another, with a little pull to the identity."""
    mean, target = given.mean(0), wanted.mean(0)
    centered, rest = given - mean, (wanted - target) - (given - mean)
    gram = centered.T @ centered
    # where states do not vary, nothing is known, and nothing is changed
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean().clamp_min(torch.finfo(gram.dtype).tiny))
    change = torch.linalg.solve(gram, centered.T @ rest).T
    weight = change + torch.eye(len(change), dtype=change.dtype, device=change.device)
    return weight, target - weight @ mean
