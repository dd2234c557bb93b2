"""Gradient descent against torch.optim and against linear theory."""

import pytest
import torch

import shoal
from shoal.learning import LinearTraining
from training.small import CONV, DU, GAO, LING, RESNET, SHALLOW, TANH, data, network

STEP = {LING: 1e-3, TANH: 0.1, GAO: 0.05, DU: 0.1, RESNET: 0.1, CONV: 0.01, SHALLOW: 0.1}


@pytest.mark.parametrize("architecture", list(STEP), ids=lambda a: type(a).__name__)
def test_descent_makes_the_steps_of_an_optimizer(architecture) -> None:
    x, y = data(architecture, outputs=2)
    net, twin = (network(architecture, 32, 2) for _ in range(2))
    run = shoal.train(net, x, y, step_size=STEP[architecture], steps=12, monitor=3)
    optimizer = torch.optim.SGD(twin.parameters(), lr=STEP[architecture])
    losses = []
    for _ in range(13):
        loss = 0.5 * (twin(x) - y).square().sum()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if len(losses) < 13:
            optimizer.step()
    torch.testing.assert_close(
        run.losses, torch.tensor(losses, dtype=torch.float64), rtol=1e-9, atol=0
    )
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert run.monitor_steps.tolist() == [0, 3, 6, 9, 12]
    assert (run.status, run.steps) == ("finished", 12)


@pytest.mark.parametrize("architecture", [SHALLOW, TANH, LING], ids=["shallow", "tanh", "relu"])
def test_a_readout_trains_as_linear_theory_says(architecture) -> None:
    x, y = data(architecture)
    options = {"trainable": {"readout"}}
    net = network(architecture, **options)
    with torch.no_grad():
        start = net(x)[:, 0]
    kernels = shoal.empirical_kernel(net, x)
    theory = LinearTraining(kernels, y, initial=(start, None))
    size = 0.2 * theory.max_step_size
    expected = theory.run(steps=range(11), step_size=size).loss
    found = shoal.train(net, x, y, step_size=size, steps=10)
    torch.testing.assert_close(found.losses, expected, rtol=1e-8, atol=0)
    assert set(found.distances) == {"readout"}


@pytest.mark.thorough
def test_wide_networks_train_as_predicted() -> None:
    x, y = data()
    gaps = []
    for width in (64, 512):
        net = network(width=width, readout_scale=1.0, solver=shoal.Picard(rtol=1e-8))
        options = {"initial": net}
        size = 0.4 * shoal.gradient_flow(TANH, x, y, times=0, **options).training.max_step_size
        curve = shoal.gradient_flow(TANH, x, y, steps=range(9), step_size=size, **options)
        run = shoal.train(net, x, y, step_size=size, steps=8, monitor=False)
        gaps.append(float((run.losses - curve.loss).abs().max() / curve.loss[0]))
    assert gaps[1] < 0.03
    assert gaps[1] < 0.6 * gaps[0]


@pytest.mark.parametrize("architecture", [TANH, GAO, DU, CONV], ids=lambda a: type(a).__name__)
def test_the_automatic_step_size(architecture) -> None:
    x, y = data(architecture)
    net = network(architecture)
    largest = torch.linalg.eigvalsh(shoal.empirical_kernel(net, x).ntk)[-1]
    run = shoal.train(net, x, y, step_size="auto", steps=3)
    assert run.step_size == pytest.approx(1 / float(largest), rel=1e-3)
    assert (run.losses.diff() < 0).all()


def test_float32_and_numpy() -> None:
    x, y = data(dtype=torch.float32)
    run = shoal.train(network(dtype=torch.float32), x, y, step_size=0.1, steps=4)
    double = shoal.train(network(), *data(), step_size=0.1, steps=4)
    torch.testing.assert_close(run.losses, double.losses, rtol=1e-4, atol=0)
    arrays = shoal.train(network(), *(t.numpy() for t in data()), step_size=0.1, steps=4)
    assert torch.equal(arrays.losses, double.losses)
