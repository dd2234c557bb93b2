"""Spectral norms of symmetric matrices that are known by their products."""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.exceptions import ConvergenceError

__all__ = ["spectral_norm"]

_EVERY = 8  # steps between two looks at the Ritz values


def spectral_norm(
    product: Callable[[Tensor], Tensor],
    size: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    rtol: float = 1e-5,
    steps: int = 600,
) -> float:
    r"""The largest $|\lambda|$ of a symmetric matrix, by Lanczos with full reorthogonalization.

    It returns when $\|Mv - \lambda v\| \le$ ``rtol`` $|\lambda|$ for the product with $v$ itself,
    so that some eigenvalue is as near to $\lambda$; its error is then usually about the square.

    Args:
        product: $v \mapsto Mv$, in float64.
        size: The number of rows.
        seed: Of the random start.
        device: Where the vectors are.
        rtol: The bound of the residual.
        steps: How many products at most.

    Raises:
        ConvergenceError: If the residual stays above ``rtol``.

    Example:
        >>> import torch
        >>> matrix = torch.diag(torch.tensor([1.0, -3.0, 2.0]).double())
        >>> round(spectral_norm(lambda v: matrix @ v, 3), 9)
        3.0
    """
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(size, dtype=torch.float64, generator=generator).to(device)
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
            or float(beside[k]) <= 1e-13 * float(diagonal[: k + 1].abs().max())
        ):
            value, vector, bound = _extreme(diagonal[: k + 1], beside[: k + 1])
            if bound <= rtol * abs(value) or last:
                ritz = vector.to(basis) @ basis[: k + 1]
                difference = product(ritz) - value * ritz
                residual = float(torch.linalg.vector_norm(difference))
                if residual <= 1.01 * rtol * abs(value):
                    return abs(value)
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
