"""Experiments on kernels give what dense computations and the theory say."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import shoal
from experiments.findings.kernels import SpectrumError, _distance, _spike_error
from experiments.findings.recovery import Recovery, posterior
from experiments.findings.regression import Regression
from experiments.ling2024.sizes import CKError, DesignError, NTKError
from experiments.ling2024.spectra import CKSpectra, NTKSpectra

CPU = torch.device("cpu")
RELU, TANH = (shoal.activations.ReLU(),), (shoal.activations.Tanh(),)


def test_the_error_falls_like_the_root_of_the_sample_size(quick_run) -> None:
    _, _, summary = quick_run(CKError)
    assert -0.6 < summary["relu_paper_slope"] < -0.4
    assert summary["relu_norms_slope"] < -0.5  # the theorem bounds it from above
    assert summary["relu_norms_error"] < summary["relu_paper_error"] / 2


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


@pytest.mark.parametrize("kind", [CKSpectra, NTKSpectra])
def test_most_of_an_estimated_error_is_noise(kind: type[Any], quick_run) -> None:
    _, results, summary = quick_run(kind)
    (arrays,) = (result.arrays for result in results if result.point["activation"] == "relu")
    assert summary["relu_exact_norms"] < summary["relu_exact_paper"]
    assert summary["relu_exact_paper"] < summary["relu_estimate_paper"]
    assert summary["relu_noise"] > 3 * summary["relu_exact_norms"]
    assert summary["relu_size"] == pytest.approx(arrays["exact"][-1], rel=1e-6)
    assert np.trapezoid(arrays["density"], arrays["grid"]) == pytest.approx(1, abs=0.01)
    # Weyl: eigenvalues differ by no more than matrices do
    shifts = np.abs(arrays["exact"] - arrays["equivalent"])
    assert shifts.max() <= summary["relu_exact_paper"] * (1 + 1e-6)


def test_errors_of_designs_fall(quick_run) -> None:
    _, _, summary = quick_run(DesignError)
    # the theorem has -1/2 as an upper bound
    assert summary["relu_ck_leaky_relu_slope"] < -0.7
    assert summary["tanh_ck_hard_tanh_slope"] < -0.5
    assert summary["relu_ck_leaky_relu_error"] < 3e-5
    assert summary["tanh_ck_hard_tanh_error"] < 1e-2


def test_limits_predict_the_eigenvalues(quick_run) -> None:
    _, results, summary = quick_run(SpectrumError)
    for ratio in (0.5, 1.25, 2.0):
        for kind in ("ck", "ntk"):
            key = f"{ratio}_{kind}"
            assert summary[f"{key}_ks"] < 0.06
            assert abs(summary[f"{key}_high"]) < 0.1
            assert summary[f"{key}_spikes_exact"] < 0.06
            assert summary[f"{key}_spikes_count"] >= 2  # two means, and perhaps the norms
    assert summary["0.5_ck_atom"] == pytest.approx(0.5)
    assert abs(summary["0.5_ck_atom_shift"]) < summary["0.5_ck_atom_smear"]  # within its spread
    for result in results:
        mass = np.trapezoid(result.arrays["ck_density"], result.arrays["ck_grid"])
        assert mass == pytest.approx(min(1.0, float(result.point["ratio"])), abs=0.02)


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    limit: Any = SimpleNamespace(cdf=stats.norm.cdf, atoms=())
    values = np.sort(np.random.default_rng(0).normal(0.1, 1.1, 200))
    found = _distance(limit, values)
    assert found == pytest.approx(stats.ks_1samp(values, stats.norm.cdf).statistic)
    spikes = tuple(SimpleNamespace(value=v) for v in (0.5, 4.0, 5.0))
    limit = SimpleNamespace(edges=np.array([[1.0, 2.0]]), spikes=spikes, atoms=())
    values = np.array([0.55, 1.0, 1.5, 2.0, 4.0, 5.5])
    assert _spike_error(limit, values, hidden=True) == pytest.approx(0.1)  # matched in order


def test_intervals_cover_the_truth(quick_run) -> None:
    _, _, summary = quick_run(Recovery)
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


def test_all_solvers_find_the_same_function(quick_run) -> None:
    experiment, _, summary = quick_run(Regression)
    for dataset in ("digits", "mixture"):
        exact = summary[f"{dataset}_ntk_cholesky_0.05_accuracy"]
        assert exact > 0.85
        for solver in ("none", "nystrom"):
            key = f"{dataset}_ntk_{solver}_0.05"
            assert summary[f"{key}_converged"] == 1
            assert summary[f"{key}_residual"] <= 1e-6
            assert summary[f"{key}_accuracy"] == pytest.approx(exact, abs=0.004)
    steps = [summary[f"digits_ntk_{name}_0.05_steps"] for name in ("nystrom", "none")]
    assert steps[0] < steps[1]
    # the accuracy is that of a dense solution
    (x, y, _), (new, _, labels) = experiment._samples("digits", CPU)
    deq, eye = experiment.architecture, torch.eye(300, dtype=torch.float64)
    found = shoal.kernel(deq, new, x).ck @ torch.linalg.solve(
        shoal.kernel(deq, x).ck + 0.05 * eye, y
    )
    accuracy = float((found.argmax(1) == labels).double().mean())
    assert summary["digits_ck_cholesky_0.05_accuracy"] == accuracy
