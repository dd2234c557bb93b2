"""Descent against torch.optim, the flow against descent, both against linear theory."""

import pytest
import torch

import shoal
from shoal.learning import LinearTraining
from shoal.networks.module_inputs import ModuleInputs
from shoal.training.curvature import largest_eigenvalue
from shoal.training.objective import Objective
from training.small import CONV, DU, GAO, LING, RESNET, SHALLOW, TANH, data, network

STEP = {LING: 1e-3, TANH: 0.1, GAO: 0.05, DU: 0.1, RESNET: 0.1, CONV: 0.01, SHALLOW: 0.1}


@pytest.mark.parametrize("architecture", list(STEP), ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_descent_makes_the_steps_of_an_optimizer(architecture, reduction) -> None:
    x, y = data(architecture, outputs=2)
    net, twin = (network(architecture, 32, 2) for _ in range(2))
    run = shoal.train(
        net, x, y, step_size=STEP[architecture], steps=12, monitor=3, reduction=reduction
    )
    optimizer = torch.optim.SGD(twin.parameters(), lr=STEP[architecture])
    losses = []
    for _ in range(13):
        loss = 0.5 * (twin(x) - y).square().sum() / (len(x) if reduction == "mean" else 1)
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
    theory = LinearTraining(kernels, y, initial=(start, None), accuracy=1e-15)
    size = 0.2 * theory.max_step_size
    expected = theory.run(steps=range(11), step_size=size).loss
    found = shoal.train(net, x, y, step_size=size, steps=10)
    torch.testing.assert_close(found.losses, expected, rtol=1e-8, atol=0)

    expected = theory.run([size * k for k in range(11)]).loss
    for rtol in (1e-3, 1e-9):
        net = network(architecture, **options)
        flow = shoal.train(net, x, y, step_size=size, steps=10, method="flow", rtol=rtol)
        torch.testing.assert_close(flow.losses, expected, rtol=10 * rtol, atol=0)
    assert set(flow.distances) == {"readout"}


@pytest.mark.thorough
def test_the_flow_is_the_limit_of_short_steps() -> None:
    x, y = data()
    flow = shoal.train(network(), x, y, step_size=0.2, steps=5, method="flow", rtol=1e-9)
    gaps = []
    for parts in (10, 20):
        run = shoal.train(network(), x, y, step_size=0.2 / parts, steps=5 * parts, monitor=False)
        gaps.append((run.losses[::parts] - flow.losses).abs().max() / flow.losses[0])
    assert gaps[1] < 4e-3
    assert 1.9 < gaps[0] / gaps[1] < 2.1  # first order
    kinks = shoal.train(network(LING), *data(LING), step_size=5e-4, steps=8, method="flow")
    short = shoal.train(network(LING), *data(LING), step_size=2.5e-5, steps=160, monitor=False)
    torch.testing.assert_close(kinks.losses, short.losses[::20], rtol=0.02, atol=0)


@pytest.mark.thorough("descent")
@pytest.mark.parametrize("method", ["descent", "flow"])
def test_wide_networks_train_as_predicted(method) -> None:
    x, y = data()
    gaps = []
    for width in (64, 512):
        net = network(width=width, readout_scale=1.0, solver=shoal.Picard(rtol=1e-8))
        options = {"initial": net}
        size = 0.4 * shoal.gradient_flow(TANH, x, y, times=0, **options).training.max_step_size
        if method == "descent":
            curve = shoal.gradient_flow(TANH, x, y, steps=range(9), step_size=size, **options)
        else:
            times = [size * k for k in range(9)]
            curve = shoal.gradient_flow(TANH, x, y, times=times, **options)
        run = shoal.train(net, x, y, step_size=size, steps=8, method=method, monitor=False)
        gaps.append(float((run.losses - curve.loss).abs().max() / curve.loss[0]))
    assert gaps[1] < 0.03
    assert gaps[1] < 0.6 * gaps[0]


@pytest.mark.parametrize("architecture", [TANH, GAO, DU, CONV], ids=lambda a: type(a).__name__)
def test_the_automatic_step_size(architecture) -> None:
    x, y = data(architecture)
    net = network(architecture)
    largest = torch.linalg.eigvalsh(shoal.empirical_kernel(net, x).ntk)[-1]
    found = largest_eigenvalue(Objective(net, ModuleInputs.checked("x", x), y[:, None]))
    assert found == pytest.approx(float(largest), rel=1e-3)
    run = shoal.train(net, x, y, step_size="auto", steps=3, reduction="mean")
    assert run.step_size == pytest.approx(len(x) / float(largest), rel=1e-3)
    assert (run.losses.diff() < 0).all()


def test_float32_and_numpy() -> None:
    x, y = data(dtype=torch.float32)
    run = shoal.train(network(dtype=torch.float32), x, y, step_size=0.1, steps=4, method="flow")
    double = shoal.train(network(), *data(), step_size=0.1, steps=4, method="flow")
    torch.testing.assert_close(run.losses, double.losses, rtol=1e-4, atol=0)
    arrays = shoal.train(network(), *(t.numpy() for t in data()), step_size=0.1, steps=4)
    assert type(arrays.losses).__name__ == "ndarray"
    assert arrays.monitors["gain"].shape == arrays.monitor_steps.shape == (2,)
