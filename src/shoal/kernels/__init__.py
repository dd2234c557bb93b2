"""Kernels of infinitely wide networks."""

from shoal.kernels import implicit_network  # noqa: F401  (it registers its kernels)
from shoal.kernels.function import KernelFunction, kernel_function
from shoal.kernels.image_function import ImageKernels, checked_points, chosen_kernels
from shoal.kernels.matrix import kernel
from shoal.kernels.operator import KernelOperator, KernelOperators, kernel_operator
from shoal.kernels.result import Kernels
from shoal.kernels.separation import pair_eigenvalue

__all__ = [
    "ImageKernels",
    "KernelFunction",
    "KernelOperator",
    "KernelOperators",
    "Kernels",
    "checked_points",
    "chosen_kernels",
    "kernel",
    "kernel_function",
    "kernel_operator",
    "pair_eigenvalue",
]
