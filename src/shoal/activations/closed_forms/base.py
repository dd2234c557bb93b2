r"""What an activation's Gaussian expectations are, where they are known in closed form."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class ClosedForm(ABC):
    r"""Mean, covariance and derivative dual of an activation, as functions of tensors.

    $(u, v)$ is a centred Gaussian pair with variances $a$, $b$ and covariance $c$, float64 tensors
    of one shape. Splitting the dual of $\varphi$ into covariance and means keeps its digits when an
    activation is shifted (:class:`~shoal.activations.Affine`), above all when it is centred.
    """

    analytic: bool = True
    """Whether autograd may differentiate these expressions on the whole closed domain."""

    @abstractmethod
    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$, u ~ N(0, a)."""

    @abstractmethod
    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)\varphi(v)] - \mathbb{E}[\varphi(u)]\mathbb{E}[\varphi(v)]$."""

    @abstractmethod
    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""

    def dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)\varphi(v)]$."""
        return self.covariance(a, b, c) + self.mean(a) * self.mean(b)

    def coefficients(self, tau: Tensor, order: int) -> Tensor | None:  # noqa: ARG002
        """The Hermite coefficients, where quadrature would lose them."""
        return None


@dataclass(frozen=True)
class AffineForm(ClosedForm):
    """A closed form, scaled and shifted."""

    inner: ClosedForm
    scale: float
    shift: float

    @property
    def analytic(self) -> bool:  # type: ignore[override]
        """If the composed one is."""
        return self.inner.analytic

    def mean(self, a: Tensor) -> Tensor:
        """The mean of the composed activation, scaled and shifted."""
        return self.scale * self.inner.mean(a) + self.shift

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """The covariance of the composed activation, scaled."""
        return self.scale**2 * self.inner.covariance(a, b, c)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """The derivative dual of the composed activation, scaled."""
        return self.scale**2 * self.inner.derivative_dual(a, b, c)

    def coefficients(self, tau: Tensor, order: int) -> Tensor | None:
        """The Hermite coefficients of the composed activation, scaled and shifted."""
        inner = self.inner.coefficients(tau, order)
        if inner is None:
            return None
        first = torch.arange(order + 1, device=tau.device) == 0
        return self.scale * inner + self.shift * first.to(tau.dtype)
