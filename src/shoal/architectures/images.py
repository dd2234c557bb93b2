"""The base classes of architectures for images."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Literal

import torch

from shoal.architectures.base import Architecture
from shoal.core import checks


class ImageArchitecture(Architecture):
    """An architecture whose inputs are images, and whose weights see patches of pixels."""

    @property
    @abstractmethod
    def patch_size(self) -> int:
        """The odd side of a patch."""

    @property
    @abstractmethod
    def padding(self) -> Literal["zeros", "circular"]:
        """The values beyond the border."""

    @property
    @abstractmethod
    def pooling(self) -> Literal["sum", "average"] | None:
        """The reduction of each channel before the readout; ``None`` keeps all pixels."""

    @property
    @abstractmethod
    def averaged(self) -> bool:
        """Whether covariances are averaged over patches, or summed."""

    def patch_gain(self, pixels: Sequence[int]) -> float:
        r"""The norm of averaging, or summing, fields of pixels over patches.

        It is the spectral radius of that symmetric map, the same for pairs of pixels that are not
        apart, and smaller for others. Averages over circular patches have a gain of one. Zeros
        beyond the border make it smaller: $\prod (1 + 2\cos\frac{\pi}{n+1})/3$ for patches of
        three by three pixels in images of $n$ by $n$. The kernel of an equilibrium surely exists
        and is unique if $\sigma_a^2 L^2$ times this is below one.

        Args:
            pixels: The pixels of the images along each axis.

        Example:
            >>> import shoal
            >>> round(shoal.ConvDEQ("relu", 1.0, 1.0).patch_gain((8, 8)), 6)
            0.921207
        """
        sides = tuple(checks.size("pixels", side) for side in checks.items("pixels", pixels))
        share = self.patch_size ** -len(sides) if self.averaged else 1.0
        return patch_gain(sides, self.patch_size, self.padding, share)

    def check_pixels(self, name: str, shape: tuple[int, ...]) -> None:
        """Say why images of shape (samples, channels, pixels...) have too few pixels, if so."""
        reach = self.patch_size // 2
        if self.padding == "circular" and min(shape[2:]) < reach:
            raise ValueError(
                f"{name} must have at least {reach} pixels along each axis for circular patches "
                f"of size {self.patch_size}, got {shape}"
            )


class ConvolutionalArchitecture(ImageArchitecture):
    """An architecture with the field ``kernel_size``, whose weights are smaller if it is larger."""

    kernel_size: int

    @property
    def patch_size(self) -> int:
        """The side of a patch."""
        return self.kernel_size

    @property
    def averaged(self) -> bool:
        """True: entries of weights are smaller where patches have more pixels."""
        return True


def padding(name: str, value: object) -> str:
    """Return the values beyond the border of an image."""
    return checks.one_of(name, value, ("zeros", "circular"))


def pooling(name: str, value: object) -> object:
    """Return how a readout reduces each channel."""
    if value not in (None, "average"):
        raise ValueError(f"{name} must be None or 'average', got {checks.shown(value)}")
    return value


def odd(name: str, value: object) -> int:
    """Return the side of a patch."""
    size = checks.integer(name, value, at_least=1)
    if size % 2 == 0:
        raise ValueError(f"{name} must be odd, got {size}")
    return size


@cache
def patch_gain(
    sides: tuple[int, ...], size: int, padding: Literal["zeros", "circular"], share: float
) -> float:
    """The spectral radius of sums over patches, with a factor for each pixel."""
    if padding == "circular":
        return share * float(size ** len(sides))
    gain = share
    for side in sides:
        place = torch.arange(side)
        near = (place[:, None] - place).abs() <= size // 2
        gain *= float(torch.linalg.eigvalsh(near.double())[-1])
    return gain
