"""The kernels of networks of images: block by block within a limit of memory, with gradients."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from shoal.architectures import ImageArchitecture, Layers
from shoal.core.exceptions import AccuracyError
from shoal.kernels.arguments import (
    Kernels,
    Work,
    check_memory,
    check_size,
    checked_image_samples,
    checked_images,
    work_space,
)
from shoal.kernels.blocks import OptionalMatrices, Strip, backend_for, rows_per_process, strips
from shoal.kernels.gradient import Pull, Upstream, differentiable
from shoal.kernels.images.fused_passes import FusedPixels
from shoal.kernels.images.pixels import Images, PixelPairs, Pixels
from shoal.kernels.recursions import network_kernels

_FUSED_BYTES = 64  # of a pair of images in a fused pass: indices and sums
_BYTES = 152  # of a pair of pixels at the peak; measured

Progress = Callable[[int], object]


@dataclass(frozen=True)
class ImageKernels:
    """Kernels of images: no functions of norms and inner products, but of all pairs of pixels.

    Attributes:
        architecture: The network.
        trainable: The groups of parameters that the NTK counts.
        variances: Tensors that stand for variances of the architecture, which has their values.
        precision: The dtype in which a GPU may compute them, with its errors; the dtype of the
            images by default.
    """

    architecture: ImageArchitecture
    trainable: frozenset[str]
    variances: tuple[tuple[str, Tensor], ...] = field(default=(), compare=False)
    precision: torch.dtype | None = None

    @property
    def width(self) -> None:
        """``None``: kernels of images do not depend on a width."""
        return None

    @property
    def layers(self) -> Layers:
        """The cells, with tensors for variances."""
        return self.architecture.layers().with_variances(dict(self.variances))

    def in_precision(self, dtype: torch.dtype) -> "ImageKernels":
        """The same kernels, which a GPU may compute in a precision of its own."""
        return replace(self, precision=dtype)

    def checked(
        self, x1: object, x2: object | None = None, *, diag: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The images of rows and columns, checked."""
        return checked_images(self.architecture, x1, x2, diag=diag, empty=True)

    def samples(self, name: str, x: object) -> Tensor:
        """Images, at least one, checked."""
        return checked_image_samples(name, x, self.architecture)

    def plan(self, first: Tensor, second: Tensor | None, memory: int | None = None) -> "ImagePlan":
        """How the matrix of images without gradients is computed."""
        both = first if second is None else torch.cat([first, second])
        images = Images.for_architecture(self.architecture, both)
        shape = (len(first), len(first) if second is None else len(second))
        function = replace(self, variances=())
        fused = FusedPixels.choose(function, images, math.prod(shape))
        room = work_space(memory, first.device)
        return ImagePlan(function, images, shape, second is None, room, fused)

    def matrices(self, first: Tensor, second: Tensor | None, work: Work) -> Kernels:
        """Both matrices, with gradients."""
        shape = len(first), len(first if second is None else second)
        if 0 in shape:
            return Kernels(first.new_zeros(shape), first.new_zeros(shape))

        def run(first: Tensor, second: Tensor | None, **_: bool) -> tuple[Kernels, Pull]:
            plan = self.plan(first, second, work.memory)
            check_memory(work.memory, plan.least_memory)
            check_size(shape, first)
            kernels = Kernels(first.new_empty(plan.shape), first.new_empty(plan.shape))
            whole = Strip(*(slice(0, size) for size in plan.shape))
            plan.fill(whole, kernels, plan.progress(plan.shape, work))
            for matrix in kernels:
                plan.mirror(matrix, whole)
            return kernels, plan.pull

        return differentiable(run, self, first, second)

    def partners(self, first: Tensor, second: Tensor | None, work: Work) -> Kernels:
        """Both kernels of each image with its partner, or with itself, with gradients."""
        if not len(first):
            return Kernels(first.new_zeros(0), first.new_zeros(0))

        def run(first: Tensor, second: Tensor | None, **_: bool) -> tuple[Kernels, Pull]:
            plan, shape = self.plan(first, second, work.memory), (len(first),)
            progress = plan.progress(shape, work)
            parts = [plan.values(i, j, progress) for i, j in plan.entries(shape)]
            kernels = Kernels(*(k.to(first) for k in _finite(torch.cat(parts, 1), first.dtype)))
            return kernels, plan.pull

        return differentiable(run, self, first, second)


@dataclass(frozen=True, eq=False)
class ImagePlan:
    """All that blocks of one kernel matrix of images share.

    Attributes:
        function: The kernels.
        images: The images of the rows, then of the columns, if these are others.
        shape: Rows and columns.
        symmetric: Whether rows and columns are the same images.
        memory: Most bytes for a block of entries.
        fused: The fused pass for them, where there is one.
    """

    function: ImageKernels
    images: Images
    shape: tuple[int, int]
    symmetric: bool
    memory: int
    fused: FusedPixels | None = None

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and the device of the matrix."""
        return self.images.points

    @property
    def displacements(self) -> Tensor:
        """The displacements that count: a readout of all pixels needs equal pixels only."""
        pixels = math.prod(self.images.pairs.sides)
        return torch.arange(pixels if self.function.architecture.pooling else 1)

    @property
    def least_memory(self) -> int:
        """Bytes for one pair of images."""
        return (
            _FUSED_BYTES if self.fused is not None else _BYTES * math.prod(self.images.pairs.sides)
        )

    @property
    def _fields(self) -> int:
        """The number of fields of pairs of pixels that fit into the memory."""
        return max(1, self.memory // (_BYTES * math.prod(self.images.pairs.sides)))

    def entries(self, shape: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and columns of the entries of each block; one axis stands for a diagonal."""
        fitting = self._fields
        if self.fused is not None:
            fitting = max(1, min(self.memory // _FUSED_BYTES, self.fused.most))
        size, device = max(1, fitting // len(self.displacements)), self.like.device
        if len(shape) == 1:
            for numbers in torch.arange(*shape, device=device).split(size):
                yield numbers, numbers
            return
        height = min(shape[0], math.isqrt(size))
        for strip in strips((shape[0], shape[1]), height, symmetric=self.symmetric):
            rows, across = (torch.arange(part.start, part.stop, device=device) for part in strip)
            for columns in across.split(size // height):
                i, j = (t.reshape(-1) for t in torch.meshgrid(rows, columns, indexing="ij"))
                above = i <= j if self.symmetric else torch.ones_like(i, dtype=torch.bool)
                if bool(above.any()):
                    yield i[above], j[above]

    def progress(self, shape: tuple[int, ...], work: Work) -> Progress:
        """A callback for the number of pairs of images, times displacements, that were computed."""
        rows, computed = shape[0], 0
        pairs = rows * (rows + 1) // 2 if self.symmetric and len(shape) > 1 else math.prod(shape)
        total = pairs * len(self.displacements)

        def progress(added: int) -> None:
            nonlocal computed
            computed += added
            if work.on_progress is not None:
                work.on_progress(min(1.0, computed / total))

        return progress

    @cached_property
    def diagonal(self) -> Tensor:
        """Both kernels of the images of the rows with themselves, in float64. shape: (2, n)."""
        square_plan = replace(self, symmetric=True)  # whatever the columns are
        return torch.cat([square_plan.values(i, i) for i, _ in self.entries(self.shape[:1])], 1)

    def strips(self, limit: int | None, num_processes: int = 1) -> Iterator[Strip]:
        """Parts of the matrix whose entries, of both kernels, fit into a limit of memory.

        Where so many processes share the matrix there are enough of them to go round.
        """
        rows, columns = self.shape
        step = max(1, work_space(limit, self.like.device) // (4 * 8 * columns))
        step = min(step, rows_per_process(rows, num_processes, symmetric=self.symmetric))
        return strips(self.shape, step, symmetric=self.symmetric)

    def fill(self, strip: Strip, out: OptionalMatrices, progress: Progress | None = None) -> None:
        """Write both kernels of a strip; entries below a diagonal are not to be used."""
        for i, j in self.entries(strip.shape):
            values = self.values(i + strip.rows.start, j + strip.columns.start, progress)
            for matrix, numbers in zip(out, values, strict=True):
                if matrix is not None:
                    matrix[i, j] = _finite(numbers, matrix.dtype).to(matrix)

    def mirror(self, matrix: Tensor, strip: Strip) -> None:
        """Copy the part of a strip above the diagonal to below it, in a symmetric matrix."""
        if self.symmetric:
            backend_for(matrix.device).mirror(matrix, strip.rows)

    def values(self, rows: Tensor, columns: Tensor, progress: Progress | None = None) -> Tensor:
        """Both kernels at some entries, in float64. shape: (2, entries).

        Args:
            rows: Their rows, on the device of the images.
            columns: Their columns.
            progress: Called with the number of computed pairs of images, times displacements.
        """
        shift = 0 if self.symmetric else self.shape[0]
        index = (rows, columns + shift)
        if self.fused is None:
            return self.read * self._sums(index, self.displacements, progress)
        total = self.fused.sums(index, self.displacements)
        same = index[0] == index[1]
        if not self.fused.exact and bool(same.any()):  # angles of pixels with themselves are lost
            numbers = index[0][same]
            total[:, same] += self.fused.diagonal_sums[:, numbers] - self.fused.sums(
                (numbers, numbers), self.displacements[:1]
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
                pairs = PixelPairs.for_displacements(self.function.architecture, points, some)
                pixels = Pixels(self.images, (i, j), pairs)
                fields = network_kernels(self.function.layers, pixels, self.function.trainable)
                total = total + torch.stack([field.flatten(1).sum(1) for field in fields[:2]])
                if progress is not None:
                    progress(len(i) * len(some))
            parts.append(total)
        return torch.cat(parts, 1)

    @property
    def read(self) -> float:
        """The weight of a pair of pixels in the output."""
        if self.function.architecture.pooling == "sum":
            return 1.0
        return 1 / (math.prod(self.images.pairs.sides) * len(self.displacements))

    def rounded(self, kernel: int) -> None:  # noqa: ARG002
        """``None``: images have no products in half precision."""
        return

    def pull(self, upstream: Upstream, names: Sequence[str]) -> tuple[list[Tensor], list[float]]:
        """Gradients of the images and of variances, given gradients of the matrix or its diagonal.

        Blocks are computed again, and differentiated implicitly.
        """
        leaves = {
            name: torch.tensor(
                getattr(self.function.architecture, name), dtype=torch.float64, requires_grad=True
            )
            for name in names
        }
        small = replace(
            self,
            function=replace(self.function, variances=tuple(leaves.items())),
            memory=self.memory // 12,  # copies for derivatives
            fused=None,
        )
        total = [torch.zeros_like(t, dtype=torch.float64) for t in (self.like, *leaves.values())]
        (shape,) = {tuple(g.shape) for g in upstream if g is not None}
        for i, j in small.entries(shape):
            parts = [_entries(g, i, j, symmetric=self.symmetric) for g in upstream]
            gradient = torch.stack(
                [i.new_zeros(len(i)).double() if g is None else g for g in parts]
            )
            for whole, part in zip(total, small._pulled(i, j, gradient, leaves), strict=True):
                whole += part
        points, *variances = total
        sides = points.to(self.like).split([len(points)] if self.symmetric else list(self.shape))
        return list(sides), [float(v) for v in variances]

    def _pulled(
        self, i: Tensor, j: Tensor, upstream: Tensor, leaves: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Shares of some entries in the gradients of all images and of variances."""
        shift = 0 if self.symmetric else self.shape[0]
        used, places = torch.cat([i, j + shift]).unique(return_inverse=True)
        block = self.like[used].double().requires_grad_()
        with torch.enable_grad():
            images = Images.for_architecture(self.function.architecture, block, differentiable=True)
            part = replace(self, images=images, symmetric=True, shape=(len(used), len(used)))
            values = part.values(places[: len(i)], places[len(i) :])
            gradients = torch.autograd.grad(
                (values * upstream).sum(), [block, *leaves.values()], materialize_grads=True
            )
        whole = torch.zeros_like(self.like, dtype=torch.float64)
        whole[used] = gradients[0]
        return [whole, *gradients[1:]]


def _entries(gradient: Tensor | None, i: Tensor, j: Tensor, *, symmetric: bool) -> Tensor | None:
    """The gradients of some entries and their mirror images, added up in float64."""
    if gradient is None:
        return None
    if gradient.dim() == 1:
        return gradient[i].double()
    values = gradient[i, j].double()
    return torch.where(i == j, values, values + gradient[j, i].double()) if symmetric else values


def _finite(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values, if they are finite in a dtype."""
    if not bool(values.to(dtype).isfinite().all()):
        raise AccuracyError(f"the kernel of these images overflows {dtype}: scale them down")
    return values
