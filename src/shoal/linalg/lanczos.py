"""The eigenvalue of largest modulus of a symmetric matrix that is known by its products."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.exceptions import ConvergenceError

__all__ = ["Eigenpair", "dominant_eigenpair"]

_EVERY = 8  # steps between two looks at the Ritz values


class Eigenpair(NamedTuple):
    """An eigenvalue within a residual.

    Attributes:
        value: The Rayleigh quotient of the vector.
        vector: Of length one: a start for the matrices that come next.
    """

    value: float
    vector: Tensor


def dominant_eigenpair(
    product: Callable[[Tensor], Tensor], start: Tensor, *, rtol: float, steps: int = 600
) -> Eigenpair:
    r"""The eigenvalue of largest modulus, by Lanczos with full reorthogonalization.

    It returns when $\|Mv - \lambda v\| \le$ ``rtol`` $|\lambda|$ for the product with $v$ itself,
    so that some eigenvalue is as near to $\lambda$; its error is then usually about the square.

    Args:
        product: $v \mapsto Mv$, in float64.
        start: Where to begin: an eigenvector of a similar matrix, or a random vector.
        rtol: The bound of the residual.
        steps: How many products at most.

    Raises:
        ConvergenceError: If the residual stays above ``rtol``.

    Example:
        >>> import torch
        >>> matrix = torch.diag(torch.tensor([1.0, -3.0, 2.0]).double())
        >>> pair = dominant_eigenpair(lambda v: matrix @ v, torch.ones(3).double(), rtol=1e-6)
        >>> round(pair.value, 9)
        -3.0
    """
    size = len(start)
    basis = start.new_zeros(min(steps, size) + 1, size)
    basis[0] = start / torch.linalg.vector_norm(start)
    diagonal, beside = start.new_zeros(len(basis) - 1), start.new_zeros(len(basis) - 1)
    residual = float("inf")
    for k in range(len(basis) - 1):
        image = product(basis[k])
        diagonal[k] = image @ basis[k]
        for _ in range(2):  # once leaves what rounding left
            image = image - basis[: k + 1].T @ (basis[: k + 1] @ image)
        beside[k] = torch.linalg.vector_norm(image)
        last = k == len(basis) - 2
        if (
            last
            or k % _EVERY == _EVERY - 1
            or bool(beside[k] <= 1e-13 * diagonal[: k + 1].abs().max())
        ):
            value, vector, bound = _extreme(diagonal[: k + 1], beside[: k + 1])
            if bound <= rtol * abs(value) or last:
                ritz = vector.to(basis) @ basis[: k + 1]
                difference = product(ritz) - value * ritz
                residual = float(torch.linalg.vector_norm(difference))
                if residual <= 1.01 * rtol * abs(value):
                    return Eigenpair(value, ritz)
        basis[k + 1] = image / beside[k].clamp(min=torch.finfo(torch.float64).tiny)
    raise ConvergenceError(
        f"the spectral norm was not found to {rtol:g} in {steps} steps: the residual is "
        f"{residual:.2g}"
    )


def _extreme(diagonal: Tensor, beside: Tensor) -> tuple[float, Tensor, float]:
    """The Ritz value of largest modulus, its vector in the basis, and its residual."""
    main, side = diagonal.cpu(), beside.cpu()
    small = torch.diag(main) + torch.diag(side[:-1], 1) + torch.diag(side[:-1], -1)
    values, vectors = torch.linalg.eigh(small)
    place = int(values.abs().argmax())
    vector = vectors[:, place]
    return float(values[place]), vector, float(side[-1] * vector[-1].abs())
