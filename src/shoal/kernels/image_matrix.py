"""Kernel matrices of images, block by block within a limit of memory."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from os import PathLike
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.architectures import ImageArchitecture
from shoal.core.exceptions import AccuracyError
from shoal.kernels.calculi.pixels import Images, Pixels
from shoal.kernels.memory_mapped import memory_mapped
from shoal.kernels.pixel_pairs import PixelPairs
from shoal.kernels.recursions import network_kernels
from shoal.kernels.result import Kernels
from shoal.kernels.strips import strips

__all__ = ["Blocks", "image_kernels"]

_BYTES = 152  # that a pair of pixels takes at the peak; measured


class Blocks(NamedTuple):
    """How a matrix is computed.

    Attributes:
        memory: Most bytes for a block.
        out: A folder for the results, or ``None``.
        on_progress: Called with the share that is done.
    """

    memory: int
    out: str | PathLike[str] | None
    on_progress: Callable[[float], object] | None


def image_kernels(
    architecture: ImageArchitecture,
    trainable: frozenset[str],
    first: Tensor,
    second: Tensor | None,
    blocks: Blocks,
    *,
    diag: bool,
) -> Kernels:
    """The kernels of images with images or, for ``diag``, with their partners; see ``kernel``."""
    images = Images.of(architecture, first if second is None else torch.cat([first, second]))
    shift, symmetric = 0 if second is None else len(first), second is None and not diag
    shape = (len(first),) if diag else (len(first), len(images.points) - shift)
    layers, pixels, done = architecture.layers(), math.prod(first.shape[2:]), 0
    # a readout of all pixels sees pairs of equal ones only
    displacements = torch.arange(pixels if architecture.pooling else 1)
    read = 1.0 if architecture.pooling == "sum" else 1 / (pixels * len(displacements))
    wanted = len(displacements) * (sum(range(len(first) + 1)) if symmetric else math.prod(shape))
    fitting = max(1, blocks.memory // (_BYTES * pixels))  # pairs of images, times displacements
    with (
        nullcontext(Kernels(first.new_empty(shape), first.new_empty(shape)))
        if blocks.out is None
        else memory_mapped(blocks.out, shape, first.dtype)
    ) as result:
        for i, j in _entries(shape, max(1, fitting // len(displacements)), symmetric=symmetric):
            total = torch.zeros(2, len(i), dtype=torch.float64, device=first.device)
            index = (i.to(first.device), j.to(first.device) + shift)
            for some in displacements.split(max(1, fitting // len(i))):
                pairs = PixelPairs.of(architecture, first, some)
                found = network_kernels(layers, Pixels(images, index, pairs), trainable)
                total += torch.stack([field.flatten(1).sum(1) for field in found[:2]])
                done += len(i) * len(some)
                if blocks.on_progress is not None:
                    blocks.on_progress(done / wanted)
            _store(result, read * total, (i,) if diag else (i, j), symmetric=symmetric)
    return result


def _entries(
    shape: tuple[int, ...], size: int, *, symmetric: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and columns of at most ``size`` entries that are computed together."""
    if len(shape) == 1:
        for numbers in torch.arange(*shape).split(size):
            yield numbers, numbers
        return
    height = min(shape[0], math.isqrt(size))
    for strip in strips((shape[0], shape[1]), height, symmetric=symmetric):
        rows, across = (torch.arange(part.start, part.stop) for part in strip)
        for columns in across.split(size // height):
            i, j = (t.reshape(-1) for t in torch.meshgrid(rows, columns, indexing="ij"))
            above = i <= j if symmetric else torch.ones_like(i, dtype=torch.bool)
            yield i[above], j[above]


def _store(result: Kernels, values: Tensor, index: tuple[Tensor, ...], *, symmetric: bool) -> None:
    """Write the entries of a block, and those that mirror them."""
    for matrix, entries in zip(result, values.to(result.ck), strict=True):
        if not bool(entries.isfinite().all()):
            raise AccuracyError(f"the kernel of these images overflows {matrix.dtype}")
        matrix[index] = entries
        if symmetric:
            matrix[index[::-1]] = entries
