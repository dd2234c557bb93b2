"""Training data: points on spheres, images with one-hot targets, two classes."""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shoal import data

_PARALLEL = 1e-12  # squares of sines of angles below which samples count as parallel
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in ITU-R BT.601


class Samples(NamedTuple):
    """Inputs as rows, one-hot targets, and class indices."""

    x: Tensor
    y: Tensor
    labels: Tensor


def unit_inputs(samples: int, features: int, seed: int) -> Tensor:
    """Random points on the unit sphere."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, dtype=torch.float64, generator=generator)
    return functional.normalize(x)


def on_sphere(samples: int, dimension: int, seed: int) -> tuple[Tensor, Tensor]:
    r"""Uniform points on the sphere of radius $\sqrt d$, with standard normal targets."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(samples, dimension, generator=generator, dtype=torch.float64)
    points *= math.sqrt(dimension) / points.norm(dim=1, keepdim=True)
    return points, torch.randn(samples, generator=generator, dtype=torch.float64)


@lru_cache(maxsize=8)
def image_samples(
    dataset: str, split: str, count: int | None, dtype: torch.dtype, device: torch.device,
    *, center: bool = False,
) -> Samples:  # fmt: skip
    """The first ``count`` images of a dataset, or all, scaled to norm 1 after they are centered."""
    images = data.load(dataset, split=split, dtype=torch.float64)
    x, labels = images.x[:count].flatten(1), images.labels[:count].long().to(device)
    if count is not None and count > len(x):
        raise ValueError(f"{dataset} must have {count} images to {split} with, it has {len(x)}")
    x = functional.normalize(x - x.mean(0) if center else x)
    y = functional.one_hot(labels, len(images.classes)).to(dtype)
    return Samples(x.to(device, dtype), y, labels)


def image_pair(
    dataset: str, split: str, count: int, seed: int, classes=(0, 1), dtype=torch.float32
) -> tuple[Tensor, Tensor]:
    """Random images of two classes, half of each, and which of the two they are."""
    images = data.load(dataset, split=split, dtype=dtype)
    generator, drawn = torch.Generator().manual_seed(seed), []
    for index in classes:
        members = (images.labels == index).nonzero()[:, 0]
        drawn.append(members[torch.randperm(len(members), generator=generator)[: count // 2]])
    rows = torch.cat(drawn).sort().values
    return images.x[rows], (images.labels[rows] == classes[1]).long()


def gray(images: Tensor, size: int) -> Tensor:
    """Images of one channel with ``size`` by ``size`` pixels, as rows."""
    if images.shape[1] == 3:
        images = torch.einsum("nchw,c->nhw", images, images.new_tensor(_LUMA))[:, None]
    if images.shape[2:] != (size, size):
        images = functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
    return images.flatten(1)


def parted(x: Tensor, seed: int, scale: float = 0.01) -> Tensor:
    """Samples of which no two are parallel, as Gao 2022 asks: all but one are turned a little."""
    generator = torch.Generator().manual_seed(seed)
    units = functional.normalize(x.double())
    cosines = units @ units.T
    twins = ((1 - cosines) * (1 + cosines) < _PARALLEL).tril(-1).any(1)
    noise = torch.randn(int(twins.sum()), x.shape[1], generator=generator, dtype=torch.float64)
    moved = functional.normalize(units[twins] + noise * scale / x.shape[1] ** 0.5)
    return x.index_put((twins,), (moved * x[twins].double().norm(dim=1, keepdim=True)).to(x))
