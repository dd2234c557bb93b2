"""A DEQ and the network designed for it, on the same inputs (Ling 2024, figure 7)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.architectures import DEQ
from shoal.lab.experiment import Arrays
from shoal.pages.figures import COLORS, GRAY, Axes
from shoal.reproductions.ling2024.comparison import estimated_kernels
from shoal.reproductions.ling2024.designs import cached_design
from shoal.reproductions.ling2024.histograms import draw_densities
from shoal.reproductions.ling2024.setting import matrix_norm
from shoal.reproductions.width_errors import network_for

__all__ = ["NORMS", "compare_with_design", "draw_pair", "estimated_ck"]

NORMS = ("exact", "estimate", "deq_noise", "design_noise", "size")


def compare_with_design(
    deq: DEQ, family: str, x: Tensor, *, tau0: float, width: int, seed: int
) -> Arrays:
    r"""Spectral norms and eigenvalues of the conjugate kernels of both networks.

    ``exact`` is $\|G^* - \Sigma\|$ and ``estimate`` the same for kernels that are estimated by one
    network of each kind, as in the paper; ``deq_noise`` and ``design_noise`` are the norms of what
    the estimates are off, and ``size`` is $\|G^*\|$.

    Args:
        deq: The DEQ, not centered yet.
        family: Of the design.
        x: Inputs of shape (n, p).
        tau0: Where the DEQ is centered and the design is made.
        width: Of the networks that kernels are estimated by.
        seed: Of their weights.
    """
    design = cached_design(deq, tau0, "ck", family)
    assert isinstance(design.original, DEQ)  # the centered DEQ
    exact, designed = design.kernels(x)
    estimate = estimated_kernels(design.original, x, width=width, seed=seed).ck
    other = estimated_ck(design.architecture, x, width=width, seed=seed + 1)
    found: dict[str, Any] = {
        "exact": matrix_norm(exact - designed),
        "estimate": matrix_norm(estimate - other),
        "deq_noise": matrix_norm(estimate - exact),
        "design_noise": matrix_norm(other - designed),
        "size": matrix_norm(exact),
    }
    pairs = {"deq": exact, "design": designed, "deq_estimate": estimate, "design_estimate": other}
    found |= {f"{k}_eigenvalues": torch.linalg.eigvalsh(m).cpu() for k, m in pairs.items()}
    return {key: np.asarray(value) for key, value in found.items()}


def estimated_ck(architecture: shoal.Architecture, x: Tensor, *, width: int, seed: int) -> Tensor:
    """The conjugate kernel of one random network of an explicit architecture."""
    network = network_for(architecture, x, width=width, seed=seed)
    with torch.no_grad():
        features = network.trace(x).features
    return features @ features.T


def draw_pair(axes: Axes, arrays: Arrays, *, logarithmic: bool) -> None:
    """Densities of the eigenvalues of both exact kernels, and of both estimates."""
    looks: dict[str, dict[str, Any]] = {
        "deq": {"color": COLORS[5], "fill": True, "label": "DEQ"},
        "design": {"color": COLORS[1], "linewidth": 1.4, "label": "design"},
        "deq_estimate": {"color": GRAY, "linewidth": 0.9, "label": "DEQ, estimated"},
        "design_estimate": {
            "color": GRAY, "linewidth": 0.9, "linestyle": ":", "label": "design, estimated"
        },
    }  # fmt: skip
    curves = [(arrays[f"{name}_eigenvalues"], look) for name, look in looks.items()]
    draw_densities(axes, curves, logarithmic=logarithmic)
