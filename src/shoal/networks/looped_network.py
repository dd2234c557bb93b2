"""Looped networks of finite width."""

import math
from typing import Any, final

import torch
from torch import Tensor

from shoal.architectures import LoopedNetwork
from shoal.networks.network import LinearMap, Network, NetworkSpec, NetworkTrace, Source


@final
class LoopedModule(Network[LoopedNetwork]):
    r"""A residual stream that passes the same layer $N$ times, or $N$ layers if untied.

    $h_k = \alpha h_{k-1} + \varepsilon\sigma_a m^{-1/2} W\varphi(n(h_{k-1})) + \gamma e$ from
    $h_0 = e = \sigma_b B x + b$, and $f = m^{-1/2} a^\top n(h_N)$.
    """

    @staticmethod
    def draw(spec: NetworkSpec[Any], source: Source) -> dict[str, Tensor]:
        """The initial weights, in the order of the groups."""
        width, law, loop = spec.width, spec.weights, spec.architecture
        layers = () if loop.tied else (loop.steps,)
        weights = {
            "readout": source.draw(law, spec.out_features, width, scale=spec.readout_scale),
            "recurrent": source.draw(law, *layers, width, width),
            "input": source.draw(law, width, spec.in_features),
        }
        if loop.bias_variance:
            weights["bias"] = source.draw(law, width)
        return weights

    def _forward(self, x: Tensor) -> Tensor:
        return self._pass(x, 0.0).output

    def trace(self, x: Tensor) -> NetworkTrace:
        """A pass in which the iterations of the recurrent weights count as pixels."""
        x = self.check_input(x).detach().requires_grad_()
        shape = len(x), self.spec.width, self.architecture.steps
        return self._pass(x, x.new_zeros(shape).requires_grad_())

    def _pass(self, x: Tensor, terms: Tensor | float) -> NetworkTrace:
        """All iterations; ``terms`` are added to the product of the recurrent weights in each."""
        loop, root = self.architecture, math.sqrt(self.spec.width)
        embedding = math.sqrt(loop.input_variance) * torch.mm(x, self._weight("input").t())
        if loop.bias_variance:
            embedding = embedding + math.sqrt(loop.bias_variance) * self._weight("bias")
        gain = loop.step_scale * math.sqrt(loop.recurrent_variance) / root
        state, layer_inputs = embedding, []
        for k in range(loop.steps):
            weight = self._weight("recurrent")
            layer_inputs.append(loop.activation.function(self._normalized(state)))
            new = gain * torch.mm(layer_inputs[-1], (weight if loop.tied else weight[k]).t())
            state = loop.state_scale * state + loop.recall * embedding + new
            if isinstance(terms, Tensor):
                state = state + terms[..., k]
        features = self._normalized(state) / root
        output = torch.mm(features, self.readout.t())
        maps = {}
        if isinstance(terms, Tensor):
            maps = {
                "readout": LinearMap(features[:, None], output, 1.0),
                "recurrent": LinearMap(self._inputs(layer_inputs), terms, gain),
                "input": LinearMap(x[:, None], embedding, math.sqrt(loop.input_variance)),
                "bias": LinearMap.from_bias(embedding, math.sqrt(loop.bias_variance)),
            }
        return NetworkTrace(output, features, maps)

    def _normalized(self, state: Tensor) -> Tensor:
        if self.architecture.normalization is None:
            return state
        square = state.square().mean(1, keepdim=True)
        return state * square.clamp(min=torch.finfo(state.dtype).tiny).rsqrt()  # zero stays zero

    def _inputs(self, layer_inputs: list[Tensor]) -> Tensor:
        """The inputs of the recurrent weights in each iteration; untied ones are block by block.

        shape: (samples, iterations, size)
        """
        stacked = torch.stack(layer_inputs, 1)
        if self.architecture.tied:
            return stacked
        return torch.einsum(
            "nkm,kl->nklm", stacked, torch.eye(len(layer_inputs)).to(stacked)
        ).flatten(2)
