"""Errors of linear ridge regression whose law is known (Simon et al. 2021)."""

import math

import torch
from scipy.optimize import brentq

__all__ = ["normal", "omniscient"]


def normal(*shape, seed=0):
    """Independent standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def omniscient(spectrum, squares, noise, n, ridge):
    """Test, bias and training error from the law itself."""

    def excess(log_kappa):
        kappa = math.exp(log_kappa)
        return float((spectrum / (spectrum + kappa)).sum()) + ridge / kappa - n

    kappa = math.exp(brentq(excess, -60, 60))
    learned = spectrum / (spectrum + kappa)
    bias = float(((1 - learned) ** 2 * squares * spectrum).sum()) + noise**2
    test = bias * n / (n - float(learned.square().sum()))
    return test, bias, (ridge / (n * kappa)) ** 2 * test
