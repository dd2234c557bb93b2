"""Explicit networks that have the kernels of deep equilibrium models."""

from shoal.design.design import design
from shoal.design.feasibility import Feasibility, feasibility
from shoal.design.kernel_series import KernelSeries, kernel_series
from shoal.design.result import Design, Gap

__all__ = ["Design", "Feasibility", "Gap", "KernelSeries", "design", "feasibility", "kernel_series"]
