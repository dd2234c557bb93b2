"""Random data of the papers."""

import math

import torch

from shoal.core.checks import integer, room, seeded
from shoal.data.dataset import Dataset, resolve_dtype
from shoal.mixtures import GaussianMixture


def sphere(samples: int, dimension: int, *, seed: int, dtype: torch.dtype | None = None) -> Dataset:
    r"""Uniform points on the sphere of radius $\sqrt d$, with standard normal targets.

    The synthetic data of Ling 2023, section 5, where both sizes are 1,000.

    Args:
        samples: How many points.
        dimension: The dimension $d$ of the space around the sphere.
        seed: The same seed gives the same points, in every dtype up to rounding.
        dtype: PyTorch's default dtype by default.

    Example:
        >>> from shoal import data
        >>> data.sphere(4, 25, seed=0).x.norm(dim=1).round(decimals=4)
        tensor([5., 5., 5., 5.])
    """
    integer("samples", samples, at_least=1)
    integer("dimension", dimension, at_least=1)
    room("samples or dimension", samples, dimension)
    kind, generator = resolve_dtype(dtype), seeded("seed", seed)
    points = torch.randn(samples, dimension, generator=generator, dtype=torch.float64, device="cpu")
    points *= math.sqrt(dimension) / points.norm(dim=1, keepdim=True)
    targets = torch.randn(samples, generator=generator, dtype=torch.float64, device="cpu")
    source = f"sphere(samples={samples}, dimension={dimension}, seed={seed})"
    return Dataset(points.to(kind), targets.to(kind), "sphere", source=source)


def two_gaussians(
    samples: int, dimension: int, *, seed: int, dtype: torch.dtype | None = None
) -> Dataset:
    r"""Samples of the two-class Gaussian mixture of Ling 2024, ``GaussianMixture.ling2024``.

    $\sqrt p\,x \sim N(\mu_a, C_a)$ for $a = 1, 2$, where $\mu_a$ is 8 at the entry with index
    $8(a - 1)$, counted from 0, and zero elsewhere, and $C_a = (1 + 8(a - 1)/\sqrt p)\,I$. The first
    half of the samples, the larger one if their number is odd, is of the first class.

    Args:
        samples: How many points, at least 2.
        dimension: The dimension $p$, at least 9.
        seed: The same seed gives the same points, in every dtype up to rounding.
        dtype: PyTorch's default dtype by default.

    Example:
        >>> from shoal import data
        >>> data.two_gaussians(5, 16, seed=0).y
        tensor([0, 0, 0, 1, 1])
    """
    integer("samples", samples, at_least=2)
    mixture = GaussianMixture.ling2024(dimension)
    x, y = mixture.sample(samples, seed, dtype=resolve_dtype(dtype))
    source = f"two_gaussians(samples={samples}, dimension={dimension}, seed={seed})"
    return Dataset(x, y, "two Gaussians", classes=("1", "2"), source=source)
