"""Analytic activations: sigmoids, smooth rectifiers, sine and cosine."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations.base import Activation
from shoal.checks import real

__all__ = ["GELU", "Cosine", "Erf", "Sigmoid", "Sine", "Sinusoid", "Softplus", "Swish", "Tanh"]


@dataclass(frozen=True)
class _Analytic(Activation):
    """An activation without kinks."""

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """None."""
        return ()


@dataclass(frozen=True)
class Tanh(_Analytic):
    r"""$\varphi(x) = \tanh x$."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.tanh(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $1 - \tanh^2 x$."""
        return 1 - torch.tanh(x) ** 2

    @property
    def lipschitz(self) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class Sigmoid(_Analytic):
    r"""$\varphi(x) = 1 / (1 + e^{-x})$."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.sigmoid(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $\varphi(x) \varphi(-x)$."""
        return torch.sigmoid(x) * torch.sigmoid(-x)

    @property
    def lipschitz(self) -> float:
        """One quarter."""
        return 0.25


@dataclass(frozen=True)
class Erf(_Analytic):
    r"""$\varphi(x) = \frac{2}{\sqrt\pi} \int_0^x e^{-t^2} dt$."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.erf(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $\frac{2}{\sqrt\pi} e^{-x^2}$."""
        return 2 / math.sqrt(math.pi) * torch.exp(-x * x)

    @property
    def lipschitz(self) -> float:
        r"""$2 / \sqrt\pi$."""
        return 2 / math.sqrt(math.pi)


@dataclass(frozen=True)
class Swish(_Analytic):
    r"""$\varphi(x) = x / (1 + e^{-x})$, also called SiLU."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return x * torch.sigmoid(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative."""
        return torch.sigmoid(x) * (1 + x * torch.sigmoid(-x))


@dataclass(frozen=True)
class GELU(_Analytic):
    r"""$\varphi(x) = x \Phi(x)$, with $\Phi$ the Gaussian distribution function."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return x * _normal_distribution(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative."""
        density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return _normal_distribution(x) + x * density

    @property
    def lipschitz(self) -> float:
        r"""The value of $\varphi'$ at $x = \sqrt 2$, where $\varphi''$ vanishes."""
        return float(self.first_derivative(torch.tensor(math.sqrt(2), dtype=torch.float64)))


@dataclass(frozen=True)
class Softplus(_Analytic):
    r"""$\varphi(x) = \log(1 + e^x)$."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return -torch.nn.functional.logsigmoid(-x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the sigmoid."""
        return torch.sigmoid(x)

    @property
    def lipschitz(self) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class Sine(_Analytic):
    r"""$\varphi(x) = \sin x$."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.sin(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the cosine."""
        return torch.cos(x)

    @property
    def lipschitz(self) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class Cosine(_Analytic):
    r"""$\varphi(x) = \cos x$."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.cos(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate minus the sine."""
        return -torch.sin(x)

    @property
    def lipschitz(self) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class Sinusoid(_Analytic):
    r"""$\varphi(x) = \sin(\omega x + \theta) + sx$.

    Args:
        frequency: $\omega > 0$.
        phase: $\theta$; any real number.
        slope: $s$; any real number.
    """

    frequency: float = 1.0
    phase: float = 0.0
    slope: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "frequency", real("frequency", self.frequency, above=0.0))
        object.__setattr__(self, "phase", real("phase", self.phase))
        object.__setattr__(self, "slope", real("slope", self.slope))

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.sin(self.frequency * x + self.phase) + self.slope * x

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the cosine times the frequency, plus the slope."""
        return self.frequency * torch.cos(self.frequency * x + self.phase) + self.slope

    @property
    def lipschitz(self) -> float:
        """The frequency plus the absolute slope."""
        return self.frequency + abs(self.slope)


def _normal_distribution(x: Tensor) -> Tensor:
    """The Gaussian distribution function, its left tail with full relative accuracy."""
    return torch.erfc(x * -math.sqrt(0.5)) / 2
