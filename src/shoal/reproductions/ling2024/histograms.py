"""Eigenvalues of kernels as the figures 5 to 7 of Ling 2024 show them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal.lab.experiment import Arrays
from shoal.pages.figures import COLORS, GRAY, Axes

__all__ = ["draw_densities", "draw_equivalent"]

_BINS = 60

Curve = tuple[Any, dict[str, Any]]
"""Eigenvalues, and how their histogram looks."""


def draw_densities(
    axes: Axes,
    curves: Sequence[Curve],
    *,
    logarithmic: bool,
    overlay: Callable[[float], None] | None = None,
) -> None:
    """Densities of eigenvalues, on a logarithmic axis so that single ones are seen.

    Args:
        axes: Where to draw.
        curves: What to draw.
        logarithmic: Whether eigenvalues are on a logarithmic axis too, and the density is that of
            their logarithms.
        overlay: Draws more, from the height of a single eigenvalue in the widest bin.
    """
    every = np.concatenate([values for values, _ in curves])
    least, largest = float(every.min()), float(every.max())
    if logarithmic:
        least = max(least, 1e-4 * largest)
        edges: Any = np.geomspace(0.9 * least, 1.1 * largest, _BINS)
        axes.set_xscale("log")
    else:
        margin = 0.03 * (largest - least)
        edges = np.linspace(least - margin, largest + margin, 2 * _BINS)
    widths = np.diff(np.log(edges)) if logarithmic else np.diff(edges)
    for values, look in curves:
        counts, _ = np.histogram(values, edges)
        axes.stairs(counts / (len(values) * widths), edges, **look)
    single = float(1 / (len(curves[0][0]) * widths.max()))
    if overlay is not None:
        overlay(single)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5 * single)


def draw_equivalent(axes: Axes, arrays: Arrays, *, logarithmic: bool) -> None:
    """Exact kernel, its estimate, the equivalent and, where there is one, the predicted density."""

    def predicted(single: float) -> None:
        density = np.where(arrays["density"] > 0, arrays["density"], np.nan)
        axes.plot(arrays["grid"], density, color="black", linewidth=1.2, label="predicted density")
        for k, spike in enumerate(arrays["spikes"]):
            label = "predicted isolated" if k == 0 else None
            axes.plot(spike, 1.2 * single, "kv", markersize=4, label=label)

    curves: list[Curve] = [
        (arrays["exact"], {"color": COLORS[5], "fill": True, "label": "exact kernel"}),
        (arrays["estimate"], {"color": GRAY, "linewidth": 1.0, "label": "estimate"}),
        (arrays["equivalent"], {"color": COLORS[1], "linewidth": 1.2, "label": "equivalent"}),
    ]
    overlay = predicted if "density" in arrays else None
    draw_densities(axes, curves, logarithmic=logarithmic, overlay=overlay)
