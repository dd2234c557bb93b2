"""What the prediction of a training returns."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from shoal.convergence.linear import LinearTraining

__all__ = ["GradientFlow"]


@dataclass(frozen=True, eq=False)
class GradientFlow:
    r"""The training of an infinitely wide network at some times $t_1, \dots, t_T$.

    If the initial function is random, all means and deviations are over the draw of the weights,
    and what is random is Gaussian. Outputs are independent of each other and have the same
    covariances.

    Attributes:
        times: The times, of shape (T,); for gradient descent the number of steps times their size.
        steps: The numbers of steps of gradient descent; ``None`` for gradient flow.
        loss: The (expected) training loss, of shape (T,).
        loss_std: Its standard deviation; ``None`` if the initial function is given.
        train_mean: The (mean) predictions at the training inputs, of shape (T, n) or (T, n, k) as
            the labels have shape (n,) or (n, k).
        test_mean: Those at the test inputs; ``None`` if there are none.
        test_std: The standard deviation of a prediction at each test input, of shape (T, m);
            ``None`` if the initial function is given, or the deviation was not asked for.
        test_covariance: The covariances between test inputs, of shape (T, m, m), if asked for.
        training: What it was computed with: predictions at other times, the time that a loss
            takes, the largest stable step size.
    """

    times: Tensor
    steps: Tensor | None
    loss: Tensor
    loss_std: Tensor | None
    train_mean: Tensor
    test_mean: Tensor | None
    test_std: Tensor | None
    test_covariance: Tensor | None
    training: "LinearTraining" = field(repr=False)
