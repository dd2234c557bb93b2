r"""Determinants from random vectors."""

import torch
from torch import Tensor

from shoal.exceptions import ConvergenceError
from shoal.kernels.conjugate_gradients import Map
from shoal.regression.preconditioners import Diagonal, LowRank

__all__ = ["logdet_samples"]


def logdet_samples(
    product: Map,
    near: Diagonal | LowRank,
    probes: Tensor,
    *,
    rtol: float,
    max_steps: int,
) -> Tensor:
    r"""Unbiased samples of $\log\det A$ by preconditioned Lanczos quadrature.

    $\log\det A = \log\det M + \mathrm{tr} \log(M^{-1/2} A M^{-1/2})$; conjugate gradients with the
    right-hand sides $M^{1/2} \epsilon$ give Gauss quadratures of $\epsilon^T \log(\cdot) \epsilon$.

    Args:
        product: $V \mapsto AV$.
        near: $M$.
        probes: $\epsilon$, columns of signs. shape: (n, q)
        rtol: Where the iterations end, relative to their start, in the norm of $M^{-1}$.
        max_steps: Most steps.

    Raises:
        ConvergenceError: If these are not enough.
    """
    residual = near.root(probes)
    direction = near.solve(residual)
    energy = first = (residual * direction).sum(0)
    lengths: list[Tensor] = []
    ratios: list[Tensor] = []
    while bool((energy > rtol**2 * first).any()):
        if len(lengths) == max_steps:
            reached = float((energy / first).max().sqrt())
            raise ConvergenceError(
                f"the quadrature reached a relative residual of {reached:.1e} instead of "
                f"{rtol:.1e} in {max_steps} steps: take a better preconditioner, or a larger ridge"
            )
        image = product(direction)
        lengths.append(energy / (direction * image).sum(0))
        residual = residual - lengths[-1] * image
        step = near.solve(residual)
        previous, energy = energy, (residual * step).sum(0)
        ratios.append(energy / previous)
        direction = step + ratios[-1] * direction
    length, ratio = torch.stack(lengths, 1), torch.stack(ratios, 1)  # shapes: (q, steps)
    diagonal = 1 / length
    diagonal[:, 1:] += ratio[:, :-1] / length[:, :-1]
    beside = (ratio[:, :-1].sqrt() / length[:, :-1]).diag_embed(1)
    values, vectors = torch.linalg.eigh(diagonal.diag_embed() + beside + beside.mT)
    inside: Tensor = (vectors[:, 0].square() * values.log()).sum(1)
    return near.logdet() + first * inside
