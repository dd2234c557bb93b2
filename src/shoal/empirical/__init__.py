"""Kernels of finite networks, to be compared with those of infinitely wide ones."""

from shoal.empirical.kernel import empirical_kernel

__all__ = ["empirical_kernel"]
