"""In high dimension a DEQ's kernel matrix is its equivalent: a few numbers and the data.

On a mixture of two Gaussian classes, the error in spectral norm falls with the dimension (Ling
2024, Theorems 3.3 and 3.4). Takes about ten seconds.

    python examples/mixture_equivalent.py [--output mixture_equivalent.png]

It prints:

       p     n   error of CK   of NTK
     100    80         3.56%    5.27%
     200   160         2.08%    2.97%
     400   320         1.27%    1.78%
     800   640         0.73%    1.13%
    1600  1280         0.38%    0.68%
"""

import argparse

import torch
from matplotlib.figure import Figure

import shoal
from shoal.core.figures import COLORS, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="mixture_equivalent.png", help="where to save the figure")
output = parser.parse_args().output
DIMENSIONS = (100, 200, 400, 800, 1600)

# %% Exact kernel matrices and their equivalents, for n = 0.8 p samples.
deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
errors = {"ck": [], "ntk": []}
print("   p     n   error of CK   of NTK")
for p in DIMENSIONS:
    n = 4 * p // 5
    x, labels = shoal.GaussianMixture.ling2024(p).sample(n, seed=0)
    equivalent = shoal.equivalent(deq, x, labels)
    centered = shoal.centered(deq, input_norm=float(x.square().sum(1).mean().sqrt()))
    kernels = shoal.kernel(centered, x)
    for name, found in errors.items():
        exact, near = getattr(kernels, name), getattr(equivalent, name).to_dense()
        largest = [torch.linalg.eigvalsh(m).abs().max() for m in (exact - near, exact)]
        found.append(float(largest[0] / largest[1]))
    print(f"{p:4} {n:5} {errors['ck'][-1]:13.2%} {errors['ntk'][-1]:8.2%}")

# %% The errors against the dimension.
with style():
    figure = Figure(figsize=(5, 3.4))
    axes = figure.subplots()
    for (name, found), color in zip(errors.items(), COLORS, strict=False):
        axes.loglog(DIMENSIONS, found, "o-", color=color, label=name.upper())
    rate = [errors["ntk"][0] * (DIMENSIONS[0] / p) ** 0.5 for p in DIMENSIONS]
    axes.loglog(DIMENSIONS, rate, ":", color="#6b6b6b", label="one over the root of p")
    axes.set(xlabel="dimension p, n = 0.8 p", ylabel="relative error in spectral norm")
    axes.set_title("Equivalents of a ReLU DEQ's kernels")
    axes.set_xticks(DIMENSIONS, [str(p) for p in DIMENSIONS])
    axes.set_yticks([0.005, 0.01, 0.02, 0.05], ["0.5%", "1%", "2%", "5%"])
    axes.minorticks_off()
    axes.legend()
    figure.savefig(output, dpi=160)
