"""Measures of a loop while its model is trained."""

from typing import Any

import torch

from shoal.loops.curve import Quality, record
from shoal.loops.decisions import Decision, decisions_of
from shoal.loops.loop import Loop
from shoal.networks.modules import evaluating


class LoopMeasures:
    """Numbers of a loop with the present weights, such as for ``Watch(..., also=...)``.

    Each call runs the loop to twice its trained count. It returns ``"iterations"``, the mean number
    of iterations up to the last that changes a decision of a sample; ``"agreement"`` of the
    decisions after the trained count and after twice as many; and ``"growth"`` of the state between
    the two.

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
            raise ValueError("loop must have a known number of steps, got steps=None")
        self.loop, self.inputs, self.decision = loop, inputs, decision
        self.steps = loop.steps

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Run the loop to twice its count."""
        most = min(2 * self.steps, self.loop.max_steps or 2 * self.steps)
        with evaluating(torch.nn.ModuleList(self.loop.modules)), torch.random.fork_rng():
            torch.manual_seed(0)
            output = self.loop.run(*self.inputs, steps=self.steps)
            decisions = decisions_of(output, decision=self.decision)
            torch.manual_seed(0)
            run = record(
                *(self.loop, self.inputs, (self.steps, most), decisions),
                lambda found: Quality(decisions, None, None, found),
            )
        same = decisions.same(run.decisions[0], run.decisions[-1])
        return {
            "iterations": float(run.last_change.clamp_min(1).double().mean()),
            "agreement": float(same.double().mean()),
            "growth": float((run.state_norms[-1] / run.state_norms[self.steps - 1]).median()),
        }
