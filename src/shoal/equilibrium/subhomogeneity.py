r"""Uniqueness of positive equilibria by logarithms instead of norms (Sittoni and Tudisco 2024)."""

from typing import Any

import torch
from torch import Tensor

from shoal.core.torch_compat import full_precision, uncompiled
from shoal.equilibrium.penalty import HasEquilibrium, check_layer
from shoal.equilibrium.solvers.state import State


@uncompiled
@torch.no_grad()
def subhomogeneity(layer: HasEquilibrium, z: State, *inputs: Any, **named: Any) -> Tensor:
    r"""The factor by which a map of positive states contracts logarithms, at a state.

    Written for $\log z$ instead of $z$, a map $f$ of positive states to positive states has the
    Jacobian $J_{ij} z_j / f_i(z)$. The norm of that which bounds the largest change of an entry is
    $\mu(z) = \max_i \sum_j |J_{ij}| z_j / f_i(z)$, which this returns for each sample. If it is at
    most some $\mu < 1$ at all positive states, there is exactly one positive equilibrium, and the
    plain iteration converges to it, by that factor in $\max_i |\log z_i - \log z'_i|$, however
    large the weights are. At one state it is the factor there, no certificate.

    For $f(z) = \varphi(Wz + u)$ with $W, u \ge 0$, it is at most the largest value of
    $t\varphi'(t)/\varphi(t)$ over $t \ge 0$: 0.279 for the sigmoid, one (and less at every single
    state) for activations that are concave there, such as tanh.

    Args:
        layer: An :class:`Equilibrium`, or a network of ``build`` with recurrent layers.
        z: A positive state, not only an equilibrium.
        inputs: What the layer is called with besides the start.
        named: Inputs by name.

    Returns:
        The factors, of shape (samples,). It takes a product with the transposed Jacobian for each
        entry of a state.

    Raises:
        ValueError: If the state, or what the map makes of it, is not positive.

    Example:
        >>> import torch, shoal
        >>> from shoal.equilibrium import subhomogeneity
        >>> weights = 9 * torch.rand(5, 5, generator=torch.Generator().manual_seed(0))
        >>> layer = shoal.Equilibrium(lambda z, x: torch.sigmoid(z @ weights + x))
        >>> bool((subhomogeneity(layer, torch.rand(20, 5), torch.rand(20, 5)) < 0.279).all())
        True
    """
    check_layer(layer)
    problem, rows = layer.problem_at(z, *inputs, **named)
    with full_precision(rows):
        near = problem.linearize(rows)
        value = near.value
        for name, found in (("z", rows), ("what the layer makes of z", value)):
            if not (found > 0).all():
                raise ValueError(f"{name} must be positive, got {found.min().item():.3g} as least")
        largest = rows.new_zeros(len(rows))
        for index in range(rows.shape[1]):
            unit = torch.zeros_like(rows)
            unit[:, index] = 1
            moved = (near.pull(unit).abs() * rows).sum(1)
            largest = torch.maximum(largest, moved / value[:, index])
        return largest
