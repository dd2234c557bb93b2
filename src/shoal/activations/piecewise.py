"""Piecewise elementary activations: ReLU, LeakyReLU, HardTanh, ELU, Identity."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations.base import Activation
from shoal.checks import real

__all__ = ["ELU", "HardTanh", "Identity", "LeakyReLU", "ReLU"]


@dataclass(frozen=True)
class Identity(Activation):
    r"""$\varphi(x) = x$."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return x

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative."""
        return torch.ones_like(x)

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """None."""
        return ()

    @property
    def positively_homogeneous(self) -> bool:
        """It is."""
        return True

    @property
    def lipschitz(self) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class ReLU(Activation):
    r"""$\varphi(x) = \max(x, 0)$."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.relu(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative away from zero."""
        return (x > 0).to(x.dtype)

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """Zero."""
        return (0.0,)

    @property
    def positively_homogeneous(self) -> bool:
        """It is."""
        return True

    @property
    def lipschitz(self) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class LeakyReLU(Activation):
    r"""$\varphi(x) = \max(x, 0) + s \min(x, 0)$.

    Args:
        slope: The slope $s$ of the negative part; any real number.
    """

    slope: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "slope", real("slope", self.slope))

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.where(x > 0, x, self.slope * x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative away from zero."""
        return torch.where(x > 0, torch.ones_like(x), self.slope)

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """Zero."""
        return (0.0,)

    @property
    def positively_homogeneous(self) -> bool:
        """It is."""
        return True

    @property
    def lipschitz(self) -> float:
        """The larger of the two slopes."""
        return max(1.0, abs(self.slope))


@dataclass(frozen=True)
class HardTanh(Activation):
    r"""$\varphi(x) = \min(\max(x, -c), c)$.

    Args:
        bound: The bound $c > 0$.
    """

    bound: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", real("bound", self.bound, above=0.0))

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return x.clamp(-self.bound, self.bound)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative away from the two kinks."""
        return (x.abs() < self.bound).to(x.dtype)

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """The two bounds."""
        return (-self.bound, self.bound)

    @property
    def lipschitz(self) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class ELU(Activation):
    r"""$\varphi(x) = x$ for $x > 0$ and $\alpha (e^x - 1)$ otherwise.

    Args:
        alpha: Minus the limit at $-\infty$; any real number.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", real("alpha", self.alpha))

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.where(x > 0, x, self.alpha * torch.expm1(x.clamp(max=0.0)))

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative away from zero."""
        return torch.where(x > 0, torch.ones_like(x), self.alpha * torch.exp(x.clamp(max=0.0)))

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """Zero."""
        return (0.0,)

    @property
    def lipschitz(self) -> float:
        r"""The larger of one and $|\alpha|$."""
        return max(1.0, abs(self.alpha))
