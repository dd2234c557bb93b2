"""Eigenvalues of kernels as the figures 5 and 6 of Ling 2024 show them."""

from typing import Any

import numpy as np

from shoal.lab.experiment import Arrays
from shoal.lab.figures import COLORS, GRAY, Axes

__all__ = ["draw_histograms"]

_BINS = 60


def draw_histograms(axes: Axes, arrays: Arrays, *, logarithmic: bool) -> None:
    """Exact kernel, its estimate, the equivalent and, where there is one, the predicted density.

    Densities are on a logarithmic axis, so that single eigenvalues are seen. With
    ``logarithmic``, so are eigenvalues, and the density is that of the logarithms.
    """
    exact, equivalent, estimate = (arrays[k] for k in ("exact", "equivalent", "estimate"))
    every = np.concatenate([exact, equivalent, estimate])
    if logarithmic:
        low = max(float(every.min()), 1e-4 * float(every.max()))
        edges: Any = np.geomspace(low * 0.9, float(every.max()) * 1.1, _BINS)
        axes.set_xscale("log")
    else:
        margin = 0.03 * float(np.ptp(every))
        edges = np.linspace(float(every.min()) - margin, float(every.max()) + margin, 2 * _BINS)
    _steps(axes, exact, edges, logarithmic, color=COLORS[5], fill=True, label="exact kernel")
    _steps(axes, estimate, edges, logarithmic, color=GRAY, linewidth=1.0, label="estimate")
    _steps(axes, equivalent, edges, logarithmic, color=COLORS[1], linewidth=1.2, label="equivalent")
    if "density" in arrays:
        density = np.where(arrays["density"] > 0, arrays["density"], np.nan)
        axes.plot(arrays["grid"], density, color="black", linewidth=1.2, label="predicted density")
        for k, spike in enumerate(arrays["spikes"]):
            label = "predicted isolated" if k == 0 else None
            axes.plot(spike, 1.2 * _least(exact, edges), "kv", markersize=4, label=label)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5 * _least(exact, edges))


def _steps(axes: Axes, values: Any, edges: Any, logarithmic: bool, **options: Any) -> None:
    counts, _ = np.histogram(values, edges)
    widths = np.diff(np.log(edges)) if logarithmic else np.diff(edges)
    axes.stairs(counts / (len(values) * widths), edges, **options)


def _least(values: Any, edges: Any) -> float:
    """The height of a single eigenvalue in the widest bin."""
    widths = np.diff(np.log(edges)) if np.ptp(np.diff(edges)) > 1e-9 * edges[-1] else np.diff(edges)
    return float(1 / (len(values) * widths.max()))
