"""Theorems of Ling 2023 and lemmas of Gao 2022 about Gram matrices, in quick sizes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import shoal
from lab.computing import CPU
from shoal import data
from shoal.lab import Result
from shoal.lab.experiment import as_arrays
from shoal.reproductions.gao2022.concentration import Concentration as Gao2022Concentration
from shoal.reproductions.gao2022.concentration import feature_weights, features_of, population
from shoal.reproductions.gao2022.stability import Stability as Gao2022Stability
from shoal.reproductions.gao2022.stability import _descended
from shoal.reproductions.ling2023.concentration import Concentration as Ling2023Concentration
from shoal.reproductions.ling2023.depth import Depth as Ling2023Depth
from shoal.reproductions.ling2023.depth import _rate
from shoal.reproductions.width_errors import GramWidth


@pytest.mark.parametrize("kind", [Ling2023Concentration, Gao2022Concentration])
def test_gram_matrices_approach_their_limits(kind: type[GramWidth], quick_run) -> None:
    _, experiment, results = quick_run(kind)
    summary = experiment.summarize(results)
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
    assert len(experiment.plot(results).axes) == 2


def test_population_matrices_are_those_of_the_papers() -> None:
    unit = Gao2022Concentration.quick().inputs()
    theta = torch.arccos((unit @ unit.T).clamp(-1, 1))
    expected = (theta.sin() + (math.pi - theta) * theta.cos()) / (2 * math.pi)
    assert torch.allclose(population(unit), expected, atol=1e-7)
    experiment = Ling2023Concentration.quick()
    x = experiment.inputs()
    cosine = x @ x.T / experiment.features
    angle = cosine.clone()
    for _ in range(60):  # Eq. (14)
        q = (1 - angle**2).clamp(min=0).sqrt() + (math.pi - angle.clamp(-1, 1).arccos()) * angle
        angle = 0.08 * q / math.pi + 0.92 * cosine
    assert torch.allclose(experiment.limit(x), q / math.pi / 0.92, atol=1e-6)


@pytest.mark.thorough
def test_depth_converges_at_the_predicted_rates(quick_run) -> None:
    _, experiment, results = quick_run(Ling2023Depth)
    summary = experiment.summarize(results)
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
    assert len(experiment.plot(results).axes) == 3


def test_one_layer_is_a_layer() -> None:
    experiment = replace(Ling2023Depth.quick(), widths=(64,), draws=1, layers=4)
    found = experiment.compute(experiment.points()[0], seed=0, device=CPU)
    result = Result({}, as_arrays(found))
    x = data.sphere(12, 24, seed=0, dtype=torch.float64).x
    deq = shoal.DEQ.ling2023(0.08, 24)
    net = shoal.build(deq, in_features=24, width=64, seed=0, dtype=torch.float64)
    first = (x @ net.get_parameter("input").detach().T).relu()
    whole = net.solve(x).value
    expected = float((whole @ whole.T - first @ first.T).norm()) / 64
    assert float(result.arrays["tied"][0]) == pytest.approx(expected, rel=1e-7)
    # K^(1) is the kernel without recurrent weights
    bare = shoal.kernel(shoal.DEQ.ling2023(0.0, 24), x).ck
    expected = float((shoal.kernel(deq, x).ck - bare).norm())
    assert float(result.arrays["population"][0]) == pytest.approx(expected, rel=1e-9)
    expected = float((first @ first.T / 64 - bare).norm())
    assert float(result.arrays["finite"][0]) == pytest.approx(expected, rel=1e-9)
    assert _rate(3 * 0.7 ** np.arange(5)) == pytest.approx(0.7)


def test_the_gram_matrix_is_stable_within_the_radius(quick_run) -> None:
    _, experiment, results = quick_run(Gao2022Stability)
    summary = experiment.summarize(results)
    for width in experiment.widths:
        assert summary[f"{width}_initial"] >= 0.75
        for direction in ("random", "steepest"):
            assert summary[f"{width}_{direction}_least"] >= 0.5
            assert summary[f"{width}_{direction}_drift"] <= 0.25
        assert summary[f"{width}_steepest_breaks"] > 1
        assert summary[f"{width}_steepest_drift"] > summary[f"{width}_random_drift"]
    assert len(experiment.plot(results).axes) == 2


def test_steepest_descent_stays_in_reach_and_lowers_the_eigenvalue() -> None:
    x = Gao2022Concentration.quick().inputs()
    start = feature_weights(x, 256, 0)
    moved = _descended(x, start, 3.0)
    assert float(torch.linalg.matrix_norm(moved - start, 2)) <= 3 + 1e-9

    def least(weights: torch.Tensor) -> float:
        phi = features_of(x, weights)
        return float(torch.linalg.eigvalsh(phi @ phi.T)[0])

    noise = torch.linalg.svd(feature_weights(x, 256, 1), full_matrices=False)
    others = [least(start + sign * 3.0 * noise.U @ noise.Vh) for sign in (1, -1)]
    assert least(moved) < 0.9 * min(least(start), *others)
