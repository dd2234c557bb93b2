r"""Derivatives of a surface on a block of a kernel matrix, summed against a gradient.

With the weights $w^q_{ir} = s^q_i f_r(u_i)$ of rows and columns, entries are
$K^q_{ij} = \sum_{rsk} C^q_{rsk} w^q_{ir} w^q_{js} T_k(\theta_{ij})$, linear in each factor. So the
gradient $H$ of the entries is passed on by products of the same kind as those of the evaluation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.approximation import chebyshev_basis, differentiate
from shoal.kernels.surface import Span

__all__ = ["Adjoint", "adjoint", "padded"]

_WORK = 1 << 18  # numbers of the basis that stay in the cache of a CPU
_WORK_ELSEWHERE = 1 << 26


@dataclass(frozen=True, eq=False)
class Adjoint:
    """Gradients of what entries are made of.

    Attributes:
        rows: Gradient of the rows' weights. shape: (2, n, rank)
        columns: Gradient of the columns' weights. shape: (2, m, rank)
        cosine: Gradient of the cosines. shape: (n, m)
        coefficients: Gradient of the coefficients, in float64. shape: (2, rank, rank, degree + 1)
    """

    rows: Tensor
    columns: Tensor
    cosine: Tensor
    coefficients: Tensor


def padded(coefficients: Tensor, size: int) -> Tensor:
    """The same series with so many coefficients."""
    return torch.nn.functional.pad(coefficients, (0, size - coefficients.shape[-1]))


def adjoint(
    angles: Span,
    coefficients: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    cosine: Tensor,
    upstream: tuple[Tensor, Tensor],
) -> Adjoint:
    """Pass the gradient of a block's entries on to all that they are made of.

    Args:
        angles: Range of the angles.
        coefficients: Those that the gradients of the weights are for, and those that the gradient
            of the cosines is for; the same, or the first ones derivatives of the second.
            shapes: (2, rank, rank, degree + 1)
        weights: Those of rows and columns. shapes: (2, n, rank), (2, m, rank)
        cosine: Cosines of the angles, none of them ±1. shape: (n, m)
        upstream: The gradients of both kernels. shapes: (n, m)
    """
    low, high = angles
    rows, columns = weights
    size = coefficients[0].shape[-1]
    slopes = padded(differentiate(coefficients[1]) * (2 / (high - low)), size)
    series = torch.stack([coefficients[0], slopes]).to(rows)
    rank, count = rows.shape[-1], cosine.shape[1]
    result = Adjoint(
        torch.zeros_like(rows),
        torch.zeros_like(columns),
        torch.empty_like(cosine),
        rows.new_zeros(2, rank, rank, size, dtype=torch.float64),
    )
    work = _WORK if cosine.device.type == "cpu" else _WORK_ELSEWHERE
    step = max(1, work // ((size + 4 * rank) * count))
    for start in range(0, len(cosine), step):
        part = slice(start, start + step)
        gradient = torch.stack([upstream[0][part], upstream[1][part]], dim=1)
        sub = Adjoint(
            result.rows[:, part], result.columns, result.cosine[part], result.coefficients
        )
        angle = cosine[part].clamp(-1.0, 1.0).acos()
        t = ((angle - low) - (high - angle)).mul_(1 / (high - low)).clamp_(-1.0, 1.0)
        _block(series, rows[:, part], columns, t, gradient, sub)
        result.cosine[part].div_(angle.sin_().neg_())
    return result


def _block(
    series: Tensor, rows: Tensor, columns: Tensor, t: Tensor, gradient: Tensor, into: Adjoint
) -> None:
    """The share of some rows; ``into.cosine`` receives the gradient of the angles."""
    count, size = t.shape
    rank, terms = rows.shape[-1], series.shape[-1]
    basis = chebyshev_basis(t.reshape(-1), terms - 1).view(terms, count, size).transpose(0, 1)
    both = torch.einsum("qnr,dqrsk->ndqsk", rows, series).reshape(count, 4 * rank, terms)
    sums = torch.bmm(both, basis).view(count, 2, 2, rank, size)
    weighted = gradient[:, :, None] * columns.transpose(1, 2)  # shape: (count, 2, rank, size)
    torch.sum((sums[:, 1] * weighted).flatten(1, 2), dim=1, out=into.cosine)
    into.columns.add_((sums[:, 0] * gradient[:, :, None]).sum(0).transpose(1, 2))
    inner = torch.bmm(weighted.view(count, 2 * rank, size), basis.transpose(1, 2))
    inner = inner.view(count, 2, rank, terms)
    into.rows.copy_(torch.einsum("nqsk,qrsk->qnr", inner, series[0]))
    into.coefficients.add_(torch.einsum("qnr,nqsk->qrsk", rows, inner))
