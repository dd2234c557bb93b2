"""Piecewise elementary activations: ReLU, LeakyReLU, HardTanh, ELU, Identity."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shoal.activations.base import Activation
from shoal.activations.bounds import ERROR, Evaluated, Smoothness, exponential
from shoal.activations.closed_forms import ArcCosineForm, ClosedForm, LinearForm
from shoal.core.checks import real
from shoal.core.rounding import up


@dataclass(frozen=True)
class _Lines(Activation):
    """An activation of straight lines, whose slope jumps at its kinks."""

    _homogeneous: ClassVar[bool] = True
    _kinks: ClassVar[tuple[float, ...]] = (0.0,)
    _lipschitz: ClassVar[float] = 1.0

    @property
    def _jump(self) -> float:
        """The sum of the sizes of all jumps of the slope."""
        return 1.0

    def smoothness(self) -> Smoothness:
        """Exact bounds."""
        return Smoothness(self.lipschitz, self.kink_locations or (), self._jump, curvature=0.0)

    def evaluated(self, x: Tensor) -> Evaluated:
        """Exact but for one rounding."""
        return Evaluated.of_lines(self(x), self.derivative(x))


@dataclass(frozen=True)
class Identity(_Lines):
    r"""$\varphi(x) = x$."""

    _expression: ClassVar[str] = "x"
    _form: ClassVar[ClosedForm] = LinearForm()
    _kinks: ClassVar[tuple[float, ...]] = ()

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return x

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative."""
        return torch.ones_like(x)

    @property
    def _jump(self) -> float:
        return 0.0


@dataclass(frozen=True)
class ReLU(_Lines):
    r"""$\varphi(x) = \max(x, 0)$."""

    _expression: ClassVar[str] = "torch.relu(x)"
    _form: ClassVar[ClosedForm] = ArcCosineForm(0.0)

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.relu(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative away from zero."""
        return (x > 0).to(x.dtype)


@dataclass(frozen=True)
class LeakyReLU(_Lines):
    r"""$\varphi(x) = \max(x, 0) + s \min(x, 0)$.

    Args:
        slope: The slope $s$ of the negative part; any real number.
    """

    slope: float = 0.01

    _expression: ClassVar[str] = "torch.where(x > 0, x, {slope!r} * x)"

    def __post_init__(self) -> None:
        object.__setattr__(self, "slope", real("slope", self.slope))

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.where(x > 0, x, self.slope * x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative away from zero."""
        return torch.where(x > 0, torch.ones_like(x), self.slope)

    @property
    def lipschitz(self) -> float:
        """The larger of the two slopes."""
        return max(1.0, abs(self.slope))

    @property
    def _jump(self) -> float:
        return up(math.fabs(1 - self.slope))

    def closed_form(self) -> ClosedForm:
        """The arc-cosine kernel with a slope."""
        return ArcCosineForm(self.slope)


@dataclass(frozen=True)
class HardTanh(_Lines):
    r"""$\varphi(x) = \min(\max(x, -c), c)$.

    Args:
        bound: The bound $c > 0$.
    """

    bound: float = 1.0

    _expression: ClassVar[str] = "x.clamp(-{bound!r}, {bound!r})"
    _homogeneous: ClassVar[bool] = False

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
    def _jump(self) -> float:
        return 2.0


@dataclass(frozen=True)
class ELU(Activation):
    r"""$\varphi(x) = x$ for $x > 0$ and $\alpha (e^x - 1)$ otherwise.

    Args:
        alpha: Minus the limit at $-\infty$; any real number.
    """

    alpha: float = 1.0

    _expression: ClassVar[str] = "torch.where(x > 0, x, {alpha!r} * torch.expm1(x.clamp(max=0.0)))"
    _kinks: ClassVar[tuple[float, ...]] = (0.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", real("alpha", self.alpha))

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.where(x > 0, x, self.alpha * torch.expm1(x.clamp(max=0.0)))

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative away from zero."""
        return torch.where(x > 0, torch.ones_like(x), self.alpha * torch.exp(x.clamp(max=0.0)))

    @property
    def lipschitz(self) -> float:
        r"""The larger of one and $|\alpha|$."""
        return max(1.0, abs(self.alpha))

    def smoothness(self) -> Smoothness:
        r"""$|\alpha|$ bounds the curvature."""
        jump = up(math.fabs(1 - self.alpha))
        return Smoothness(self.lipschitz, (0.0,) if jump else (), jump, math.fabs(self.alpha))

    def evaluated(self, x: Tensor) -> Evaluated:
        """Value and slope, by an exponential with a proved error."""
        e = exponential((-x).clamp(min=0))
        values = torch.where(x > 0, x, self.alpha * (e - 1))
        slopes = torch.where(x > 0, 1.0, self.alpha * e)
        error = torch.full_like(x, ERROR * math.fabs(self.alpha))
        return Evaluated(values, slopes, error, error, proved=True)
