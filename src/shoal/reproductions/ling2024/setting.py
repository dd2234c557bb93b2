"""What the experiments of Ling 2024 have in common: networks, and their equivalents' errors."""

import warnings
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

import shoal
from shoal.architectures import DEQ
from shoal.equivalents import Equivalent
from shoal.linalg import symmetric_norm

__all__ = [
    "FORMS",
    "PAPER_GROUPS",
    "Kind",
    "difference_norm",
    "equivalent_of",
    "matrix_norm",
]

Kind = Literal["ck", "ntk"]

# The NTK of the paper, K* = G*/(1 − σ_a²Ė*), is that of these groups.
PAPER_GROUPS = ("readout", "recurrent")

# "paper": the form with V of Theorems 3.3 and 3.4, "norms": shoal's form; both for the DEQ centered
# at the τ_0 of the mixture, and with the constants of the mixture. "measured": shoal's form for the
# DEQ centered at the samples' own root mean square norm, and without knowing the mixture.
FORMS = ("paper", "norms", "measured")


def equivalent_of(
    form: str,
    deq: DEQ,
    x: Tensor,
    labels: Tensor,
    mixture: shoal.GaussianMixture | None = None,
    *,
    trainable: Sequence[str] = PAPER_GROUPS,
) -> Equivalent:
    """The equivalent in one of the forms; data without a known mixture has two of them.

    ``coefficients.architecture`` of the result is the centered DEQ that it stands for.
    """
    with warnings.catch_warnings():
        # how far samples are from the theory is what the experiments are about
        warnings.simplefilter("ignore", UserWarning)
        if form == "paper":
            return shoal.equivalent(
                deq, x, labels, trainable=trainable, mixture=mixture, form="paper"
            )
        if form == "norms" and mixture is not None:
            return shoal.equivalent(
                deq, x, labels, trainable=trainable, mixture=mixture, tau0=mixture.tau0
            )
        return shoal.equivalent(deq, x, labels, trainable=trainable)


def matrix_norm(matrix: Tensor) -> float:
    """The spectral norm of a symmetric matrix."""
    return symmetric_norm(lambda v: matrix @ v, len(matrix), device=matrix.device)


def difference_norm(matrix: Tensor, other: Callable[[Tensor], Tensor]) -> float:
    """The spectral norm of a symmetric matrix less one that is known by its products."""
    return symmetric_norm(lambda v: matrix @ v - other(v), len(matrix), device=matrix.device)
