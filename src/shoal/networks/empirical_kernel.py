r"""The kernels of a finite network.

A group of weights that acts as $y = s W h$ contributes $s^2 (\delta_i^\top\delta_j)(h_i^\top h_j)$
to the NTK, where $\delta$ is the gradient of an output with respect to $y$: no gradient with
respect to $W$ is ever formed. Through an equilibrium, $\delta$ comes from the implicit function
theorem.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from shoal.core.settings import in_standard_settings
from shoal.kernels import Kernels
from shoal.networks.network import LinearMap, Network, Trace

__all__ = ["contract", "empirical_kernel", "reactions"]


@in_standard_settings
def empirical_kernel(
    network: Network[Any],
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    trainable: Iterable[str] | None = None,
) -> Kernels:
    r"""Conjugate kernel and neural tangent kernel of a finite network, as its weights are.

    Gradients are exact, whatever gradient the network was built to train with.

    With several outputs $f_1, \dots, f_K$ the NTK is the mean of the outputs' own,
    $\frac1K \sum_k \langle \nabla f_k(x), \nabla f_k(x') \rangle$, which has the same limit at
    infinite width as that of one output.

    Args:
        network: A network made by ``build``.
        x1: Inputs, of shape (n, in_features).
        x2: Other inputs; ``x1`` again by default.
        trainable: Groups of weights that the NTK counts; by default those whose parameters require
            a gradient now. ``"all"`` means all groups, also a readout that is kept fixed.

    Returns:
        The two matrices, in the dtype of the network, under autocast too. The CK is the inner
        product of the features that the readout sees, in the scale of the architecture's limit:
        for a DEQ $z = Z/\sqrt m$, also in the standard parametrization, whose readout sees
        $Z$ and has the factor $1/\sqrt m$ in its weights; for an ``ImplicitNetwork`` the
        equilibrium $z$ and the feature map $\phi$ that skips it, one after the other.

    Raises:
        TypeError: If ``network`` is none, or ``trainable`` another string.
        ValueError: If the inputs do not fit, or a group does not exist.
        ConvergenceError: If an equilibrium, or its gradient, is not found. A network that was built
            with another ``on_failure`` warns instead.

    Example:
        >>> import torch, shoal
        >>> deq = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
        >>> net = shoal.build(deq, in_features=2, width=512, dtype=torch.float64)
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> difference = shoal.empirical_kernel(net, x).ntk - shoal.kernel(deq, x).ntk
        >>> bool(difference.abs().max() < 0.3)
        True
    """
    if not isinstance(network, Network):
        raise TypeError(f"network must be a network made by shoal.build, got {network!r}")
    groups, network = _groups(network, trainable), network.exact()
    x1 = network.check_input(x1, "x1")
    x2 = None if x2 is None else network.check_input(x2, "x2")
    left = _Gradients(network, x1, groups)
    right = left if x2 is None else _Gradients(network, x2, groups)
    ck = left.features @ right.features.T
    shares = [left.share(right, name) for name in groups]
    return Kernels(ck, sum(shares, torch.zeros_like(ck)))


def _groups(network: Network[Any], trainable: Iterable[str] | None) -> list[str]:
    chosen: Iterable[str]
    if trainable is None:
        chosen = [name for name, p in network.groups.items() if p.requires_grad]
    elif trainable == "all":
        chosen = {*network.architecture.parameter_groups, "readout"}
    elif "readout" in network.spec.trainable and not isinstance(trainable, str):
        # also where the architecture keeps it fixed
        known = network.spec.trainable | set(network.architecture.parameter_groups)
        names = frozenset(trainable)
        chosen = names if names and names <= known else network.architecture.check_trainable(names)
    else:
        chosen = network.architecture.check_trainable(trainable)
    return sorted(chosen)


class _Gradients:
    """What the groups of weights see, and how the outputs react to what they make of it."""

    def __init__(self, network: Network[Any], x: Tensor, groups: list[str]) -> None:
        with torch.enable_grad():
            trace: Trace = network.trace(x)
            maps = {name: trace.maps[name] for name in groups}
            self.reactions = reactions(trace.output, maps)
        self.features = trace.features.detach().flatten(1)
        self.inputs = {name: one.input.detach() for name, one in maps.items()}
        self.scales = {name: one.scale for name, one in maps.items()}

    def share(self, other: "_Gradients", name: str) -> Tensor:
        """What a group adds to the NTK."""
        left, right = self.inputs[name], other.inputs[name]
        outputs = len(self.reactions)
        total = torch.zeros(len(left), len(right), dtype=left.dtype, device=left.device)
        for mine, theirs in zip(self.reactions, other.reactions, strict=True):
            total += contract(left, mine[name], right, theirs[name])
        return total * (self.scales[name] ** 2 / outputs)


def reactions(output: Tensor, maps: dict[str, LinearMap]) -> list[dict[str, Tensor]]:
    """For each output, its gradient with respect to what each group makes; (n, pixels, units)."""
    targets = {name: one.output for name, one in maps.items()}
    if not targets:
        return []
    found = []
    for k in range(output.shape[1]):
        gradients = torch.autograd.grad(
            output[:, k].sum(), list(targets.values()), retain_graph=True, materialize_grads=True
        )
        found.append(
            {
                name: gradient.flatten(2).transpose(1, 2)
                if gradient.dim() > 2
                else gradient[:, None]
                for name, gradient in zip(targets, gradients, strict=True)
            }
        )
    return found


def contract(h: Tensor, delta: Tensor, other_h: Tensor, other_delta: Tensor) -> Tensor:
    r"""$\sum_{p,q} (\delta_{ip}^\top\delta_{jq})(h_{ip}^\top h_{jq})$ over pixels $p$, $q$."""
    if h.shape[1] == 1:
        return (h[:, 0] @ other_h[:, 0].T) * (delta[:, 0] @ other_delta[:, 0].T)
    rows = [
        (
            torch.einsum("pd,jqd->jpq", h[i], other_h)
            * torch.einsum("pm,jqm->jpq", delta[i], other_delta)
        )
        .flatten(1)
        .sum(1)
        for i in range(len(h))
    ]
    return torch.stack(rows)
