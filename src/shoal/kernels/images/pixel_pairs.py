r"""Pairs of pixels of two images, ordered by their displacement, and sums over pairs of patches.

The patches at $p$ and $q$ have the inner product $\sum_k \langle x_{p+k}, x'_{q+k} \rangle$: both
move together, and $d = q - p$ stays. So pairs of different displacements never meet, and any set of
displacements can be computed without the others. Taken modulo the sides of the image, there are as
many displacements as pixels, each with one pair per pixel.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from shoal.architectures import ImageArchitecture
from shoal.architectures.images import patch_gain


@dataclass(frozen=True, eq=False)
class PixelPairs:
    """The pairs $(p, p + d)$ for some displacements $d$, modulo the sides.

    Attributes:
        sides: The pixels along each axis of the images.
        patch_size: The odd side of a patch.
        padding: What lies beyond the border.
        displacements: The numbers of the pixels that the first one is displaced to.
        share: What a pair of pixels counts in the sum over a patch.
    """

    sides: tuple[int, ...]
    patch_size: int
    padding: Literal["zeros", "circular"]
    displacements: Tensor
    share: float = 1.0

    @classmethod
    def of(
        cls, architecture: ImageArchitecture, points: Tensor, displacements: Tensor
    ) -> "PixelPairs":
        """The pairs of some displacements in images, with the patches of an architecture."""
        sides, size = tuple(points.shape[2:]), architecture.patch_size
        share = size ** -len(sides) if architecture.averaged else 1.0
        return cls(sides, size, architecture.padding, displacements.to(points.device), share)

    @cached_property
    def partner(self) -> Tensor:
        """The number of each pixel's partner. shape: (displacements, *sides)."""
        number = torch.zeros((), dtype=torch.int64, device=self.displacements.device)
        for axis, side in enumerate(self.sides):
            number = number * side + self._along(axis, self._places(axis)[1])
        return number

    def of_partner(self, images: Tensor) -> Tensor:
        """The values of images at the partners.

        Args:
            images: One value per pixel. shape: (pairs, *sides)

        Returns:
            Shape: (pairs, displacements, *sides).
        """
        return images.flatten(1)[:, self.partner]

    def products(self, first: Tensor, second: Tensor) -> Tensor:
        """Inner products of pixels over channels, in float64.

        Args:
            first: Images. shape: (pairs, channels, *sides)
            second: Their partners.

        Returns:
            Shape: (pairs, displacements, *sides).
        """
        products = torch.zeros((), dtype=torch.float64, device=first.device)
        for mine, theirs in zip(first.unbind(1), second.unbind(1), strict=True):
            products = products + mine.double()[:, None] * self.of_partner(theirs.double())
        return products

    def patch_sum(self, values: Tensor) -> Tensor:
        """Sums over the patches of both pixels, axis by axis; beyond the border there is nothing.

        Args:
            values: Values of the pairs. shape: (pairs, displacements, *sides)
        """
        for axis, inside in enumerate(self._inside):
            # in one order for all displacements: what is equal stays so to the last bit
            shifted = self._shifted(values, axis, inside)
            total = next(shifted).clone()
            for one in shifted:
                total += one
            values = total
        return values if self.share == 1 else self.share * values

    def _shifted(self, values: Tensor, axis: int, inside: dict[int, Tensor]) -> Iterator[Tensor]:
        """The values at the neighbors along an axis, one after the other."""
        reach, side = self.patch_size // 2, self.sides[axis]
        if self.padding == "circular":
            yield from (torch.roll(values, -k, 2 + axis) for k in inside)
        elif self._apart:
            yield from (torch.roll(values, -k, 2 + axis) * within for k, within in inside.items())
        else:  # pixels and themselves leave the images together
            around = [0, 0] * len(self.sides)
            around[-2 * axis - 2 : (-2 * axis) or None] = [reach, reach]
            padded = torch.nn.functional.pad(values, around)
            yield from (padded.narrow(2 + axis, k + reach, side) for k in inside)

    @cached_property
    def _apart(self) -> bool:
        """Whether some pixels are not their own partners."""
        return bool(self.displacements.any())

    @property
    def gain(self) -> float:
        """The norm of a sum over patches; see ``patch_gain``."""
        return patch_gain(self.sides, self.patch_size, self.padding, self.share)

    @cached_property
    def _inside(self) -> list[dict[int, Tensor]]:
        """For each axis and step within a patch, which pairs both stay inside the images."""
        reach, inside = self.patch_size // 2, []
        for axis, side in enumerate(self.sides):
            places, steps = self._places(axis), {}
            for k in range(-reach, reach + 1):
                if self.padding == "circular":
                    within = torch.ones_like(places[1], dtype=torch.bool)
                else:
                    within = ((places + k >= 0) & (places + k < side)).all(0)
                steps[k] = self._along(axis, within)
            inside.append(steps)
        return inside

    def _places(self, axis: int) -> Tensor:
        """Places of pixels and partners along an axis. shape: (2, displacements, side)."""
        side, below = self.sides[axis], math.prod(self.sides[axis + 1 :])
        step = self.displacements[:, None] // below % side
        place = torch.arange(side, device=step.device)
        return torch.stack(torch.broadcast_tensors(place, (place + step) % side))

    def _along(self, axis: int, values: Tensor) -> Tensor:
        """Values of the pixels of one axis, to be broadcast along the others."""
        shape = [1] * len(self.sides)
        shape[axis] = self.sides[axis]
        return values.view(len(self.displacements), *shape)


def patch_grams(architecture: ImageArchitecture, first: Tensor, second: Tensor) -> Tensor:
    r"""Inner products of the patches of pairs of images, in float64.

    Args:
        architecture: The network, for its patches.
        first: Images. shape: (n, channels, *sides)
        second: Their partners.

    Returns:
        Shape: (n, pixels, pixels).
    """
    pixels = torch.arange(first[0, 0].numel(), device=first.device)
    pairs = PixelPairs.of(architecture, first, pixels)
    values = pairs.patch_sum(pairs.products(first, second)).flatten(2)
    grams = values.new_empty(len(first), len(pixels), len(pixels))
    grams[:, pixels, pairs.partner.flatten(1)] = values
    return grams
