"""Regression with the exact kernel of a DEQ on many samples, without its matrix.

The operator forms strips of the kernel when it needs them, within the memory that you allow, and
conjugate gradients solve. Takes about twenty seconds for 6000 samples within 200 MiB.

    python examples/large_regression.py [--samples 6000] [--output large_regression.png]

It prints:

    samples   matrix would take   error on new inputs (noise 0.1)
        375               1 MiB           0.2293
        750               4 MiB           0.1885
       1500              17 MiB           0.1342
       3000              69 MiB           0.0874
       6000             275 MiB           0.0572
    kernel_regression: ... steps, the same predictions: True
"""

import argparse

import torch
from matplotlib.figure import Figure

import shoal
from shoal.core.figures import COLORS, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--samples", type=int, default=6000)
parser.add_argument("--output", default="large_regression.png", help="where to save the figure")
options = parser.parse_args()
NOISE, RIDGE = 0.1, 0.3
LIMITS = {"memory": "200MiB", "precision": torch.float32}

# %% A function on the sphere, observed with noise.
generator = torch.Generator().manual_seed(0)
x = torch.randn(options.samples + 500, 6, generator=generator, dtype=torch.float64)
x = torch.nn.functional.normalize(x)
truth = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2].abs()
y = truth + NOISE * torch.randn(len(x), generator=generator, dtype=torch.float64)
new, expected, x, y = x[-500:], truth[-500:], x[:-500], y[:-500]

# %% By hand: one operator to solve with, another one to predict with.
deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
errors = {}
print(f"samples   matrix would take   error on new inputs (noise {NOISE})")
for count in [options.samples // k for k in (16, 8, 4, 2, 1)]:
    kernel = shoal.kernel_operator(deq, x[:count], **LIMITS).ntk
    weights = kernel.solve(y[:count], shift=RIDGE, rtol=1e-4)
    predicted = shoal.kernel_operator(deq, new, x[:count], **LIMITS).ntk @ weights
    errors[count] = float((predicted - expected).square().mean().sqrt())
    print(f"{count:7} {8 * count**2 / 2**20:15.0f} MiB {errors[count]:16.4f}")

# %% In one call, with a preconditioner: fewer steps, and the same answer.
method = shoal.learning.ConjugateGradients(
    shoal.learning.Nystrom(200), tolerance=1e-4, precision=torch.float32
)
fit = shoal.kernel_regression(deq, x, y, ridge=RIDGE, center=False, method=method)
same = (fit.predict(new) - predicted).abs().max() < 1e-3
steps = int(fit.report.iterations.max())
print(f"kernel_regression: {steps} steps, the same predictions: {bool(same)}")

# %% More samples, less error.
with style():
    figure = Figure(figsize=(5, 3.4))
    axes = figure.subplots()
    axes.loglog(list(errors), list(errors.values()), "o-", color=COLORS[0], label="NTK of a DEQ")
    axes.axhline(NOISE, color="#6b6b6b", linestyle=":", label="noise of one observation")
    axes.set(xlabel="samples", ylabel="error on new inputs", title="Regression without a matrix")
    axes.set_xticks(list(errors), [str(count) for count in errors])
    axes.set_yticks([0.05, 0.1, 0.2], ["0.05", "0.1", "0.2"])
    axes.minorticks_off()
    axes.legend()
    figure.savefig(options.output, dpi=160)
