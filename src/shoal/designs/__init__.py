"""Explicit networks that have the kernels of deep equilibrium models."""

from shoal.designs.feasibility import Feasibility, feasibility
from shoal.designs.kernel_series import KernelSeries, kernel_series
from shoal.designs.networks import NetworkGap
from shoal.designs.result import Design, Gap
from shoal.designs.verb import design

__all__ = [
    "Design",
    "Feasibility",
    "Gap",
    "KernelSeries",
    "NetworkGap",
    "design",
    "feasibility",
    "kernel_series",
]
