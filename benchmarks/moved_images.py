r"""Kernels of images that know moved, mirrored and prepared images again.

Where padding is circular, the kernel of a readout of means over windows is a mean over moved
images: $\sum_d w_d k(x, T_d x')$, $w_d$ being how many pairs of a window's pixels are $d$ apart.
Windows may have gaps: their pixels are then ``step`` apart. Mirroring adds $k(x, T_d M x')$. Both
are exact: an equilibrium moves with its image.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
        whiten: The ridge of whitening, as a share of the mean power; ``None`` to center only, and
            infinite to also give all images one norm.
        mirror: Whether an image counts as its mirror image does.
        window: How many pixels the readout takes means of, along each axis; 0 for all.
        step: How far these are apart.
    """

    variance: float
    size: int = 3
    padding: str = "zeros"
    whiten: float | None = None
    mirror: bool = False
    window: int = 1
    step: int = 1

    def __str__(self) -> str:
        """A title."""
        parts = [f"ConvDEQ {self.variance:g} {self.size}x{self.size}"]
        if self.padding != "zeros":
            parts.append(self.padding)
        if self.whiten is not None:
            parts.append(f"whitened {self.whiten:g}" if math.isfinite(self.whiten) else "normed")
        if self.mirror:
            parts.append("mirrored")
        if self.window != 1:
            parts.append(f"windows {self.window} by {self.step}" if self.window else "pooled")
        return ", ".join(parts)

    def network(self, channels: int) -> shoal.ConvDEQ:
        """The equilibrium."""
        return shoal.ConvDEQ(
            shoal.ReLU(),
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
            yield Move(mirrored, down * self.step, across * self.step, share / len(views))

    def ntk(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """The NTK of images with others, or with themselves, averaged over moves of the latter."""
        net = self.network(x.shape[1])
        total = torch.zeros(len(x), len(x if other is None else other)).to(x)
        for move in self.moves():
            if other is not None:
                total += move.weight * shoal.kernel(net, x, move(other)).ntk
            elif move == move.inverse and not move.mirrored:  # no move at all
                total += move.weight * shoal.kernel(net, x).ntk
            elif move == move.inverse:
                total += symmetric(net, x, move(x)).mul_(move.weight)
            elif move < move.inverse:  # k(x, g x') = k(g⁻¹ x, x'): the inverse has the transpose
                found = shoal.kernel(net, x, move(x)).ntk.mul_(move.weight)
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


def prepared(train: Tensor, test: Tensor, whiten: float | None) -> tuple[Tensor, Tensor]:
    """Images with pixels of mean zero, in all of one scale, and perhaps whitened."""
    mean = train.mean((0, 2, 3), keepdim=True)
    both = [train - mean, test - mean]
    if whiten is not None:
        both = [normed(x) for x in both]
        if math.isfinite(whiten):
            transform = whitening(both[0], whiten)
            both = [normed(whitened(x, transform)) for x in both]
    scale = both[0].square().mean().sqrt()
    return both[0] / scale, both[1] / scale


def normed(x: Tensor) -> Tensor:
    """Images of mean zero and of one norm each."""
    x = x - x.mean((1, 2, 3), keepdim=True)
    return x / x.square().mean((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-3)


def whitening(x: Tensor, ridge: float) -> Tensor:
    """For each frequency, the inverse root of the covariance of channels, with a ridge.

    It is the same at all places and for mirrored images, so that few images suffice to know it.
    """
    waves = torch.fft.fft2(x.double())
    power = torch.einsum("nchw,ndhw->hwcd", waves, waves.conj()).real / len(x)
    mirrored = torch.roll(power.flip(1), 1, 1)
    values, vectors = torch.linalg.eigh((power + mirrored) / 2)
    floor = ridge * values.mean()
    return torch.einsum(
        "hwck,hwk,hwdk->hwcd", vectors, (values.clamp(min=0) + floor).rsqrt(), vectors
    )


def whitened(x: Tensor, transform: Tensor) -> Tensor:
    """Images whose frequencies have about the same power."""
    waves = torch.einsum(
        "hwcd,ndhw->nchw", transform.to(torch.complex128), torch.fft.fft2(x.double())
    )
    return torch.fft.ifft2(waves).real.to(x.dtype)
