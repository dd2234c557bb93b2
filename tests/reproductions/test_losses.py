"""Figures 1 of Ling 2023 and Gao 2022 in their quick sizes, on digits and random points."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from lab.computing import compute
from oracles.standard_errors import assert_near_mean
from shoal.lab.descent import full_batch
from shoal.lab.experiment import seed_of
from shoal.reproductions.gao2022.losses import Losses as Gao2022Losses
from shoal.reproductions.ling2023.losses import Losses as Ling2023Losses
from shoal.reproductions.samples import image_pair


def test_wider_deqs_train_faster_and_stay_contractions(quick_run) -> None:
    _, experiment, results = quick_run(Ling2023Losses)
    summary = experiment.summarize(results)
    steps = [summary[f"sphere_{m}_steps_to_tenth"] for m in experiment.widths[1:]]
    assert steps == sorted(steps, reverse=True)
    # one step size for all: the rate is proportional to the width
    assert 1.4 < steps[0] / steps[1] < 4
    for result in results:
        assert bool(np.all(result.arrays["norm"] <= result.arrays["norm_upper"] + 1e-6))
        assert bool(np.all(result.arrays["norm_upper"] < 1))
        assert bool(np.all(result.arrays["loss"] <= result.arrays["bound"] * (1 + 1e-4)))
        assert result.arrays["steps"].tolist() == list(range(0, 101, 10))
    for name in ("equilibrium", "gain", "loss"):
        assert all(v == 1 for k, v in summary.items() if k.endswith(f"kept_{name}"))
    figure = experiment.plot(results)
    assert len(figure.axes) == 4
    assert figure.axes[0].get_yscale() == "log"


def test_norms_are_those_of_the_weights() -> None:
    experiment = replace(Ling2023Losses.quick(), widths=(64,), datasets=("sphere",), steps=0)
    (result,) = compute(experiment)
    seed = seed_of(experiment, result.point)
    net = shoal.build(experiment.architecture(60), in_features=60, width=64, seed=seed)
    expected = float(torch.linalg.matrix_norm(net.get_parameter("recurrent").detach(), 2))
    assert float(result.arrays["norm"][0]) == pytest.approx(expected, rel=1e-4)
    x, y, _ = experiment.task("sphere")
    assert torch.allclose(x.norm(dim=1), torch.full((60,), 60**0.5))
    loss = float((net(x)[:, 0].detach() - y).square().mean()) / 2
    assert float(result.arrays["loss"][0]) == pytest.approx(loss, rel=1e-5)


def test_implicit_networks_keep_their_norm_and_are_tested_on_the_way(quick_run) -> None:
    _, experiment, results = quick_run(Gao2022Losses)
    (result,) = (result for result in results if result.point["width"] == 128)
    norm = result.arrays["norm"]
    assert norm == pytest.approx(0.2, abs=0.01)
    assert norm == pytest.approx(norm[0], rel=1e-3)
    assert float(result.arrays["loss"][-1]) < 0.2 * float(result.arrays["loss"][0])
    # the same, without monitors and by another loop
    task = experiment.task("digits")
    assert task is not None
    assert task.test is not None
    seed = seed_of(experiment, result.point)
    net = shoal.build(experiment.architecture(784), in_features=784, width=128, seed=seed)
    done = full_batch(
        net, task.x, task.y[:, None], step_size=float(result.arrays["step_size"]) * len(task.x),
        steps=(0, 20, 40), from_zero=False, watched=task.test[0],
    )  # fmt: skip
    errors = done.outputs[:, :, 0].double() - task.test[1]
    expected = errors.square().mean(1).numpy() / 2
    assert result.arrays["test"][[0, 2, 4]] == pytest.approx(expected, rel=1e-3)
    assert len(experiment.plot(results).axes) == 3


def test_the_step_size_is_that_of_the_widest_network() -> None:
    experiment = replace(Ling2023Losses.quick(), step_share=1.0)
    x = experiment.task("sphere").x.double()
    deq = experiment.architecture(60)
    wide = [
        float(torch.linalg.eigvalsh(shoal.empirical_kernel(net, x).ntk)[-1])
        for net in (
            shoal.build(deq, in_features=60, width=256, seed=s, dtype=x.dtype) for s in range(4)
        )
    ]
    value = 1 / experiment.step_size(deq, x)
    assert_near_mean(value, wide, more=8 / 256 * value)  # the mean converges like 1/m


def test_images_are_those_of_the_paper() -> None:
    task = Gao2022Losses.quick().task("digits")
    assert task is not None
    assert task.x.shape == (100, 784)
    assert torch.allclose(task.x.norm(dim=1), torch.ones(100))
    assert int(task.y.sum()) == 0
    cosines = (task.x.double() @ task.x.double().T).fill_diagonal_(0)
    assert float(cosines.max()) < 1 - 1e-9
    with pytest.raises(ValueError, match="n_per_class must be <= 143"):
        image_pair("digits", "train", 300, seed=0)


def test_optional_datasets_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    experiment = replace(
        Gao2022Losses.quick(), datasets=("digits", "svhn"), widths=(64,), steps=3, tests=20
    )
    with pytest.warns(UserWarning, match="svhn is left out: SVHN was not found"):
        results = compute(experiment)
    assert not results[1].arrays
    assert not any(key.startswith("svhn") for key in experiment.summarize(results))
    assert len(experiment.plot(results).axes) == 3
    strict = replace(experiment, optional=())
    with pytest.raises(FileNotFoundError, match="SVHN was not found"):
        strict.task("svhn")
