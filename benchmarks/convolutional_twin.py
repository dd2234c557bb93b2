"""Draw the figure of docs/images.md: one hidden layer instead of a convolutional equilibrium.

python benchmarks/convolutional_twin.py [--output FILE.png]

The middle panel measures, on signals of nine pixels of one norm with circular padding, how far the
CK of the one-layer twin is from the equilibrium's; the right one shows its filter for 15x15 pixels.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import shoal

RECURRENT, INPUT, PIXELS, SIDE = 0.9, 0.5, 9, 15
SIZES = [0.1 * 2 ** (k / 2) for k in range(7)]


def averages(pixels: int) -> Tensor:
    """The mean over three neighbors on a circle."""
    place = torch.arange(pixels)
    step = (place[:, None] - place).abs()
    return (torch.minimum(step, pixels - step) <= 1).double() / 3


def smoothing(phi: shoal.Activation, mean: Tensor) -> Tensor:
    """The filter $(1 - r)(1 - rP)^{-1} P$ of the twin."""
    dense = shoal.kernel_function(shoal.DEQ(phi, RECURRENT, INPUT))
    tau = RECURRENT * dense(1.0, 1.0, 1.0).ck + INPUT
    start = RECURRENT * dense(1.0, 1.0, 0.0).ck
    rate = RECURRENT * float(shoal.gaussian.dual_derivative(phi, tau, tau, start))
    identity = torch.eye(len(mean), dtype=torch.float64)
    return (1 - rate) * torch.linalg.solve(identity - rate * mean, mean)


def error(phi: shoal.Activation, size: float) -> float:
    """The relative error of the twin's CK at random cosines up to a size."""
    deq = shoal.ConvDEQ(phi, RECURRENT, INPUT, padding="circular")
    dense = shoal.kernel_function(shoal.DEQ(phi, RECURRENT, INPUT))
    generator = torch.Generator().manual_seed(0)
    c = size * torch.rand(PIXELS, generator=generator, dtype=torch.float64)
    images = torch.zeros(2, 2, PIXELS, dtype=torch.float64)
    images[0, 0], images[1, 0], images[1, 1] = 1.0, c, (1 - c * c).sqrt()
    exact = shoal.kernel(deq, images).ck[0, 1]
    found = dense(1.0, 1.0, smoothing(phi, averages(PIXELS)) @ c).ck.mean()
    return abs(float(found / exact) - 1)


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="convolutional_equilibria.png")
    options = parser.parse_args()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    digits = shoal.data.load("digits", split="all").x[:9].view(3, 3, 8, 8)
    left.imshow(digits.permute(0, 2, 1, 3).reshape(24, 24), cmap="gray_r")
    left.set_title("digits, 8 by 8 pixels")
    left.set_axis_off()
    for phi, style in ((shoal.activations.ReLU(), "o-"), (shoal.activations.Erf(), "s--")):
        values = [error(phi, size) for size in SIZES]
        middle.loglog(SIZES, values, style, label=type(phi).__name__)
    middle.set_xticks([0.1, 0.2, 0.4, 0.8], ["0.1", "0.2", "0.4", "0.8"])
    middle.minorticks_off()
    middle.set_xlabel("largest cosine between pixels")
    middle.set_ylabel("relative error of the CK")
    middle.set_title("one hidden layer instead of an equilibrium")
    middle.legend(frameon=False)
    mean = averages(SIDE)
    kernel = smoothing(shoal.activations.ReLU(), torch.kron(mean, mean))[SIDE * SIDE // 2].view(
        SIDE, SIDE
    )
    shown = right.imshow(kernel.log10())
    right.set_title("its filter, log10")
    right.set_axis_off()
    figure.colorbar(shown, ax=right)
    figure.savefig(options.output, dpi=100)


if __name__ == "__main__":
    main()
