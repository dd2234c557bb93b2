"""Posteriors of the recurrent variance cover the truth as often as they say."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import shoal
from shoal.lab import Result
from shoal.lab.experiment import as_arrays
from shoal.reproductions.findings.recovery import Recovery, posterior

CPU = torch.device("cpu")


def test_intervals_cover_the_truth(quick_run) -> None:
    _, experiment, results = quick_run(Recovery)
    summary = experiment.summarize(results)
    for n in (40, 120):
        for scale in ("known", "free"):
            name = f"relu_{n}_process_{scale}"
            # 40 draws of probability 0.95: fewer than 34 have probability 0.3%
            assert summary[f"{name}_coverage"] >= 34 / 40
            # ranks of the truth are uniform: their mean has standard deviation 0.046
            assert abs(summary[f"{name}_rank"] - 0.5) < 0.14
    more, fewer = (f"relu_{n}_process_known" for n in (120, 40))
    assert summary[f"{more}_length"] < 0.8 * summary[f"{fewer}_length"]
    assert summary[f"{more}_error"] < 1 / np.sqrt(12)  # that of a guess
    assert summary[f"{more}_length"] < summary["relu_120_process_free_length"]


def test_the_figure_shows_every_interval(quick_run) -> None:
    _, experiment, results = quick_run(Recovery)
    figure = experiment.plot(results)
    first, last = figure.axes
    assert "n = 120" in first.get_title(loc="left")
    assert sum(len(c.get_segments()) for c in first.collections) == 40
    assert len(last.lines) == 2


@pytest.mark.thorough
def test_likelihoods_are_those_of_gaussian_vectors() -> None:
    experiment = Recovery.quick()
    x = experiment.inputs(12)
    deq = shoal.DEQ(shoal.ReLU(), 0.4, 1.0)
    y = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    covariance = shoal.kernel(deq, x).ck + experiment.noise * torch.eye(12, dtype=torch.float64)

    def density(scale: float) -> torch.Tensor:
        zero = torch.zeros(12, dtype=torch.float64)
        return torch.distributions.MultivariateNormal(zero, scale * covariance).log_prob(y)

    known, free = experiment._log_likelihoods(deq, x, y)
    expected = density(1.0)
    np.testing.assert_allclose(known - known[0], expected - expected[0], atol=1e-8)
    # the scale integrated out numerically, uniform in its logarithm
    logs = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    table = torch.stack([density(float(s.exp())) for s in logs])
    integrated = torch.logsumexp(table, 0)
    np.testing.assert_allclose(free - free[0], integrated - integrated[0], atol=1e-6)


def test_a_posterior_is_integrated() -> None:
    nodes = 0.5 * (1 + np.cos(np.pi * (np.arange(13) + 0.5) / 13))
    center, spread = 0.4, 0.05
    logs = -((nodes - center) ** 2) / (2 * spread**2)
    low, high, mean, mode, rank = posterior(nodes, logs, 1.0, center + spread)
    assert low == pytest.approx(center - 1.959964 * spread, abs=2e-4)
    assert high == pytest.approx(center + 1.959964 * spread, abs=2e-4)
    assert mean == pytest.approx(center, abs=1e-6)
    assert mode == pytest.approx(center, abs=2e-4)
    assert rank == pytest.approx(0.8413447, abs=2e-3)


def test_networks_are_drawn_where_they_are_wide_enough() -> None:
    experiment = replace(Recovery(), samples=(50, 200, 800), width=1600)
    networks = [p["samples"] for p in experiment.points() if p["source"] == "network"]
    assert networks == [50, 50, 200, 200]


@pytest.mark.slow
def test_functions_of_networks_are_recovered() -> None:
    experiment = replace(Recovery.quick(), samples=(40,), draws=40, sources=("network",), width=512)
    (point,) = experiment.points()
    result = Result(point, as_arrays(experiment.compute(point, seed=3, device=CPU)))
    summary = experiment.summarize([result])
    assert summary["relu_40_network_known_coverage"] >= 34 / 40
