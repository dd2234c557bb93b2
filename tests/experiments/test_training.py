"""Experiments that train networks, on digits and random points; no files are needed."""

import numpy as np
import pytest
import torch

import shoal
from experiments import gao2022
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
