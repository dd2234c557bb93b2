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
        ck: The conjugate kernel. shape: (n, m)
        ck_slope: Its derivative in the cosines. shape: (n, m)
    """

    rows: Tensor
    columns: Tensor
    cosine: Tensor
    ck: Tensor
    ck_slope: Tensor

    def __getitem__(self, part: slice) -> "Adjoint":
        rows = self.rows[:, part], self.columns
        return Adjoint(*rows, self.cosine[part], self.ck[part], self.ck_slope[part])


def padded(coefficients: Tensor, size: int) -> Tensor:
    """The same series with so many coefficients."""
    return torch.nn.functional.pad(coefficients, (0, size - coefficients.shape[-1]))


def adjoint(
    angles: Span,
    coefficients: Tensor,
    radial: Tensor | None,
    weights: tuple[Tensor, Tensor],
    cosine: Tensor,
    upstream: tuple[Tensor, Tensor],
) -> Adjoint:
    """Pass the gradient of a block's entries on to all that they are made of.

    Args:
        angles: Range of the angles.
        coefficients: $C$. shape: (2, rank, rank, degree + 1)
        radial: Those that stand for $C$ in the gradients of the weights, if others do.
        weights: Those of rows and columns. shapes: (2, n, rank), (2, m, rank)
        cosine: Cosines of the angles, none of them ±1. shape: (n, m)
        upstream: The gradients of both kernels. shapes: (n, m)
    """
    low, high = angles
    rows, columns = weights
    size = coefficients.shape[-1]
    slopes = padded(differentiate(coefficients) * (2 / (high - low)), size)
    parts = [coefficients, slopes] if radial is None else [coefficients, slopes, radial]
    series = torch.stack(parts).to(rows)
    rank, count = rows.shape[-1], cosine.shape[1]
    vectors = torch.zeros_like(rows), torch.zeros_like(columns)
    result = Adjoint(*vectors, *(torch.empty_like(cosine) for _ in range(3)))
    work = _WORK if cosine.device.type == "cpu" else _WORK_ELSEWHERE
    step = max(1, work // ((size + 4 * rank) * count))
    for start in range(0, len(cosine), step):
        part = slice(start, start + step)
        gradient = torch.stack([upstream[0][part], upstream[1][part]], dim=1)[:, :, None]
        angle = cosine[part].clamp(-1.0, 1.0).acos()
        t = ((angle - low) - (high - angle)).mul_(1 / (high - low)).clamp_(-1.0, 1.0)
        _block(series, rows[:, part], columns, t, gradient, result[part])
        sine = angle.sin_().neg_()
        result.cosine[part].div_(sine)
        result.ck_slope[part].div_(sine)
    return result


def _block(
    series: Tensor, rows: Tensor, columns: Tensor, t: Tensor, gradient: Tensor, into: Adjoint
) -> None:
    """The share of some rows; derivatives in cosines are still those in angles."""
    count, size = t.shape
    kinds, rank, terms = len(series), rows.shape[-1], series.shape[-1]
    basis = chebyshev_basis(t.reshape(-1), terms - 1).view(terms, count, size).transpose(0, 1)
    own = torch.einsum("qnr,dqrsk->ndqsk", rows, series).reshape(count, -1, terms)
    sums = torch.bmm(own, basis).view(count, kinds, 2, rank, size)
    across = columns.transpose(1, 2)  # shape: (2, rank, size)
    into.columns.add_((sums[:, -1 if kinds > 2 else 0] * gradient).sum(0).transpose(1, 2))
    torch.sum(sums[:, 0, 0] * across[0], dim=1, out=into.ck)
    slopes = sums[:, 1].mul_(across)
    torch.sum(slopes[:, 0], dim=1, out=into.ck_slope)
    torch.sum(slopes.mul_(gradient).flatten(1, 2), dim=1, out=into.cosine)
    weighted = (gradient * across).view(count, 2 * rank, size)
    inner = torch.bmm(weighted, basis.transpose(1, 2)).view(count, 2, rank, terms)
    into.rows.copy_(torch.einsum("nqsk,qrsk->qnr", inner, series[-1 if kinds > 2 else 0]))
