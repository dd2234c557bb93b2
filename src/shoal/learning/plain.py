r"""The promises of this package by brute force: slow, obvious, and the oracle of its tests.

All functions take matrices. ``k`` is the kernel of the training inputs, of shape (n, n).
"""

import math

import scipy  # whose parts are imported where they are first used
import torch
from torch import Tensor


def ridge_regression(
    k: Tensor, y: Tensor, ridge: float, center: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Coefficients and constant: $(K + \lambda I)\alpha + b1 = y$, $1^T\alpha = 0$ if centered."""
    system = k + ridge * torch.eye(len(k), dtype=k.dtype)
    if not center:
        return torch.linalg.solve(system, y), torch.zeros_like(y[0])
    bordered = torch.nn.functional.pad(system, (0, 1, 0, 1), value=1.0)
    bordered[-1, -1] = 0.0
    both = torch.linalg.solve(bordered, torch.cat([y, torch.zeros_like(y[:1])]))
    return both[:-1], both[-1]


def leave_one_out(
    k: Tensor, y: Tensor, ridge: float, center: bool = False
) -> tuple[Tensor, Tensor]:
    """Prediction for each sample from all the others, and its variance, by as many regressions."""
    predictions, variances = torch.empty_like(y), torch.empty(len(y), dtype=k.dtype)
    for i in range(len(y)):
        keep = torch.arange(len(y)) != i
        row, inner = k[i, keep], k[keep][:, keep]
        alpha, constant = ridge_regression(inner, y[keep], ridge, center)
        predictions[i] = row @ alpha + constant
        variances[i] = variance(inner, row[:, None], k[i, i], ridge, center) + ridge
    return predictions, variances


def variance(
    k: Tensor, cross: Tensor, diagonal: Tensor, ridge: float, center: bool = False
) -> Tensor:
    """The posterior variance at new inputs, each a column of ``cross``.

    A random function with covariance $k$ is predicted with weights $w$, of sum one if a constant is
    fitted; this is the mean squared error.
    """
    weights = ridge_regression(k, cross, ridge)[0]
    if center:
        ones = torch.ones_like(cross[:, :1])
        flat = ridge_regression(k, ones, ridge)[0]
        weights = weights + flat * (1 - weights.sum(0)) / flat.sum()
    return (
        diagonal - 2 * (weights * cross).sum(0) + (weights * (k @ weights + ridge * weights)).sum(0)
    )


def gcv(k: Tensor, y: Tensor, ridge: float, center: bool = False) -> float:
    r"""The mean squared residual over $(1 - \operatorname{tr} S/n)^2$, where $Sy$ are the fits."""
    alpha, constant = ridge_regression(k, torch.eye(len(k), dtype=k.dtype), ridge, center)
    smoother = k @ alpha + constant
    share = 1 - float(smoother.trace()) / len(k)
    return float((y - smoother @ y).square().mean()) / share**2


def log_marginal_likelihood(k: Tensor, y: Tensor, ridge: float, center: bool = False) -> float:
    r"""$\log N(y; 0, K + \lambda I)$, summed over columns; centered, of differences of targets."""
    covariance = k + ridge * torch.eye(len(k), dtype=k.dtype)
    if center:
        differences = torch.linalg.qr(torch.eye(len(k), dtype=k.dtype).sub(1 / len(k))).Q[:, :-1]
        covariance, y = differences.T @ covariance @ differences, differences.T @ y
    law = scipy.stats.multivariate_normal(cov=covariance.numpy())
    return math.fsum(law.logpdf(column) for column in y.reshape(len(y), -1).T.numpy())


def learning_curve(
    k: Tensor,
    y: Tensor,
    ridge: float,
    size: int,
    repeats: int,
    *,
    center: bool = False,
    seed: int = 0,
) -> float:
    """The error of regressions on random samples, measured on all the others."""
    generator, errors = torch.Generator().manual_seed(seed), []
    for _ in range(repeats):
        order = torch.randperm(len(y), generator=generator)
        train, test = order[:size], order[size:]
        alpha, constant = ridge_regression(k[train][:, train], y[train], ridge, center)
        errors.append(float((k[test][:, train] @ alpha + constant - y[test]).square().mean()))
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
