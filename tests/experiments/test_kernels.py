"""Experiments on kernels against dense computations."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import shoal
from experiments.findings.kernels import _distance, _spike_error
from experiments.findings.recovery import Recovery, posterior
from experiments.ling2024.sizes import CKError, NTKError

CPU = torch.device("cpu")
RELU, TANH = (shoal.activations.ReLU(),), (shoal.activations.Tanh(),)


@pytest.mark.thorough("NTK")
@pytest.mark.parametrize("kind", [CKError, NTKError])
def test_errors_are_those_of_dense_matrices(kind: type[Any]) -> None:
    experiment = kind(RELU, samples=(90,), trials=1)
    (point,) = experiment.points()
    found = experiment.compute(point, seed=3, device=CPU)
    mixture = shoal.GaussianMixture.ling2024(72)
    x, labels = mixture.sample(90, 3)
    groups = {"": ("readout", "recurrent"), "all_": None}
    for prefix in groups if kind is NTKError else [""]:
        deq = shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8)
        centered = shoal.centered(deq, input_norm=mixture.input_norm)
        exact = getattr(shoal.kernel(centered, x, trainable=groups[prefix]), kind.kind).numpy()
        eq = shoal.equivalent(
            deq, x, labels, trainable=groups[prefix], mixture=mixture, input_norm=mixture.input_norm
        )
        error = np.linalg.norm(exact - getattr(eq, kind.kind).to_dense().numpy(), 2)
        assert found[f"{prefix}norms"] == pytest.approx(error / np.linalg.norm(exact, 2), rel=1e-6)


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    limit: Any = SimpleNamespace(cdf=stats.norm.cdf, atoms=())
    values = np.sort(np.random.default_rng(0).normal(0.1, 1.1, 200))
    found = _distance(limit, values)
    assert found == pytest.approx(stats.ks_1samp(values, stats.norm.cdf).statistic)
    spikes = tuple(SimpleNamespace(value=v) for v in (0.5, 4.0, 5.0))
    limit = SimpleNamespace(edges=np.array([[1.0, 2.0]]), spikes=spikes, atoms=())
    values = np.array([0.55, 1.0, 1.5, 2.0, 4.0, 5.5])
    assert _spike_error(limit, values, hidden=True) == pytest.approx(0.1)  # matched in order


@pytest.mark.thorough
def test_likelihoods_are_those_of_gaussian_vectors() -> None:
    experiment = Recovery.quick()
    x = experiment.inputs(12)
    deq = shoal.DEQ(shoal.activations.ReLU(), 0.4, 1.0)
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
    integrated = torch.logsumexp(torch.stack([density(float(s.exp())) for s in logs]), 0)
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
