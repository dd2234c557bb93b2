"""A tour of the Gaussian calculus underneath: moments, fixed points and duals of activations.

Kinks are exact, derivatives are those of distributions, and all is differentiable. Takes about
five seconds.

    python examples/tour.py [--output tour.png]

It prints:

    Moments at scale 1         E[φ]     E[φ']    E[φ'']   E[φ²]
      ReLU()                  0.3989   0.5000   0.3989   0.5000
      Tanh()                  0.0000   0.6057   0.0000   0.3943
      HardTanh(bound=1.0)     0.0000   0.6827   0.0000   0.5161
      GELU()                  0.2821   0.5000   0.4231   0.4252
      ELU(alpha=0.5)          0.2797   0.6308   0.3303   0.5362

    ShiftedReLU() has kinks (Kink(location=0.7, jumps=(0.0, 1.0, 0.0)),)

    Dual of Tanh at a = b = 1, c = -1, 0, 0.5, 1, 1
      -0.394294490398, 0.000000000000, 0.186324413203, 0.394294490397, 0.394294490398
    ∂²D/∂c² of ReLU at c = 0.3: 0.166839713532574; exactly 0.166839713532574

    100,000 duals of Tanh to 1e-12: ... s, then ... s
"""

import argparse
import math
import time

import torch
from matplotlib.figure import Figure

import shoal
from shoal.activations import ELU, GELU, HardTanh, ReLU, Tanh
from shoal.core.figures import COLORS, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="tour.png", help="where to save the figure")
output = parser.parse_args().output

# %% Moments, kinks and all: E[φ''] of ReLU is the mass of a delta.
print("Moments at scale 1         E[φ]     E[φ']    E[φ'']   E[φ²]")
activations = (ReLU(), Tanh(), HardTanh(), GELU(), ELU(0.5))
for phi in activations:
    m = shoal.gaussian.moments(phi, 1.0)
    numbers = "  ".join(
        f"{round(float(x), 12) + 0:7.4f}" for x in (m.mean, m.first, m.second, m.square)
    )
    print(f"  {phi!s:22} {numbers}")

# %% An activation of one's own: a function is enough.


class ShiftedReLU(shoal.Activation):
    """A rectifier that starts at 0.7."""

    def function(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate the function."""
        return torch.relu(x - 0.7)


print(f"\n{ShiftedReLU()} has kinks {ShiftedReLU().kinks}")

# %% Duals, anywhere on the closed domain, differentiable to any order.
c = torch.tensor([-1.0, 0.0, 0.5, 1 - 1e-12, 1.0], dtype=torch.float64)
duals = shoal.gaussian.dual(Tanh(), 1.0, 1.0, c)
print("\nDual of Tanh at a = b = 1, c =", ", ".join(f"{float(x):.4g}" for x in c))
print("  " + ", ".join(f"{round(float(d), 12) + 0:.12f}" for d in duals))
c = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
(slope,) = torch.autograd.grad(shoal.gaussian.dual(ReLU(), 1.0, 1.0, c), c, create_graph=True)
(bend,) = torch.autograd.grad(slope, c)
exact = 1 / (2 * math.pi * math.sqrt(1 - 0.3**2))
print(f"∂²D/∂c² of ReLU at c = 0.3: {float(bend):.15f}; exactly {exact:.15f}")

# %% A hundred thousand of them.
generator = torch.Generator().manual_seed(0)
unit = torch.rand(3, 100_000, dtype=torch.float64, generator=generator)
a, b = 0.5 + unit[0], 0.5 + unit[1]
c = (2 * unit[2] - 1) * (a * b).sqrt()
seconds = []
for _ in range(2):
    start = time.perf_counter()
    shoal.gaussian.dual(Tanh(), a, b, c)
    seconds.append(time.perf_counter() - start)
print(f"\n100,000 duals of Tanh to 1e-12: {seconds[0]:.2f} s, then {seconds[1]:.2f} s")

# %% Duals against the correlation of the two arguments.
with style():
    figure = Figure(figsize=(8, 3.2))
    left, right = figure.subplots(1, 2)
    u = torch.linspace(-3, 3, 301, dtype=torch.float64)
    rho = torch.linspace(-1, 1, 201, dtype=torch.float64)
    for phi, color in zip(activations, COLORS, strict=False):
        left.plot(u, phi(u), color=color, label=type(phi).__name__)
        right.plot(rho, shoal.gaussian.dual(phi, 1.0, 1.0, rho), color=color)
    left.set(title="Activations", xlabel="u")
    left.legend()
    right.set(title="Their duals E[φ(u)φ(v)]", xlabel="correlation of u and v", xticks=(-1, 0, 1))
    figure.savefig(output, dpi=160)
