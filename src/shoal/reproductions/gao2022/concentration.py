r"""Lemma 3.3: $\|G(0) - G^\infty\| \le \lambda_0/4$ for wide feature maps."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal.lab import Point, register
from shoal.reproductions.width_errors import GramWidth


@register
@dataclass(frozen=True)
class Concentration(GramWidth):
    r"""The Gram matrix of the feature map $\phi = m^{-1/2}\sigma(Wx)$ against $G^\infty$.

    Lemma 3.3 takes $m = \Omega(n^2\lambda_0^{-2}\log(n/\delta))$. The equilibrium has no part in
    it, so the networks can be very wide.
    """

    name: ClassVar[tuple[str, str]] = ("gao2022", "lemma3.3")
    title: ClassVar[str] = "Gram matrices of random feature maps against their limit"
    share: ClassVar[float] = 0.25
    symbols: ClassVar[tuple[str, str, str]] = ("G(0)", r"G^\infty", r"\lambda_0")
    claimed: ClassVar[tuple[str, str, str]] = (
        "λ_min(G(0)) ≥ ¾λ_0 for wide networks",
        "m ≥ const·(n/λ_0)² log(n/δ)",
        "Gao 2022, Lemma 3.3",
    )

    widths: tuple[int, ...] = tuple(4**k for k in range(3, 10))

    @classmethod
    def quick(cls) -> Self:
        """Few inputs."""
        return cls(widths=(64, 256, 1024, 4096, 16384, 65536), draws=6, samples=12, features=24)

    def cost(self, point: Point) -> float:
        """The cost of a point: that of the features."""
        return 1e4 + float(point["width"])

    def gram(self, x: Tensor, width: int, seed: int) -> Tensor:
        """$G(0)$."""
        phi = features_of(x, feature_weights(x, width, seed))
        return phi @ phi.T

    def limit(self, x: Tensor) -> Tensor:
        r"""$G^\infty$."""
        return population(x)


def feature_weights(x: Tensor, width: int, seed: int) -> Tensor:
    """Standard Gaussian weights $W$ for inputs like ``x``."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(width, x.shape[1], dtype=x.dtype, generator=generator)
    return weights.to(x.device)


def features_of(x: Tensor, weights: Tensor) -> Tensor:
    r"""$\phi = m^{-1/2}\sigma(Wx)$, one row for each input."""
    return (x @ weights.T).relu() / math.sqrt(len(weights))


def population(x: Tensor) -> Tensor:
    r"""$G^\infty$: the share of the readout $v$ in the NTK, which no $\gamma$ changes."""
    return shoal.kernel(shoal.ImplicitNetwork(gamma=0.0), x, trainable=("skip",)).ntk
