"""Solves that recur on a GPU, recorded as CUDA graphs."""
