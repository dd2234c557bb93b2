"""Your own activation: a function is enough for kernels, networks and designs.

shoal finds kinks, the Lipschitz constant and all Gaussian expectations by itself. Takes about
fifteen seconds.

    python examples/own_activation.py [--output own_activation.png]

It prints:

    Lipschitz constant 1.088498, kinks ()
    E[φ] 0.240404, E[φ'] 0.563748, E[φ²] 0.452342

    width  error of the NTK
       64    0.470
      512    0.122
     2048    0.079

    one designed layer: off by less than 1e-7: True
"""

import argparse

import torch
from matplotlib.figure import Figure

import shoal
from shoal.core.figures import COLORS, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="own_activation.png", help="where to save the figure")
output = parser.parse_args().output


class Mish(shoal.Activation):
    """x tanh(log(1 + eˣ))."""

    def function(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate the function."""
        return torch.nn.functional.mish(x)


phi = Mish()
m = shoal.gaussian.moments(phi, 1.0)
print(f"Lipschitz constant {phi.lipschitz:.6f}, kinks {phi.kinks}")
print(f"E[φ] {m.mean:.6f}, E[φ'] {m.first:.6f}, E[φ²] {m.square:.6f}")

# %% Its DEQ, at infinite width and at finite ones: the error falls like one over the root.
deq = shoal.DEQ(phi, recurrent_variance=0.2, input_variance=0.8)
angles = torch.linspace(0, torch.pi, 25, dtype=torch.float64)
x = torch.stack([angles.cos(), angles.sin()], 1)
exact = shoal.kernel(deq, x).ntk
networks = {}
print("\nwidth  error of the NTK")
for width in (64, 512, 2048):
    net = shoal.build(deq, in_features=2, width=width, seed=0, dtype=torch.float64)
    networks[width] = shoal.empirical_kernel(net, x).ntk
    error = (networks[width] - exact).abs().max() / exact[0, 0]
    print(f"{width:5} {error:8.3f}")

# %% One hidden layer with the same NTK.
design = shoal.design(deq, input_norm=1.0, which="ntk", method="sphere")
gap = (shoal.kernel(design.architecture, x).ntk - exact).abs().max() / exact[0, 0]
print(f"\none designed layer: off by less than 1e-7: {bool(gap < 1e-7)}")

# %% Both activations, and the kernel against the angle.
with style():
    figure = Figure(figsize=(8, 3.2))
    left, right = figure.subplots(1, 2)
    u = torch.linspace(-4, 4, 401, dtype=torch.float64)
    left.plot(u, phi(u), color="#6b6b6b", linestyle="--", label="Mish, in the DEQ")
    left.plot(u, design.architecture.activations[0](u), color=COLORS[0], label="designed layer")
    left.set(xlabel="u", title="Activations")
    left.legend()
    for color, (width, matrix) in zip(COLORS[1:], networks.items(), strict=False):
        right.plot(angles, matrix[0], ".", color=color, label=f"width {width}")
    right.plot(angles, exact[0], color="black", linewidth=1, label="infinite width")
    right.set(xlabel="angle between two inputs", title="Neural tangent kernel")
    right.legend()
    figure.savefig(output, dpi=160)
