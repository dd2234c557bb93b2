r"""Measurements of a network during training: Gram matrix, gain, curvature.

The convergence theorems watch the least eigenvalue of a Gram matrix: the share of one group of
weights in the NTK, which it bounds from below. The group is the readout in Ling 2023
($Z^\top Z$), the readout of the feature map in Gao 2022 ($\Phi\Phi^\top$), and the last hidden
layer in Du 2018 ($G^{(H)}$), whose readout is fixed.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from shoal.core.checks import items
from shoal.core.torch_compat import without_fused_attention
from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.empirical_kernel import contract, reactions
from shoal.networks.equilibrium import LoopNetwork
from shoal.networks.implicit_network import ImplicitNetworkModule
from shoal.networks.jacobians import Jacobians, chosen_parameters
from shoal.networks.modules import evaluating, exact
from shoal.numerics.norms import dominant_eigenpair, start_vector
from shoal.training.objective import Evaluation, Objective

_LINEAR = ("skip", "readout")  # groups in which the output is linear


class Measures:
    """The quantities that can be measured for a module.

    Args:
        objective: Its loss.
        gram: Choice of the Gram matrix, as in ``Watch``.

    Attributes:
        names: The group of a network, or the parameters of another module, whose Gram matrix is
            measured; ``None`` if none is.
        initial: The first Gram matrix.
    """

    def __init__(self, objective: Objective, gram: bool | Iterable[str] | None) -> None:
        self.names = _gram_names(objective, gram)
        self.initial: Tensor | None = None
        with evaluating(objective.network):  # parametrizations must not change their buffers
            self._gains = [one.gain_bound() for one in objective.equilibria]

    def measure(self, objective: Objective, now: Evaluation) -> dict[str, float]:
        """Measure the weights that were just evaluated."""
        measured: dict[str, float] = {}
        if self._gains:
            measured["gain"] = max(bound.estimate() for bound in self._gains)
            measured["gain_upper"] = self.gain_upper()
        measured["feature_error"] = objective.feature_error(now, measured.get("gain_upper", 0.0))
        if self.names is not None:
            gram = _gram(objective, self.names)
            if self.initial is None:
                self.initial = gram
            measured["feature_error"] += objective.rounding(float(gram.trace().clamp_min(0).sqrt()))
            measured["least_eigenvalue"] = _least_eigenvalue(gram)
            measured["drift"] = float(torch.linalg.eigvalsh(gram - self.initial).abs().max())
        if objective.loss is None:
            measured["square_gradient"] = _square_gradient(objective, now)
        return {**measured, **{f"distance.{n}": d for n, d in objective.distances().items()}}

    def gain_upper(self) -> float:
        """A certified bound of the gain; with several networks, of the largest gain."""
        below_one = math.nextafter(1.0, 0.0)
        return max((bound.upper(below_one) for bound in self._gains), default=0.0)


def _least_eigenvalue(gram: Tensor) -> float:
    """The least eigenvalue; zero if rounding hides it."""
    values = torch.linalg.eigvalsh(gram)
    least = float(values[0])
    return least if least > torch.finfo(gram.dtype).eps * len(gram) * float(values[-1]) else 0.0


def _square_gradient(objective: Objective, now: Evaluation) -> float:
    """The squared norm of the exact gradient, as in the theorems."""
    exact = objective.exactly()  # silent: failed solves are a violation already
    if all(a.gradient == b.gradient for a, b in zip(objective.solves, exact.solves, strict=True)):
        return now.square_gradient
    return exact.evaluate().square_gradient


def largest_eigenvalue(objective: Objective) -> float:
    r"""The largest eigenvalue of $JJ^\top$, $J$ the Jacobian of all outputs, within 1%.

    Each step of the Lanczos iteration takes two exact derivatives, whatever gradient the network
    trains with.
    """
    network = exact(objective.network)
    with torch.enable_grad(), without_fused_attention():  # which has no second derivatives
        output, trained = objective.x.call(network), list(objective.weights.values())
        # Jᵀu is linear in u, so that its derivative is J everywhere
        cotangent = torch.ones_like(output, requires_grad=True)
        pulled = torch.autograd.grad(output, trained, cotangent, create_graph=True)

        def product(v: Tensor) -> Tensor:
            direction = v.to(output.dtype).view_as(output)
            back = torch.autograd.grad(output, trained, direction, retain_graph=True)
            image = torch.autograd.grad(pulled, cotangent, back, retain_graph=True)[0]
            return image.double().reshape(-1)

        value = dominant_eigenpair(product, start_vector(output.numel(), output), rtol=1e-2).value
    if value <= 0:
        raise ValueError("step_size='auto' needs a network whose NTK is not zero")
    return value


def _gram_names(objective: Objective, gram: bool | Iterable[str] | None) -> tuple[str, ...] | None:
    """The group, or the parameters, of the Gram matrix that the argument of ``Watch`` chooses."""
    net = objective.network
    if gram is False or (gram is None and objective.loss is not None):
        return None
    if isinstance(net, Network):
        names = (gram_group(net),) if gram in (None, True) else items("gram", gram)
        if len(names) != 1 or names[0] not in objective.weights:
            trained = ", ".join(objective.weights)
            raise ValueError(f"gram must name one trained group of {trained}, got {names}")
        return names
    rows, columns = objective.y.numel(), sum(p.numel() for p in objective.weights.values())
    if gram is None and (rows > 1000 or rows * columns > 2**26):  # a large Jacobian
        return None
    patterns = None if gram is None or gram is True else items("gram", gram)
    view = exact(net)
    names = tuple(chosen_parameters(view, patterns))
    if other := [name for name in names if not view.get_parameter(name).requires_grad]:
        raise ValueError(f"gram must name trained parameters, got {', '.join(other)}")
    return names


def gram_group(network: Network[Any]) -> str:
    """The group of weights whose Gram matrix is watched: the theorems' if it is trained.

    Raises:
        ValueError: If no group of the architecture is trained.
    """
    trained = [name for name, p in network.groups.items() if p.requires_grad]
    for name in (*_LINEAR, *_below_readout(network)):
        if name in trained:
            return name
    groups = ", ".join(sorted(network.architecture.parameter_groups))
    raise ValueError(
        f"net must train a group of its architecture ({groups}) for the Gram "
        f"matrix, got {', '.join(trained)}: undo parametrizations, or train with monitor=False"
    )


def _below_readout(network: Network[Any]) -> list[str]:
    """The groups below the readout: matrices from the last to the first, then biases likewise."""
    if isinstance(network, ImplicitNetworkModule):
        return ["recurrent", "input", "bias"]
    layers = network.architecture.layers()
    last_first = layers.cells[::-1]
    matrices = [cell.weights for cell in last_first]
    groups = (*matrices, layers.injection, *(cell.bias for cell in last_first))
    return [weights.group for weights in groups if weights is not None]


def _gram(objective: Objective, names: tuple[str, ...]) -> Tensor:
    """The Gram matrix at the weights that were just evaluated."""
    net, x = objective.network, objective.x
    if isinstance(net, Network):
        return gram_matrix(net, x.first, names[0])
    view = exact(net, silent=True)  # failed solves are a violation already
    with evaluating(view):
        chosen = {name: view.get_parameter(name).detach() for name in names}
        return Jacobians(view, chosen, x, memory=2**31).gram(x)


def gram_matrix(network: Network[Any], x: Tensor, group: str) -> Tensor:
    r"""The share of a group in the NTK at the present weights, in float64.

    It has one row for each sample; for groups that the output is not linear in, with $K$ outputs,
    one for each output and sample.

    Args:
        network: A network that has just been evaluated at ``x``.
        x: The inputs.
        group: One of the groups.
    """
    if isinstance(network, EquilibriumNetwork) and group in _LINEAR:
        features = _features(network, x, group).double()  # from the last equilibrium
        return features @ features.T
    with torch.enable_grad():
        trace = network.trace(x)
        one = trace.maps[group]
        gradients = [] if group in _LINEAR else reactions(trace.output, {group: one})
    inputs = one.input.detach().double() * one.scale
    if not gradients:
        return inputs[:, 0] @ inputs[:, 0].T
    deltas = [reaction[group].detach().double() for reaction in gradients]
    rows = [torch.cat([contract(inputs, d, inputs, e) for e in deltas], 1) for d in deltas]
    return torch.cat(rows)


def _features(network: EquilibriumNetwork[Any], x: Tensor, group: str) -> Tensor:
    with torch.no_grad():
        if group == "skip":
            assert isinstance(network, ImplicitNetworkModule)
            return network.inject(x)
        assert network.last_solve is not None
        z = network.last_solve.value
        return (
            network.pooled(z) if isinstance(network, LoopNetwork) else z
        ) * network.feature_scale
