"""The experiments on designs give what dense computations and the theory say."""

from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from data.writers import mnist_folder
from lab.computing import CPU, compute
from shoal.lab import Result, find
from shoal.reproductions.findings.sphere import SphereError
from shoal.reproductions.ling2024.design_spectra import (
    DesignImageSpectra,
    DesignSpectra,
    estimated_ck,
)
from shoal.reproductions.ling2024.designs import DesignError

RELU = (shoal.ReLU(),)
TANH = (shoal.Tanh(),)


def test_all_are_registered() -> None:
    assert find("ling2024", "figure2") == [DesignError]
    assert find("ling2024", "figure7") == [DesignSpectra]
    assert find("ling2024", "mnist-figure7") == [DesignImageSpectra]
    assert find("shoal", "sphere") == [SphereError]


def test_errors_of_designs_fall_with_the_sample_size(quick_run) -> None:
    _, experiment, results = quick_run(DesignError)
    summary = experiment.summarize(results)
    # the theorem has -1/2 as an upper bound
    assert summary["relu_ck_leaky_relu_slope"] < -0.7
    assert summary["tanh_ck_hard_tanh_slope"] < -0.5
    assert summary["relu_ck_leaky_relu_error"] < 3e-5
    assert summary["tanh_ck_hard_tanh_error"] < 1e-2
    figure = experiment.plot(results)
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log", "log"]
    assert len(figure.axes[0].get_lines()) == 5  # two DEQs, three layers


@pytest.mark.thorough
def test_errors_of_designs_are_those_of_dense_matrices() -> None:
    families = (("tanh_ntk", ("hard_tanh", "sinusoid")),)
    experiment = DesignError(TANH, families=families, samples=(90,), trials=1)
    (point,) = experiment.points()
    found = experiment.compute(point, seed=3, device=CPU)
    assert set(found) == {"ck_size", "ntk_size", "ntk_hard_tanh", "ntk_sinusoid"}
    mixture = shoal.GaussianMixture.ling2024(72)
    x, _ = mixture.sample(90, 3)
    deq = shoal.DEQ(shoal.Tanh(), 0.2, 0.8)
    exact = shoal.kernel(shoal.centered(deq, tau0=mixture.tau0), x).ntk.numpy()
    assert found["ntk_size"] == pytest.approx(np.linalg.norm(exact, 2), rel=1e-6)
    (phi,) = shoal.design(deq, tau0=mixture.tau0, match="ntk").architecture.activations
    # the two trained layers add up: E[σσ] + ⟨x, x'⟩ E[σ'σ']
    gram = x @ x.T
    own = gram.diagonal()
    dual = shoal.gaussian.dual(phi, own[:, None], own, gram)
    slopes = shoal.gaussian.dual_derivative(phi, own[:, None], own, gram)
    designed = (dual + gram * slopes).numpy()
    error = np.linalg.norm(exact - designed, 2) / np.linalg.norm(exact, 2)
    assert found["ntk_hard_tanh"] == pytest.approx(error, rel=1e-5)


def test_differences_of_estimates_are_noise(quick_run) -> None:
    _, experiment, results = quick_run(DesignSpectra)
    (arrays,) = (result.arrays for result in results if result.point["activation"] == "relu")
    summary = experiment.summarize(results)
    assert summary["relu_relative"] < 1e-4
    assert summary["relu_estimate"] > 1e4 * summary["relu_exact"]
    noises = summary["relu_deq_noise"], summary["relu_design_noise"]
    assert max(noises) < summary["relu_estimate"] <= sum(noises) + summary["relu_exact"]
    assert summary["relu_size"] == pytest.approx(arrays["deq_eigenvalues"][-1], rel=1e-6)
    # Weyl: eigenvalues differ by no more than matrices do
    shifts = np.abs(arrays["deq_eigenvalues"] - arrays["design_eigenvalues"])
    assert shifts.max() <= summary["relu_exact"] * (1 + 1e-6)
    assert "relu_printed" not in summary
    assert len(experiment.plot(results).axes) == 2


def test_estimates_of_designs_approach_the_exact_kernel() -> None:
    architecture = shoal.FullyConnected(
        (shoal.Affine(shoal.LeakyReLU(0.6), 1.2), shoal.Affine(shoal.LeakyReLU(0.1), 0.9, -0.3))
    )
    x = torch.randn(12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.normalize(x)
    exact = shoal.kernel(architecture, x).ck
    errors = [
        np.mean(
            [
                float((estimated_ck(architecture, x, width=width, seed=k) - exact).norm())
                for k in range(4)
            ]
        )
        / float(exact.norm())
        for width in (64, 1024)
    ]
    assert errors[1] < 1.5 * np.sqrt(len(x) / 1024)
    assert 2.5 < errors[0] / errors[1] < 6.5  # the root of 16 is 4


def test_printed_differences_stand_only_beside_the_papers_setting() -> None:
    arrays = {
        name: np.array(1.0) for name in ("exact", "estimate", "deq_noise", "design_noise", "size")
    }
    results = [Result({"activation": name, "trial": 0}, arrays) for name in ("relu", "tanh")]
    assert DesignSpectra(trials=1).summarize(results)["relu_printed"] == 0.32
    assert DesignSpectra().summarize(results)["tanh_printed"] == 0.88
    assert "relu_printed" not in DesignSpectra.quick().summarize(results)
    ways = [Result({"activation": "tanh", "preprocessing": "unit"}, arrays)]
    assert DesignImageSpectra().summarize(ways)["tanh_printed"] == 4.79
    assert "tanh_printed" not in DesignImageSpectra.quick().summarize(ways)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::shoal.data.UnofficialDataWarning")
def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    mnist_folder(tmp_path, 400)
    experiment = DesignImageSpectra(
        TANH, families=("hard_tanh",), samples=60, preprocessings=("centered-unit",), width=128
    )
    results = compute(experiment)
    summary = experiment.summarize(results)
    # centered noise is what the theory is about
    assert summary["tanh_centered-unit_relative"] < 2e-2
    assert summary["tanh_centered-unit_exact"] < summary["tanh_centered-unit_deq_noise"] / 10
    assert len(results[0].arrays["design_eigenvalues"]) == 60
    assert len(experiment.plot(results).axes) == 1


def test_missing_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
        compute(DesignImageSpectra())


@pytest.mark.thorough
def test_designs_on_the_sphere() -> None:
    experiment = SphereError((shoal.Swish(),), variances=(), gains=(0.99,), cosines=5)
    steepest = experiment.deq("swish", "gain0.99").recurrent_variance
    assert steepest == pytest.approx(0.99 / 1.0998394**2, rel=1e-6)
    results = compute(experiment)
    summary = experiment.summarize(results)
    assert len(summary) == 6
    for kind in ("ck", "ntk"):
        assert summary[f"swish_gain0.99_{kind}_inner"] < 1e-9
        assert summary[f"swish_gain0.99_{kind}_anywhere"] < 1e-8
    figure = experiment.plot(results)
    assert len(figure.axes) == 2
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [r"$\sigma_a^2 L^2 = 0.99$"]


@pytest.mark.thorough
def test_kernels_of_the_sphere_are_those_of_a_random_network() -> None:
    experiment = SphereError(RELU, variances=(0.2,), gains=(), cosines=3)
    (point, _) = experiment.points()
    arrays = experiment.compute(point, seed=0, device=CPU)
    # Monte Carlo, by the finished activation: E[σ(u)σ(v)] at the cosine -0.95
    deq = experiment.deq("relu", "variance0.2")
    (sigma,) = shoal.design(deq, tau0=1.0, match="ck", method="sphere").architecture.activations
    rho = float(arrays["cosines"][3])
    assert rho == -0.95
    xi = torch.randn(2, 400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    products = sigma(xi[0]) * sigma(rho * xi[0] + (1 - rho**2) ** 0.5 * xi[1])
    spread = float(products.std()) / 400_000**0.5
    for name in ("target", "obtained"):
        assert float(products.mean()) == pytest.approx(float(arrays[name][3]), abs=4 * spread)
