"""Spectral norms of symmetric matrices that are known by their products."""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.lanczos import dominant_eigenpair

__all__ = ["spectral_norm"]


def spectral_norm(
    product: Callable[[Tensor], Tensor],
    size: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    rtol: float = 1e-5,
    steps: int = 600,
) -> float:
    r"""The largest $|\lambda|$ of a symmetric matrix, by Lanczos from a random start.

    Args:
        product: $v \mapsto Mv$, in float64.
        size: The number of rows.
        seed: Of the random start.
        device: Where the vectors are.
        rtol: The bound of the residual, as in ``shoal.lanczos``.
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
    return abs(dominant_eigenpair(product, start, rtol=rtol, steps=steps).value)
