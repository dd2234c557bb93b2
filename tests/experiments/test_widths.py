"""Kernels and Gram matrices of finite networks against their limits, and against the depth."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from experiments import gao2022, ling2023
from experiments.findings.widths import ConvWidthError, GroupError, WidthError
from experiments.statistics import power_law

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
NETWORKS = (shoal.ImplicitNetwork(gamma=0.4), shoal.ResNet(shoal.activations.ReLU(), 2))
CONV = shoal.ConvResNet(shoal.activations.GELU(), 2, residual_scale=2.0)


def test_the_interval_covers_the_slope_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    x = np.repeat([1.0, 2.0, 4.0, 8.0], 5)
    covered = 0
    for _ in range(400):
        low, high = power_law(x, x**-0.5 * np.exp(generator.normal(0, 0.3, 20))).interval
        covered += low < -0.5 < high
    assert 0.92 < covered / 400 < 0.98


@pytest.mark.parametrize(
    "experiment",
    [
        WidthError(architecture=RELU, widths=(32, 128, 512), draws=12, samples=16, features=16),
        GroupError(architectures=NETWORKS, widths=(32, 96, 288), draws=10, samples=6, features=8),
        ConvWidthError(
            architecture=CONV, widths=(16, 64, 256), draws=10, samples=4, channels=2, pixels=4
        ),
    ],
    ids=lambda experiment: experiment.name[1],
)
def test_errors_fall_like_the_root_of_the_width(experiment: Any, compute) -> None:
    summary = experiment.summarize(compute(experiment))
    names = [name for name in summary if name.endswith("_slope")]
    assert len(names) == {"width": 2, "groups": 10, "conv-width": 4}[experiment.name[1]]
    for name in names:  # of ten intervals one may miss by a little
        assert summary[f"{name}_low"] - 0.1 < -0.5 < summary[f"{name}_high"] + 0.1, name
    if "printed_over_limit" in summary:  # Equation 6 is not the limit of this
        assert abs(summary["printed_over_limit"] - 1) > 0.1


def test_population_matrices_are_those_of_the_papers() -> None:
    unit = gao2022.Concentration.quick().inputs()
    theta = torch.arccos((unit @ unit.T).clamp(-1, 1))
    expected = (theta.sin() + (math.pi - theta) * theta.cos()) / (2 * math.pi)
    assert torch.allclose(gao2022.population(unit), expected, atol=1e-7)
    experiment = ling2023.Concentration.quick()
    x = experiment.inputs()
    cosine = x @ x.T / experiment.features
    angle = cosine.clone()
    for _ in range(60):  # Eq. (14)
        q = (1 - angle**2).clamp(min=0).sqrt() + (math.pi - angle.clamp(-1, 1).arccos()) * angle
        angle = 0.08 * q / math.pi + 0.92 * cosine
    assert torch.allclose(experiment.limit(x), q / math.pi / 0.92, atol=1e-6)
