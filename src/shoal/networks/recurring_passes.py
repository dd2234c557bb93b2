"""Passes through an equilibrium network without a gradient that recur: on a GPU, one graph each."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from shoal.equilibrium import graphs
from shoal.equilibrium.graphs import Function, place
from shoal.equilibrium.layer import Layer, LayerProblem
from shoal.equilibrium.limits import Limits
from shoal.equilibrium.loop import recurrent_problem
from shoal.equilibrium.methods import Reversible, Unrolled
from shoal.equilibrium.recurring import Recurrence, Recurrences, attempt
from shoal.equilibrium.solution import Solution

if TYPE_CHECKING:
    from shoal.networks.equilibrium import EquilibriumNetwork

__all__ = ["RecurringPasses"]


class RecurringPasses:
    """What is known of a network's passes, by the kind of their inputs."""

    def __init__(self) -> None:
        self._known = Recurrences()

    def of(
        self, network: "EquilibriumNetwork[Any]", x: Tensor, general: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The outputs for inputs, at once where that is known to do, else in general.

        Args:
            network: The network.
            x: Inputs, not yet checked: those of a kind that has passed before fit, and whether
                they are finite is looked at with the solution.
            general: The pass that checks them.
        """
        recurrence = self._recurrence(network, x)
        if recurrence is None:
            return general(x)
        found = recurrence.run(lambda steps: _function(network, x, steps), (x,))
        if found is not None:
            (output, z, residual), steps = found
            solution = Solution.of_steps(z, residual, steps)
            network.options.report("forward", solution, converged=True)
            return output
        output = general(x)
        last = network.options.log.forward
        if last is not None:
            recurrence.learn(last, converged=bool(last.converged.all()))
        return output

    def _recurrence(self, network: "EquilibriumNetwork[Any]", x: Tensor) -> Recurrence | None:
        """What is known of the kind; ``None`` if it cannot be recorded."""
        options = network.options
        if not isinstance(x, Tensor) or isinstance(options.gradient, Unrolled | Reversible):
            return None
        held = (*network._parameters.values(), *network._buffers.values())
        weights = [tensor for tensor in held if tensor is not None]
        if not graphs.can_record(x, *weights) or is_parametrized(network):
            return None
        if torch.is_autocast_enabled(x.device.type):
            return None
        (layer, weight), *others = network.turn
        if others or type(layer) is not Layer:
            return None
        if not LayerProblem(layer, x, weight).may_recur(options.solver):  # by the number of rows
            return None
        return self._known.of((options.solver, place((x,), weights)))


def _function(network: "EquilibriumNetwork[Any]", like: Tensor, steps: int) -> Function:
    """A pass with so many steps, as a function of the inputs."""
    limits = Limits.of(network.options.solver, network.spec.width, like.dtype)

    def run(x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        injections = network.injections(x)
        problem, start = recurrent_problem(network.turn, injections)
        z, _, residual, seen = attempt(problem.evaluate, start, steps, limits)
        seen = seen.masked_fill(~x.isfinite().all(), torch.inf)
        return (network._read(z, injections), z, residual), seen

    return run
