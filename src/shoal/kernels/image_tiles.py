"""When and how kernels of images are computed by fused passes, of a GPU or of a CPU."""

import math
from functools import cached_property, lru_cache
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor

from shoal.activations import ReLU
from shoal.architectures import Layers
from shoal.architectures.layers import squared_gain
from shoal.core.exceptions import ConvergenceError
from shoal.kernels.backends.pixel_equilibrium import Equilibrium
from shoal.kernels.calculi.pixels import Images
from shoal.kernels.image_function import ImageKernels
from shoal.kernels.pixel_pairs import PixelPairs
from shoal.kernels.recursions import Loop

__all__ = ["FusedPixels", "LoopedPixels"]

_MOST_SIDE = 64  # pixels along an axis that registers hold
_PROGRAMS = 2**22  # pairs of images, times displacements, of one launch
_PAIRS = 2**14  # of images that threads take at once
_MANY = 2**18  # pairs of pixels for which loading compiled loops pays
_EDGE = 0.999  # of the gain up to which the iteration is worth its steps


class FusedPixels:
    """The fused pass for some images: of equilibria of one ReLU layer, in float32, on a GPU.

    Errors are about 1e-5 of the diagonal: angles are known to the root of float32's precision only.

    Args:
        layers: The network.
        trainable: The groups that the NTK counts.
        images: All images, with their variances.
    """

    def __init__(self, layers: Layers, trainable: frozenset[str], images: Images) -> None:
        self.layers, self.trainable, self.images = layers, trainable, images
        points = images.points if self.exact else images.points.float()
        self.points = points.contiguous() if points.dim() == 4 else points[:, :, None].contiguous()

    most: ClassVar[int] = _PROGRAMS
    """Pairs of images, times displacements, that are computed at once."""

    exact: ClassVar[bool] = False
    """Whether images with themselves are computed in float64, too."""

    @staticmethod
    def of(function: ImageKernels, images: Images, entries: int) -> "FusedPixels | None":
        """The pass for a matrix of so many entries, or ``None`` where there is none."""
        points, sides, layers = images.points, images.pairs.sides, function.layers
        trainable, pooled = function.trainable, function.architecture.pooling is not None
        if not FusedPixels.fits(layers, images):
            return None
        if points.device.type == "cuda":
            precision = function.precision or points.dtype
            small = precision == torch.float32 and max(sides) <= _MOST_SIDE
            return FusedPixels(layers, trainable, images) if small and _tiles() else None
        many = entries * math.prod(sides) >= _MANY
        if points.device.type != "cpu" or pooled or not many or _loops() is None:
            return None
        return LoopedPixels(layers, trainable, images)

    @staticmethod
    def fits(layers: Layers, images: Images) -> bool:
        """Whether passes know the network."""
        cell, pairs = layers.cells[0], images.pairs
        return bool(
            layers.injection is not None
            and len(layers.cells) == 1
            and cell.activation == ReLU()
            and cell.gain == 1
            and layers.readout is not None
            and layers.readout.variance == 1
            and isinstance(cell.weights.variance, float)
            and len(pairs.sides) <= 2
            and squared_gain(layers.cells) / 2 * pairs.gain < _EDGE
        )

    def sums(self, index: tuple[Tensor, Tensor], displacements: Tensor) -> Tensor:
        """Sums of both kernels over pairs of pixels, in float64. shape: (2, pairs).

        Args:
            index: The numbers of the images of each pair.
            displacements: Of the partners, as numbers of pixels.

        Raises:
            ConvergenceError: If the iteration of a pair does not end.
        """
        tiles = _tiles()
        assert tiles is not None
        variances = self._variances.float()
        steps = displacements.to(self.points.device)
        parts = []
        size = max(1, _PROGRAMS // len(steps))
        for i, j in zip(index[0].split(size), index[1].split(size), strict=True):
            try:
                found = tiles.pixel_tiles(
                    (self.points, self.points),
                    (variances, variances),
                    (i, j),
                    steps,
                    self._bands,
                    self._network(),
                    share=self.images.pairs.share,
                )
            except ArithmeticError as error:
                raise ConvergenceError(f"{error}: give the images in float64") from error
            parts.append(found)
        return torch.cat(parts, 1)

    @cached_property
    def _variances(self) -> Tensor:
        """Of what each pixel sees at equilibrium, found in float64."""
        images, injection, (cell,) = self.images, self.layers.injection, self.layers.cells
        assert injection is not None
        given = images.patches(images.start(gated=False)[0])
        injected = images.combine([(injection.variance, given)], cell.bias_variance)
        found = images.fixed_point(Loop(self.layers.cells), injected).values
        return found.view(len(found), *self.points.shape[2:])

    @cached_property
    def _bands(self) -> tuple[Tensor, Tensor]:
        """The matrices that sum along both axes, for all displacements along each."""
        pairs = self.images.pairs
        height, width = self.points.shape[2:]
        across = _bands(pairs, width)
        if len(pairs.sides) == 1:
            one = torch.ones(1, 1, 1, device=across.device)
            return one, across
        return _bands(pairs, height), across

    def _network(self) -> Equilibrium:
        injection, (cell,), trained = self.layers.injection, self.layers.cells, self.trainable
        assert injection is not None
        bias = cell.bias
        readout, entering, given, biases = (
            float(w.share) if w is not None and w.group in trained else 0.0
            for w in (self.layers.readout, cell.weights, injection, bias)
        )
        gain = squared_gain(self.layers.cells) / 2 * self.images.pairs.gain
        return Equilibrium(
            float(cell.weights.variance),
            float(injection.variance),
            float(cell.bias_variance),
            gain,
            (readout, entering, given, biases),
        )


class LoopedPixels(FusedPixels):
    """The pass of a CPU, in float64, for readouts of all pixels."""

    most = _PAIRS
    exact = True

    def sums(self, index: tuple[Tensor, Tensor], displacements: Tensor) -> Tensor:
        """Sums of both kernels over pairs of equal pixels, in float64. shape: (2, pairs).

        Args:
            index: The numbers of the images of each pair.
            displacements: Zero alone.

        Raises:
            ConvergenceError: If the iteration of a pair does not end.
        """
        loops, pairs = _loops(), self.images.pairs
        assert loops is not None
        assert len(displacements) == 1
        reach = pairs.patch_size // 2
        try:
            found: Tensor = loops.pixel_loops(
                self.points,
                self._variances,
                index,
                self._network(),
                reach=(reach if len(pairs.sides) == 2 else 0, reach),
                circular=pairs.padding == "circular",
            )
        except ArithmeticError as error:
            raise ConvergenceError(str(error)) from error
        return found


def _bands(pairs: PixelPairs, side: int) -> Tensor:
    """For each displacement, the matrix of sums along an axis. shape: (side, side, side)."""
    reach, place = pairs.patch_size // 2, torch.arange(side)
    if pairs.padding == "circular":
        apart = torch.arange(-reach, reach + 1)
        near = torch.zeros(side, side)
        for k in apart.tolist():
            near[place, (place + k) % side] += 1
        bands = near.expand(side, side, side)
    else:
        near = (place[:, None] - place).abs() <= reach
        wrapped = place[None, :] + place[:, None] >= side  # partners beyond the border
        bands = near & (wrapped[:, :, None] == wrapped[:, None, :])
    return bands.contiguous().to(pairs.displacements.device, torch.float32)


@lru_cache(maxsize=1)
def _tiles() -> ModuleType | None:
    """The passes of a GPU, where their compiler is installed."""
    try:
        from shoal.kernels.backends import pixel_tiles
    except ImportError:
        return None
    return pixel_tiles


@lru_cache(maxsize=1)
def _loops() -> ModuleType | None:
    """The loops of a CPU, where their compiler is installed."""
    try:
        from shoal.kernels.backends import pixel_loops
    except ImportError:
        return None
    return pixel_loops
