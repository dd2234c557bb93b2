r"""Spectral norms: estimated by Lanczos, or between certified bounds.

The bounds: $\|W\|^2 = \|M\|$ for $M = W^\top W$, and $\|M^q\|_F^{1/q}$ is an upper bound of
$\|M\|$ that exceeds it by a factor of at most $n^{1/2q}$, whatever the matrix. Squaring doubles
$q$, so eleven products suffice for a thousandth. Products only: as fast as the device multiplies.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.checks import float_tensor, real
from shoal.core.exceptions import ConvergenceError
from shoal.numerics.krylov import RowSpaces

_EVERY = 8  # steps between two looks at the Ritz values
_COARSE = 1e-3  # a relative residual; the error of the eigenvalue is about its square
# the second one where numbers overflow
_FAILURES = (ConvergenceError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
_NOISE = 0.3  # of the last eigenvector's length: no eigenvector is overlooked that overtakes it
_EXHAUSTED = 1e-13  # share of a vector's length: a smaller new part is rounding
_ROUNDING = 8.0  # in units of size times machine precision, per squaring; generous


class Eigenpair(NamedTuple):
    """An eigenvalue within a residual.

    Attributes:
        value: The Rayleigh quotient of the vector.
        vector: A vector of length one; a start for similar matrices.
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
        start: The first vector: an eigenvector of a similar matrix, or a random vector.
        rtol: The bound of the residual.
        steps: Most products.

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
        last = k == len(basis) - 2 or bool(beside[k] <= _EXHAUSTED * diagonal[: k + 1].abs().max())
        if last or k % _EVERY == _EVERY - 1:
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


def symmetric_norm(
    product: Callable[[Tensor], Tensor],
    size: int,
    *,
    device: torch.device | str = "cpu",
    rtol: float = 1e-5,
    steps: int = 600,
) -> float:
    r"""The largest $|\lambda|$ of a symmetric matrix, by Lanczos from a random start.

    Args:
        product: $v \mapsto Mv$, in float64.
        size: The number of rows.
        device: The device of the vectors.
        rtol: The bound of the residual, as in :func:`dominant_eigenpair`.
        steps: Most products.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, dtype=torch.float64, generator=generator).to(device)
    return abs(dominant_eigenpair(product, start, rtol=rtol, steps=steps).value)


def start_vector(size: int, like: Tensor) -> Tensor:
    """Where iterations begin; the same one every time."""
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, dtype=torch.float64, generator=generator, device="cpu").to(like.device)


def dominant_singular_pair(matrix: Tensor, near: Tensor | None = None) -> Eigenpair:
    """The largest singular value, within about 1e-5 of it, and its right singular vector.

    The largest singular value is the norm of the matrix; up to rounding, the result is not above.

    Args:
        matrix: The matrix. shape: (rows, columns)
        near: The right singular vector of a similar matrix.
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


def norms_from_below(
    push: Callable[[Tensor], Tensor],
    pull: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    *,
    rounding: float = _EXHAUSTED,
) -> Tensor:
    r"""The norms of many matrices $J$, one for each row, from their products.

    Each is the largest singular value of $J$ on the Krylov space of $J^\top J$, never above the
    norm but for rounding.

    Args:
        push: $v \mapsto Jv$ of all rows, in float64.
        pull: $g \mapsto J^\top g$ of all rows, in float64.
        start: The first vectors; shape (matrices, columns).
        steps: Most products of each kind.
        rounding: Share of a vector's length that rounding may make: less is no new direction.
    """
    spaces, images = RowSpaces(start), []
    for _ in range(steps):
        images.append(push(spaces.basis[-1]))
        back = pull(images[-1])
        new = spaces.add(back) > rounding * torch.linalg.vector_norm(back, dim=1)
        if not bool(new.any()):
            break
        spaces.basis[-1] = spaces.basis[-1] * new[:, None]
    norms: Tensor = torch.linalg.matrix_norm(torch.stack(images, 2), 2)
    return norms


def _start(matrix: Tensor, near: Tensor | None) -> Tensor:
    noise = start_vector(matrix.shape[1], matrix)
    if near is None:
        return noise
    return torch.add(near, noise / torch.linalg.vector_norm(noise), alpha=_NOISE)


class NormBounds(NamedTuple):
    """Bounds of an operator norm.

    Attributes:
        lower: The length that a certain unit vector is mapped to.
        upper: A number that no unit vector exceeds, rounding included.
    """

    lower: float
    upper: float


def operator_norm_bounds(matrix: Tensor, *, tightness: float = 1e-3) -> NormBounds:
    r"""Bound the operator norm $\|W\|$ from both sides.

    Args:
        matrix: $W$, of any shape (rows, columns); or (blocks, rows, columns), the blocks of a
            matrix that is zero elsewhere.
        tightness: By what fraction the upper bound may exceed the norm; up to rounding, it does
            not do so by more. A factor of two costs one matrix product.

    Returns:
        Both bounds, computed in float64.

    Example:
        >>> import torch
        >>> from shoal.networks import operator_norm_bounds
        >>> lower, upper = operator_norm_bounds(torch.diag(torch.tensor([1.0, 3.0, 2.0])))
        >>> f"{lower:.3f} {upper:.3f}"
        '3.000 3.000'
    """
    matrix = float_tensor("matrix", matrix)
    if matrix.dim() not in (2, 3):
        raise ValueError(
            "matrix must have shape (rows, columns) or (blocks, rows, columns), got "
            f"{tuple(matrix.shape)}"
        )
    tightness = real("tightness", tightness, above=0, at_least=1e-15)
    w = matrix.detach().double()
    w = w if w.shape[-2] >= w.shape[-1] else w.mT
    scale = float(w.abs().max())
    if scale == 0:
        return NormBounds(0.0, 0.0)
    w = w / scale
    rows, size = w.shape[-2], w[..., 0, :].numel()  # all columns, of all blocks
    squarings = max(0, math.ceil(math.log2(max(1.0, math.log(size) / (4 * math.log1p(tightness))))))
    power, logarithm, error = w.mT @ w, 0.0, 0.0
    for step in range(squarings + 1):
        frobenius = float(torch.linalg.vector_norm(power))
        logarithm += math.log(frobenius) / 2**step  # log of the bound of ‖M‖ so far
        # each product is off by a little, relatively to the norms of its factors
        error += _ROUNDING * math.sqrt(size) * rows * torch.finfo(w.dtype).eps / 2**step
        power = power / frobenius
        if step < squarings:
            power = power @ power
    upper = scale * math.exp(logarithm / 2) * (1 + error)
    return NormBounds(min(scale * _lower(w, power), upper), upper)


def _lower(w: Tensor, power: Tensor) -> float:
    """How long the image of the dominant direction is, as a high power of the matrix shows it."""
    if w.dim() == 3:
        block = int(torch.linalg.vector_norm(power, dim=(1, 2)).argmax())
        w, power = w[block], power[block]
    vector = power[:, int(torch.linalg.vector_norm(power, dim=0).argmax())]
    for _ in range(4):
        vector = w.t() @ (w @ vector)
        vector = vector / torch.linalg.vector_norm(vector)
    return float(torch.linalg.vector_norm(w @ vector)) * (1 - 1e-12)
