"""Explicit networks that have the kernels of deep equilibrium models."""

from shoal.design.design import design
from shoal.design.kernel_series import KernelSeries, kernel_series
from shoal.design.result import Design

__all__ = ["Design", "KernelSeries", "design", "kernel_series"]
