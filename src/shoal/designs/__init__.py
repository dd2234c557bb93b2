"""Explicit networks that have the kernels of deep equilibrium models."""

from shoal.designs.design import design
from shoal.designs.feasibility import Feasibility, feasibility
from shoal.designs.kernel_series import KernelSeries, kernel_series
from shoal.designs.moments import MomentMatching
from shoal.designs.patches import PatchMatching
from shoal.designs.result import Design, Gap, NetworkGap
from shoal.designs.sphere import SphereMatching

__all__ = [
    "Design",
    "Feasibility",
    "Gap",
    "KernelSeries",
    "MomentMatching",
    "NetworkGap",
    "PatchMatching",
    "SphereMatching",
    "design",
    "feasibility",
    "kernel_series",
]
