"""Which DEQs have which designs by moments: maps for four activations.

At each pair of variances, the first family of layers that has the coefficients of the DEQ's
kernel. Takes about twenty seconds.

    python examples/feasibility.py [--output feasibility.png]

It prints:

    share of the grid          hard_tanh    leaky_relu      sinusoid  nearest only
    Tanh         CK                 100%            0%            0%            0%
    Tanh         NTK                100%            0%            0%            0%
    Sine         CK                  55%            0%           45%            0%
    Sine         NTK                 79%            0%           21%            0%
    ReLU         CK                   0%           85%           15%            0%
    ReLU         NTK                  0%            0%          100%            0%
    Swish        CK                   0%            0%          100%            0%
    Swish        NTK                  0%            0%           63%           37%
"""

import argparse

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import shoal
from shoal.designs import feasibility

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="feasibility.png", help="where to save the figure")
output = parser.parse_args().output

COLORS = {
    "hard_tanh": "#0072B2",
    "leaky_relu": "#009E73",
    "sinusoid": "#E69F00",
    "nearest only": "#d0d0d0",
}
LABELS = ("hard tanh, one layer", "leaky rectifiers", "sinusoid, one or two layers", "nearest only")

# %% The family that `design` would choose, at each point.
recurrent = np.linspace(0.01, 0.99, 41)
injected = np.geomspace(0.03, 30, 40)
figure = Figure(figsize=(9.2, 4.8), layout="constrained")
axes = figure.subplots(2, 4, sharex=True, sharey=True)
print("share of the grid     " + "".join(f"{name:>14}" for name in COLORS))
phis = (
    shoal.activations.Tanh(),
    shoal.activations.Sine(),
    shoal.activations.ReLU(),
    shoal.activations.Swish(),
)
for column, phi in zip(axes.T, phis, strict=True):
    for ax, which in zip(column, ("ck", "ntk"), strict=True):
        grid = feasibility(phi, recurrent, injected, which=which)
        choice = np.full(grid.exists.shape, len(COLORS) - 1)
        for index, where in reversed(list(enumerate(grid.families.values()))):
            choice[where] = index
        shares = [f"{np.mean(choice == index):14.0%}" for index in range(len(COLORS))]
        print(f"{type(phi).__name__:12} {which.upper():9}" + "".join(shares))
        colors = ListedColormap(list(COLORS.values()))
        ax.pcolormesh(recurrent, injected, choice.T, cmap=colors, vmin=-0.5, vmax=3.5)
        ax.set(yscale="log", title=f"{type(phi).__name__}, {which.upper()}")
figure.supxlabel("recurrent variance $\\sigma_a^2$")
figure.supylabel("$\\sigma_b^2\\tau_0^2$")
handles = [Patch(color=color) for color in COLORS.values()]
figure.legend(handles, LABELS, loc="outside upper center", ncols=4, frameon=False)
figure.savefig(output, dpi=130)
