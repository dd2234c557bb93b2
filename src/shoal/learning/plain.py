r"""The promises of this package by brute force: slow, obvious, and the oracle of its tests.

All functions take matrices. ``k`` is the kernel of the training inputs, of shape (n, n).
"""

import math

import scipy  # whose parts are imported where they are first used
import torch
from torch import Tensor


def ridge_regression(k: Tensor, y: Tensor, ridge: float) -> Tensor:
    r"""The coefficients $\alpha = (K + \lambda I)^{-1} y$."""
    alpha: Tensor = torch.linalg.solve(k + ridge * torch.eye(len(k), dtype=k.dtype), y)
    return alpha


def leave_one_out(k: Tensor, y: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Prediction for each sample from all the others, and its variance, by as many regressions."""
    predictions, variances = torch.empty_like(y), torch.empty(len(y), dtype=k.dtype)
    for i in range(len(y)):
        keep = torch.arange(len(y)) != i
        row, inner = k[i, keep], k[keep][:, keep]
        predictions[i] = row @ ridge_regression(inner, y[keep], ridge)
        variances[i] = k[i, i] + ridge - row @ ridge_regression(inner, row, ridge)
    return predictions, variances


def gcv(k: Tensor, y: Tensor, ridge: float) -> float:
    r"""The mean squared residual over $(1 - \operatorname{tr} S/n)^2$, where $Sy$ are the fits."""
    smoother = k @ torch.linalg.inv(k + ridge * torch.eye(len(k), dtype=k.dtype))
    share = 1 - float(smoother.trace()) / len(k)
    return float((y - smoother @ y).square().mean()) / share**2


def log_marginal_likelihood(k: Tensor, y: Tensor, ridge: float) -> float:
    r"""$\log N(y; 0, K + \lambda I)$, summed over columns."""
    law = scipy.stats.multivariate_normal(cov=(k + ridge * torch.eye(len(k))).numpy())
    return math.fsum(law.logpdf(column) for column in y.reshape(len(y), -1).T.numpy())


def learning_curve(
    k: Tensor, y: Tensor, ridge: float, size: int, repeats: int, seed: int = 0
) -> float:
    """The error of regressions on random samples, measured on all the others."""
    generator, errors = torch.Generator().manual_seed(seed), []
    for _ in range(repeats):
        order = torch.randperm(len(y), generator=generator)
        given, new = order[:size], order[size:]
        alpha = ridge_regression(k[given][:, given], y[given], ridge)
        errors.append(float((k[new][:, given] @ alpha - y[new]).square().mean()))
    return sum(errors) / repeats


def gradient_flow(k: Tensor, f: Tensor, y: Tensor, time: float) -> Tensor:
    r"""$f_t$ on all inputs, trained on the first n of them: $\dot f = -\Theta (f(X) - y)$.

    Args:
        k: $\Theta$ of all inputs with each other.
        f: The initial function at all inputs.
        y: Labels of the first of them.
        time: $t$.
    """
    generator = torch.zeros_like(k)
    generator[:, : len(y)] = -k[:, : len(y)]
    evolution = torch.from_numpy(scipy.linalg.expm(time * generator.numpy()))
    zeros = torch.zeros(len(k) - len(y), *y.shape[1:], dtype=y.dtype)
    target = torch.cat([y, zeros])
    return target + evolution @ (f - target)
