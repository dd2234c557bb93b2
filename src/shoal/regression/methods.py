"""Ways to solve a regression, with their options."""

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal

import torch

from shoal.core.checks import integer, real
from shoal.regression.preconditioners import Nystrom, Preconditioner

__all__ = ["Cholesky", "ConjugateGradients"]


@dataclass(frozen=True, kw_only=True)
class Cholesky:
    r"""Form and factor the matrix in place, in $8n^2$ bytes.

    Args:
        precision: The dtype of the factor. With ``torch.float32``, half the memory, solutions are
            refined in float64.
        tolerance: Largest $\|y - (K + \lambda I)\alpha\| / \|y\|$ of each column.
    """

    precision: torch.dtype = torch.float64
    tolerance: float = 1e-6

    name: ClassVar[Literal["cholesky"]] = "cholesky"

    def __post_init__(self) -> None:
        _check(self.precision, self.tolerance)


@dataclass(frozen=True)
class ConjugateGradients:
    r"""Iterate with products, for which the matrix need not exist as a whole.

    Args:
        preconditioner: :class:`Nystrom`, :class:`EquivalentPreconditioner`,
            :class:`CombinedPreconditioner`, :class:`DiagonalPreconditioner`, or none at all with
            ``None``.
        tolerance: Largest $\|y - (K + \lambda I)\alpha\| / \|y\|$ of each column.
        max_steps: Most steps.
        precision: The dtype in which the matrix is kept and multiplied. With ``torch.float32``
            steps are cheaper and take half the memory, entries that are not kept are made in that
            precision too, and true residuals are computed in float64, two or three times in all:
            from these the iteration starts again (see
            :func:`~shoal.linalg.conjugate_gradients`). It converges where the error of products is
            below half of the ridge. Of entries that are not kept it is about 1e-8 of the diagonal
            times n, and 1e-4 where inputs have copies.

    Example:
        >>> import shoal
        >>> shoal.ConjugateGradients(shoal.Nystrom(rank=200, seed=1), tolerance=1e-9).max_steps
        1000
    """

    preconditioner: Preconditioner | None = field(default_factory=Nystrom)
    _: KW_ONLY
    tolerance: float = 1e-6
    max_steps: int = 1000
    precision: torch.dtype = torch.float64

    name: ClassVar[Literal["cg"]] = "cg"

    def __post_init__(self) -> None:
        if self.preconditioner is not None and not isinstance(self.preconditioner, Preconditioner):
            raise TypeError(
                "preconditioner must be None or one such as shoal.Nystrom(rank=1000), "
                f"got {self.preconditioner!r}"
            )
        integer("max_steps", self.max_steps, at_least=1)
        _check(self.precision, self.tolerance)


def _check(precision: torch.dtype, tolerance: float) -> None:
    if precision not in (torch.float32, torch.float64):
        raise ValueError(f"precision must be torch.float32 or torch.float64, got {precision!r}")
    real("tolerance", tolerance, above=0.0)
