"""A tour of shoal: what it can do today, in a few seconds."""

import math
import time

import torch

import shoal

print(f"shoal {shoal.__version__}, torch {torch.__version__}\n")

# %% An architecture is a value.
deq = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
print(deq)
print(f"  parameter groups            {', '.join(deq.parameter_groups)}")
print(
    f"  infinite-width kernel       {'guaranteed' if deq.kernel_guaranteed else 'not guaranteed'}"
)
print(
    f"  contraction at finite width {'likely' if deq.contraction_guaranteed else 'not guaranteed'}"
)

# %% Moments, kinks and all: E[φ''] of ReLU is the mass of a delta.
print("\nMoments at scale 1         E[φ]     E[φ']    E[φ'']   E[φ²]")
for phi in (shoal.ReLU(), shoal.Tanh(), shoal.HardTanh(), shoal.GELU(), shoal.ELU(0.5)):
    m = shoal.gaussian.moments(phi, 1.0)
    numbers = "  ".join(f"{float(x):7.4f}" for x in (m.mean, m.first, m.second, m.square))
    print(f"  {phi!s:22} {numbers}")

# %% An activation of one's own: a function is enough.


class ShiftedReLU(shoal.Activation):
    """A rectifier that starts at 0.7."""

    def function(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate the function."""
        return torch.relu(x - 0.7)


print(f"\n{ShiftedReLU()} has kinks {ShiftedReLU().kinks}")

# %% The diagonal of a DEQ's kernel at infinite width is one scalar fixed point (Tanh, ‖x‖ = 1).
variance, previous, steps = torch.tensor(1.0, dtype=torch.float64), 0.0, 0
while abs(variance - previous) > 1e-15:
    square = shoal.gaussian.moments(deq.activation, variance.sqrt()).square
    previous, variance = variance, deq.recurrent_variance * square + deq.input_variance
    steps += 1
print(f"\nThe fixed point τ² = σ_a² E[φ(τξ)²] + σ_b² is {variance:.15f}, after {steps} steps")

# %% Duals, anywhere on the closed domain, differentiable to any order.
c = torch.tensor([-1.0, 0.0, 0.5, 1 - 1e-12, 1.0], dtype=torch.float64)
print("\nDual of Tanh at a = b = 1, c =", ", ".join(f"{float(x):.4g}" for x in c))
print("  " + ", ".join(f"{float(d):.12f}" for d in shoal.gaussian.dual(shoal.Tanh(), 1.0, 1.0, c)))
c = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
(slope,) = torch.autograd.grad(shoal.gaussian.dual(shoal.ReLU(), 1.0, 1.0, c), c, create_graph=True)
(bend,) = torch.autograd.grad(slope, c)
exact = 1 / (2 * math.pi * math.sqrt(1 - 0.3**2))
print(f"∂²D/∂c² of ReLU at c = 0.3: {float(bend):.15f}; exactly {exact:.15f}")

# %% A million of them.
generator = torch.Generator().manual_seed(0)
unit = torch.rand(3, 1_000_000, dtype=torch.float64, generator=generator)
a, b = 0.5 + unit[0], 0.5 + unit[1]
c = (2 * unit[2] - 1) * (a * b).sqrt()
seconds = []
for _ in range(2):
    start = time.perf_counter()
    shoal.gaussian.dual(shoal.Tanh(), a, b, c)
    seconds.append(time.perf_counter() - start)
print(
    f"\nA million duals of Tanh to 1e-12: {seconds[0]:.2f} s, and {seconds[1]:.2f} s once tabulated"
)
