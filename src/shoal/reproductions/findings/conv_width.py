r"""How fast the kernels of finite convolutional networks approach their limits.

And how far Du 2018's equation 6 is from the limit of the Gram matrix that it is to be.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.moments import mean, normalization
from shoal.lab import Claim, Criterion, Point, Result, register
from shoal.lab.figures import new_row
from shoal.lab.formatting import interval, short
from shoal.pages.figures import Figure
from shoal.reproductions.width_errors import (
    KernelErrors,
    draw_errors,
    limit_kernels,
    unit_inputs,
)

_NETWORK = shoal.ConvResNet(shoal.GELU(), depth=4)


@register
@dataclass(frozen=True)
class ConvWidthError(KernelErrors):
    r"""Monte Carlo error of the kernels of a convolutional residual network of $m$ channels.

    The last layer's share of the tangent kernel is the Gram matrix of Du 2018, whose printed
    formula is compared with it too.

    Args:
        architecture: The network.
        widths: The numbers $m$ of channels.
        draws: How many networks are drawn for each.
        samples: The number of images, of norm one.
        channels: Their channels.
        pixels: Their pixels, in a row, as in the paper.
        seed: Of images and networks.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "conv-width")
    title: ClassVar[str] = "Monte Carlo error of a finite ConvResNet's kernels against its width"

    architecture: shoal.ConvResNet = _NETWORK
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 16
    samples: int = 12
    channels: int = 3
    pixels: int = 12
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few and small images."""
        return cls(widths=(32, 64, 128, 256), draws=6, samples=6, pixels=6)

    def inputs(self) -> Tensor:
        """Random images of norm one."""
        flat = unit_inputs(self.samples, self.channels * self.pixels, self.seed)
        return flat.view(self.samples, self.channels, self.pixels)

    def wide(self, point: Point) -> shoal.ConvResNet:  # noqa: ARG002
        """The network."""
        return self.architecture

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes with 95% confidence intervals; how many times too large equation 6 is."""
        wide = self.architecture
        limit = limit_kernels(self, wide, torch.device("cpu"))[wide.parameter_groups[-1]]
        ratio = float(printed_gram(wide, self.inputs()).norm() / limit.norm())
        return {**super().summarize(results), "printed_over_limit": ratio}

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Finite networks approach the corrected matrix, not the printed one."""
        slope = f"{self.architecture.parameter_groups[-1]}_slope"
        ratio = summary["printed_over_limit"]
        claim = Claim(
            "The Gram matrix of convolutional ResNets, Equation 6",
            "Equation 6",
            f"Equation 6 is {short(ratio, 3)} times the limit; finite networks approach the "
            f"corrected one, slope {interval(summary, slope)}",
            "Du 2018, Theorems 3.1, 4.1 and 5.1",
            (
                Criterion(
                    "upper end of the slope at most −0.25, half the rate",
                    summary[f"{slope}_high"],
                    most=-0.25,
                ),
            ),
            corrected=True,
        )
        return (claim,)

    def plot(self, results: Sequence[Result]) -> Figure:
        """All errors, their mean at each width, and the fitted power laws."""
        figure, (axes,) = new_row(5.6, 4.6, 1)
        draw_errors(axes, results)
        axes.set_title("Kernels of a convolutional residual network")
        return figure


def printed_gram(architecture: shoal.ConvResNet, x: Tensor) -> Tensor:
    r"""The Gram matrix $K^{(H)}$ as Du 2018 prints it in equation 6, for pixels in a row.

    It is not the limit of any network's: patches are summed over all pairs of their pixels,
    $K^{(h)}_{lr} = \sum_{s \in D_l} \sum_{t \in D_r} H^{(h)}_{st}$, those of the first layer not at
    all, and the skip connection adds these sums. (The cross terms are those that are meant,
    $b_i\sigma(v) + b_j\sigma(u)$.)

    Args:
        architecture: A network of at least two layers.
        x: Images. shape: (n, channels, pixels)
    """
    reach, pixels = architecture.patch_size // 2, x.shape[2]
    place = torch.arange(pixels, device=x.device)
    near = ((place - place[:, None]).abs() <= reach).to(x)  # which pixels a patch has
    padded = torch.nn.functional.pad(x, (reach, reach))
    patches = padded.unfold(2, architecture.patch_size, 1)  # (n, channels, pixels, patch)
    gram = x.new_zeros(len(x), len(x))
    for i, j in itertools.product(range(len(x)), repeat=2):
        both = torch.cat([patches[i], patches[j]], 1).movedim(1, 0).flatten(1)
        gram[i, j] = _printed_entry(architecture, both @ both.T, near)
    return gram


def _printed_entry(architecture: shoal.ConvResNet, k: Tensor, near: Tensor) -> Tensor:
    """From $K^{(0)}$ of the pixels of both images, one after the other."""
    sigma, pixels = architecture.activation, len(near)
    step = architecture.residual_scale / architecture.depth
    first = normalization(sigma)
    patch = torch.block_diag(near, near)
    b = math.sqrt(first) * mean(sigma, k.diagonal())
    k = first * _dual(sigma, k)
    for _ in range(2, architecture.depth):
        below = mean(sigma, k.diagonal())
        cross = torch.outer(b, below) + torch.outer(below, b)
        k = patch @ (k + step * cross + step**2 * _dual(sigma, k)) @ patch
        b = b + step * below
    variance = k.diagonal()
    slope = dual_derivative(sigma, variance[:pixels, None], variance[pixels:], k[:pixels, pixels:])
    return step**2 * (k[:pixels, pixels:] * slope).sum()


def _dual(sigma: shoal.Activation, k: Tensor) -> Tensor:
    return dual(sigma, k.diagonal()[:, None], k.diagonal(), k)
