"""Derivatives of kernels and of kernel matrices, in inputs and variances."""
