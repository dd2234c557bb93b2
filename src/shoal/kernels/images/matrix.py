"""Kernel matrices of images, block by block within a limit of memory."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.kernels.arguments import work_space
from shoal.kernels.blocks import backend_for
from shoal.kernels.calculi.pixels import Images, Pixels
from shoal.kernels.images.function import ImageKernels
from shoal.kernels.images.fused_passes import FusedPixels
from shoal.kernels.images.pixel_pairs import PixelPairs
from shoal.kernels.recursions import network_kernels
from shoal.kernels.result import Kernels
from shoal.kernels.strips import Strip, rows_per_process, strips

_FUSED_BYTES = 64  # that a pair of images takes in a fused pass: indices and sums
_BYTES = 152  # that a pair of pixels takes at the peak; measured

Progress = Callable[[int], object]


class Blocks(NamedTuple):
    """How a matrix is computed.

    Attributes:
        memory: Most bytes for a block.
        on_progress: Called with the share that is done.
    """

    memory: int
    on_progress: Callable[[float], object] | None


class Side(NamedTuple):
    """The images of the rows or the columns. shape: (n, channels, *sides)."""

    points: Tensor


@dataclass(frozen=True, eq=False)
class ImagePlan:
    """All that blocks of one kernel matrix of images share.

    Attributes:
        function: The kernels.
        images: Those of the rows, then those of the columns, if these are others.
        shape: Rows and columns.
        symmetric: Whether rows and columns are the same images.
        memory: Most bytes for a block of entries.
        fused: A pass that makes them all at once, where there is one.
    """

    function: ImageKernels
    images: Images
    shape: tuple[int, int]
    symmetric: bool
    memory: int
    fused: FusedPixels | None = None

    @classmethod
    def of(
        cls, function: ImageKernels, first: Tensor, second: Tensor | None, memory: int
    ) -> "ImagePlan":
        """The plan for images with images, or with themselves."""
        both = first if second is None else torch.cat([first, second])
        images = Images.of(function.architecture, both)
        shape = (len(first), len(first) if second is None else len(second))
        fused = FusedPixels.of(function, images, math.prod(shape))
        return cls(function, images, shape, second is None, memory, fused)

    @property
    def left(self) -> Side:
        """The images of the rows."""
        return Side(self.images.points[: self.shape[0]])

    @property
    def right(self) -> Side:
        """The images of the columns."""
        return Side(self.images.points[-self.shape[1] :])

    @property
    def displacements(self) -> Tensor:
        """The displacements that matter: a readout of all pixels sees equal pixels only."""
        pixels = math.prod(self.images.pairs.sides)
        return torch.arange(pixels if self.function.architecture.pooling else 1)

    @property
    def fitting(self) -> int:
        """How many pairs of images, times displacements, fit into the memory."""
        if self.fused is not None:
            return max(1, min(self.memory // _FUSED_BYTES, self.fused.most))
        return self._fields

    @property
    def _fields(self) -> int:
        """How many fields of pairs of pixels fit into the memory."""
        return max(1, self.memory // (_BYTES * math.prod(self.images.pairs.sides)))

    @cached_property
    def diagonal(self) -> Tensor:
        """Both kernels of the images of the rows with themselves, in float64. shape: (2, n)."""
        own = torch.arange(self.shape[0], device=self.images.points.device)
        size = max(1, self.fitting // len(self.displacements))
        return torch.cat([self.values(some, some) for some in own.split(size)], 1)

    def strips(self, limit: int | None, num_processes: int = 1) -> Iterator[Strip]:
        """Parts of the matrix whose entries, of both kernels, fit into a limit of memory.

        Where so many processes share the matrix there are enough of them to go round.
        """
        room = work_space(limit, self.images.points.device)
        step = max(1, room // (4 * 8 * self.shape[1]))
        step = min(step, rows_per_process(self.shape[0], num_processes, symmetric=self.symmetric))
        return strips(self.shape, step, symmetric=self.symmetric)

    def fill(self, strip: Strip, out: tuple[Tensor, Tensor]) -> None:
        """Write both kernels of a strip; what lies below a diagonal is not to be used."""
        size = max(1, self.fitting // len(self.displacements))
        device = self.images.points.device
        for i, j in entries(strip.shape, size, symmetric=self.symmetric, device=device):
            values = self.values(i + strip.rows.start, j + strip.columns.start)
            _store(Kernels(*out), values, (i, j), symmetric=False)

    def mirror(self, matrix: Tensor, strip: Strip) -> None:
        """Copy what a strip of a symmetric matrix has above the diagonal to below it."""
        if self.symmetric:
            backend_for(matrix.device).mirror(matrix, strip.rows)

    def values(self, rows: Tensor, columns: Tensor, progress: Progress | None = None) -> Tensor:
        """Both kernels at some entries, in float64. shape: (2, entries).

        Args:
            rows: Their rows, on the device of the images.
            columns: Their columns.
            progress: Called with how many pairs of images, times displacements, were done.
        """
        shift = 0 if self.symmetric else self.shape[0]
        index = (rows, columns + shift)
        if self.fused is None:
            return self.read * self._sums(index, self.displacements, progress)
        total = self.fused.sums(index, self.displacements)
        own = index[0] == index[1]
        if not self.fused.exact and bool(own.any()):  # angles of pixels with themselves are lost
            few = index[0][own]
            total[:, own] += self.fused.own[:, few] - self.fused.sums(
                (few, few), self.displacements[:1]
            )
        if progress is not None:
            progress(len(rows) * len(self.displacements))
        return self.read * total

    def _sums(
        self, index: tuple[Tensor, Tensor], displacements: Tensor, progress: Progress | None = None
    ) -> Tensor:
        """Both kernels summed over pairs of pixels, in float64. shape: (2, pairs of images)."""
        points, parts = self.images.points, []
        for i, j in zip(*(numbers.split(self._fields) for numbers in index), strict=True):
            total = torch.zeros(2, len(i), dtype=torch.float64, device=points.device)
            for some in displacements.split(max(1, self._fields // len(i))):
                pairs = PixelPairs.of(self.function.architecture, points, some)
                pixels = Pixels(self.images, (i, j), pairs)
                fields = network_kernels(self.function.layers, pixels, self.function.trainable)
                total = total + torch.stack([field.flatten(1).sum(1) for field in fields[:2]])
                if progress is not None:
                    progress(len(i) * len(some))
            parts.append(total)
        return torch.cat(parts, 1)

    @property
    def read(self) -> float:
        """What a pair of pixels counts in the output."""
        if self.function.architecture.pooling == "sum":
            return 1.0
        return 1 / (math.prod(self.images.pairs.sides) * len(self.displacements))


def image_kernels(
    function: ImageKernels,
    first: Tensor,
    second: Tensor | None,
    blocks: Blocks,
    *,
    diag: bool,
) -> Kernels:
    """The kernels of images with images or, for ``diag``, with their partners; see ``kernel``."""
    plan = ImagePlan.of(function, first, second, blocks.memory)
    symmetric = plan.symmetric and not diag
    shape = (len(first),) if diag else plan.shape
    each, done = len(plan.displacements), 0
    wanted = each * (sum(range(len(first) + 1)) if symmetric else math.prod(shape))

    def progress(made: int) -> None:
        nonlocal done
        done += made
        if blocks.on_progress is not None:
            blocks.on_progress(min(1.0, done / wanted))

    result = Kernels(first.new_empty(shape), first.new_empty(shape))
    parts = entries(shape, max(1, plan.fitting // each), symmetric=symmetric, device=first.device)
    for i, j in parts:
        values = plan.values(i, j, progress)
        _store(result, values, (i,) if diag else (i, j), symmetric=symmetric)
    return result


def entries(
    shape: tuple[int, ...], size: int, *, symmetric: bool, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and columns of at most ``size`` entries that are computed together."""
    if len(shape) == 1:
        for numbers in torch.arange(*shape, device=device).split(size):
            yield numbers, numbers
        return
    height = min(shape[0], math.isqrt(size))
    for strip in strips((shape[0], shape[1]), height, symmetric=symmetric):
        rows, across = (torch.arange(part.start, part.stop, device=device) for part in strip)
        for columns in across.split(size // height):
            i, j = (t.reshape(-1) for t in torch.meshgrid(rows, columns, indexing="ij"))
            above = i <= j if symmetric else torch.ones_like(i, dtype=torch.bool)
            if bool(above.any()):
                yield i[above], j[above]


def _store(result: Kernels, values: Tensor, index: tuple[Tensor, ...], *, symmetric: bool) -> None:
    """Write the entries of a block, and those that mirror them."""
    index = tuple(part.to(result.ck.device) for part in index)
    for matrix, numbers in zip(result, values.to(result.ck), strict=True):
        if not bool(numbers.isfinite().all()):
            raise AccuracyError(f"the kernel of these images overflows {matrix.dtype}")
        matrix[index] = numbers
        if symmetric:
            matrix[index[::-1]] = numbers
