r"""What training makes of an eigendirection of the NTK: how much of its error is left.

At infinite width the errors $f - y$ on the training set obey a linear equation, and each
eigendirection of the NTK $\Theta$, of eigenvalue $\lambda$, goes its own way. A direction with
$\lambda = 0$ is never learned, also in the limit of infinite time.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_LOWEST = -1e300  # a logarithm of zero that zero steps can multiply


class Dynamics(Protocol):
    """How the error of a direction shrinks."""

    def left(self, eigenvalues: Tensor, time: float) -> Tensor:
        """The share of the initial error that is left."""
        ...

    def learned(self, eigenvalues: Tensor, time: float) -> Tensor:
        """One minus that, without cancellation."""
        ...


@dataclass(frozen=True)
class Flow:
    r"""Gradient flow, $\dot f = -\Theta(f - y)$: the error shrinks like $e^{-\lambda t}$.

    Example:
        >>> import torch
        >>> Flow().left(torch.tensor([0.0, 1.0]), float("inf"))
        tensor([1., 0.])
    """

    def left(self, eigenvalues: Tensor, time: float) -> Tensor:
        r"""$e^{-\lambda t}$."""
        return torch.where(eigenvalues > 0, torch.exp(-eigenvalues * time), 1.0)

    def learned(self, eigenvalues: Tensor, time: float) -> Tensor:
        r"""$1 - e^{-\lambda t}$."""
        return torch.where(eigenvalues > 0, -torch.expm1(-eigenvalues * time), 0.0)


@dataclass(frozen=True)
class Descent:
    r"""Gradient descent: the error shrinks like $(1 - \eta\lambda)^k$ in $k$ steps of size $\eta$.

    Example:
        >>> import torch
        >>> Descent(0.5).left(torch.tensor([0.0, 1.0, 3.0]).double(), 2)
        tensor([1.0000, 0.2500, 0.2500], dtype=torch.float64)
    """

    step_size: float

    def left(self, eigenvalues: Tensor, time: float) -> Tensor:
        r"""$(1 - \eta\lambda)^k$."""
        logarithm, negative = self._power(eigenvalues, time)
        return torch.exp(logarithm) * torch.where(negative, -1.0, 1.0)

    def learned(self, eigenvalues: Tensor, time: float) -> Tensor:
        r"""$1 - (1 - \eta\lambda)^k$."""
        logarithm, negative = self._power(eigenvalues, time)
        return torch.where(negative, 1 + torch.exp(logarithm), -torch.expm1(logarithm))

    def _power(self, eigenvalues: Tensor, time: float) -> tuple[Tensor, Tensor]:
        r"""The logarithm of $|1 - \eta\lambda|^k$, and whether the power is negative."""
        progress = self.step_size * eigenvalues
        # with progress near 0 or 2, its distance to 1 alone would lose digits
        logarithm = torch.log1p(-torch.minimum(progress, 2 - progress)).clamp(min=_LOWEST) * time
        return torch.where(eigenvalues > 0, logarithm, 0.0), (progress > 1) & (time % 2 == 1)
