"""Draw the activations of one-layer networks that have a DEQ's kernel on the sphere."""

import sys

import matplotlib.pyplot as plt
import torch

import shoal

ACTIVATIONS = (shoal.ReLU(), shoal.Tanh(), shoal.Swish(), shoal.Softplus(), shoal.GELU())
DESIGNS = (("ck", 0.24, "C0-"), ("ntk", 0.24, "C1--"), ("ntk", 0.9, "C3:"))


def main(path: str) -> None:
    """Draw them next to the activations of the DEQs, at unit norm."""
    x = torch.linspace(-6, 6, 1201, dtype=torch.float64)
    figure, axes = plt.subplots(1, len(ACTIVATIONS), figsize=(15, 3), sharey=True)
    for axis, phi in zip(axes, ACTIVATIONS, strict=True):
        axis.plot(x, phi(x), color="0.7", label="of the DEQ")
        for match, variance, style in (
            ("ck", 0.24, "C0-"),
            ("ntk", 0.24, "C1--"),
            ("ntk", 0.9, "C3:"),
        ):
            deq = shoal.DEQ(phi, variance / phi.lipschitz**2, 0.8)
            sigma = shoal.design(deq, tau0=1.0, match=match, method="sphere").architecture
            label = f"{match.upper()}, $\\sigma_a^2 L^2 = {variance}$"
            axis.plot(x, sigma.activations[0](x), style, label=label)
        axis.set_title(type(phi).__name__)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sphere.png")
