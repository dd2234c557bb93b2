r"""Chebyshev series of one variable: nodes, transforms, basis, derivative, largest value.

A series of degree :math:`n` is :math:`p(t) = \sum_{k=0}^{n} c_k T_k(t)` on :math:`[-1, 1]`. It is
sampled at the nodes of the *second kind*, the :math:`n + 1` extrema of :math:`T_n`, because

* they are nested: doubling the degree keeps all the values already paid for;
* they hold the two ends, where the error of a function with an end-point singularity peaks, and
  where our kernels are needed most (equal inputs).

All functions act on one dimension of a tensor, so that tensor products come by repetition.
"""

import math

import torch
from torch import Tensor

from shoal.core import checks


def chebyshev_nodes(degree: int, low: float = -1.0, high: float = 1.0) -> Tensor:
    """Return the ``degree + 1`` extrema of the Chebyshev polynomial, ascending, on an interval.

    The sine form of the cosines makes them symmetric about the middle to the last bit, and both
    ends exact. Degree 0 gives the middle.

    Example:
        >>> chebyshev_nodes(2, 0.0, 4.0)
        tensor([0., 2., 4.], dtype=torch.float64)
    """
    degree = checks.integer("degree", degree, at_least=0)
    checks.room("degree", degree)
    low, high = checks.real("low", low), checks.real("high", high)
    steps = torch.arange(-degree, degree + 1, 2, dtype=torch.float64)
    t = torch.sin(steps * (math.pi / (2 * max(degree, 1))))
    return (low * (1 - t) + high * (1 + t)) / 2


def coefficients_from_values(values: Tensor, dim: int = -1) -> Tensor:
    """Return the Chebyshev coefficients of the interpolant of ``values`` at the nodes of ``dim``.

    Example:
        >>> coefficients_from_values(chebyshev_nodes(4) ** 2).abs() > 1e-9
        tensor([ True, False,  True, False, False])
    """
    degree = _degree("values", values, dim)
    if degree == 0:
        return values.clone()
    sums = _cosine_sums(values.movedim(dim, -1).flip(-1)) / degree
    sums[..., [0, -1]] /= 2
    return sums.movedim(-1, dim)


def values_from_coefficients(
    coefficients: Tensor, dim: int = -1, *, degree: int | None = None
) -> Tensor:
    """Return the values of the series at the nodes of ``degree``, by default its own degree.

    Args:
        coefficients: Coefficients, of increasing degree along ``dim``.
        dim: The dimension to transform.
        degree: Degree of the nodes; at least that of the series.

    Example:
        >>> values_from_coefficients(torch.tensor([1.0, 2.0], dtype=torch.float64))
        tensor([-1.,  3.], dtype=torch.float64)
    """
    own = _degree("coefficients", coefficients, dim)
    degree = own if degree is None else checks.integer("degree", degree, at_least=own)
    if degree == 0:
        return coefficients.clone()
    moved = coefficients.movedim(dim, -1)
    padded = moved.new_zeros(*moved.shape[:-1], degree + 1)
    padded[..., : own + 1] = moved
    padded[..., 1:-1] /= 2
    return _cosine_sums(padded).flip(-1).movedim(-1, dim)


def _degree(name: str, series: Tensor, dim: int) -> int:
    """The degree of a series along a dimension, or what is wrong with the two."""
    axes = checks.dense_tensor(name, series).dim()
    if series.dtype not in (torch.float32, torch.float64):  # what transforms can take
        raise TypeError(f"{name} must be float32 or float64, got {series.dtype}")
    if isinstance(dim, bool) or not isinstance(dim, int) or not -axes <= dim < axes:
        raise ValueError(f"dim must be one of the {axes} of {name}, got {checks.shown(dim)}")
    if series.shape[dim] == 0:
        raise ValueError(f"{name} must not be empty, got shape {tuple(series.shape)}")
    return series.shape[dim] - 1


def _cosine_sums(a: Tensor) -> Tensor:
    """Return a_0 + (-1)^j a_n + 2 Σ a_k cos(π j k / n), j = 0..n, of the last dimension."""
    even = torch.cat([a, a[..., 1:-1].flip(-1)], dim=-1)
    sums: Tensor = torch.fft.rfft(even).real
    return sums.contiguous()


def chebyshev_basis(t: Tensor, degree: int) -> Tensor:
    """Return the values of all basis polynomials up to ``degree``.

    The three-term recurrence is chosen over formulas that double the degree, which take fewer
    steps and lose up to a hundred times more digits inside the interval.

    Args:
        t: Points in [-1, 1]. shape: (n,)
        degree: Highest degree.

    Returns:
        The basis, one row per degree. shape: (degree + 1, n)

    Example:
        >>> chebyshev_basis(torch.tensor([0.5], dtype=torch.float64), 2).squeeze()
        tensor([ 1.0000,  0.5000, -0.5000], dtype=torch.float64)
    """
    if checks.dense_tensor("t", t).dim() != 1:
        raise ValueError(f"t must have shape (n,), got {tuple(t.shape)}")
    degree = checks.integer("degree", degree, at_least=0)
    rows = t.new_empty(degree + 1, t.shape[0])
    rows[0] = 1.0
    if degree > 0:
        rows[1] = t
    twice = 2 * t
    for k in range(1, degree):
        torch.mul(twice, rows[k], out=rows[k + 1])
        rows[k + 1].sub_(rows[k - 1])
    return rows


def mode_product(matrix: Tensor, tensor: Tensor, dim: int) -> Tensor:
    """Return ``tensor`` with ``matrix`` applied to each of its fibres along ``dim``.

    Example:
        >>> mode_product(torch.ones(1, 3), torch.ones(2, 3, 4), 1).shape
        torch.Size([2, 1, 4])
    """
    product: Tensor = torch.tensordot(matrix, tensor, dims=([1], [dim]))
    return product.movedim(0, dim)


def differentiate(coefficients: Tensor, dim: int = -1) -> Tensor:
    """Return the coefficients of the derivative in t, of one degree less (degree 0 stays zero).

    Example:
        >>> differentiate(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))  # T_2' = 4 T_1
        tensor([0., 4.], dtype=torch.float64)
    """
    degree = _degree("coefficients", coefficients, dim)
    if degree == 0:
        return torch.zeros_like(coefficients)
    column = torch.arange(degree + 1, dtype=coefficients.dtype, device=coefficients.device)
    gap = column[None, :] - column[:-1, None]  # shape: (degree, degree + 1)
    # T_p' = 2 p (T_{p-1} + T_{p-3} + ...), the term of T_0 counted half.
    matrix = torch.where((gap > 0) & (gap % 2 == 1), 2 * column, 0.0)
    matrix[0] /= 2
    return mode_product(matrix, coefficients, dim)


def supremum(coefficients: Tensor, axes: int | None = None) -> float:
    r"""Return an upper bound of the largest \|p\| of (tensor-product) series on their box.

    It exceeds the largest value by at most :math:`\sqrt 2` per axis: a polynomial of degree n is
    bounded by its largest value at the nodes of degree N over :math:`\cos(\pi n / 2N)` (Ehlich and
    Zeller, Math. Z. 86, 1964), here with N = 2n.

    Args:
        coefficients: Those of a series; dimensions before its axes count several of them.
        axes: How many axes there are; by default all dimensions.

    Example:
        >>> supremum(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)) / 2**0.5  # 1 + T_2 <= 2
        2.0
    """
    values, factor = checks.float_tensor("coefficients", coefficients), 1.0
    for dim in range(-values.ndim if axes is None else -axes, 0):
        size = values.shape[dim]
        if size > 1:
            values = values_from_coefficients(values, dim, degree=2 * (size - 1))
            factor *= math.sqrt(2)
    return factor * float(values.abs().max())
