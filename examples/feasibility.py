"""Which DEQs have which designs: maps for four activations, as a picture."""

import sys

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import shoal
from shoal.designs import feasibility

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
phis = (shoal.Tanh(), shoal.Sine(), shoal.ReLU(), shoal.Swish())
for column, phi in zip(axes.T, phis, strict=True):
    for ax, match in zip(column, ("ck", "ntk"), strict=True):
        grid = feasibility(phi, recurrent, injected, match=match)
        choice = np.full(grid.exists.shape, len(COLORS) - 1)
        for index, where in reversed(list(enumerate(grid.families.values()))):
            choice[where] = index
        colors = ListedColormap(list(COLORS.values()))
        ax.pcolormesh(recurrent, injected, choice.T, cmap=colors, vmin=-0.5, vmax=3.5)
        ax.set(yscale="log", title=f"{type(phi).__name__}, {match.upper()}")
figure.supxlabel("recurrent variance $\\sigma_a^2$")
figure.supylabel("$\\sigma_b^2\\tau_0^2$")
handles = [Patch(color=color) for color in COLORS.values()]
figure.legend(handles, LABELS, loc="outside upper center", ncols=4, frameon=False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "feasibility.png", dpi=130)
