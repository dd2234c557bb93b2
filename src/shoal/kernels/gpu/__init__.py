"""Passes of a GPU over tiles of kernel matrices and over pairs of images, with Triton."""
