r"""Kernels of images that know moved, mirrored and prepared images again.

Where padding is circular, the kernel of a readout of means over windows is a mean over moved
images: $\sum_d w_d k(x, T_d x')$, $w_d$ being how many pairs of a window's pixels are $d$ apart.
Windows may have gaps: their pixels are then ``step`` apart. Mirroring adds $k(x, T_d M x')$. Both
are exact: an equilibrium moves with its image. Images may be folded: squares of pixels become the
channels of one, as in a first layer whose stride is the side of the squares.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pixel_unshuffle

import shoal

__all__ = ["Setting", "prepared"]

LEAST = 1000  # rows that are worth a call


@dataclass(frozen=True)
class Setting:
    """A kernel of images.

    Attributes:
        variance: The recurrent one.
        size: The side of a patch.
        padding: Of the convolutions.
        normed: Whether all images have mean zero and one norm.
        straight: Whether images are moved and sheared so that their mass stands upright.
        fold: The side of the squares of pixels that become channels.
        mirror: Whether an image counts as its mirror image does.
        window: How many pixels the readout takes means of, along each axis; 0 for all.
        step: How far these are apart, in squares.
    """

    variance: float
    size: int = 3
    padding: str = "zeros"
    normed: bool = False
    straight: bool = False
    fold: int = 1
    mirror: bool = False
    window: int = 1
    step: int = 1

    def __str__(self) -> str:
        """A title."""
        parts = [f"ConvDEQ {self.variance:g} {self.size}x{self.size}"]
        if self.padding != "zeros":
            parts.append(self.padding)
        if self.fold != 1:
            parts.append(f"folded {self.fold}")
        named = ("normed", self.normed), ("straight", self.straight), ("mirrored", self.mirror)
        parts += [name for name, given in named if given]
        if self.window != 1:
            parts.append(f"windows {self.window} by {self.step}" if self.window else "pooled")
        return ", ".join(parts)

    def network(self, channels: int) -> shoal.ConvDEQ:
        """The equilibrium."""
        return shoal.ConvDEQ(
            shoal.activations.ReLU(),
            self.variance,
            1 / channels,
            kernel_size=self.size,
            padding=self.padding,
            pooling=None if self.window else "average",
        )

    def moves(self) -> Iterator["Move"]:
        """All moves of the second image."""
        side = max(1, self.window)
        reach = range(1 - side, side)
        views = (False, True)[: 1 + self.mirror]
        for mirrored, down, across in itertools.product(views, reach, reach):
            share = (side - abs(down)) * (side - abs(across)) / side**4
            apart = self.step * self.fold
            yield Move(mirrored, down * apart, across * apart, share / len(views))

    def ntk(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """The NTK of images with others, or with themselves, averaged over moves of the latter."""
        net = self.network(x.shape[1] * self.fold**2)
        total = torch.zeros(len(x), len(x if other is None else other)).to(x)
        first = pixel_unshuffle(x, self.fold)
        for move in self.moves():
            moved = pixel_unshuffle(move(x if other is None else other), self.fold)
            if other is not None:
                total += move.weight * shoal.kernel(net, first, moved).ntk
            elif move == move.inverse and not move.mirrored:  # no move at all
                total += move.weight * shoal.kernel(net, first).ntk
            elif move == move.inverse:
                total += symmetric(net, first, moved).mul_(move.weight)
            elif move < move.inverse:  # k(x, g x') = k(g⁻¹ x, x'): the inverse has the transpose
                found = shoal.kernel(net, first, moved).ntk.mul_(move.weight)
                total += found
                total += found.T
        return total


@dataclass(frozen=True, order=True)
class Move:
    """A mirroring, if any, and then a translation, with its weight."""

    mirrored: bool
    down: int
    across: int
    weight: float

    def __call__(self, x: Tensor) -> Tensor:
        """Moved images."""
        x = x.flip(3) if self.mirrored else x
        return x.roll((self.down, self.across), (2, 3))

    @property
    def inverse(self) -> "Move":
        """The move back: of a mirrored image, a step to the right is undone by one to the right."""
        return replace(self, down=-self.down, across=self.across * (1 if self.mirrored else -1))


def symmetric(net: shoal.ConvDEQ, x: Tensor, moved: Tensor) -> Tensor:
    """The NTK of images with moved ones where that is a symmetric matrix."""
    result = torch.empty(len(x), len(x)).to(x)
    step = max(LEAST, len(x) // 8)
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        found = shoal.kernel(net, x[rows], moved[start:]).ntk
        result[rows, start:], result[start:, rows] = found, found.T
    return result


def prepared(train: Tensor, test: Tensor, *, normed: bool, straight: bool) -> tuple[Tensor, Tensor]:
    """Images with pixels of mean zero, in all of one scale."""
    both = [upright(train), upright(test)] if straight else [train, test]
    mean = both[0].mean((0, 2, 3), keepdim=True)
    both = [equalized(x) if normed else x - mean for x in both]
    scale = both[0].square().mean().sqrt()
    return both[0] / scale, both[1] / scale


def equalized(x: Tensor) -> Tensor:
    """Images of mean zero and of one norm each."""
    x = x - x.mean((1, 2, 3), keepdim=True)
    return x / x.square().mean((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-3)


def upright(x: Tensor) -> Tensor:
    """Images moved and sheared so that their mass is centered and leans to neither side.

    So LeCun, Bottou, Bengio and Haffner (1998) deslanted digits, by moments of their pixels.
    """
    mass = x.sum(1) / x.sum((1, 2, 3)).clamp(min=1e-6)[:, None, None]
    places = [(2 * torch.arange(n).to(x) + 1) / n - 1 for n in x.shape[2:]]
    down, across = (mass.sum(axis) @ place for axis, place in zip((2, 1), places, strict=True))
    below, right = places[0] - down[:, None], places[1] - across[:, None]
    lean = torch.einsum("npq,np,nq->n", mass, below, right)
    height = torch.einsum("npq,np->n", mass, below.square()).clamp(min=1e-6)
    one, zero = torch.ones_like(down), torch.zeros_like(down)
    maps = torch.stack([one, lean / height, across, zero, one, down], 1).view(-1, 2, 3)
    grid = affine_grid(maps, list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)
