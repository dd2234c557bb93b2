"""The largest eigenvalue of a finite network's NTK, without the matrix."""

import torch
from torch import Tensor
from torch.func import functional_call, jvp

from shoal.lanczos import dominant_eigenpair
from shoal.training.gram import start_vector
from shoal.training.objective import Objective

__all__ = ["largest_eigenvalue"]

_RTOL = 1e-2  # of the residual


def largest_eigenvalue(objective: Objective) -> float:
    r"""That of $JJ^\top$, where $J$ is the Jacobian of all outputs, within a percent.

    Each step of the Lanczos iteration takes a backward and a forward derivative.
    """
    network, x = objective.network, objective.x
    weights = {name: p.detach() for name, p in objective.weights.items()}
    training = network.training
    network.eval()  # warm starts are not for this
    try:
        with torch.inference_mode(mode=False), torch.enable_grad():
            output = network(x)

            def product(v: Tensor) -> Tensor:
                cotangent = v.to(output.dtype).view_as(output)
                trained = list(objective.weights.values())
                back = torch.autograd.grad(output, trained, cotangent, retain_graph=True)
                tangents = dict(zip(weights, back, strict=True))
                image: Tensor = jvp(
                    lambda w: functional_call(network, w, (x,)), (weights,), (tangents,)
                )[1]
                return image.detach().double().reshape(-1)

            start = start_vector(output.numel(), output)
            return dominant_eigenpair(product, start, rtol=_RTOL).value
    finally:
        network.train(training)
