"""Kernels of images, made of pairs of pixels."""
