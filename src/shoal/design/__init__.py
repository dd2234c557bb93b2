"""Explicit networks that have the kernels of deep equilibrium models."""

from shoal.design.feasibility import Feasibility, feasibility
from shoal.design.kernel_series import KernelSeries, kernel_series
from shoal.design.result import Design, Gap
from shoal.design.verb import design

__all__ = ["Design", "Feasibility", "Gap", "KernelSeries", "design", "feasibility", "kernel_series"]
