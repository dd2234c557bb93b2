"""Measures of a loop while its model is trained."""

from typing import Any

import torch

from shoal.core.torch_compat import pytree
from shoal.loops.decisions import Decision, decisions_of
from shoal.loops.loop import Loop, rows_of
from shoal.networks.modules import evaluating


class LoopMeasures:
    """Numbers of a loop with the present weights, such as for ``Watch(..., also=...)``.

    Each call returns ``"iterations"``, the mean number of iterations up to the last that changes a
    decision of a sample; ``"agreement"`` of the decisions after the trained count and after twice
    as many; and ``"growth"`` of the state between the two.

    Args:
        loop: The loop; that of :func:`find_loop` follows the weights of its model.
        inputs: The model's inputs; those of the loop's own batch if there are none.
        decision: How the output is read, as for :func:`diagnose`.

    Example:
        >>> import torch, shoal
        >>> u = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
        >>> loop = shoal.Loop(lambda z, u: -0.5 * z + u, torch.zeros_like(u), u, steps=8)
        >>> shoal.loops.LoopMeasures(loop)()["agreement"]
        1.0
    """

    def __init__(self, loop: Loop, *inputs: Any, decision: Decision | None = None) -> None:
        if loop.steps is None:
            raise ValueError("loop must have a number of steps, got one of unknown count")
        self.loop, self.inputs, self.decision = loop, inputs, decision
        self.steps = loop.steps

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Run the loop to twice its count."""
        most = 2 * self.steps if self.loop.max_steps is None else self.loop.max_steps
        most = min(2 * self.steps, most)
        with evaluating(torch.nn.ModuleList(self.loop.modules)), torch.random.fork_rng():
            torch.manual_seed(0)
            state, context = self.loop.begin(*self.inputs)
            outputs, norms = [], []
            for n in range(most):
                state = self.loop.step(state, context, n)
                outputs.append(pytree.tree_map(torch.clone, self.loop.head(state, context)))
                norms.append(torch.linalg.vector_norm(rows_of(state).double(), dim=1))
        decisions = decisions_of(outputs[self.steps - 1], decision=self.decision)
        found = [decisions(output) for output in outputs]
        last = torch.ones(len(norms[0]))
        for n in range(2, self.steps + 1):
            changed = (~decisions.same(found[n - 2], found[n - 1])).any(1).cpu()
            last = torch.where(changed, n, last)
        same = decisions.same(found[self.steps - 1], found[-1]).double().mean()
        growth = (norms[-1] / norms[self.steps - 1]).median()
        return {
            "iterations": float(last.double().mean()),
            "agreement": float(same),
            "growth": float(growth),
        }
