"""The implicit network of Gao 2022, whose kernels are integrals of rectified Gaussians."""
