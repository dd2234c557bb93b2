"""When and how kernels of images are computed by fused passes, of a GPU or of a CPU."""

import math
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from shoal.activations import ReLU
from shoal.architectures import Layers
from shoal.architectures.layers import Weights, squared_gain
from shoal.core.exceptions import ConvergenceError
from shoal.kernels.images.pixels import Images, PixelPairs
from shoal.kernels.recursions import CellLoop, network_kernels

if TYPE_CHECKING:
    from shoal.kernels.images.function import ImageKernels

MOST_STEPS = 1000  # of an iteration in a fused pass
_MANY = 2**18  # pairs of pixels for which loading compiled loops pays
_IMAGES = 2**12  # images whose variances are computed at once


class EquilibriumConstants(NamedTuple):
    r"""The numbers that define an equilibrium of one layer.

    Attributes:
        recurrent: $\sigma_a^2$.
        injected: $\sigma_b^2$.
        bias: Variance of the biases.
        gain: $s$, the largest factor by which an iteration multiplies changes.
        shares: Shares of readout, recurrent weights, input weights and biases in the NTK.
    """

    recurrent: float
    injected: float
    bias: float
    gain: float
    shares: tuple[float, float, float, float]

    def chebyshev(self) -> tuple[float, float]:
        """The relaxation and the squared spread of Chebyshev's semi-iteration."""
        lowest = -1 / 3  # a lower bound of eigenvalues of averages over patches, over the largest
        middle, half = self.gain * (1 + lowest) / 2, self.gain * (1 - lowest) / 2
        return 1 / (1 - middle), (half / (1 - middle)) ** 2


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

    most: ClassVar[int] = 2**22
    """Pairs of images, times displacements, that are computed at once."""

    exact: ClassVar[bool] = False
    """Whether images with themselves are computed in float64, too."""

    @staticmethod
    def choose(
        function: "ImageKernels", images: Images, entries: int, *, side: int = 64
    ) -> "FusedPixels | None":
        """The pass for a matrix with some number of entries, or ``None`` where there is none.

        A GPU's registers hold up to ``side`` pixels along an axis.
        """
        points, sides, layers = images.points, images.pairs.sides, function.layers
        trainable, pooled = function.trainable, function.architecture.pooling is not None
        chained = layers.injection is None
        if not FusedPixels.fits(layers, images):
            return None
        if points.device.type == "cuda":
            precision = function.precision or points.dtype
            small = precision == torch.float32 and max(sides) <= side
            if not small or _passes("gpu.pixels") is None:
                return None
            return (FusedChain if chained else FusedPixels)(layers, trainable, images)
        many = entries * math.prod(sides) >= _MANY and points.device.type == "cpu"
        if chained or pooled or not many or _passes("images.loops") is None:
            return None
        return LoopedPixels(layers, trainable, images)

    @staticmethod
    def fits(layers: Layers, images: Images) -> bool:
        """Whether passes cover the network: ReLU layers without residuals, one in a loop."""
        pairs, readout = images.pairs, layers.readout
        plain = all(
            cell.activation == ReLU()
            and cell.skip == 0
            and isinstance(cell.weights.variance, float)
            and isinstance(cell.bias_variance, float)
            for cell in layers.cells
        )
        if not plain or readout is None or readout.variance != 1 or len(pairs.sides) > 2:
            return False
        if layers.injection is None:
            return True
        first = layers.cells[0]
        contracts = squared_gain(layers.cells) / 2 * pairs.gain < 0.999  # near 1 it takes too long
        return len(layers.cells) == 1 and first.gain == 1 and contracts

    def sums(self, index: tuple[Tensor, Tensor], displacements: Tensor) -> Tensor:
        """Sums of both kernels over pairs of pixels, in float64. shape: (2, pairs).

        Args:
            index: The numbers of the images of each pair.
            displacements: The displacements of the partners, as numbers of pixels.
        """
        steps = displacements.to(self.points.device)
        size = max(1, self.most // len(steps))
        blocks = zip(*(numbers.split(size) for numbers in index), strict=True)
        return torch.cat([self._block((i, j), steps) for i, j in blocks], 1)

    def _block(self, index: tuple[Tensor, Tensor], steps: Tensor) -> Tensor:
        """Sums of both kernels for the pairs of one launch."""
        tiles = _passes("gpu.pixels")
        assert tiles is not None
        variances = self._variances.float()
        try:
            sums: Tensor = tiles.pixel_tiles(
                self.points,
                variances,
                index,
                steps,
                self._bands,
                self._network(),
                share=self.images.pairs.share,
            )
        except ArithmeticError as error:
            raise ConvergenceError(f"{error}: give the images in float64") from error
        return sums

    @cached_property
    def diagonal_sums(self) -> Tensor:
        """Sums of both kernels over pixels with themselves, in float64. shape: (2, images)."""
        parts = []
        for points in self.images.points.split(_IMAGES):
            images = Images(points, self.images.pairs)
            fields = network_kernels(self.layers, images, self.trainable)
            parts.append(torch.stack([field.flatten(1).sum(1) for field in fields[:2]]))
        return torch.cat(parts, 1)

    @cached_property
    def _variances(self) -> Tensor:
        """Variances of the pre-activations at equilibrium, computed in float64."""
        images, injection, (cell,) = self.images, self.layers.injection, self.layers.cells
        assert injection is not None
        patches = images.patches(images.start(gated=False)[0])
        injected = images.combine([(injection.variance, patches)], cell.bias_variance)
        variances = images.fixed_point(CellLoop(self.layers.cells), injected).values
        return variances.view(len(variances), *self.points.shape[2:])

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

    def _network(self) -> EquilibriumConstants:
        injection, (cell,), trained = self.layers.injection, self.layers.cells, self.trainable
        assert injection is not None
        bias = cell.bias
        readout, entering, injected, biases = (
            _share(w, trained) for w in (self.layers.readout, cell.weights, injection, bias)
        )
        gain = squared_gain(self.layers.cells) / 2 * self.images.pairs.gain
        return EquilibriumConstants(
            float(cell.weights.variance),
            float(injection.variance),
            float(cell.bias_variance),
            gain,
            (readout, entering, injected, biases),
        )


class FusedChain(FusedPixels):
    """The fused pass of explicit networks of ReLU layers without residuals."""

    def _block(self, index: tuple[Tensor, Tensor], steps: Tensor) -> Tensor:
        """Sums of both kernels for the pairs of one launch."""
        passes = _passes("gpu.pixels")
        assert passes is not None
        readout = _share(self.layers.readout, self.trainable)
        sums: Tensor = passes.pixel_chains(
            self.points, self._variances, index, steps, self._bands, self._table, readout=readout
        )
        return sums

    @cached_property
    def _variances(self) -> Tensor:
        """Variances of pre-activations. shape: (images, layers, height, width)."""
        parts = []
        for points in self.images.points.split(_IMAGES):
            images = Images(points, self.images.pairs)
            state, variances = images.start(gated=False)[0], []
            for cell in self.layers.cells:
                entering = [(cell.weights.variance, images.patches(state))]
                inner = images.combine(entering, cell.bias_variance)
                pushed = images.apply_activation(cell.activation, inner, mean=False)
                state = images.combine([(cell.gain**2, pushed.state)])
                variances.append(inner.values.float())
            parts.append(torch.stack(variances, 1))
        stacked = torch.cat(parts)
        return stacked.view(*stacked.shape[:2], *self.points.shape[2:])

    @cached_property
    def _table(self) -> Tensor:
        """The factors of each layer, as in ``pixel_chains``. shape: (layers, 5)."""
        share, rows = self.images.pairs.share, []
        for cell in self.layers.cells:
            weights, trained = cell.weights, _share(cell.weights, self.trainable)
            biases = _share(cell.bias, self.trainable)
            factors = (float(weights.variance), float(cell.bias_variance), cell.gain**2)
            rows.append((factors[0] * share, *factors[1:], trained * share, biases))
        return torch.tensor(rows, dtype=torch.float32, device=self.points.device)


class LoopedPixels(FusedPixels):
    """The pass of a CPU, in float64, for readouts of all pixels."""

    most = 2**14
    exact = True

    def sums(self, index: tuple[Tensor, Tensor], displacements: Tensor) -> Tensor:
        """Sums of both kernels over pairs of equal pixels, in float64. shape: (2, pairs)."""
        loops, pairs = _passes("images.loops"), self.images.pairs
        assert loops is not None
        assert len(displacements) == 1
        reach = pairs.patch_size // 2
        try:
            sums: Tensor = loops.pixel_loops(
                self.points,
                self._variances,
                index,
                self._network(),
                reach=(reach if len(pairs.sides) == 2 else 0, reach),
                circular=pairs.padding == "circular",
            )
        except ArithmeticError as error:
            raise ConvergenceError(str(error)) from error
        return sums


def _share(weights: Weights | None, trainable: frozenset[str]) -> float:
    return float(weights.share) if weights is not None and weights.group in trainable else 0.0


def _bands(pairs: PixelPairs, side: int) -> Tensor:
    """For each displacement, the matrix of sums along an axis. shape: (side, side, side)."""
    reach, place = pairs.patch_size // 2, torch.arange(side)
    if pairs.padding == "circular":
        steps = torch.arange(-reach, reach + 1)
        neighbors = torch.zeros(side, side)
        for k in steps.tolist():
            neighbors[place, (place + k) % side] += 1
        bands = neighbors.expand(side, side, side)
    else:
        neighbors = (place[:, None] - place).abs() <= reach
        wrapped = place[None, :] + place[:, None] >= side  # partners beyond the border
        bands = neighbors & (wrapped[:, :, None] == wrapped[:, None, :])
    return bands.contiguous().to(pairs.displacements.device, torch.float32)


@cache
def _passes(name: str) -> ModuleType | None:
    """Compiled passes, where their compiler is installed."""
    try:
        return import_module(f"shoal.kernels.{name}")
    except ImportError:
        return None
