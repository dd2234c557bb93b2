"""Evaluation of a surface on a block of a kernel matrix, given the cosines of its angles."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.approximation import chebyshev_basis
from shoal.kernels.surface import Surface

__all__ = ["Factors", "evaluate"]

_WORK = 1 << 18  # numbers of the basis that stay in the cache of a CPU
_WORK_ELSEWHERE = 1 << 26


@dataclass(frozen=True, eq=False)
class Factors:
    """What the rows or the columns of a matrix contribute, in the dtype of the matrix.

    Attributes:
        scale: Roots of the diagonals of both kernels. shape: (2, n)
        features: Functions of the norms. shape: (n, rank)
    """

    scale: Tensor
    features: Tensor

    def __getitem__(self, part: slice) -> "Factors":
        return Factors(self.scale[:, part], self.features[part])


def evaluate(
    surface: Surface, rows: Factors, columns: Factors, cosine: Tensor, out: tuple[Tensor, Tensor]
) -> None:
    """Write both kernels of a block into ``out``; the cosines are used up."""
    low, high = surface.angles
    angle = cosine.clamp_(-1.0, 1.0).acos_()
    t = angle.sub_((low + high) / 2).mul_(2 / (high - low)).clamp_(-1.0, 1.0)
    width = max(1, surface.coefficients.shape[-1] + 2 * surface.rank)
    work = _WORK if t.device.type == "cpu" else _WORK_ELSEWHERE
    step = max(1, work // (width * t.shape[1]))
    block = _constant_block if surface.rank == 1 else _block
    for start in range(0, len(t), step):
        part = slice(start, start + step)
        block(surface, rows[part], columns, t[part], [k[part] for k in out])


def _constant_block(
    surface: Surface, rows: Factors, columns: Factors, t: Tensor, out: list[Tensor]
) -> None:
    """One function of the angle, times scales."""
    coefficients = surface.coefficients[:, 0, 0].to(t)
    basis = chebyshev_basis(t.reshape(-1), coefficients.shape[1] - 1)
    values = (coefficients @ basis).view(2, *t.shape)
    for q in range(2):
        torch.mul(values[q].mul_(rows.scale[q, :, None]), columns.scale[q], out=out[q])


def _block(surface: Surface, rows: Factors, columns: Factors, t: Tensor, out: list[Tensor]) -> None:
    """Each row is a function of the angle and the other norm: a product of small matrices."""
    count, size = t.shape
    degree = surface.coefficients.shape[-1] - 1
    series = torch.einsum("nr,qrsk->nqsk", rows.features, surface.coefficients.to(t))
    series = series * rows.scale.T[:, :, None, None]
    basis = chebyshev_basis(t.reshape(-1), degree).view(degree + 1, count, size)
    sums = torch.bmm(series.flatten(1, 2), basis.transpose(0, 1)).view(count, 2, -1, size)
    weights = columns.features.T * columns.scale[:, None]  # shape: (2, rank, size)
    for q in range(2):
        torch.sum(sums[:, q].mul_(weights[q]), dim=1, out=out[q])
