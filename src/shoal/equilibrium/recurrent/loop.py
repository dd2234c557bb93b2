r"""The equilibrium of several recurrent layers, one after the other, or of one of images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.torch_compat import full_precision, uncompiled
from shoal.equilibrium.implicit import equilibrium_of
from shoal.equilibrium.maps import OfFunction
from shoal.equilibrium.recurrent.layer import Layer, LayerProblem
from shoal.equilibrium.solve_options import SolveOptions
from shoal.equilibrium.solvers.problem import FunctionProblem, Problem
from shoal.equilibrium.solvers.state import StateLayout

Turn = Sequence[tuple[Layer, Tensor]]  # layers and their weights


@dataclass(frozen=True)
class _Loop:
    """Once through some layers, as a function of the state, the injections and the weights."""

    layers: tuple[Layer, ...]

    def __call__(self, z: Tensor, *tensors: Tensor) -> Tensor:
        count = len(self.layers)
        for layer, into, weight in zip(self.layers, tensors[:count], tensors[count:], strict=True):
            z = layer.activation.function(layer.preactivation(z, into, weight))
        return z


@uncompiled
def loop_equilibrium(turn: Turn, injections: tuple[Tensor, ...], options: SolveOptions) -> Tensor:
    """The fixed point for each row of the injections, differentiable in them and in the weights.

    Args:
        turn: The layers.
        injections: What is added in each of them, of shape (samples, width, ...).
        options: How to solve and to differentiate.
    """
    with full_precision(injections[0]):
        problem, start = _loop_problem(turn, injections)
        found = equilibrium_of(*OfFunction.now(problem).with_tensors(start), start, options)
        return found.value.view(injections[0].shape)


def recurrent_problem(turn: Turn, injections: tuple[Tensor, ...]) -> tuple[Problem, Tensor]:
    """The equation of one layer, or of several, and where to start."""
    if len(turn) > 1 or type(turn[0][0]) is not Layer:
        return _loop_problem(turn, injections)
    ((layer, weight),) = turn
    problem = LayerProblem(layer, injections[0].to(weight.dtype), weight)
    return problem, problem.start()


def _loop_problem(turn: Turn, injections: tuple[Tensor, ...]) -> tuple[FunctionProblem, Tensor]:
    layers, weights = zip(*turn, strict=True)
    inputs = [into.to(weights[0].dtype) for into in injections]
    loop = _Loop(layers)
    with torch.no_grad():
        start = loop(torch.zeros_like(inputs[0]), *inputs, *weights).detach()
    layout = StateLayout.of(start)
    return FunctionProblem(loop, layout, inputs, weights, separable=True), layout.rows(start)
