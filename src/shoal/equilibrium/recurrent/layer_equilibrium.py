r"""The equilibrium $Z = \varphi(s Z W^\top + U)$ as a differentiable operation of $U$ and $W$.

By the implicit function theorem a cotangent $V$ of $Z$ gives $\nabla U = G \circ D$ and
$\nabla W = s (G \circ D)^\top Z$, where $D = \varphi'(s Z W^\top + U)$ and
$G = V + s (G \circ D) W$. Forward and backward pass cost one matrix product per step.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.torch_compat import full_precision, uncompiled
from shoal.equilibrium.implicit import equilibrium_of
from shoal.equilibrium.methods import Unrolled
from shoal.equilibrium.recurrent.layer import Layer, LayerProblem
from shoal.equilibrium.solve_options import SolveOptions
from shoal.equilibrium.solvers.picard import without_coarse_steps


@dataclass(frozen=True)
class _LayerMap:
    layer: Layer

    def problem(self, *tensors: Tensor) -> LayerProblem:
        return LayerProblem(self.layer, *tensors)


@uncompiled
def equilibrium(injection: Tensor, weight: Tensor, layer: Layer, options: SolveOptions) -> Tensor:
    r"""The fixed point $Z$ for each row of $U$.

    Args:
        injection: $U$, of shape (samples, width).
        weight: $W$, of shape (width, width).
        layer: $\varphi$ and $s$.
        options: How to solve and to differentiate.
    """
    if torch.is_autocast_enabled(injection.device.type):
        # tolerances are those of the weights' dtype, so the solve is in that
        with full_precision(injection):
            return equilibrium(injection.to(weight.dtype), weight, layer, options)
    if isinstance(options.gradient, Unrolled):  # steps that can be repeated one by one
        options = replace(options, solver=without_coarse_steps(options.solver))
    start = LayerProblem(layer, injection, weight).start()
    return equilibrium_of(_LayerMap(layer), (injection, weight), start, options).value
