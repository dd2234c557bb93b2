"""The experiments of Ling 2024 give what dense computations and the theory say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from data.writers import mnist_folder
from lab.computing import CPU, compute
from shoal.core.fields import plain
from shoal.lab import Result, find
from shoal.reproductions.ling2024.equivalent_spectra import (
    CKImageSpectra,
    CKSpectra,
    NTKImageSpectra,
    NTKSpectra,
    estimated_kernels,
)
from shoal.reproductions.ling2024.errors import CKError, NTKError
from shoal.reproductions.ling2024.spectra import PREPROCESSINGS

RELU = (shoal.ReLU(),)


def test_all_are_registered() -> None:
    kinds = {CKError, CKImageSpectra, CKSpectra, NTKError, NTKImageSpectra, NTKSpectra}
    assert kinds <= set(find("ling2024"))
    assert find("ling2024", "mnist-figure5") == [CKImageSpectra]


def test_the_error_falls_like_the_root_of_the_sample_size(quick_run) -> None:
    _, experiment, results = quick_run(CKError)
    summary = experiment.summarize(results)
    assert -0.6 < summary["relu_paper_slope"] < -0.4
    assert summary["relu_norms_slope"] < -0.5  # the theorem bounds it from above
    assert summary["relu_norms_error"] < summary["relu_paper_error"] / 2
    panels = experiment.plot(results).axes
    assert [axes.get_xscale() for axes in panels] == ["log", "log"]


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
        deq = shoal.DEQ(shoal.ReLU(), 0.2, 0.8)
        centered = shoal.centered(deq, tau0=mixture.tau0)
        exact = getattr(shoal.kernel(centered, x, trainable=groups[prefix]), kind.kind).numpy()
        eq = shoal.equivalent(
            deq, x, labels, trainable=groups[prefix], mixture=mixture, tau0=mixture.tau0
        )
        error = np.linalg.norm(exact - getattr(eq, kind.kind).to_dense().numpy(), 2)
        assert found[f"{prefix}norms"] == pytest.approx(error / np.linalg.norm(exact, 2), rel=1e-6)


@pytest.mark.thorough
def test_estimates_approach_the_exact_kernels_with_the_width() -> None:
    deq = shoal.centered(shoal.DEQ(shoal.Swish(), 0.2, 0.8), tau0=1.0)
    x = torch.randn(12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.normalize(x)
    exact = shoal.kernel(deq, x, trainable={"readout", "recurrent"})
    errors = []
    for width in (256, 4096):
        draws = [estimated_kernels(deq, x, width=width, seed=seed) for seed in range(3)]
        errors.append(
            [
                np.mean([float((a - b).norm() / b.norm()) for a in kernels])
                for kernels, b in zip(zip(*draws, strict=True), exact, strict=True)
            ]
        )
    narrow, wide = np.array(errors)
    # entries have the noise of m products of about the diagonal's size; the diagonal is most of it
    assert np.all(wide < 1.5 * np.sqrt(len(x) / 4096))
    assert np.all((narrow / wide > 2.5) & (narrow / wide < 6.5))  # the root of 16 is 4


@pytest.mark.parametrize("kind", [CKSpectra, NTKSpectra])
def test_most_of_an_estimated_error_is_noise(kind: type[Any], quick_run) -> None:
    _, experiment, results = quick_run(kind)
    (arrays,) = (result.arrays for result in results if result.point["activation"] == "relu")
    summary = experiment.summarize(results)
    assert summary["relu_exact_norms"] < summary["relu_exact_paper"]
    assert summary["relu_exact_paper"] < summary["relu_estimate_paper"]
    assert summary["relu_noise"] > 3 * summary["relu_exact_norms"]
    assert summary["relu_size"] == pytest.approx(arrays["exact"][-1], rel=1e-6)
    assert np.trapezoid(arrays["density"], arrays["grid"]) == pytest.approx(1, abs=0.01)
    # Weyl: eigenvalues differ by no more than matrices do
    shifts = np.abs(arrays["exact"] - arrays["equivalent"])
    assert shifts.max() <= summary["relu_exact_paper"] * (1 + 1e-6)
    assert len(experiment.plot(results).axes) == 2


def test_printed_errors_stand_only_beside_the_papers_setting() -> None:
    names = ["exact_paper", "exact_norms", "exact_measured", "estimate_paper", "estimate_norms"]
    arrays = {name: np.array(1.0) for name in (*names, "noise", "size")}
    results = [Result({"activation": name, "trial": 0}, arrays) for name in ("relu", "tanh")]
    assert CKSpectra(trials=1).summarize(results)["relu_printed"] == 0.26
    assert NTKSpectra().summarize(results)["tanh_printed"] == 0.76
    assert "relu_printed" not in CKSpectra.quick().summarize(results)


def test_preprocessings_are_what_they_are_called() -> None:
    x = torch.rand(40, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ways = {name: way(x) for name, way in PREPROCESSINGS.items()}
    assert torch.allclose(3 * ways["pixels"], x)
    for name in ("scaled", "centered"):
        assert float(ways[name].square().sum(1).mean()) == pytest.approx(1)
    for name in ("unit", "centered-unit"):
        assert torch.allclose(ways[name].norm(dim=1), torch.ones(40).double())
    assert float(ways["centered"].mean(0).abs().max()) < 1e-14


@pytest.mark.parametrize("figure", ["mnist-figure5", "mnist-figure6", "mnist-figure7"])
def test_published_runs_are_those_of_today(figure: str) -> None:
    """The dataset became a field later, and is part of the identity only where it is another."""
    (kind,) = find("ling2024", figure)
    results = Path(__file__).parents[2] / "docs/results" / f"ling2024-{figure}.json"
    assert json.loads(results.read_text())["identity"]["configuration"] == plain(kind())
    assert plain(kind.quick())["dataset"] == "digits"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::shoal.data.UnofficialDataWarning")
def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    mnist_folder(tmp_path, 400)
    experiment = CKImageSpectra(RELU, samples=60, preprocessings=("centered-unit",), width=128)
    x, labels, _ = experiment.sample(experiment.points()[0], 0)
    assert x.shape == (60, 784)
    assert labels.bincount().tolist() == [30, 30]
    results = compute(experiment)
    summary = experiment.summarize(results)
    assert summary["relu_centered-unit_exact_measured"] < summary["relu_centered-unit_noise"]
    assert len(experiment.plot(results).axes) == 1


def test_missing_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
        compute(NTKImageSpectra())


@pytest.mark.slow
def test_points_need_no_optional_package() -> None:
    code = """
import sys
for name in ("matplotlib", "sklearn", "linear_operator", "gpytorch", "typer", "rich"):
    sys.modules[name] = None
import shoal, torch
from shoal.reproductions.findings.spectrum import SpectrumError
from shoal.reproductions.ling2024.equivalent_spectra import CKSpectra
from shoal.reproductions.ling2024.errors import CKError
tanh, device = (shoal.Tanh(),), torch.device("cpu")
for experiment in (
    CKError(tanh, samples=(40,), trials=1),
    CKSpectra(tanh, samples=40, features=50, width=64, trials=1),
    SpectrumError(samples=40, ratios=(1.5,)),
):
    (point,) = experiment.points()
    experiment.compute(point, seed=0, device=device)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
