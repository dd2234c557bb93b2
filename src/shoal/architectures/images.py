"""What architectures of images have in common."""

from abc import abstractmethod
from typing import Literal

from shoal.architectures.base import Architecture
from shoal.core import checks

__all__ = ["ImageArchitecture", "check_image_fields", "checked_patch_size"]


class ImageArchitecture(Architecture):
    """An architecture whose inputs are images, and whose weights see patches of pixels."""

    @property
    @abstractmethod
    def patch_size(self) -> int:
        """The odd side of a patch."""

    @property
    @abstractmethod
    def padding(self) -> Literal["zeros", "circular"]:
        """What lies beyond the border."""

    @property
    @abstractmethod
    def pooling(self) -> Literal["sum", "average"] | None:
        """What the readout sees of each channel: its sum, its mean, or each of its pixels."""

    @property
    @abstractmethod
    def averaged(self) -> bool:
        """Whether covariances are averaged over patches, or summed."""

    def check_pixels(self, name: str, shape: tuple[int, ...]) -> None:
        """Say why images of shape (samples, channels, pixels...) have too few pixels, if so."""
        reach = self.patch_size // 2
        if self.padding == "circular" and min(shape[2:]) < reach:
            raise ValueError(
                f"{name} must have at least {reach} pixels along each axis for circular patches "
                f"of size {self.patch_size}, got {shape}"
            )


def checked_patch_size(name: str, value: int) -> int:
    """Return the side of a patch, or say why it is none."""
    size = checks.integer(name, value, at_least=1)
    if size % 2 == 0:
        raise ValueError(f"{name} must be odd, got {size}")
    return size


def check_image_fields(architecture: ImageArchitecture) -> None:
    """See that the fields ``kernel_size``, ``pooling`` and ``padding`` make sense."""
    size = checked_patch_size("kernel_size", architecture.patch_size)
    object.__setattr__(architecture, "kernel_size", size)
    if architecture.pooling is not None:
        checks.one_of("pooling", architecture.pooling, ("average",))
    checks.one_of("padding", architecture.padding, ("zeros", "circular"))
