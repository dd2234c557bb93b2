"""Experiments that train networks, on digits and random points; no files are needed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits

import shoal
from lab.computing import CPU, compute
from shoal.designs import kernel_series
from shoal.lab import Result, Run, collect, results
from shoal.lab.descent import accuracy, features, full_batch, make, mini_batches, ridge_readout
from shoal.lab.fits import spread, z_scores
from shoal.lab.rivals import rival, wide_kernels
from shoal.reproductions.findings.predicted import PredictedTraining
from shoal.reproductions.findings.training import TrainingCurves
from shoal.reproductions.findings.width import WidthError
from shoal.reproductions.ling2024.accuracies import Accuracies
from shoal.reproductions.ling2024.times import Times
from shoal.reproductions.samples import image_samples

TANH = shoal.DEQ(shoal.Tanh(), 0.2, 0.8)


def sphere(count: int, features: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(x)


@pytest.mark.thorough
@pytest.mark.parametrize("activation", [shoal.Tanh(), shoal.Softplus()])
def test_the_ntk_of_a_ck_design_is_that_of_frozen_recurrent_weights(activation: Any) -> None:
    deq = shoal.DEQ(activation, 0.2, 0.8)
    x = sphere(5, 4)
    series = kernel_series(deq, norm=1.0, degree=200).ck
    powers = (x @ x.T)[..., None] ** torch.arange(len(series), dtype=torch.float64)
    weights = torch.as_tensor(series) * (1 + torch.arange(len(series), dtype=torch.float64))
    found = wide_kernels("ck-design", deq, x)
    assert torch.allclose(found.ntk, (powers * weights).sum(-1), atol=1e-11)
    assert torch.allclose(found.ck, shoal.kernel(deq, x).ck, atol=1e-12)


@pytest.mark.thorough("moments", "ck-design", "ntk-design")
@pytest.mark.parametrize("name", ["ntk-design", "ck-design", "moments", "naive", "naive2"])
def test_wide_kernels_are_those_of_wide_networks(name: str) -> None:
    x = sphere(6, 5)
    exact = wide_kernels(name, TANH, x).ntk
    estimates = [
        shoal.empirical_kernel(make(rival(name, TANH), x, width=1024, seed=seed), x).ntk
        for seed in range(6)
    ]
    error = torch.stack(estimates).std(0) / 6**0.5
    assert bool(((torch.stack(estimates).mean(0) - exact).abs() < 6 * error).all())


def test_full_batches_are_gradient_descent() -> None:
    x, y = sphere(7, 3), sphere(7, 2)
    watched = sphere(9, 3)
    net, twin = (make(TANH, x, width=32, out_features=2, seed=1) for _ in range(2))
    done = full_batch(net, x, y, step_size=0.3, steps=(0, 2), from_zero=True, watched=watched)
    before, shift = twin(x).detach(), twin(watched).detach()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.3)
    for _ in range(2):
        optimizer.zero_grad()
        ((twin(x) - before - y).square().sum() / (2 * len(x))).backward()
        optimizer.step()
    assert float(done.outputs[0].abs().max()) < 1e-10
    assert torch.allclose(done.outputs[1], twin(watched) - shift, atol=1e-10)
    plain = full_batch(net, x, y, step_size=0.3, steps=(0,), from_zero=False)
    assert torch.allclose(plain.outputs[0], twin(x), atol=1e-10)


def test_a_batch_of_all_samples_is_a_full_batch() -> None:
    x, y = sphere(7, 3), sphere(7, 2)
    naive = rival("naive", TANH)
    net, twin = (make(naive, x, width=32, out_features=2, seed=1) for _ in range(2))
    mini_batches(net, x, y, step_size=0.3, momentum=0.0, batch=10, steps=3, seed=0)
    full_batch(twin, x, y, step_size=0.3, steps=(3,), from_zero=False)
    assert torch.allclose(net(x), twin(x), atol=1e-12)


@pytest.mark.parametrize("name", ["deq", "moments"])
def test_readouts_are_those_of_ridge_regression(name: str) -> None:
    x, y = sphere(40, 6), sphere(40, 3)
    net = make(rival(name, TANH), x, width=16, out_features=3)
    z = features(net, x)
    assert torch.allclose(z @ net.get_parameter("readout").T, net(x), atol=1e-10)
    stacked = np.vstack([z.numpy(), np.sqrt(0.2) * np.eye(16)])
    expected = np.linalg.lstsq(stacked, np.vstack([y.numpy(), np.zeros((16, 3))]))[0]
    found = ridge_readout(net, x, y, 0.2)
    assert np.allclose(found.numpy(), expected, atol=1e-9)
    labels = (z @ found).argmax(1)
    assert accuracy(net, x, labels, found) == 1
    assert accuracy(net, x, (labels + 1) % 3, found) == 0
    assert accuracy(net, x, net(x).argmax(1), None) == 1


def test_z_scores_are_those_of_welch() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(4, 3)), generator.normal(size=(5, 3))
    rows = [[Result({}, {"loss": row}) for row in rows] for rows in (first, second)]
    expected = stats.ttest_ind(first, second, equal_var=False).statistic
    assert z_scores(rows[0], rows[1], "loss") == pytest.approx(expected)
    assert spread(rows[0][:1], "loss")[1].tolist() == [0, 0, 0]


def test_images_have_norm_one_and_one_hot_targets() -> None:
    x, y, labels = image_samples("digits", "train", 50, torch.float32, CPU)
    assert x.shape == (50, 64)
    assert x.dtype == y.dtype == torch.float32
    assert torch.allclose(x.norm(dim=1), torch.ones(50))
    assert y.shape == (50, 10)
    assert torch.equal(y.argmax(1), labels)
    pixels = torch.as_tensor(load_digits().data[:50])
    moved = torch.nn.functional.normalize(pixels - pixels.mean(0))
    centered = image_samples("digits", "train", 50, torch.float64, CPU, center=True)
    assert torch.allclose(centered.x, moved)
    with pytest.raises(ValueError, match="digits must have 5000 images to train with, it has 1437"):
        image_samples("digits", "train", 5000, torch.float32, CPU)


def gaps(experiment: TrainingCurves, results: Sequence[Result]) -> dict[str, float]:
    summary = experiment.summarize(results)
    return {n: summary[f"digits_tanh_{n}_512_gap"] for n in experiment.networks}


@pytest.mark.thorough
def test_a_design_trains_like_its_deq() -> None:
    # with so little input variance the naive network is far from the DEQ
    experiment = replace(
        TrainingCurves.quick(), activations=(shoal.Tanh(),), input_variance=0.4, widths=(512,),
        trials=(3,),
    )  # fmt: skip
    results = compute(experiment)
    found = gaps(experiment, results)
    assert found["ntk-design"] < 0.06  # two to three standard errors of three networks each
    assert found["naive"] > 4 * found["ntk-design"]
    wide = {r.point["network"]: r.arrays["loss"] for r in results if r.point["width"] == "inf"}
    assert np.allclose(wide["ntk-design"], wide["deq"])
    assert np.abs(wide["naive"] / wide["deq"] - 1).max() > 0.2
    summary = experiment.summarize(results)
    assert all(summary[f"digits_tanh_{n}_512_off"] < 0.1 for n in experiment.networks)
    assert len(experiment.plot(results).axes) == 1


def test_predicted_losses_are_half_mean_squares() -> None:
    experiment = replace(TrainingCurves.quick(), activations=(shoal.Tanh(),), networks=("deq",))
    point = experiment.points()[0]
    arrays = experiment.compute(point, seed=0, device=CPU)
    assert arrays["loss"][0] == pytest.approx(0.5)
    x, y, _ = experiment.data(point, torch.float64, CPU)
    left = y - experiment.step_size / len(y) * shoal.kernel(TANH, x).ntk @ y
    assert arrays["loss"][1] == pytest.approx(float(left.square().sum()) / (2 * len(y)))


def test_gaps_from_predictions_fall_with_the_width() -> None:
    experiment = replace(
        PredictedTraining.quick(), activations=(shoal.Tanh(),), widths=(32, 512), steps=(1, 6)
    )
    results = compute(experiment)
    summary = experiment.summarize(results)
    for kind in ("train", "test"):
        # 95% intervals of 6 degrees of freedom reach 2.4 standard errors; four may be between
        slope, high = (summary[f"tanh_{kind}_slope{end}"] for end in ("", "_high"))
        assert abs(slope + 0.5) < 4 / 2.447 * (high - slope)
        assert high - slope < 0.35
        assert summary[f"tanh_{kind}_widest"] < 0.1
    assert len(experiment.plot(results).axes) == 1


def test_accuracies(quick_run) -> None:
    _, experiment, results = quick_run(Accuracies)
    for result in results:
        assert 0.5 < float(result.arrays["test"]) < 1
    summary = experiment.summarize(results)
    for network in ("deq", "moments", "naive"):
        assert summary[f"readout_tanh_digits_{network}_128"] > 0.8


def test_times(quick_run) -> None:
    _, experiment, results = quick_run(Times)
    summary = experiment.summarize(results)
    assert all(value > 0 for value in summary.values())
    assert summary["64_tanh_naive_256_epoch_ratio"] > 2  # a DEQ makes many passes
    assert len(experiment.plot(results).axes) == 6


def test_the_naive_network_of_relu_has_two_layers() -> None:
    centered = shoal.centered(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), tau0=1.0)
    found = rival("naive2", centered)
    assert found == shoal.FullyConnected((shoal.ReLU(), shoal.ReLU()))


def test_runs_are_collected_without_their_device(tmp_path: Path) -> None:
    experiment = WidthError(widths=(8, 16), draws=2, samples=4, features=4)
    run = Run(experiment, tmp_path, device="cpu")
    expected = dict(results(run))
    found = collect(experiment, run.folder)
    assert [result.point for result in found] == [expected[i].point for i in range(4)]
    assert all(found[i].arrays == expected[i].arrays for i in range(4))
    with pytest.raises(ValueError, match="holds another"):
        collect(replace(experiment, draws=1), run.folder)
    run.files[0].unlink()
    with pytest.raises(ValueError, match="width8-draw0 is missing"):
        collect(experiment, run.folder)
    with pytest.raises(FileNotFoundError, match=r"run\.json"):
        collect(experiment, tmp_path)
