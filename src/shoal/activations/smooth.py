"""Analytic activations: sigmoids, smooth rectifiers, sine and cosine."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shoal.activations.base import Activation
from shoal.activations.bounds import ERROR, Evaluated, Smoothness, exponential, logarithm
from shoal.activations.closed_forms import ClosedForm, ErfForm, GELUForm, WaveForm
from shoal.core.rounding import ROUND_UP, UNIT

_SWISH_SLOPE = 1.09984  # the largest slope is 1.099839319..., where x tanh(x/2) = 2


@dataclass(frozen=True)
class _Analytic(Activation):
    """An activation without kinks."""

    _kinks: ClassVar[tuple[float, ...]] = ()


@dataclass(frozen=True)
class Tanh(_Analytic):
    r"""$\varphi(x) = \tanh x$."""

    _expression: ClassVar[str] = "torch.tanh(x)"
    _curvature: ClassVar[float] = 4 / (3 * math.sqrt(3)) * ROUND_UP
    _lipschitz: ClassVar[float] = 1.0

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.tanh(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $1 - \tanh^2 x$."""
        return 1 - torch.tanh(x) ** 2

    def evaluated(self, x: Tensor) -> Evaluated:
        """Value and slope, by an exponential with a proved error."""
        e = exponential(2 * x.abs())
        return Evaluated.by_exponential(x.sign() * (1 - e) / (1 + e), 4 * e / (1 + e) ** 2)


@dataclass(frozen=True)
class Sigmoid(_Analytic):
    r"""$\varphi(x) = 1 / (1 + e^{-x})$."""

    _expression: ClassVar[str] = "torch.sigmoid(x)"
    _curvature: ClassVar[float] = 1 / (6 * math.sqrt(3)) * ROUND_UP
    _lipschitz: ClassVar[float] = 0.25

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.sigmoid(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $\varphi(x) \varphi(-x)$."""
        return torch.sigmoid(x) * torch.sigmoid(-x)

    def evaluated(self, x: Tensor) -> Evaluated:
        """Value and slope, by an exponential with a proved error."""
        e = exponential(x.abs())
        values = torch.where(x >= 0, 1.0, e) / (1 + e)
        return Evaluated.by_exponential(values, e / (1 + e) ** 2)


@dataclass(frozen=True)
class Erf(_Analytic):
    r"""$\varphi(x) = \frac{2}{\sqrt\pi} \int_0^x e^{-t^2} dt$."""

    _expression: ClassVar[str] = "torch.erf(x)"
    _curvature: ClassVar[float] = math.sqrt(8 / (math.pi * math.e)) * ROUND_UP
    _lipschitz: ClassVar[float] = 2 / math.sqrt(math.pi)
    _form: ClassVar[ClosedForm] = ErfForm()  # Williams 1997

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.erf(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $\frac{2}{\sqrt\pi} e^{-x^2}$."""
        return 2 / math.sqrt(math.pi) * torch.exp(-x * x)


@dataclass(frozen=True)
class Swish(_Analytic):
    r"""$\varphi(x) = x / (1 + e^{-x})$, also called SiLU."""

    _expression: ClassVar[str] = "x * torch.sigmoid(x)"

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return x * torch.sigmoid(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative."""
        return torch.sigmoid(x) * (1 + x * torch.sigmoid(-x))

    def smoothness(self) -> Smoothness:
        """The curvature is largest at zero."""
        return Smoothness(_SWISH_SLOPE, (), 0.0, curvature=1 / 2)

    def evaluated(self, x: Tensor) -> Evaluated:
        """Value and slope, by an exponential with a proved error."""
        share = Sigmoid().evaluated(x)
        values, slopes = x * share.values, share.values + x * share.slopes
        error = ERROR * (2 + 2 * x.abs())  # roundings are a small part of it
        return Evaluated(values, slopes, error, error, proved=True)


@dataclass(frozen=True)
class GELU(_Analytic):
    r"""$\varphi(x) = x \Phi(x)$, with $\Phi$ the Gaussian distribution function."""

    _expression: ClassVar[str] = "x * torch.erfc(x * -math.sqrt(0.5)) / 2"
    _curvature: ClassVar[float] = math.sqrt(2 / math.pi) * ROUND_UP
    _form: ClassVar[ClosedForm] = GELUForm()  # by Stein's identity

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

    _expression: ClassVar[str] = "-nn.functional.logsigmoid(-x)"
    _curvature: ClassVar[float] = 1 / 4  # at zero
    _lipschitz: ClassVar[float] = 1.0

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return -torch.nn.functional.logsigmoid(-x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the sigmoid."""
        return torch.sigmoid(x)

    def evaluated(self, x: Tensor) -> Evaluated:
        """Value and slope, by an exponential with a proved error."""
        e = exponential(x.abs())
        values = x.clamp(min=0) + logarithm(e)
        evaluated = Evaluated.by_exponential(values, torch.where(x >= 0, 1.0, e) / (1 + e))
        return evaluated._replace(error=evaluated.error + 2 * UNIT * values)


@dataclass(frozen=True)
class Mish(_Analytic):
    r"""$\varphi(x) = x \tanh\log(1 + e^x)$."""

    _expression: ClassVar[str] = "nn.functional.mish(x)"

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        # that of torch has third derivatives of NaN where exp(x) overflows
        return x * torch.tanh(torch.nn.functional.softplus(x))

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative."""
        tanh = torch.tanh(torch.nn.functional.softplus(x))
        return tanh + x * torch.sigmoid(x) * (1 - tanh * tanh)


@dataclass(frozen=True)
class Sine(_Analytic):
    r"""$\varphi(x) = \sin x$."""

    _expression: ClassVar[str] = "torch.sin(x)"
    _curvature: ClassVar[float] = 1.0
    _lipschitz: ClassVar[float] = 1.0
    _form: ClassVar[ClosedForm] = WaveForm(even=False)

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.sin(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the cosine."""
        return torch.cos(x)


@dataclass(frozen=True)
class Cosine(_Analytic):
    r"""$\varphi(x) = \cos x$."""

    _expression: ClassVar[str] = "torch.cos(x)"
    _curvature: ClassVar[float] = 1.0
    _lipschitz: ClassVar[float] = 1.0
    _form: ClassVar[ClosedForm] = WaveForm(even=True)

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return torch.cos(x)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate minus the sine."""
        return -torch.sin(x)


def _normal_distribution(x: Tensor) -> Tensor:
    """The Gaussian distribution function, its left tail with full relative accuracy."""
    return torch.erfc(x * -math.sqrt(0.5)) / 2
