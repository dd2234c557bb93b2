"""The three architectures of Du 2018, and inputs for them."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

import shoal
from shoal.activations import Activation
from shoal.architectures import ConvResNet, FullyConnected, ResNet
from shoal.reproductions.width_errors import unit_inputs

TITLES: Mapping[str, str] = {
    "fully-connected": "Fully connected (Theorem 3.1)",
    "resnet": "ResNet (Theorem 4.1)",
    "convolutional": "Convolutional ResNet (Theorem 5.1)",
}
KINDS = tuple(TITLES)
_CHANNELS = 4

Network = FullyConnected | ResNet | ConvResNet


class Data(NamedTuple):
    """Random points on the unit sphere.

    Attributes:
        kind: Of the network that they are for.
        samples: How many.
        features: Their size.
        seed: What they come from.
    """

    kind: str
    samples: int
    features: int
    seed: int

    def inputs(self) -> Tensor:
        """The points; as pixels in a row for a convolutional network."""
        x = unit_inputs(self.samples, self.features, self.seed)
        return x.reshape(self.samples, _CHANNELS, -1) if self.kind == "convolutional" else x

    def architecture(self, activation: Activation, depth: int, constant: float) -> Network:
        r"""The architecture, whose residuals are scaled by $c_\lambda\lambda^{3/2}$.

        For pixels, too, $\lambda$ is that of whole inputs: the paper's, of matrices of two times as
        many rows as there are pixels, is zero unless a patch has as many numbers.
        """
        if self.kind == "fully-connected":
            return FullyConnected.du2018(activation, depth)
        least = shoal.pair_eigenvalue(self.inputs().flatten(1))
        residual = ResNet.du2018(activation, depth, eigenvalue=min(least, 1.0), constant=constant)
        if self.kind == "resnet":
            return residual
        return ConvResNet(activation, depth, residual_scale=residual.residual_scale)

    @cache  # noqa: B019  (a few values)
    def limit(self, architecture: Network) -> float:
        r"""$\lambda_0$, the least eigenvalue of the last layer's share in the limit of the NTK."""
        last = {f"layer{architecture.depth}"}
        gram = shoal.kernel(architecture, self.inputs(), trainable=last).ntk
        return float(torch.linalg.eigvalsh(gram)[0])
