"""Low-rank form of a coefficient tensor: a small core and one thin factor per axis."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .series import mode_product


@dataclass(frozen=True, eq=False)
class Tucker:
    r"""The tensor :math:`C_{ijk} = \sum_{abc} G_{abc} U_{ia} V_{jb} W_{kc}`.

    Args:
        core: The core G. shape: (rank_0, rank_1, ...)
        factors: The matrices U, V, W. shapes: (size_axis, rank_axis)

    Example:
        >>> low_rank = hosvd(torch.ones(4, 5, dtype=torch.float64), 1e-12)
        >>> low_rank.core.shape, low_rank.dense().shape
        (torch.Size([1, 1]), torch.Size([4, 5]))
    """

    core: Tensor
    factors: tuple[Tensor, ...]

    def dense(self) -> Tensor:
        """Return the full tensor."""
        tensor = self.core
        for axis, factor in enumerate(self.factors):
            tensor = mode_product(factor, tensor, axis)
        return tensor


def hosvd(tensor: Tensor, budget: float) -> Tucker:
    """Return the sequentially truncated higher-order SVD within a Frobenius distance.

    Args:
        tensor: The tensor to compress.
        budget: Largest Frobenius norm of the difference; the axes share it equally in square
            (Vannieuwenhoven, Vandebril and Meerbergen, SIAM J. Sci. Comput. 34, 2012).

    Example:
        >>> hosvd(torch.eye(3, dtype=torch.float64), 1.01).core.shape
        torch.Size([3, 3])
    """
    core, factors = tensor, []
    allowed = budget * budget / tensor.ndim
    for axis in range(tensor.ndim):
        unfolded = core.movedim(axis, 0).flatten(1) if core.ndim > 1 else core[:, None]
        left, singular, _ = torch.linalg.svd(unfolded, full_matrices=False)
        discarded = singular.square().flip(0).cumsum(0).flip(0)  # if kept ranks end before here
        rank = max(1, int((discarded > allowed).sum()))
        factors.append(left[:, :rank].contiguous())
        core = mode_product(factors[-1].T, core, axis)
    return Tucker(core.contiguous(), tuple(factors))


def contract(core: Tensor, bases: Sequence[Tensor]) -> Tensor:
    """Return the sum over all indices of core times one basis per axis, for every point.

    The bases of all axes but the largest are multiplied out, one matrix product takes the core to
    the largest axis, and a dot product finishes: few operations on long rows.

    Args:
        core: Coefficients. shape: (r_0, r_1, ...)
        bases: One matrix per axis. shapes: (r_axis, n)

    Returns:
        The values. shape: (n,)

    Example:
        >>> ones = torch.ones(2, 5)
        >>> contract(torch.ones(2, 2), [ones, ones])
        tensor([4., 4., 4., 4., 4.])
    """
    *others, last = sorted(range(core.ndim), key=lambda axis: core.shape[axis])
    if not others:
        return core @ bases[last]
    product = bases[others[0]]
    for axis in others[1:]:
        product = (product[:, None] * bases[axis]).flatten(0, 1)
    matrix = core.permute(last, *others).flatten(1)
    return (matrix @ product).mul_(bases[last]).sum(0)
