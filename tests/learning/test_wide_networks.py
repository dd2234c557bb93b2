"""Predicted training against the training of finite networks, as they get wider."""

import math

import pytest
import torch

from shoal import (
    DEQ,
    FullyConnected,
    Implicit,
    ImplicitNetwork,
    Picard,
    ResNet,
    build,
    empirical_kernel,
    gradient_flow,
)
from shoal.activations import ReLU, Softplus, Tanh
from shoal.architectures import ImplicitArchitecture
from shoal.learning.flow import scaled_kernels

DEQ_TANH = DEQ(Tanh(), 0.2, 0.8)
STANDARD = DEQ.ling2023(0.1, 4)
STEPS = [0, 1, 2, 4, 8, 16]


def data(n=6, m=3, norm=1.0):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(n + m, 4, dtype=torch.float64, generator=generator)
    x = norm * x / x.norm(dim=1, keepdim=True)
    return x[:n], x[:n, 0].sign(), x[n:]


def network(architecture, width, seed, **options):
    """A network whose equilibria are solved for far beyond what is compared, but not further."""
    if isinstance(architecture, ImplicitArchitecture):
        options |= {
            "solver": Picard(rtol=1e-7),
            "gradient": Implicit(rtol=1e-7),
            "warm_start": True,
        }
    options |= {"in_features": 4, "width": width, "seed": seed, "dtype": torch.float64}
    return build(architecture, **options)


def descend(net, x, y, x_test, step_size):
    """Losses and test predictions of gradient descent on the network itself."""
    losses, predictions = [], []
    for step in range(STEPS[-1] + 1):
        error = net(x)[:, 0] - y
        if step in STEPS:
            losses.append(0.5 * float(error.detach().square().sum()))
            with torch.no_grad():
                predictions.append(net(x_test)[:, 0])
        trained = [p for p in net.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(0.5 * error.square().sum(), trained)
        with torch.no_grad():
            for p, gradient in zip(trained, gradients, strict=True):
                p -= step_size * gradient
    return torch.tensor(losses).double(), torch.stack(predictions)


def gap(architecture, width, seeds, norm=1.0, **options):
    """How far networks are from their predictions: losses and tests, root mean square."""
    x, y, x_test = data(norm=norm)
    squares = torch.zeros(2).double()
    for seed in range(seeds):
        net = network(architecture, width, seed, **options)
        probe = gradient_flow(architecture, x, y, times=0, initial=net)
        step_size = 0.4 * probe.training.max_step_size
        found = gradient_flow(
            architecture, x, y, x_test, steps=STEPS, step_size=step_size, initial=net
        )
        losses, predictions = descend(net, x, y, x_test, step_size)
        squares[0] += ((found.loss - losses) / losses[0]).square().mean() / seeds
        squares[1] += (found.test_mean - predictions).square().mean() / seeds
    return squares.sqrt()


CASES = [
    (DEQ_TANH, {}),
    (DEQ_TANH, {"trainable": {"recurrent", "input"}}),
    (DEQ_TANH, {"readout_scale": 0.5}),
    (STANDARD, {"norm": 2.0}),
    (FullyConnected((ReLU(),)), {}),
    (FullyConnected((Tanh(), ReLU())), {}),
    (ResNet(Softplus(), 2, residual_scale=2.0), {}),
    (ImplicitNetwork(gamma=0.4), {}),
]


@pytest.mark.thorough(
    "architecture0",
    "architecture1",
    "architecture2",
    "architecture3",
    "architecture6",
    "architecture7",
)
@pytest.mark.parametrize(("architecture", "options"), CASES)
def test_networks_approach_their_prediction(architecture, options):
    narrow, wide = gap(architecture, 32, 16, **options), gap(architecture, 512, 6, **options)
    # the kernels of finite networks have errors of m^{-1/2}: a factor of 4
    assert (wide < narrow / 2).all(), (narrow, wide)
    assert (wide < 0.07).all(), wide


def test_an_ensemble_of_networks():
    """Mean and deviation of trained networks; the loss before training, on average."""
    architecture = FullyConnected((Tanh(),))
    x, y, x_test = data()
    probe = gradient_flow(architecture, x, y, x_test, times=0).training
    step_size = 0.4 * probe.max_step_size
    found = gradient_flow(architecture, x, y, x_test, steps=STEPS, step_size=step_size)
    losses, predictions = [], []
    seeds = 100
    for seed in range(seeds):
        net = network(architecture, 96, seed)
        one = descend(net, x, y, x_test, step_size)
        losses.append(one[0])
        predictions.append(one[1])
    loss, prediction = torch.stack(losses), torch.stack(predictions)
    noise = found.test_std / seeds**0.5
    # four standard errors, and what a finite width may add
    assert ((prediction.mean(0) - found.test_mean).abs() < 4 * noise + 0.02).all()
    assert ((prediction.std(0) / found.test_std - 1).abs() < 4 / (2 * seeds) ** 0.5 + 0.05).all()
    first = loss[:, 0]
    assert abs(first.mean() - found.loss[0]) < 4 * found.loss_std[0] / seeds**0.5
    squares = (first - found.loss[0]).square()
    assert abs(squares.mean() - found.loss_std[0] ** 2) < 4 * squares.std() / seeds**0.5


@pytest.mark.thorough("0.0-", "2.0-")
@pytest.mark.parametrize("architecture", [DEQ_TANH, STANDARD, FullyConnected((Tanh(),))], ids=repr)
@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
def test_the_ntk_of_a_scaled_readout(architecture, scale):
    x = data()[0]
    deviations = []
    for width in (64, 1024):
        nets = [network(architecture, width, seed, readout_scale=scale) for seed in range(8)]
        own = width if architecture.width_matters else None
        groups = frozenset(architecture.parameter_groups)
        exact = scaled_kernels(architecture, groups, own, scale, x).ntk
        mean = sum(empirical_kernel(net, x).ntk for net in nets) / len(nets)
        deviations.append(float((mean - exact).norm() / exact.norm()))
    assert deviations[1] < min(0.06, deviations[0] / 2)


def test_standard_time_without_width_is_that_of_the_limit():
    x, y, x_test = data(norm=2.0)
    width = 10**9  # the input weights do not count any more
    found = gradient_flow(STANDARD, x, y, x_test, [1.0, math.inf])
    wide = gradient_flow(STANDARD, x, y, x_test, [1.0 / width, math.inf], width=width)
    torch.testing.assert_close(found.test_mean, wide.test_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.loss, wide.loss, rtol=1e-6, atol=1e-9)
