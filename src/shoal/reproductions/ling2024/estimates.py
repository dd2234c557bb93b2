r"""Kernels as Ling 2024 estimates them: by one random network of finite width."""

import torch
from torch import Tensor

import shoal
from shoal.architectures import DEQ
from shoal.kernels import Kernels
from shoal.networks import EquilibriumNetwork

__all__ = ["estimated_kernels"]


def estimated_kernels(deq: DEQ, x: Tensor, *, width: int, seed: int) -> Kernels:
    r"""$G^*$ estimated by $z_i^\top z_j$, and $K^* = G^*/(1 - \sigma_a^2 \dot E^*)$ likewise.

    $\dot E^*_{ij}$, the expectation of $\varphi'(u)\varphi'(v)$, is the mean over the units. This
    is not the NTK of the finite network (:func:`shoal.empirical_kernel`), but what section 4 and
    the caption of figure 4 describe.

    Args:
        deq: The DEQ, centered.
        x: Inputs of shape (n, p).
        width: Of the network; $2^{12}$ in the paper.
        seed: Of its weights.
    """
    network = shoal.build(
        deq, in_features=x.shape[1], width=width, seed=seed, dtype=x.dtype, device=x.device
    )
    assert isinstance(network, EquilibriumNetwork)  # it is a DEQ
    with torch.no_grad():
        z = network.solve(x).value
        recurrent = network.get_parameter("recurrent")
        arguments = deq.recurrent_variance**0.5 * (z @ recurrent.T) + network.inject(x)
        slopes = deq.activations[0].derivative(arguments)
    ck = z @ z.T
    spread = deq.recurrent_variance / width * (slopes @ slopes.T)
    return Kernels(ck, ck / (1 - spread))
