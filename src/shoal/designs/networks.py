"""How far the kernels of a given network are from those that a design imitates."""

from typing import Any, NamedTuple

import torch

from shoal.kernels import KernelFunction, kernel
from shoal.networks import Network, empirical_kernel

__all__ = ["NetworkGap", "network_gap"]

_INPUTS = 32


class NetworkGap(NamedTuple):
    """How far a network's own kernels are from the limits of its architecture at infinite width.

    Attributes:
        ck: The spectral norm of the difference of the CK matrices, relative to the limit's.
        ntk: The same of the NTK.
    """

    ck: float
    ntk: float

    def __str__(self) -> str:
        return (
            f"The given network's own kernels, at {_INPUTS} random inputs of this norm, are "
            f"{self.ck:.2%} (CK) and {self.ntk:.2%} (NTK) away from these limits, in spectral "
            "norm: so far the design is from the network, whatever it has in common with the limit."
        )


def network_gap(network: Network[Any], tau0: float, function: KernelFunction) -> NetworkGap:
    """Compare the kernels of a network as it is with the limits of its architecture.

    Args:
        network: A network made by ``build``, trained or not.
        tau0: The norm of the inputs, whose directions are random.
        function: The kernels of its architecture at infinite width.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_INPUTS, network.spec.in_features, generator=generator, dtype=torch.float64)
    x = tau0 * torch.nn.functional.normalize(x)
    own = next(network.parameters())
    found = empirical_kernel(network, x.to(own), trainable=function.trainable, process_group=None)
    limit = kernel(function, x)
    gaps = []
    for finite, wanted in zip(found, limit, strict=True):
        difference = finite.detach().cpu().double() - wanted
        sizes = [torch.linalg.eigvalsh(m).abs().max() for m in (difference, wanted)]
        gaps.append(float(sizes[0] / sizes[1]))
    return NetworkGap(*gaps)
