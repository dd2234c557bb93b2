r"""The Gram matrix whose least eigenvalue the convergence theorems watch.

In all of them it is the share that one group of weights has in the NTK, and bounds the NTK from
below: the readout's in Ling 2023 ($Z^\top Z$), that of the readout of the feature map in Gao 2022
($\Phi\Phi^\top$), the last hidden layer's in Du 2018 ($G^{(H)}$), whose readout is fixed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from shoal.core.checks import items
from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.implicit_network import ImplicitNetworkModule
from shoal.networks.ntk.empirical_kernel import contract, reactions
from shoal.networks.ntk.exact import evaluating, exact
from shoal.networks.ntk.jacobians import Jacobians, chosen_parameters
from shoal.training.objective import Objective

_LINEAR = ("skip", "readout")  # groups that the output is linear in
_ROWS, _NUMBERS = 1000, 2**26  # of a Jacobian that is taken without being asked for
_MEMORY = 2**31  # bytes for it


@dataclass(frozen=True)
class Gram:
    """Which Gram matrix is watched.

    Attributes:
        names: The group of a network, or the parameters of another module, whose share of the NTK
            it is.
    """

    names: tuple[str, ...]

    @classmethod
    def chosen(cls, objective: Objective, gram: bool | Iterable[str] | None) -> Self | None:
        """The one that an argument of ``Watch`` means; ``None`` if there is none."""
        net = objective.network
        if gram is False or (gram is None and objective.loss is not None):
            return None
        if isinstance(net, Network):
            names = (gram_group(net),) if gram in (None, True) else items("gram", gram)
            if len(names) != 1 or names[0] not in objective.weights:
                trained = ", ".join(objective.weights)
                raise ValueError(f"gram must name one trained group of {trained}, got {names}")
            return cls(names)
        rows, columns = objective.y.numel(), sum(p.numel() for p in objective.parameters)
        if gram is None and (rows > _ROWS or rows * columns > _NUMBERS):
            return None
        patterns = None if gram is None or gram is True else items("gram", gram)
        view = exact(net)
        names = tuple(chosen_parameters(view, patterns))
        if other := [name for name in names if not view.get_parameter(name).requires_grad]:
            raise ValueError(f"gram must name trained parameters, got {', '.join(other)}")
        return cls(names)

    def matrix(self, objective: Objective) -> Tensor:
        """It, as the weights are that were just evaluated."""
        net, x = objective.network, objective.x
        if isinstance(net, Network):
            return gram_matrix(net, x.first, self.names[0])
        view = exact(net, silent=True)  # what is not found is a violation already
        with evaluating(view):
            chosen = {name: view.get_parameter(name).detach() for name in self.names}
            return Jacobians(view, chosen, x, _MEMORY).gram(x)


def gram_group(network: Network[Any]) -> str:
    """The group of weights whose share is watched: the theorems' if it is trained.

    Raises:
        ValueError: If nothing is trained but parameters that weights are made of, or added ones.
    """
    trained = [name for name, p in network.groups.items() if p.requires_grad]
    for name in (*_LINEAR, *_below_readout(network)):
        if name in trained:
            return name
    own = network.architecture.parameter_groups
    raise ValueError(
        f"net must train weights of its own, such as {', '.join(sorted(own))}, for the monitors, "
        f"which watch the share that one of them has in the NTK, got {', '.join(trained)}: undo "
        "parametrizations, or train with monitor=False"
    )


def _below_readout(network: Network[Any]) -> list[str]:
    """The groups below the readout: matrices from the last to the first, then biases likewise."""
    if isinstance(network, ImplicitNetworkModule):
        return ["recurrent", "input", "bias"]
    layers = network.architecture.layers()
    last_first = layers.cells[::-1]
    matrices = [cell.weights for cell in last_first]
    found = (*matrices, layers.injection, *(cell.bias for cell in last_first))
    return [weights.group for weights in found if weights is not None]


def gram_matrix(network: Network[Any], x: Tensor, group: str) -> Tensor:
    r"""The share of a group in the NTK as the weights are, in float64.

    It has one row for each sample; for groups that the output is not linear in, with $K$ outputs,
    one for each output and sample.

    Args:
        network: A network that has just been evaluated at ``x``.
        x: The inputs.
        group: One of the groups.
    """
    if isinstance(network, EquilibriumNetwork) and group in _LINEAR:
        # the equilibrium is there already
        features = _features(network, x, group).double()
        return features @ features.T
    with torch.enable_grad():
        trace = network.trace(x)
        one = trace.maps[group]
        found = [] if group in _LINEAR else reactions(trace.output, {group: one})
    inputs = one.input.detach().double() * one.scale
    if not found:
        return inputs[:, 0] @ inputs[:, 0].T
    deltas = [reaction[group].detach().double() for reaction in found]
    rows = [torch.cat([contract(inputs, d, inputs, e) for e in deltas], 1) for d in deltas]
    return torch.cat(rows)


def _features(network: EquilibriumNetwork[Any], x: Tensor, group: str) -> Tensor:
    with torch.no_grad():
        if group == "skip":
            assert isinstance(network, ImplicitNetworkModule)
            return network.inject(x)
        assert network.last_solve is not None
        return network.last_solve.value * network.feature_scale
