"""Activations of single layers that have a DEQ's kernel for all inputs of one norm.

Exactly matching networks for five activations, by the power series of the kernel in the cosine.
Takes about twenty seconds.

    python examples/sphere.py [--output sphere.png]

It prints:

    kernels differ by less than 1e-6 of the diagonal, for cosines up to 0.95
    activation      CK 0.24   NTK 0.24   NTK  0.9
    ReLU               True       True       True
    Tanh               True       True       True
    Swish              True       True       True
    Softplus           True       True       True
    GELU               True       True       True
"""

import argparse

import torch
from matplotlib.figure import Figure

import shoal
from shoal.core.figures import COLORS, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="sphere.png", help="where to save the figure")
output = parser.parse_args().output

ACTIVATIONS = (
    shoal.activations.ReLU(),
    shoal.activations.Tanh(),
    shoal.activations.Swish(),
    shoal.activations.Softplus(),
    shoal.activations.GELU(),
)
DESIGNS = (("ck", 0.24, "-"), ("ntk", 0.24, "--"), ("ntk", 0.9, ":"))

# %% Each design next to the activation of its DEQ, at unit norm.
print("kernels differ by less than 1e-6 of the diagonal, for cosines up to 0.95")
print(
    "activation  " + "".join(f"{which.upper():>6} {variance:4}" for which, variance, _ in DESIGNS)
)
x = torch.linspace(-6, 6, 1201, dtype=torch.float64)
with style():
    figure = Figure(figsize=(12, 2.8))
    for axes, phi in zip(figure.subplots(1, 5, sharey=True), ACTIVATIONS, strict=True):
        axes.plot(x, phi(x), color="#b0b0b0", label="of the DEQ")
        met = []
        for color, (which, variance, line) in zip(COLORS, DESIGNS, strict=False):
            deq = shoal.DEQ(phi, variance / phi.lipschitz**2, 0.8)
            design = shoal.design(deq, input_norm=1.0, which=which, method="sphere")
            met.append(str(design.residual < 1e-6))
            sigma = design.architecture.activations[0]
            label = f"{which.upper()}, $\\sigma_a^2 L^2 = {variance}$"
            axes.plot(x, sigma(x), line, color=color, label=label)
        print(f"{type(phi).__name__:12}" + "".join(f"{value:>11}" for value in met))
        axes.set(title=type(phi).__name__, xlabel="u")
    figure.axes[0].legend(fontsize=7)
    figure.savefig(output, dpi=130)
