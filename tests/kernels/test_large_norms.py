"""Kernels of inputs so large that a smooth activation is nearly a step."""

import math

import pytest
import torch

import shoal

RECURRENT, INJECTED = 0.2, 0.8


def _grid(step: float = 0.1) -> torch.Tensor:
    return torch.arange(-22.0, 22.0 + step / 2, step, dtype=torch.float64)


def _duals(a: float, b: float, c: float) -> tuple[float, float]:
    """E[tanh(u) tanh(v)] and that of derivatives: tanh is erf and something of bounded support.

    The dual of erf is an arc sine, erf is smoothed to erf, and the trapezoidal rule is exact to
    rounding for what vanishes beyond 20.
    """
    x = _grid()
    h = float(x[1] - x[0])
    bump, slope = torch.tanh(x) - torch.erf(x), 1 / torch.cosh(x) ** 2
    det = a * b - c * c
    form = b * x[:, None] ** 2 - 2 * c * x[:, None] * x + a * x**2
    density = torch.exp(-form / (2 * det)) / (2 * math.pi * math.sqrt(det)) * h * h

    def against_erf(own: float, other: float) -> float:
        rest = other - c * c / own
        mean = torch.erf(c / own * x / math.sqrt(1 + 2 * rest))
        weight = torch.exp(-(x**2) / (2 * own)) / math.sqrt(2 * math.pi * own) * h
        return float((bump * mean * weight).sum())

    arc = 2 / math.pi * math.asin(2 * c / math.sqrt((1 + 2 * a) * (1 + 2 * b)))
    value = arc + against_erf(a, b) + against_erf(b, a) + float(bump @ density @ bump)
    return value, float(slope @ density @ slope)


def _mean_square(variance: float) -> float:
    x = _grid(0.02)
    weight = torch.exp(-(x**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
    return 1 - float((weight / torch.cosh(x) ** 2).sum()) * 0.02


def _variance(square: float) -> float:
    variance = INJECTED * square
    for _ in range(60):
        variance = RECURRENT * _mean_square(variance) + INJECTED * square
    return variance


def _kernels(x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    a, b, product = _variance(float(x @ x)), _variance(float(y @ y)), float(x @ y)
    covariance = INJECTED * product
    for _ in range(40):
        value, slope = _duals(a, b, covariance)
        covariance = RECURRENT * value + INJECTED * product
    value, slope = _duals(a, b, covariance)
    return value, value + covariance * slope / (1 - RECURRENT * slope)


@pytest.mark.thorough
def test_large_norms_and_all_angles():
    generator = torch.Generator().manual_seed(3)
    n = 370
    x = torch.randn(n, 5, dtype=torch.float64, generator=generator)
    x /= x.norm(dim=1, keepdim=True)
    near = torch.tensor([0.02, 0.1, 0.124, 0.126, 0.2], dtype=torch.float64)
    for row, angle in enumerate(near.tolist()):  # rows 10, 11, ... near 0, 1, ... or opposite
        across = x[10 + row] - (x[10 + row] @ x[row]) * x[row]
        turned = math.cos(angle) * x[row] + math.sin(angle) * across / across.norm()
        x[10 + row] = turned if row % 2 else -turned
    norms = torch.logspace(0, 2, n, dtype=torch.float64)
    x *= norms[torch.randperm(n, generator=generator)][:, None]
    found = shoal.kernel(shoal.DEQ("tanh", RECURRENT, INJECTED), x)
    pairs = [(row, 10 + row) for row in range(5)] + [(7 * k + 20, 11 * k + 25) for k in range(12)]
    for i, j in pairs:
        for matrix, expected in zip(found, _kernels(x[i], x[j]), strict=True):
            size = math.sqrt(float(matrix[i, i] * matrix[j, j]))
            assert abs(float(matrix[i, j]) - expected) <= 1e-10 * size, (i, j)
