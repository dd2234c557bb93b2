"""Explicit networks that have the kernels of deep equilibrium models."""

from shoal.designs.design import design
from shoal.designs.moments import MomentMatching
from shoal.designs.result import Design, Gap, layer_activations
from shoal.designs.series import KernelSeries, kernel_series
from shoal.designs.sphere import SphereMatching

__all__ = [
    "Design",
    "Gap",
    "KernelSeries",
    "MomentMatching",
    "SphereMatching",
    "design",
    "kernel_series",
    "layer_activations",
]
