"""Kernels of ReLU DEQs by plain iteration of their equations, to compare with."""

import numpy as np


def relu_deq(x, recurrent: float, injection: float, other=None, steps: int = 200):
    """CK and NTK with all weights trained, between inputs of shapes (n, p) and (m, p)."""
    other = x if other is None else other
    product = injection * x @ other.T
    left, right = (injection * (z**2).sum(1) / (1 - recurrent / 2) for z in (x, other))
    size = np.sqrt(left[:, None] * right)
    covariance = np.zeros_like(product)
    for _ in range(steps):
        angle = np.arccos(np.clip(covariance / size, -1, 1))
        ck = size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
        covariance = recurrent * ck + product
    if other is x:
        np.fill_diagonal(covariance, left)
        np.fill_diagonal(ck, left / 2)
    slope = (np.pi - np.arccos(np.clip(covariance / size, -1, 1))) / (2 * np.pi)
    return ck, ck + covariance * slope / (1 - recurrent * slope)


def log_marginal_likelihood(covariance, y) -> float:
    """Of a Gaussian vector."""
    return float(
        -0.5 * y @ np.linalg.solve(covariance, y)
        - 0.5 * np.linalg.slogdet(covariance)[1]
        - 0.5 * len(y) * np.log(2 * np.pi)
    )
