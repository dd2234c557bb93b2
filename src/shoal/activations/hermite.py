"""Finite Hermite series as activations."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations.base import Activation
from shoal.checks import real

__all__ = ["Hermite"]


@dataclass(frozen=True)
class Hermite(Activation):
    r"""$\varphi(x) = \sum_k s_k h_k(x / r)$, $h_k$ the normalised probabilists' polynomials.

    Args:
        coefficients: $s_0, s_1, \dots$; at least one.
        scale: The scale $r > 0$ at which the polynomials are orthonormal.

    Example:
        >>> import torch
        >>> from shoal.activations import Hermite
        >>> Hermite((2.0, 3.0), scale=2.0)(torch.tensor([0.0, 1.0, 4.0]))  # 2 + 3 x/2
        tensor([2.0000, 3.5000, 8.0000])
    """

    coefficients: tuple[float, ...]
    scale: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.coefficients, str) or not isinstance(self.coefficients, Iterable):
            raise TypeError(f"coefficients must be a sequence, got {self.coefficients!r}")
        checked = tuple(real(f"coefficients[{k}]", s) for k, s in enumerate(self.coefficients))
        if not checked:
            raise ValueError("coefficients must not be empty")
        object.__setattr__(self, "coefficients", checked)
        object.__setattr__(self, "scale", real("scale", self.scale, above=0.0))

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the series by Clenshaw's recurrence."""
        t = x / self.scale
        ahead, after = torch.zeros_like(t), torch.zeros_like(t)
        for k in range(len(self.coefficients) - 1, -1, -1):
            # h_{k+1} = (t h_k - √k h_{k-1}) / √(k+1)
            step = t * ahead / math.sqrt(k + 1) - math.sqrt((k + 1) / (k + 2)) * after
            ahead, after = self.coefficients[k] + step, ahead
        return ahead

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $\sum_k \sqrt{k} s_k h_{k-1}(x / r) / r$."""
        return self.differentiated().function(x)

    def differentiated(self) -> "Hermite":
        """The derivative, a Hermite series again."""
        slopes = [math.sqrt(k) * s / self.scale for k, s in enumerate(self.coefficients)]
        return Hermite(tuple(slopes[1:]) or (0.0,), self.scale)

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """None."""
        return ()

    @property
    def lipschitz(self) -> float:
        """Infinite from degree two on."""
        slopes = self.differentiated().coefficients
        return math.inf if any(slopes[1:]) else abs(slopes[0])
