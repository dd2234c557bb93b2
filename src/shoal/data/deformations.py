"""Images without end: those of a data set, moved, turned and bent a little."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.checks import integer, real, seeded, shown
from shoal.core.hashing import mixed, shifted
from shoal.data.dataset import Dataset, check_dataset

_NUMBERS = 2**25  # of all fields that are made together
_AFFINE = 4  # random numbers of an image before those of its field: angle, size, two shifts
_GOLDEN = -0x61C8864680B583EB  # by which states of SplitMix64 differ


@dataclass(frozen=True, eq=False)
class DeformedImages:
    r"""A stream of images that are made of others, each by its index alone.

    Index $i$ is image $i \bmod n$ of the $n$ that there are. The first $n$ are these as they are;
    all others are rotated, scaled, shifted and bent at random, as by Simard et al. (2003) and by
    Loosli, Canu & Bottou (2007) for millions of digits. The random numbers of an image are a
    function of the seed and its index, so that it does not matter which others are made with it,
    in which order, or on which device; but for ties of rounding its bytes are the same.

    Args:
        base: Images, on the device that does the work.
        seed: Of all random numbers.
        rotation: Largest angle, in degrees, either way.
        scaling: Largest change of size, either way: 0.1 for a tenth.
        shift: Largest shift along each axis, in pixels, either way.
        elastic: Root mean square of the displacement of a pixel along each axis, in pixels.
        smoothness: Standard deviation of the Gaussian with which the field of displacements is
            smoothed, in pixels.

    Raises:
        ValueError: If the data are no images, or a size is negative.

    Example:
        >>> from shoal import data
        >>> stream = data.DeformedImages(data.load("digits", raw=True), elastic=0.3, smoothness=1.5)
        >>> stream.take(range(1_000_000, 1_000_003))
        Dataset('digits, deformed', 3 samples of shape 1×8×8, uint8, 10 classes)
    """

    base: Dataset
    seed: int = 0
    rotation: float = 10.0
    scaling: float = 0.1
    shift: float = 1.0
    elastic: float = 1.0
    smoothness: float = 8.0

    def __post_init__(self) -> None:
        if check_dataset(self.base).x.dim() != 4:
            raise ValueError(
                "base must have images of shape (n, channels, height, width), "
                f"got {tuple(self.base.x.shape)}"
            )
        seeded("seed", self.seed)
        for name in ("rotation", "scaling", "shift", "elastic"):
            real(name, getattr(self, name), at_least=0.0)
        real("smoothness", self.smoothness, above=0.0)

    def take(self, indices: range | Tensor) -> Dataset:
        """Some of the images, with their labels.

        Args:
            indices: Which: none is negative, and all are below 2**63.
        """
        device, images = self.base.x.device, len(self.base)
        if isinstance(indices, range):
            integer("indices", max((*indices[:1], *indices[-1:]), default=0), at_least=0)
            indices = torch.arange(indices.start, indices.stop, indices.step)
        if not isinstance(indices, Tensor):
            raise TypeError(f"indices must be a range or a tensor, got {shown(indices)}")
        if indices.dim() != 1 or indices.dtype != torch.int64 or not len(indices):
            raise ValueError(f"indices must be int64 of shape (n,), got {tuple(indices.shape)}")
        integer("indices", int(indices.min()), at_least=0)
        rows = (indices % images).to(device)
        x = torch.empty_like(self.base.x[:1]).expand(len(indices), -1, -1, -1).contiguous()
        for part in self._parts(len(indices)):
            x[part] = self._deformed(indices[part].to(device), self.base.x[rows[part]])
        y = None if self.base.y is None else self.base.y[rows]
        return replace(self.base, x=x, y=y, name=f"{self.base.name}, deformed")

    def _parts(self, size: int) -> Iterator[slice]:
        step = max(1, _NUMBERS // (8 * self.base.x[0].numel()))
        return (slice(start, start + step) for start in range(0, size, step))

    def _deformed(self, indices: Tensor, images: Tensor) -> Tensor:
        """Images as displaced points see them, in the dtype that they have."""
        found = torch.nn.functional.grid_sample(
            images.double(), self._points(indices, *images.shape[2:]), align_corners=True
        )
        if not images.dtype.is_floating_point:
            found = found.round_()
        first = (indices < len(self.base))[:, None, None, None]
        return torch.where(first, images, found.to(images.dtype))

    def _points(self, indices: Tensor, height: int, width: int) -> Tensor:
        """The points that pixels are taken from, in halves of the image. shape: (n, h, w, 2)."""
        random = 2 * _uniform(self.seed, indices, _AFFINE + 2 * height * width) - 1
        angle = random[:, 0] * math.radians(self.rotation)
        size = (1 + self.scaling) ** random[:, 1]
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1) / size[:, None]
        across, down = (
            torch.arange(n, dtype=torch.float64, device=indices.device) - (n - 1) / 2
            for n in (width, height)
        )
        grid = torch.stack(torch.meshgrid(across, down, indexing="xy"), 2)  # (height, width, 2)
        moved = torch.einsum("nab,hwb->nhwa", turn.view(-1, 2, 2), grid)
        moved += self.shift * random[:, None, None, 2:_AFFINE]
        fields = random[:, _AFFINE:].view(-1, 2, height, width)
        bent = self._smoother(down) @ fields @ self._smoother(across).T
        moved += self.elastic * bent.movedim(1, 3)
        return moved / torch.stack([across[-1], down[-1]]).clamp(min=0.5)

    def _smoother(self, places: Tensor) -> Tensor:
        """Means of numbers along an axis, of variance one where these have a variance of 1/√3."""
        weights = torch.exp(-(((places[:, None] - places) / self.smoothness) ** 2) / 2)
        smoother: Tensor = weights / weights.norm(dim=1, keepdim=True) * 3**0.25
        return smoother


def _uniform(seed: int, indices: Tensor, count: int) -> Tensor:
    """Numbers in [0, 1), each a hash of seed, index and place (SplitMix64). shape: (n, count)."""
    start = mixed(indices * _GOLDEN + seed)
    places = torch.arange(1, count + 1, device=indices.device)
    bits = mixed(start[:, None] + places * _GOLDEN)
    return shifted(bits, 11).double() * 2.0**-53
