r"""Rigorous bounds of eigenvalues and norms, from floating-point factorizations.

For any $L$, $LL^\top$ is positive semidefinite, so
$\lambda_{\min}(A) \ge s - \|A - sI - LL^\top\|$. With $L$ the computed Cholesky factor of $A - sI$
this loses little (Demmel 1989; Rump 2006). The norm is computed, and what its rounding may hide is
added: nothing rests on how $L$ was found.
"""

import math

import torch
from torch import Tensor

from shoal.certificates.evidence.rounding import UNIT, down, gamma, norm_upper, up
from shoal.core import checks
from shoal.core.exceptions import ConvergenceError
from shoal.numerics.norms import symmetric_norm

_MARGINS = (1e-4, 1e-3, 1e-2, 0.1)  # by which a norm may be overestimated, the smallest first
_DECADES = 12  # how often the guess of an eigenvalue is lowered before it is given up


def least_eigenvalue(matrix: Tensor, *, error: float = 0.0) -> float:
    r"""A number that the smallest eigenvalue of a symmetric matrix is not below.

    Args:
        matrix: A floating-point matrix; its lower triangle counts.
        error: What the spectral norm of the difference from the true matrix is at most.

    Returns:
        The bound; ``-inf`` if none was found.

    Raises:
        TypeError: If ``matrix`` is not a floating-point tensor.
        ValueError: If it is not a square matrix of finite numbers.

    Example:
        >>> import torch
        >>> bound = least_eigenvalue(torch.diag(torch.tensor([2.0, 3.0]).double()))
        >>> 2 - 1e-12 < bound <= 2
        True
    """
    matrix = _checked(matrix)
    _check_error(error)
    size = len(matrix)
    if matrix.shape != (size, size):
        raise ValueError(f"matrix must be square, got shape {tuple(matrix.shape)}")
    scale = _scale(matrix)
    if scale == 0:
        return down(-up(error))
    scaled = matrix / scale
    guess = float(torch.linalg.eigvalsh(scaled)[0])
    slack = 4 * (size + 4) * UNIT * float(scaled.diagonal().abs().sum())
    for _ in range(_DECADES):
        shift = guess - slack
        loss = _factorization_loss(scaled, shift)
        if loss is not None:
            return down(down(down(shift - loss) * scale) - up(error))
        slack *= 10
    return -math.inf


def _factorization_loss(matrix: Tensor, shift: float) -> float | None:
    r"""A bound of how far eigenvalues of $A$ are below ``shift``; ``None`` if there is none."""
    shifted = matrix.clone()
    diagonal = shifted.diagonal()
    largest = float(diagonal.abs().sum()) + len(matrix) * abs(shift)
    diagonal -= shift
    if not float(diagonal.min()) > 0:
        return None
    factor, failed = torch.linalg.cholesky_ex(shifted)
    if int(failed):
        return None
    rest = torch.addmm(shifted, factor, factor.T, beta=-1).tril_()
    both = 1.415 * norm_upper(rest)  # the triangle above the diagonal counts as well
    sizes = norm_upper(factor) ** 2 + 1.415 * norm_upper(shifted.tril_())
    # the third term is the rounding of the shifted diagonal, the last factor that of this line
    return (both + gamma(len(matrix) + 4) * sizes + 2 * UNIT * largest) * (1 + 16 * UNIT)


def least_singular_value(matrix: Tensor, *, error: float = 0.0) -> float:
    r"""A number that no singular value of an $m \times n$ matrix with $m \ge n$ is below.

    Args:
        matrix: A floating-point matrix; with fewer rows than columns, the bound is zero.
        error: What the spectral norm of the difference from the true matrix is at most.

    Raises:
        TypeError: If ``matrix`` is not a floating-point tensor.
        ValueError: If it is not a matrix of finite numbers.
    """
    matrix = _checked(matrix)
    _check_error(error)
    rows, columns = matrix.shape
    if rows < columns:
        return 0.0
    scale = _scale(matrix)
    if scale == 0:
        return 0.0
    scaled = matrix / scale
    rounding = up(gamma(rows + 4) * norm_upper(scaled) ** 2)
    square = least_eigenvalue(scaled.T @ scaled, error=rounding)
    if square <= 0:
        return 0.0
    root = down(down(math.sqrt(square)) * scale) * (1 - 4 * UNIT)
    return max(0.0, down(root - up(error)))


def spectral_norm(matrix: Tensor) -> float:
    r"""A number that the spectral norm of a floating-point matrix does not exceed.

    It is larger than the norm by little: a Lanczos iteration guesses the norm, and a factorization
    of $s^2 I - W^\top W$ proves that $s$ is a bound. Where this fails, the bound is the smaller of
    $\|W\|_F$ and $\sqrt{\|W\|_1 \|W\|_\infty}$.

    :func:`shoal.networks.operator_norm_bounds` makes bounds of products alone, which takes longer
    on a CPU and serves every device, and blocks.

    Raises:
        TypeError: If ``matrix`` is not a floating-point tensor.
        ValueError: If it is not a matrix of finite numbers.

    Example:
        >>> import torch
        >>> 3 <= spectral_norm(torch.diag(torch.tensor([1.0, 3.0, 2.0]).double())) < 3.001
        True
    """
    matrix = _checked(matrix)
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    scale = _scale(tall)
    if scale == 0:
        return 0.0
    tall = tall / scale
    gram = tall.T @ tall
    frobenius = norm_upper(tall)
    rounding = up(gamma(len(tall) + 4) * frobenius**2)
    guess = _largest_eigenvalue(gram)
    bound = min(frobenius, _norm_of_sums(tall))
    for margin in _MARGINS:
        square = guess * (1 + margin) + 2 * rounding
        if square >= bound * bound:
            break
        loss = _factorization_loss(square * torch.eye(len(gram), dtype=gram.dtype) - gram, 0.0)
        if loss is not None:
            proved = up(square * (1 + 4 * UNIT) + loss + rounding)
            bound = min(bound, up(math.sqrt(proved)))
            break
    return up(bound * scale) * (1 + 4 * UNIT)


def _checked(matrix: Tensor) -> Tensor:
    """The matrix in float64, whose roundings the bounds count."""
    matrix = checks.float_tensor("matrix", matrix)
    if matrix.dim() != 2:
        raise ValueError(f"matrix must have two dimensions, got shape {tuple(matrix.shape)}")
    return matrix.detach().double().cpu()


def _check_error(error: float) -> None:
    if not checks.number("error", error) >= 0:  # NaN neither
        raise ValueError(f"error must be >= 0, got {error}")


def _scale(matrix: Tensor) -> float:
    """The size of the entries, as a power of two: dividing by it is exact."""
    largest = float(matrix.abs().max())
    return 2.0 ** math.floor(math.log2(largest)) if largest > 0 else 0.0


def _norm_of_sums(matrix: Tensor) -> float:
    """The root of the largest sums of sizes along rows and along columns."""
    sizes = matrix.abs()
    product = float(sizes.sum(0).max()) * float(sizes.sum(1).max())
    return math.sqrt(up(product * (1 + gamma(sum(matrix.shape) + 8)))) * (1 + 4 * UNIT)


def _largest_eigenvalue(gram: Tensor) -> float:
    """A good guess of the largest eigenvalue of a positive semidefinite matrix, or infinity."""
    try:
        return symmetric_norm(lambda vector: gram @ vector, len(gram), rtol=1e-3)
    except ConvergenceError:
        return math.inf
