r"""The Gram matrix whose least eigenvalue the convergence theorems watch.

In all of them it is the share that one group of weights has in the NTK, and bounds the NTK from
below: the readout's in Ling 2023 ($Z^\top Z$), that of the readout of the feature map in Gao 2022
($\Phi\Phi^\top$), the last hidden layer's in Du 2018 ($G^{(H)}$), whose readout is fixed.
"""

import math
from typing import Any

import torch
from torch import Tensor

from shoal.empirical.kernel import contract, reactions
from shoal.exceptions import ConvergenceError
from shoal.lanczos import Eigenpair, dominant_eigenpair
from shoal.models import EquilibriumNetwork, Network
from shoal.models.implicit_network import ImplicitNetworkModule

__all__ = ["gram_group", "gram_matrix", "least_eigenvalue", "spectral_norm", "start_vector"]

_LINEAR = ("skip", "readout")  # groups that the output is linear in
_FINE, _COARSE = 1e-4, 1e-3  # relative residuals; errors of eigenvalues are about their squares
# the second one where numbers overflow
_FAILURES = (ConvergenceError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
_NOISE = 0.3  # of the last eigenvector's length: no eigenvector is overlooked that overtakes it


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
        return ["recurrent", "input"]
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


def start_vector(size: int, like: Tensor) -> Tensor:
    """Where iterations begin; the same one every time."""
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, dtype=torch.float64, generator=generator, device="cpu").to(like.device)


def least_eigenvalue(gram: Tensor, near: Tensor | None = None) -> Eigenpair:
    """The least eigenvalue of a Gram matrix, by Lanczos on its inverse.

    Two factorizations and some products with a vector take a small part of the time of all
    eigenvalues, on GPUs above all. If the matrix is singular within rounding, these are computed. A
    value that cannot be told from zero is zero.

    Args:
        gram: The matrix.
        near: The eigenvector of a similar one.
    """
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not int(failed):
        # eigenvalues of one and more, so that the iteration does not underflow
        inverse = gram.diagonal().max() * torch.cholesky_inverse(factor)
        try:
            pair = dominant_eigenpair(lambda v: inverse @ v, _start(gram, near), rtol=_FINE)
        except _FAILURES:
            pass
        else:
            return _resolved(gram, float(pair.vector @ (gram @ pair.vector)), pair.vector)
    if not bool(gram.isfinite().all()):
        return Eigenpair(0.0, start_vector(len(gram), gram))
    values, vectors = torch.linalg.eigh(gram)
    return _resolved(gram, float(values[0]), vectors[:, 0])


def _resolved(gram: Tensor, value: float, vector: Tensor) -> Eigenpair:
    rounding = torch.finfo(gram.dtype).eps * len(gram) * float(gram.diagonal().max())
    return Eigenpair(value if value > rounding else 0.0, vector)


def spectral_norm(matrix: Tensor, near: Tensor | None = None) -> Eigenpair:
    """The norm of a matrix, within about 1e-5 of it, never above it but for rounding.

    Args:
        matrix: Of any shape (rows, columns).
        near: The right singular vector of a similar one.
    """
    matrix = matrix if matrix.dtype.itemsize >= 4 else matrix.float()

    def product(v: Tensor) -> Tensor:
        return (matrix.T @ (matrix @ v.to(matrix.dtype))).double()

    try:
        value, vector = dominant_eigenpair(product, _start(matrix, near), rtol=_COARSE)
    except _FAILURES:
        if not bool(matrix.isfinite().all()):
            return Eigenpair(math.inf, start_vector(matrix.shape[1], matrix))
        _, values, vectors = torch.linalg.svd(matrix.double(), full_matrices=False)
        return Eigenpair(float(values[0]), vectors[0])
    return Eigenpair(max(value, 0.0) ** 0.5, vector)


def _start(matrix: Tensor, near: Tensor | None) -> Tensor:
    noise = start_vector(matrix.shape[1], matrix)
    if near is None:
        return noise
    return torch.add(near, noise / torch.linalg.vector_norm(noise), alpha=_NOISE)
