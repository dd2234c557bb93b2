r"""Measures of the Jacobian at an equilibrium: a penalty (Bai et al. 2021), and subhomogeneity."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from shoal.core.checks import instance, integer
from shoal.core.torch_compat import full_precision, uncompiled
from shoal.equilibrium.problem import Problem
from shoal.equilibrium.state import State


@runtime_checkable
class HasEquilibrium(Protocol):
    """A layer whose map and state can be linearized, as rows of numbers."""

    def problem_at(self, z: State, *inputs: Any, **named: Any) -> tuple[Problem, Tensor]:
        """The fixed-point problem near a state, and that state as rows."""


def check_layer(layer: object) -> None:
    """Say what a layer must be, unless it is."""
    if not isinstance(layer, HasEquilibrium):
        raise TypeError(
            "layer must be an Equilibrium or a network with a recurrent layer, got "
            f"{type(layer).__name__}"
        )


@uncompiled
def jacobian_penalty(
    layer: HasEquilibrium,
    z: State,
    *inputs: Any,
    probes: int = 1,
    generator: torch.Generator | None = None,
    **named: Any,
) -> Tensor:
    r"""Estimate $\|J\|_F^2$ divided by the size of a state, averaged over samples, as a penalty.

    $J$ is the Jacobian of the layer's map at the equilibrium. For random signs $v$ the mean of
    $\|J^\top v\|^2$ is $\|J\|_F^2$ (Hutchinson). With a small Jacobian, all solvers converge in few
    steps. The penalty is not a certificate, since a matrix of small entries may still have a norm
    above one.

    The result is differentiable with respect to parameters, inputs and ``z``. If ``z`` is the
    layer's output, the gradient includes the change of the equilibrium, at the cost of no further
    solve. Bai et al. omit that part; pass ``z.detach()`` to do the same.

    Args:
        layer: An :class:`Equilibrium`, or a network of ``build`` with recurrent layers.
        z: The equilibrium that the layer returned; for a network, ``net.features(x)``.
        inputs: Arguments of the layer after the initial state.
        probes: Number of vectors $v$ for each sample. It costs one evaluation of the map in all,
            and one product with its transposed Jacobian per vector. If there are at least as many
            as entries of a state, all unit vectors are used instead, and the result is exact.
        generator: Random number generator; PyTorch's default one by default.
        named: Inputs by name.

    Returns:
        A scalar.

    Example:
        >>> import torch, shoal
        >>> cell = torch.nn.Linear(3, 3, dtype=torch.float64)
        >>> layer = shoal.Equilibrium(lambda z, x: 0.3 * cell(z) + x)
        >>> x = torch.ones(5, 3, dtype=torch.float64)
        >>> penalty = shoal.jacobian_penalty(layer, layer(x, x), x, probes=3)
        >>> torch.isclose(penalty, 0.09 * cell.weight.square().sum() / 3)
        tensor(True)
    """
    check_layer(layer)
    probes = integer("probes", probes, at_least=1)
    if generator is not None:
        instance("generator", generator, torch.Generator)
    problem, rows = layer.problem_at(z, *inputs, **named)
    with full_precision(rows):
        near = problem.linearize(rows)
        samples, size = rows.shape
        if probes >= size:
            units = torch.eye(size, dtype=rows.dtype, device=rows.device)
            squares = [near.pull(unit.expand_as(rows)).square().sum() for unit in units]
            return torch.stack(squares).sum() / (samples * size)
        squares = [near.pull(_signs(rows, generator)).square().sum() for _ in range(probes)]
        return torch.stack(squares).sum() / (probes * samples * size)


def _signs(rows: Tensor, generator: torch.Generator | None) -> Tensor:
    """Independent random signs."""
    device = rows.device if generator is None else generator.device
    bits = torch.randint(0, 2, rows.shape, generator=generator, device=device)
    return bits.to(rows).mul_(2).sub_(1)


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
        for name, tensor in (("z", rows), ("the layer's value at z", value)):
            if not (tensor > 0).all():
                raise ValueError(f"{name} must be positive, got {tensor.min().item():.3g} as least")
        largest = rows.new_zeros(len(rows))
        for index in range(rows.shape[1]):
            unit = torch.zeros_like(rows)
            unit[:, index] = 1
            moved = (near.pull(unit).abs() * rows).sum(1)
            largest = torch.maximum(largest, moved / value[:, index])
        return largest
