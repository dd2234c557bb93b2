"""neural-tangents: its kernels, and its predictions of training beside ``gradient_flow``."""

import math
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

import shoal
from shoal.learning import LinearTraining

jax = pytest.importorskip("jax", reason="JAX is not installed")
# its experimental part needs TensorFlow, which nothing here does
sys.modules.setdefault("neural_tangents.experimental", ModuleType("experimental"))
nt = pytest.importorskip("neural_tangents", reason="neural-tangents is not installed")
stax = nt.stax

SUITE = "neural-tangents: kernels and `predict`"
PACKAGE = "neural-tangents"

pytestmark = pytest.mark.filterwarnings("default")

ACTIVATIONS = {
    "relu": stax.Relu(),
    "erf": stax.Erf(),
    "gelu": stax.Gelu(),
    "sine": stax.Sin(),
}
WEIGHT, BIAS = 1.5, 0.3  # standard deviations
TIMES = [0.0, 0.1, 1.0, 10.0, 1e3]
WHOLE = ("nngp", "ntk")


@pytest.fixture(autouse=True)
def double_precision():
    """As ``jax_enable_x64``, for these tests alone."""
    with jax.experimental.enable_x64():
        yield


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def close(found: Tensor, wanted, tolerance: float) -> None:
    """Of entries of the order of one."""
    wanted = torch.from_numpy(np.array(wanted))
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def both(name: str, depth: int, features: int):
    """A network of ours, the factor of its inputs, and the same network of theirs."""
    factors = [WEIGHT] * (depth - 1) + [1.0]
    layers = [
        shoal.activations.Affine(shoal.FullyConnected([name]).activations[0], w, 0.0)
        for w in factors
    ]
    ours = shoal.FullyConnected(layers, bias_variance=BIAS**2)
    dense = stax.Dense(1, W_std=WEIGHT, b_std=BIAS)
    theirs = [layer for _ in range(depth) for layer in (dense, ACTIVATIONS[name])]
    return ours, WEIGHT / math.sqrt(features), stax.serial(*theirs, stax.Dense(1))[2]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_kernels_of_dense_layers(name: str, depth: int) -> None:
    x, z = normal(6, 3), normal(4, 3, seed=1)
    ours, scale, theirs = both(name, depth, 3)
    for right in (None, z):
        found = shoal.kernel(ours, scale * x, None if right is None else scale * right)
        wanted = theirs(x.numpy(), None if right is None else right.numpy(), WHOLE)
        close(found.ck, wanted.nngp, 1e-12)
        close(found.ntk, wanted.ntk, 1e-7)  # of a kink: they take the angle from its cosine


@pytest.mark.parametrize("pooling", [None, "average"])
@pytest.mark.parametrize("padding", ["zeros", "circular"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_kernels_of_convolutions(name: str, padding: str, pooling: str | None) -> None:
    x = normal(3, 2, 4, 5)  # two channels
    ours = shoal.ConvNet(
        [name] * 2, kernel_size=3, pooling=pooling, padding=padding, bias_variance=BIAS**2
    )
    border = {"zeros": "SAME", "circular": "CIRCULAR"}[padding]

    def convolution(weight: float):
        return stax.Conv(1, (3, 3), padding=border, W_std=weight, b_std=BIAS)

    activation, collect = ACTIVATIONS[name], stax.GlobalAvgPool() if pooling else stax.Flatten()
    layers = (convolution(math.sqrt(2)), activation, convolution(1.0), activation, collect)
    theirs = stax.serial(*layers, stax.Dense(1))[2]
    found, wanted = shoal.kernel(ours, x), theirs(x.movedim(1, -1).numpy(), None, WHOLE)
    close(found.ck, wanted.nngp, 1e-12)
    close(found.ntk, wanted.ntk, 1e-7)


def data(outputs: int):
    return normal(8, 3), normal(8, outputs, seed=2), normal(4, 3, seed=1)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("trained", WHOLE)
@pytest.mark.parametrize("name", ["relu", "erf"])
def test_ensembles_of_trained_networks(name: str, trained: str, outputs: int) -> None:
    """Means and covariances; their loss is the mean over samples and outputs, halved."""
    x, y, z = data(outputs)
    ours, scale, kernel_fn = both(name, 2, 3)
    predict = nt.predict.gradient_descent_mse_ensemble(kernel_fn, x.numpy(), y.numpy())
    flow = shoal.gradient_flow(
        ours,
        scale * x,
        y,
        scale * z,
        [time / outputs for time in TIMES] + [math.inf],
        trainable={"readout"} if trained == "nngp" else None,
        reduction="mean",
        covariance="full",
    )
    # a kink's NTK depends on the angle, which they take from its cosine
    tolerance = 1e-7 if name == "relu" and trained == "ntk" else 1e-9
    for k, time in enumerate([*TIMES, None]):
        wanted = predict(time, z.numpy(), trained, compute_cov=True)
        close(flow.test_mean[k], wanted.mean, tolerance)
        close(flow.test_covariance[k], wanted.covariance, tolerance)
        close(flow.train_mean[k] - y, predict(time, None, trained) - y.numpy(), tolerance)


def equilibrium(outputs: int):
    """The kernels of a DEQ, which their functions take like any others, and initial values."""
    x, y, z = data(outputs)
    deq = shoal.DEQ("tanh", 0.4, 0.6)
    kernels, cross = shoal.kernel(deq, x), shoal.kernel(deq, z, x)
    start = normal(8, outputs, seed=3), normal(4, outputs, seed=4)
    training = LinearTraining(kernels, y, cross=cross, initial=start, reduction="mean")
    arrays = [part.numpy() for part in (kernels.ntk, y, *start, cross.ntk)]
    return training, arrays


@pytest.mark.parametrize("outputs", [1, 3])
def test_training_from_given_values(outputs: int) -> None:
    training, (ntk, y, *start, cross) = equilibrium(outputs)
    flow = training.run([time / outputs for time in TIMES] + [math.inf])
    predict = nt.predict.gradient_descent_mse(ntk, y)
    for k, time in enumerate([*TIMES, None]):
        train, test = predict(time, *start, cross)
        close(flow.train_mean[k], train, 1e-9)
        close(flow.test_mean[k], test, 1e-9)


@pytest.mark.parametrize("outputs", [1, 3])
def test_training_by_their_solver_of_differential_equations(outputs: int) -> None:
    training, (ntk, y, *start, cross) = equilibrium(outputs)

    def loss(f, y):
        return 0.5 * jax.numpy.mean((f - y) ** 2)

    predict = nt.predict.gradient_descent(loss, ntk, y)
    times = [0.1, 1.0, 10.0]
    train, test = predict(np.array(times), *start, cross)
    flow = training.run([time / outputs for time in times])
    close(flow.train_mean, train, 1e-6)
    close(flow.test_mean, test, 1e-6)


@pytest.mark.parametrize("ridge", [1e-3, 0.1])
@pytest.mark.parametrize("which", WHOLE)
def test_inference_with_a_ridge(which: str, ridge: float) -> None:
    x, y, z = data(2)
    ours, scale, kernel_fn = both("relu", 2, 3)
    kernels, cross = kernel_fn(x.numpy(), None, WHOLE), kernel_fn(z.numpy(), x.numpy(), WHOLE)
    predict = nt.predict.gp_inference(
        kernels, y.numpy(), diag_reg=ridge, diag_reg_absolute_scale=True
    )
    wanted = predict(which, getattr(cross, which))
    ours_is = {"nngp": "ck", "ntk": "ntk"}[which]
    model = shoal.kernel_regression(ours, scale * x, y, ridge=ridge, center=False, which=ours_is)
    close(model.predict(scale * z), wanted, 1e-6)
