"""Implicit networks of finite width."""

import math
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import Parameter

from shoal.activations import ReLU
from shoal.architectures import ImplicitNetwork
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.modules import exact
from shoal.networks.network import LinearMap, NetworkSpec, NetworkTrace, Source
from shoal.networks.recurrent_layers import Layer


@final
class ImplicitNetworkModule(EquilibriumNetwork[ImplicitNetwork]):
    r"""An implicit network.

    $z = \sigma(\gamma m^{-1/2} A z + \phi)$ and $\hat y = u^\top z + v^\top\phi$, with the feature
    map $\phi = m^{-1/2}\sigma(Wx + \sqrt\beta\,b)$ and $\sigma$ the ReLU. Without biases, its
    gradients are those of Gao 2022, Lemma 2.3.
    """

    skip: Parameter
    input: Parameter
    recurrent: Parameter

    @staticmethod
    def draw(spec: NetworkSpec[Any], source: Source) -> dict[str, Tensor]:
        """The initial weights; both readouts are Rademacher, as in the paper."""
        width, law = spec.width, spec.weights
        readouts = (spec.out_features, width)
        weights = {
            "readout": source.draw("rademacher", *readouts, scale=spec.readout_scale),
            "skip": source.draw("rademacher", *readouts, scale=spec.readout_scale),
            "recurrent": source.draw(law, width, width, square=True),
            "input": source.draw(law, width, spec.in_features),
        }
        if spec.architecture.bias_variance:
            weights["bias"] = source.draw(law, width)
        return weights

    @property
    def recurrent_layers(self) -> list[tuple[Layer, Tensor]]:
        r"""The ReLU and $\gamma/\sqrt m$, with $A$."""
        layer = Layer(ReLU(), self.architecture.gamma / math.sqrt(self.spec.width))
        return [(layer, self.recurrent)]

    @property
    def feature_scale(self) -> float:
        """One."""
        return 1.0

    def inject(self, x: Tensor) -> Tensor:
        r"""The feature map $\phi$."""
        return self._feature_map(self._inner(x))

    @property
    def _bias_scale(self) -> float:
        return math.sqrt(self.architecture.bias_variance)

    def _inner(self, x: Tensor) -> Tensor:
        inner = torch.mm(x, self.input.t())
        return inner + self._bias_scale * self._weight("bias") if self._bias_scale else inner

    def _feature_map(self, inner: Tensor) -> Tensor:
        return torch.relu(inner) / math.sqrt(self.spec.width)

    def read(self, z: Tensor, injections: tuple[Tensor, ...]) -> Tensor:
        """The outputs for an equilibrium."""
        return torch.addmm(torch.mm(injections[0], self.skip.t()), z, self.readout.t())

    def trace(self, x: Tensor) -> NetworkTrace:
        """A pass that keeps the feature map, the equilibrium and their inputs."""
        x = self.check_input(x).detach().requires_grad_()
        inner = self._inner(x)
        mapped = self._feature_map(inner)
        # a separate term of the recurrence, apart from the skip
        injection = mapped * 1.0
        z = exact(self, silent=True).state((injection,))
        output = self.read(z, (mapped,))
        maps = {
            "readout": LinearMap(z[:, None], output, 1.0),
            "skip": LinearMap(mapped[:, None], output, 1.0),
            "recurrent": LinearMap(z[:, None], injection, self.layer.scale),
            "input": LinearMap(x[:, None], inner, 1.0),
        }
        if self._bias_scale:
            maps["bias"] = LinearMap.from_bias(inner, self._bias_scale)
        return NetworkTrace(output, torch.cat([z, mapped], 1), maps)
