"""How far inputs are from being parallel."""

import math
from typing import Any

import torch

from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.kernels.arguments import as_tensor, checked_samples

_NUMBERS = 1 << 22  # numbers of the inputs whose pairs are decomposed together


@in_standard_settings
def pair_eigenvalue(x: Any) -> float:
    r"""The least eigenvalue $\lambda$ of the Gram matrices of all pairs of different inputs.

    $$\lambda = \min_{i \ne j} \lambda_{\min} \begin{pmatrix} x_i^\top x_i & x_i^\top x_j \\
    x_j^\top x_i & x_j^\top x_j \end{pmatrix} \qquad \text{(Du 2018, Assumption 4.1)}$$

    (The paper's minimum is over $i = j$ too, where it would be zero.) For inputs of norm one it is
    $1 - |\cos\theta|$ of the pair that is closest to parallel. Du 2018 scales the
    residuals of a ``ResNet`` by $c_\lambda \lambda^{3/2}$ with a constant $c_\lambda < 1$.

    Args:
        x: Inputs, of shape (n, p) with n at least 2: a tensor, or a NumPy array.

    Raises:
        TypeError: If ``x`` is neither.
        ValueError: If ``x`` has another shape, or is not finite.

    Example:
        >>> import torch, shoal
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
        >>> f"{shoal.kernels.pair_eigenvalue(x):.12f}"
        '0.200000000000'
    """
    points = checked_samples("x", as_tensor(x, "x")).detach().double()
    if points.dim() != 2 or len(points) < 2:
        raise ValueError(f"x must have shape (n, p) with n >= 2, got {tuple(points.shape)}")
    squares, least = points.square().sum(1), math.inf
    if not bool(squares.isfinite().all()):
        raise AccuracyError("the squared norms of x overflow in float64: scale x down")
    step = max(1, min(1024, _NUMBERS // points.shape[1]))
    for start in range(0, len(points), step):
        rows = slice(start, start + step)
        product = points[rows] @ points.T
        mean = (squares[rows, None] + squares) / 2
        eigenvalue = mean - torch.hypot((squares[rows, None] - squares) / 2, product)
        own = torch.arange(start, start + len(product), device=points.device)
        eigenvalue[own - start, own] = math.inf
        partner = eigenvalue.argmin(1)
        # that has lost digits where the pair is nearly parallel; its singular values have not
        pairs = torch.stack([points[rows], points[partner]], dim=2)
        singular = torch.linalg.svdvals(pairs) if points.shape[1] > 1 else pairs.new_zeros(1, 1)
        least = min(least, float(singular[:, -1].min()) ** 2)
    return least
