r"""Theorem 2: $\lambda_0 \ge m\lambda_*/2$ for wide DEQs, from $\|G/m - K\|$."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal import data
from shoal.architectures import DEQ
from shoal.lab.descent import features, network_for
from shoal.lab.registry import register
from shoal.reproductions.width_errors import GramWidth


@register
@dataclass(frozen=True)
class Concentration(GramWidth):
    r"""The Gram matrix $G = Z^\top Z$ of random DEQs against $mK$, for points on the sphere.

    Theorem 2 takes $m = \Omega(n^2\lambda_*^{-2}\log(n/(\lambda_* t)))$ for
    $\lambda_0 = \lambda_{\min}(G) \ge m\lambda_*/2$; the matrices here are divided by $m$.

    Args:
        weight_variance: $\sigma_w^2$.
    """

    name: ClassVar[tuple[str, str]] = ("ling2023", "theorem2")
    title: ClassVar[str] = "Gram matrices of random DEQs against their population matrix"
    share: ClassVar[float] = 0.5
    symbols: ClassVar[tuple[str, str, str]] = ("G/m", "K", r"\lambda_*")
    claimed: ClassVar[tuple[str, str, str]] = (
        "λ_0 ≥ mλ_\\*/2 for wide DEQs",
        "m ≥ const·(n/λ_\\*)² log(n/(λ_\\* t))",
        "Ling 2023, Theorem 2",
    )

    weight_variance: float = 0.08

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few inputs."""
        return cls(widths=(64, 128, 256, 512), draws=6, samples=12, features=24)

    def deq(self) -> DEQ:
        """The DEQ of the paper."""
        return DEQ.ling2023(self.weight_variance, self.features)

    def inputs(self) -> Tensor:
        r"""Points on the sphere of radius $\sqrt d$."""
        return data.sphere(self.samples, self.features, seed=self.seed, dtype=torch.float64).x

    def gram(self, x: Tensor, width: int, seed: int) -> Tensor:
        """$G/m$."""
        z = features(network_for(self.deq(), x, width=width, seed=seed), x)
        return z @ z.T / width

    def limit(self, x: Tensor) -> Tensor:
        """$K$."""
        return shoal.kernel(self.deq(), x).ck
