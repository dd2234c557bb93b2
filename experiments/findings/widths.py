r"""How fast the kernels of finite networks approach those of infinitely wide ones.

And how far Du 2018's equation 6 is from the limit of the Gram matrix that it is to be.
"""

import itertools
import math

import torch
from torch import Tensor

import shoal
from experiments.claims import Claim, Criterion, interval, short
from experiments.drawing import Axes, draw_panels
from experiments.experiment import Point, experiment, grid, matching, named
from experiments.samples import unit_inputs
from experiments.widths import KernelErrors, draw_errors, limit_kernels
from shoal.gaussian import dual, dual_derivative, moments

_DEQ = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8)


@experiment("shoal", "width")
class WidthError(KernelErrors):
    """Monte Carlo error of a finite DEQ's kernels against its width."""

    groups, heading = False, "a Tanh DEQ"

    architecture: shoal.DEQ = _DEQ
    draws: int = 16
    samples: int = 64
    features: int = 64
    small = dict(widths=(32, 64, 128, 256), draws=6, samples=16, features=32)


@experiment("shoal", "groups")
class GroupError(KernelErrors):
    """Monte Carlo error of every architecture's kernels against the width."""

    architectures: tuple[shoal.Architecture, ...] = (
        _DEQ,
        shoal.ImplicitNetwork(gamma=0.4),
        shoal.FullyConnected.du2018(shoal.activations.Softplus(), depth=3),
        shoal.ResNet(shoal.activations.Softplus(), depth=3, residual_scale=1.0),
    )
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 16
    features: int = 32
    small = dict(widths=(32, 64, 128, 256), draws=6, samples=12, features=16)

    def points(self):
        networks = range(len(self.architectures))
        draws = range(self.draws)
        return grid("draw", "width", network=networks, width=self.widths, draw=draws)

    def wide(self, point: Point) -> shoal.Architecture:
        return self.architectures[point["network"]]

    def summarize(self, results):
        summary: dict[str, float] = {}
        for index, architecture in enumerate(self.architectures):
            numbers = super().summarize(matching(results, {"network": index}))
            summary |= named(type(architecture).__name__, numbers)
        return summary

    def plot(self, results):
        def panel(axes: Axes, row: int, column: int) -> str:
            draw_errors(axes, matching(results, {"network": 2 * row + column}))
            return type(self.architectures[2 * row + column]).__name__

        rows = len(self.architectures) // 2
        return draw_panels(range(rows), range(2), panel, (11.2, 4.6 * rows), legend=None)


@experiment("shoal", "conv-width")
class ConvWidthError(KernelErrors):
    """Monte Carlo error of a finite ConvResNet's kernels against its width.

    The last layer's share of the NTK is compared with the Gram matrix that Du 2018 prints.
    """

    heading = "a convolutional residual network"

    architecture: shoal.ConvResNet = shoal.ConvResNet(shoal.activations.GELU(), depth=4)
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 16
    samples: int = 12
    channels: int = 3
    pixels: int = 12  # in a row, as in the paper
    small = dict(widths=(32, 64, 128, 256), draws=6, samples=6, pixels=6)

    def inputs(self) -> Tensor:
        flat = unit_inputs(self.samples, self.channels * self.pixels, self.seed)
        return flat.view(self.samples, self.channels, self.pixels)

    def summarize(self, results):
        wide = self.architecture
        limit = limit_kernels(self, wide, torch.device("cpu"))[wide.parameter_groups[-1]]
        ratio = float(printed_gram(wide, self.inputs()).norm() / limit.norm())
        return {**super().summarize(results), "printed_over_limit": ratio}

    def claims(self, summary):
        slope = f"{self.architecture.parameter_groups[-1]}_slope"
        asked = "upper end of the slope at most −0.25, half the rate"
        yield Claim(
            "The Gram matrix of convolutional ResNets, Equation 6",
            "Equation 6",
            f"Equation 6 is {short(summary['printed_over_limit'], 3)} times the limit; finite "
            f"networks approach the corrected one, slope {interval(summary, slope)}",
            "Du 2018, Theorems 3.1, 4.1 and 5.1",
            (Criterion(asked, summary[f"{slope}_high"], most=-0.25),),
            corrected=True,
        )


def printed_gram(architecture: shoal.ConvResNet, x: Tensor) -> Tensor:
    r"""The Gram matrix $K^{(H)}$ as Du 2018 prints it in equation 6, for pixels in a row.

    Patches are summed over all pairs of their pixels, those of the first layer not at all, and the
    skip connection adds these sums. Images have the shape (n, channels, pixels).
    """
    reach, pixels = architecture.patch_size // 2, x.shape[2]
    place = torch.arange(pixels, device=x.device)
    near = ((place - place[:, None]).abs() <= reach).to(x)  # which pixels a patch has
    padded = torch.nn.functional.pad(x, (reach, reach))
    patches = padded.unfold(2, architecture.patch_size, 1)  # (n, channels, pixels, patch)
    gram = x.new_zeros(len(x), len(x))
    for i, j in itertools.product(range(len(x)), repeat=2):
        pair = torch.cat([patches[i], patches[j]], 1).movedim(1, 0).flatten(1)
        gram[i, j] = _printed_entry(architecture, pair @ pair.T, near)
    return gram


def _printed_entry(architecture: shoal.ConvResNet, k: Tensor, near: Tensor) -> Tensor:
    """From $K^{(0)}$ of the pixels of both images, one after the other."""
    sigma, pixels = architecture.activation, len(near)
    step = architecture.residual_scale / architecture.depth
    first = 1 / float(moments(sigma, 1.0).square)
    patch = torch.block_diag(near, near)
    b = math.sqrt(first) * moments(sigma, k.diagonal().sqrt()).mean
    k = first * dual(sigma, k.diagonal()[:, None], k.diagonal(), k)
    for _ in range(2, architecture.depth):
        below = moments(sigma, k.diagonal().sqrt()).mean
        cross = torch.outer(b, below) + torch.outer(below, b)
        branch = dual(sigma, k.diagonal()[:, None], k.diagonal(), k)
        k = patch @ (k + step * cross + step**2 * branch) @ patch
        b = b + step * below
    variance = k.diagonal()
    slope = dual_derivative(sigma, variance[:pixels, None], variance[pixels:], k[:pixels, pixels:])
    return step**2 * (k[:pixels, pixels:] * slope).sum()
