"""Why not a plain layer? The kernel of a DEQ, which its design has, against that of a plain layer.

python benchmarks/plain_layer.py [--samples N] [--norm R]

Both networks are infinitely wide and trained by gradient flow with early stopping as ridge, so that
training them is regression with their tangent kernels. The data are scikit-learn's digits, centered
and of one norm, where designs on the sphere have the kernel of the DEQ exactly: what is said of the
DEQ's kernel is said of the design. The plain layer has the same activation, and the scale of its
inputs is chosen, with the ridge, on a validation set; of the DEQ the ridge alone is chosen. Two
tasks: the ten classes, and functions drawn at random from the DEQ's own NTK with a tenth of noise,
where no other kernel can be better on average. Prints a table in Markdown.
"""

import argparse

import torch
from torch import Tensor

import shoal

SCALES = (0.1, 0.3, 1.0, 3.0)
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
CASES = [
    (shoal.activations.Tanh(), 0.2),
    (shoal.activations.Tanh(), 0.9),
    (shoal.activations.ReLU(), 0.2),
    (shoal.activations.ReLU(), 0.9),
    (shoal.activations.ReLU(), 1.6),
    (shoal.activations.Sine(), 0.9),
]
NOISE, DRAWS = 0.1, 10


def tangent_kernel(architecture: shoal.Architecture, x: Tensor) -> Tensor:
    """The NTK, of mean diagonal one."""
    kernel = shoal.kernel(architecture, x).ntk
    return kernel / kernel.diagonal().mean()


def predictions(kernel: Tensor, targets: Tensor, known: int) -> list[Tensor]:
    """What is said of all other samples after learning some, for each ridge."""
    values, vectors = torch.linalg.eigh(kernel[:known, :known])
    projected = vectors.T @ targets[:known]
    rest = kernel[known:, :known] @ vectors
    return [rest @ (projected / (values + ridge)[:, None]) for ridge in RIDGES]


def best(kernels: list[Tensor], targets: Tensor, known: int, validation: int) -> Tensor:
    """Of test samples, what the kernel and the ridge say that are best on validation samples."""
    found = [p for kernel in kernels for p in predictions(kernel, targets, known)]
    right = targets[known : known + validation]
    errors = [float((p[:validation] - right).square().mean()) for p in found]
    return found[min(range(len(found)), key=errors.__getitem__)][validation:]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=600, help="to learn")
    parser.add_argument("--norm", type=float, default=1.0, help="of the inputs")
    options = parser.parse_args()
    digits = shoal.data.load("digits")
    x, y = digits.x.flatten(1).double(), digits.y
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    x = options.norm * torch.nn.functional.normalize(x - x.mean(0))
    known, validation = options.samples, 200
    classes = torch.nn.functional.one_hot(y, 10).double() - 0.1
    print(
        "| DEQ | accuracy: DEQ and design | plain layer | they disagree in | "
        "unexplained of its own functions: design | plain layer |"
    )
    print("|---|---|---|---|---|---|")
    for phi, variance in CASES:
        deq = shoal.DEQ(phi, variance, 1.0)
        own = tangent_kernel(deq, x)
        plain = [tangent_kernel(shoal.FullyConnected((phi,)), scale * x) for scale in SCALES]
        shares, chosen = [], []
        for kernels in ([own], plain):
            said = best(kernels, classes, known, validation).argmax(1)
            chosen.append(said)
            shares.append(float((said == y[known + validation :]).double().mean()))
        apart = float((chosen[0] != chosen[1]).double().mean())
        lost = own_functions(own, plain, known, validation)
        print(
            f"| {phi!r}, σ_a² = {variance} | {shares[0]:.1%} | {shares[1]:.1%} | {apart:.1%} | "
            f"{lost[0]:.2%} | {lost[1]:.2%} |",
            flush=True,
        )


def own_functions(own: Tensor, plain: list[Tensor], known: int, validation: int) -> list[float]:
    """The share of the variance that is left of functions of a kernel: by itself, by others."""
    generator = torch.Generator().manual_seed(1)
    values, vectors = torch.linalg.eigh(own)
    draws = torch.randn(len(own), DRAWS, generator=generator, dtype=own.dtype)
    functions = vectors @ (values.clamp_min(0).sqrt()[:, None] * draws)
    functions = functions - functions.mean(0)
    functions = functions / functions.std(0)
    noise = torch.randn(functions.shape, generator=generator, dtype=own.dtype)
    noisy = functions + NOISE * noise
    truth = functions[known + validation :]
    return [
        float((best(kernels, noisy, known, validation) - truth).square().mean())
        for kernels in ([own], plain)
    ]


if __name__ == "__main__":
    main()
