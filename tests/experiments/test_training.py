"""Experiments that train networks, on digits and random points; no files are needed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import shoal
from experiments import gao2022, ling2023
from experiments.experiment import seed_of
from experiments.findings.certificates import CertifiedTraining, RequiredWidths
from experiments.findings.training import PredictedTraining, TrainingCurves
from experiments.networks import (
    accuracy,
    features,
    full_batch,
    make,
    ridge_readout,
    rival,
    wide_kernels,
)
from experiments.samples import parted, unit_inputs

CPU = torch.device("cpu")
TANH = shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8)


@pytest.mark.thorough("moments", "ck-design", "ntk-design")
@pytest.mark.parametrize("name", ["ntk-design", "ck-design", "moments", "naive", "naive2"])
def test_wide_kernels_are_those_of_wide_networks(name: str) -> None:
    x = unit_inputs(6, 5, 0)
    exact = wide_kernels(name, TANH, x).ntk
    estimates = [
        shoal.empirical_kernel(make(rival(name, TANH), x, width=1024, seed=seed), x).ntk
        for seed in range(6)
    ]
    error = torch.stack(estimates).std(0) / 6**0.5
    assert bool(((torch.stack(estimates).mean(0) - exact).abs() < 6 * error).all())


def test_full_batches_are_gradient_descent() -> None:
    x, y, watched = unit_inputs(7, 3, 0), unit_inputs(7, 2, 0), unit_inputs(9, 3, 0)
    net, twin = (make(TANH, x, width=32, out_features=2, seed=1) for _ in range(2))
    outputs, _ = full_batch(net, x, y, step_size=0.3, steps=(0, 2), from_zero=True, watched=watched)
    before, shift = twin(x).detach(), twin(watched).detach()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.3)
    for _ in range(2):
        optimizer.zero_grad()
        ((twin(x) - before - y).square().sum() / (2 * len(x))).backward()
        optimizer.step()
    assert float(outputs[0].abs().max()) < 1e-10
    assert torch.allclose(outputs[1], twin(watched) - shift, atol=1e-10)


@pytest.mark.parametrize("name", ["deq", "naive"])
def test_readouts_are_those_of_ridge_regression(name: str) -> None:
    x, y = unit_inputs(40, 6, 0), unit_inputs(40, 3, 0)
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


def test_parallel_samples_are_parted_and_others_stay() -> None:
    x = unit_inputs(5, 4, 0)
    found = parted(torch.cat([3 * x, -2 * x[:2]]), 0)
    assert torch.equal(found[:5], 3 * x)
    assert torch.allclose(found[5:].norm(dim=1), torch.full((2,), 2.0, dtype=x.dtype))
    cosines = torch.nn.functional.normalize(found) @ x[:2].T
    assert bool((cosines[5:].diagonal().abs() < 1 - 1e-6).all())
    images = gao2022.Losses.quick().task("digits").x
    assert torch.allclose(images.norm(dim=1), torch.ones(100))
    assert torch.equal(parted(images, 0), images)


@pytest.mark.thorough
def test_a_design_trains_like_its_deq(compute) -> None:
    # with so little input variance the naive network is far from the DEQ
    experiment = replace(
        TrainingCurves.quick(), activations=(shoal.activations.Tanh(),), input_variance=0.4,
        widths=(512,), trials=(3,),
    )  # fmt: skip
    results = compute(experiment)
    summary = experiment.summarize(results)
    gaps = {n: summary[f"digits_tanh_{n}_512_gap"] for n in experiment.networks}
    assert gaps["ntk-design"] < 0.06  # two to three standard errors of three networks each
    assert gaps["naive"] > 4 * gaps["ntk-design"]
    assert all(summary[f"digits_tanh_{n}_512_off"] < 0.1 for n in experiment.networks)


def test_gaps_from_predictions_fall_with_the_width(compute) -> None:
    experiment = replace(
        PredictedTraining.quick(),
        activations=(shoal.activations.Tanh(),),
        widths=(32, 512),
        steps=(1, 6),
    )
    summary = experiment.summarize(compute(experiment))
    for kind in ("train", "test"):
        # 95% intervals of 6 degrees of freedom reach 2.4 standard errors; four may be between
        slope, high = (summary[f"tanh_{kind}_slope{end}"] for end in ("", "_high"))
        assert abs(slope + 0.5) < 4 / 2.447 * (high - slope)
        assert high - slope < 0.35
        assert summary[f"tanh_{kind}_widest"] < 0.1


def test_wider_deqs_train_faster_and_stay_contractions(quick_run) -> None:
    experiment, results, summary = quick_run(ling2023.Losses)
    steps = [summary[f"sphere_{m}_steps_to_tenth"] for m in experiment.widths[1:]]
    # one step size for all: the rate is proportional to the width
    assert 1.4 < steps[0] / steps[1] < 4
    for result in results:
        assert bool(np.all(result.arrays["norm"] <= result.arrays["norm_upper"] + 1e-6))
        assert bool(np.all(result.arrays["norm_upper"] < 1))
        assert bool(np.all(result.arrays["loss"] <= result.arrays["bound"] * (1 + 1e-4)))
    for name in ("equilibrium", "gain", "loss"):
        assert all(v == 1 for k, v in summary.items() if k.endswith(f"kept_{name}"))


def test_implicit_networks_keep_their_norm_and_are_tested_on_the_way(quick_run) -> None:
    experiment, results, _ = quick_run(gao2022.Losses)
    (result,) = (result for result in results if result.point["width"] == 128)
    norm = result.arrays["norm"]
    assert norm == pytest.approx(0.2, abs=0.01)
    assert norm == pytest.approx(norm[0], rel=1e-3)
    assert float(result.arrays["loss"][-1]) < 0.2 * float(result.arrays["loss"][0])
    # the same, without monitors and by another loop
    task = experiment.task("digits")
    seed = seed_of(experiment, result.point)
    net = shoal.build(experiment.architecture(784), in_features=784, width=128, seed=seed)
    outputs, _ = full_batch(
        net, task.x, task.y[:, None], step_size=float(result.arrays["step_size"]) * len(task.x),
        steps=(0, 20, 40), from_zero=False, watched=task.test[0],
    )  # fmt: skip
    errors = outputs[:, :, 0].double() - task.test[1]
    expected = errors.square().mean(1).numpy() / 2
    assert result.arrays["test"][[0, 2, 4]] == pytest.approx(expected, rel=1e-3)


def test_a_proved_certificate_is_kept_and_refusals_have_their_reasons(quick_run) -> None:
    _, results, summary = quick_run(CertifiedTraining)
    certified, step, gain, equilibrium = (result.arrays for result in results)
    # proved, and kept at every step
    assert summary["certified_status"] == 2
    assert summary["certified_broken"] == -1
    assert summary["certified_slack"] >= 1
    assert 0 < summary["certified_travel"] <= 1
    assert bool(np.all(certified["loss"] <= certified["bound"]))
    assert bool(np.all(certified["norm_upper"] < 1))
    # too large a step: the loss grows
    assert summary["step_status"] == 0
    assert str(step["failure"]) == "step size"
    assert summary["step_broken"] == 1
    assert float(step["loss"].max()) > 10 * float(step["loss"][0])
    # no contraction: refused, whether training works or not
    for arrays in (gain, equilibrium):
        assert float(arrays["status"]) == 0
        assert str(arrays["failure"]) == "contraction"
        assert float(arrays["norm"][0]) > 1
        assert not arrays["kept_gain"]
    assert bool(np.all(gain["loss"][1:] < gain["loss"][:-1]))
    assert not equilibrium["kept_equilibrium"]


def test_theory_asks_for_more_than_certificates_and_they_for_more_than_experience(
    quick_run,
) -> None:
    experiment, _, summary = quick_run(RequiredWidths)
    for network in experiment.networks:
        small, paper = (f"{network}_{setting}_2" for setting in experiment.settings)
        assert summary[f"{small}_experience"] <= summary[f"{small}_certificate"]
        assert summary[f"{small}_certificate"] < 0.1 * summary[f"{small}_flow"]
        assert summary[f"{paper}_flow"] > 1e4 * summary[f"{small}_flow"]
        # no width for gradient descent as the papers start it
        assert f"{paper}_descent" not in summary
    assert summary["deq_small_2_descent"] > summary["deq_small_2_flow"]
