"""Kernels of infinitely wide networks."""

from shoal.kernels import implicit_network, looped_network  # noqa: F401  (they register theirs)
from shoal.kernels.arguments import Kernels
from shoal.kernels.function import KernelFunction, kernel_function
from shoal.kernels.matrix import kernel, pair_eigenvalue
from shoal.kernels.operator import KernelOperator, KernelOperators, kernel_operator

__all__ = [
    "KernelFunction",
    "KernelOperator",
    "KernelOperators",
    "Kernels",
    "kernel",
    "kernel_function",
    "kernel_operator",
    "pair_eigenvalue",
]
