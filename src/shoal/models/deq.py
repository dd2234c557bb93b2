"""Deep equilibrium models of finite width."""

import math
from typing import final

import torch
from torch import Tensor
from torch.nn import Parameter

from shoal.architectures import DEQ
from shoal.gradients.layer import Layer
from shoal.models.draw import Source
from shoal.models.equilibrium import EquilibriumNetwork
from shoal.models.network import LinearMap, NetworkSpec, Trace

__all__ = ["DEQNetwork", "draw_deq"]


@final
class DEQNetwork(EquilibriumNetwork[DEQ]):
    r"""A deep equilibrium model.

    $z = m^{-1/2}\varphi(\sigma_a A z + \sigma_b B x)$ and $f = a^\top z$, solved for
    $Z = \sqrt{m} z = \varphi(s Z A^\top + U)$ with one matrix product per step. In the standard
    parametrization the weights are $W = \sigma_a A/\sqrt m$, $U = \sigma_b B$ and $a/\sqrt m$, the
    features are $Z$, and the gradients are those of Ling 2023, Lemma 2.
    """

    readout: Parameter
    input: Parameter

    @property
    def layer(self) -> Layer:
        r"""$\varphi$ and $s$."""
        return Layer(self.architecture.activation, deq_scales(self.spec)["recurrent"])

    @property
    def feature_scale(self) -> float:
        r"""$z = Z/\sqrt m$ in the NTK parametrization, $Z$ in the standard one."""
        return deq_scales(self.spec)["readout"]

    def inject(self, x: Tensor) -> Tensor:
        r"""$U = \sigma_b x B^\top$."""
        return torch.mm(x, self.input.t()).mul(deq_scales(self.spec)["input"])

    def _forward(self, x: Tensor) -> Tensor:
        return self._read(self.equilibrium(self.inject(x), x))

    def _read(self, z: Tensor) -> Tensor:
        return torch.mm(z, self.readout.t()).mul(self.feature_scale)

    def trace(self, x: Tensor) -> Trace:
        """A pass that keeps the equilibrium and what the input and the recurrence add to it."""
        x = self.check_input(x).detach().requires_grad_()
        injection = self.inject(x)
        z = self.exact(silent=True).equilibrium(injection)
        output, scales = self._read(z), deq_scales(self.spec)
        maps = {
            "readout": LinearMap(z[:, None], output, scales["readout"]),
            "recurrent": LinearMap(z[:, None], injection, scales["recurrent"]),
            "input": LinearMap(x[:, None], injection, scales["input"]),
        }
        return Trace(output, z / math.sqrt(self.spec.width), maps)


def deq_scales(spec: NetworkSpec[DEQ]) -> dict[str, float]:
    """By what each group of weights is multiplied where it acts."""
    architecture, width = spec.architecture, spec.width
    if architecture.parametrization == "standard":
        return {"readout": 1.0, "recurrent": 1.0, "input": 1.0}
    return _initial_scales(architecture, width)


def _initial_scales(architecture: DEQ, width: int) -> dict[str, float]:
    return {
        "readout": 1 / math.sqrt(width),
        "recurrent": math.sqrt(architecture.recurrent_variance / width),
        "input": math.sqrt(architecture.input_variance),
    }


def draw_deq(spec: NetworkSpec[DEQ], source: Source) -> dict[str, Tensor]:
    """The initial weights, in the scale in which they are trained."""
    width, law = spec.width, spec.weights
    scales = dict.fromkeys(spec.architecture.parameter_groups, 1.0)
    if spec.architecture.parametrization == "standard":
        scales = _initial_scales(spec.architecture, width)
    readout = scales["readout"] * spec.readout_scale
    return {
        "readout": source.draw(law, spec.out_features, width, scale=readout),
        "recurrent": source.draw(law, width, width, scale=scales["recurrent"]),
        "input": source.draw(law, width, spec.in_features, scale=scales["input"]),
    }
