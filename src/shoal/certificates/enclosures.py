r"""Numbers that are proved: bounds of rounding errors, norms and eigenvalues.

The model of rounding is the usual one: each operation errs by a factor of at most $1 + u$, in
whatever order a sum is added up, fused or not. Sums of $n$ products then err by at most
$\gamma_n = nu/(1 - nu)$ times the sum of their sizes. Scalars are compared as fractions, which are
exact.

Eigenvalues come from floating-point factorizations. For any $L$, $LL^\top$ is positive
semidefinite, so $\lambda_{\min}(A) \ge s - \|A - sI - LL^\top\|$. With $L$ the computed Cholesky
factor of $A - sI$ this loses little (Demmel 1989; Rump 2006). The norm is computed, and the bound
of its rounding error is added: nothing rests on how $L$ was found.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from shoal.activations import Activation, Evaluated, Smoothness
from shoal.activations.consistency import check_evaluated, check_smoothness
from shoal.core import checks
from shoal.core.exceptions import ConvergenceError
from shoal.core.rounding import UNIT, down, up
from shoal.numerics.norms import symmetric_norm

TINY = 2.0**-1000  # more than all underflows together
_MARGINS = (1e-4, 1e-3, 1e-2, 0.1)  # by which a norm may be overestimated, the smallest first
_DECADES = 12  # how often the guess of an eigenvalue is lowered before it is given up


def gamma(terms: int) -> float:
    r"""$\gamma_n$, rounded up."""
    share = terms * UNIT
    if share >= 0.01:
        raise ValueError(f"{terms} terms are too many for the bounds of rounding errors")
    return share / (1 - share) * (1 + 8 * UNIT)


def exact(number: float) -> Fraction:
    """The number as a fraction; an infinite bound becomes one that nothing reaches."""
    return Fraction(number) if math.isfinite(number) else Fraction(2**20000)


def norm_upper(tensor: Tensor) -> float:
    """An upper bound of the Euclidean norm of all entries of a float64 tensor.

    Entries are scaled to size one first, so that no square overflows or vanishes unnoticed.
    """
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if largest == 0:
        return 0.0
    norm = float(torch.linalg.vector_norm(tensor.flatten() / largest)) * largest
    return norm * (1 + gamma(tensor.numel() + 8)) + TINY


def row_norms(matrix: Tensor) -> Tensor:
    """Upper bounds of the norms of the rows of a float64 matrix."""
    scale = matrix.abs().amax(1, keepdim=True).clamp(min=TINY)
    norms: Tensor = torch.linalg.vector_norm(matrix / scale, dim=1) * scale[:, 0]
    return norms * (1 + gamma(matrix.shape[1] + 16)) + TINY


def product_error(left: Tensor, right: Tensor) -> float:
    r"""How far the computed $AB^\top$ may be from the true one, in the Frobenius norm.

    Entries of the factors may be off by a rounding or two themselves.
    """
    return up(gamma(left.shape[1] + 4) * norm_upper(left) * norm_upper(right))


def evaluate(phi: Activation, x: Tensor) -> Evaluated:
    """Values and slopes of an activation at float64 points, with bounds of their errors."""
    values = phi.evaluated(x)
    check_evaluated(phi, x, values)
    return values


def smoothness(phi: Activation) -> Smoothness:
    """Bounds of an activation's derivatives."""
    check_smoothness(phi)
    return phi.smoothness()


def least_eigenvalue(matrix: Tensor, *, error: float = 0.0) -> float:
    r"""A lower bound of the smallest eigenvalue of a symmetric matrix.

    Args:
        matrix: A floating-point matrix; its lower triangle counts.
        error: An upper bound of the spectral norm of the difference from the true matrix.

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
    matrix = _checked(matrix, error)
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
    difference = torch.addmm(shifted, factor, factor.T, beta=-1).tril_()
    both = 1.415 * norm_upper(difference)  # the triangle above the diagonal counts as well
    sizes = norm_upper(factor) ** 2 + 1.415 * norm_upper(shifted.tril_())
    # the third term is the rounding of the shifted diagonal, the last factor that of this line
    return (both + gamma(len(matrix) + 4) * sizes + 2 * UNIT * largest) * (1 + 16 * UNIT)


def least_singular_value(matrix: Tensor, *, error: float = 0.0) -> float:
    r"""A lower bound of the singular values of an $m \times n$ matrix with $m \ge n$.

    Args:
        matrix: A floating-point matrix; with fewer rows than columns, the bound is zero.
        error: An upper bound of the spectral norm of the difference from the true matrix.

    Raises:
        TypeError: If ``matrix`` is not a floating-point tensor.
        ValueError: If it is not a matrix of finite numbers.
    """
    matrix = _checked(matrix, error)
    rows, columns = matrix.shape
    scale = _scale(matrix)
    if rows < columns or scale == 0:
        return 0.0
    scaled = matrix / scale
    rounding = up(gamma(rows + 4) * norm_upper(scaled) ** 2)
    square = least_eigenvalue(scaled.T @ scaled, error=rounding)
    if square <= 0:
        return 0.0
    root = down(down(math.sqrt(square)) * scale) * (1 - 4 * UNIT)
    return max(0.0, down(root - up(error)))


def spectral_norm(matrix: Tensor) -> float:
    r"""An upper bound of the spectral norm of a floating-point matrix.

    It exceeds the norm by little: a Lanczos iteration guesses the norm, and a factorization of
    $s^2 I - W^\top W$ proves that $s$ is a bound. Where this fails, the bound is the Frobenius
    norm.

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
    bound = norm_upper(tall)
    rounding = up(gamma(len(tall) + 4) * bound**2)
    try:
        guess = symmetric_norm(lambda vector: gram @ vector, len(gram), rtol=1e-3)
    except ConvergenceError:
        guess = math.inf
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


def _checked(matrix: Tensor, error: float = 0.0) -> Tensor:
    """The matrix in float64, in which the bounds count the roundings."""
    if not checks.number("error", error) >= 0:  # NaN neither
        raise ValueError(f"error must be >= 0, got {error}")
    matrix = checks.float_tensor("matrix", matrix)
    if matrix.dim() != 2:
        raise ValueError(f"matrix must have two dimensions, got shape {tuple(matrix.shape)}")
    return matrix.detach().double().cpu()


def _scale(matrix: Tensor) -> float:
    """The size of the entries, as a power of two: dividing by it is exact."""
    largest = float(matrix.abs().max())
    return 2.0 ** math.floor(math.log2(largest)) if largest > 0 else 0.0
