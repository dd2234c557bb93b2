"""What the experiments of Ling 2024 have in common: networks, and their equivalents' errors."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

import shoal
from shoal.architectures import DEQ
from shoal.equivalents import Equivalent
from shoal.linalg import Operator, symmetric_norm

Kind = Literal["ck", "ntk"]

# The NTK of the paper, K* = G*/(1 − σ_a²Ė*), is that of these groups.
PAPER_GROUPS = ("readout", "recurrent")


class Sample(NamedTuple):
    """Inputs as rows, their classes, and the mixture that they are drawn from, if it is known."""

    x: Tensor
    labels: Tensor
    mixture: shoal.GaussianMixture | None = None


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
        options: dict[str, Any] = {}
        if form == "paper":
            options = {"mixture": mixture, "form": "paper"}
        elif form == "norms" and mixture is not None:
            options = {"mixture": mixture, "tau0": mixture.tau0}
        return shoal.equivalent(deq, x, labels, trainable=trainable, **options)


def difference_norm(matrix: Tensor, less: Operator | None = None) -> float:
    """The norm of a symmetric matrix, or of what it has more than an operator."""

    def product(v: Tensor) -> Tensor:
        return matrix @ v if less is None else matrix @ v - less @ v

    return symmetric_norm(product, len(matrix), device=matrix.device)
