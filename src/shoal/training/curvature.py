"""The largest eigenvalue of a finite network's NTK, without the matrix."""

import torch
from torch import Tensor

from shoal.core.torch_compat import without_fused_attention
from shoal.networks.ntk.exact import exact
from shoal.numerics.norms import dominant_eigenpair, start_vector
from shoal.training.objective import Objective

_RTOL = 1e-2  # of the residual


def largest_eigenvalue(objective: Objective) -> float:
    r"""The largest eigenvalue of $JJ^\top$, $J$ the Jacobian of all outputs, within 1%.

    Each step of the Lanczos iteration takes two derivatives, exact ones whatever the network
    trains with, and without fused attention, which has no second ones.
    """
    network = exact(objective.network)
    with torch.enable_grad(), without_fused_attention():
        output, trained = objective.x.given_to(network), list(objective.weights.values())
        # Jᵀu is linear in u, so its own derivative is J, wherever it is taken
        cotangent = torch.ones_like(output, requires_grad=True)
        pulled = torch.autograd.grad(output, trained, cotangent, create_graph=True)

        def product(v: Tensor) -> Tensor:
            direction = v.to(output.dtype).view_as(output)
            back = torch.autograd.grad(output, trained, direction, retain_graph=True)
            image = torch.autograd.grad(pulled, cotangent, back, retain_graph=True)[0]
            return image.double().reshape(-1)

        start = start_vector(output.numel(), output)
        return dominant_eigenpair(product, start, rtol=_RTOL).value
