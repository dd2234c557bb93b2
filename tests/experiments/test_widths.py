"""Kernels and Gram matrices of finite networks against their limits, and against the depth."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from experiments import du2018, gao2022, ling2023
from experiments.findings.widths import ConvWidthError, GroupError, WidthError
from experiments.statistics import power_law

CPU = torch.device("cpu")
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


@pytest.mark.parametrize("kind", [ling2023.Concentration, gao2022.Concentration])
def test_gram_matrices_approach_their_limits(kind: type[Any], quick_run) -> None:
    experiment, results, summary = quick_run(kind)
    assert summary["error_slope_low"] < -0.5 < summary["error_slope_high"]
    for result in results:  # Weyl
        arrays = result.arrays
        assert float(arrays["least"]) >= float(arrays["limit"]) - float(arrays["error"]) - 1e-12
    widest = experiment.widths[-1]
    assert summary[f"{widest}_large"] == 1
    assert summary[f"{widest}_least"] == pytest.approx(1, abs=0.1)
    # the eigenvalue is large enough long before the error is small enough
    first = min(m for m in experiment.widths if summary[f"{m}_large"] == 1)
    assert first < 0.1 * summary["width_near"]


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


def test_depth_converges_at_the_predicted_rates(quick_run) -> None:
    experiment, results, summary = quick_run(ling2023.Depth)
    assert summary["population_rate"] == pytest.approx(0.08, rel=0.01)
    for width in experiment.widths:
        assert summary[f"{width}_tied_rate"] == pytest.approx(0.08**0.5, rel=0.1)
        # what Theorem 5 bounds by something that falls does not fall
        assert summary[f"{width}_finite_depth"] < experiment.layers
    assert summary["tied_slope_low"] < -0.5 < summary["tied_slope_high"]
    assert summary["finite_slope_low"] < -0.5 < summary["finite_slope_high"]
    for result in results:
        finite = result.arrays["finite"]
        assert finite[-1] == pytest.approx(finite[experiment.layers // 2], rel=1e-4)
        assert bool(np.all(result.arrays["tied"][1:] < result.arrays["tied"][:-1]))


def test_the_gram_matrix_is_stable_within_the_radius(quick_run) -> None:
    experiment, _, summary = quick_run(gao2022.Stability)
    for width in experiment.widths:
        assert summary[f"{width}_initial"] >= 0.75
        for direction in ("random", "steepest"):
            assert summary[f"{width}_{direction}_least"] >= 0.5
            assert summary[f"{width}_{direction}_drift"] <= 0.25
        assert summary[f"{width}_steepest_breaks"] > 1
        assert summary[f"{width}_steepest_drift"] > summary[f"{width}_random_drift"]


@pytest.mark.thorough
def test_eigenvalues_fall_like_the_square_of_the_depth(compute) -> None:
    """Exactly so for residuals so small that features do not change with the depth."""
    small = du2018.DepthEigenvalue(depths=(2, 3, 4), samples=3, features=8, constant=1e-3)
    summary = small.summarize(compute(small))
    assert math.isclose(summary["resnet_slope"], -2, abs_tol=1e-3)
    assert math.isclose(summary["convolutional_slope"], -2, abs_tol=1e-3)
    assert 0.1 < summary["fully_connected_factor"] < 0.5


def test_losses_stay_below_their_bound_and_gram_matrices_in_place(quick_run) -> None:
    _, results, summary = quick_run(du2018.LinearConvergence)
    for kind in ("fully_connected", "resnet", "convolutional"):
        assert summary[f"{kind}_below_bound"] == 1
        assert summary[f"{kind}_drift_slope_high"] < 0
    assert results[0].arrays["drift"][0] == 0
