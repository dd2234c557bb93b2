"""Every architecture in every calculus: all of them mean the same network, and finite ones too."""

import math
from typing import Any

import pytest
import torch

import shoal
from shoal import DEQ, ConvDEQ, ConvNet, ConvResNet, FullyConnected, ImplicitNetwork, ResNet
from shoal.activations import ReLU, Softplus, Tanh
from shoal.designs import kernel_series

CASES: dict[str, shoal.Architecture] = {
    "deq": DEQ(Tanh(), 0.3, 0.8),
    "deq, relu": DEQ(ReLU(), 0.3, 0.8),
    "deq, standard": DEQ(Softplus(), 0.2, 0.7, parametrization="standard"),
    "deq, biases": DEQ(Tanh(), 0.3, 0.8, bias_variance=0.4),
    "deq, biases, standard": DEQ(Tanh(), 0.3, 0.8, bias_variance=0.4, parametrization="standard"),
    "deq, two layers": DEQ((Tanh(), ReLU()), 0.3, 0.8, hidden_variances=(0.7,)),
    "deq, two layers, biases": DEQ((Tanh(), Softplus()), 0.2, 0.8, bias_variance=0.3),
    "deq, three layers, standard": DEQ(
        (Tanh(), ReLU(), Tanh()), 0.3, 0.8, bias_variance=0.2, parametrization="standard"
    ),
    "fully connected": FullyConnected((Tanh(), ReLU())),
    "fully connected, biases": FullyConnected((ReLU(), Tanh()), bias_variance=0.3),
    "fully connected, du2018": FullyConnected.du2018(Softplus(), 3),
    "gated": FullyConnected((Softplus(), Tanh()), norm_gated=True),
    "gated, biases": FullyConnected((Tanh(), ReLU()), norm_gated=True, bias_variance=0.5),
    "resnet": ResNet(Softplus(), 3, residual_scale=0.8),
    "resnet, biases": ResNet((Tanh(), ReLU(), Softplus()), 3, bias_variance=0.3),
    "implicit network": ImplicitNetwork(0.4),
    "implicit network, biases": ImplicitNetwork(0.6, bias_variance=0.3),
}
COSTLY = {"deq, biases, standard", "deq, two layers, biases", "deq, three layers, standard"}


CHEAP = [name for name in CASES if name not in COSTLY]
EVERY = pytest.mark.parametrize("name", CHEAP)
COSINES = torch.tensor([-0.9, -0.5, 0.0, 0.3, 0.8], dtype=torch.float64)
SQUARE = 1.44  # of the norms of inputs


def width_of(architecture: shoal.Architecture, width: int) -> int | None:
    return width if architecture.width_matters else None


def function_of(name: str, **options: Any) -> shoal.kernels.KernelFunction:
    architecture = CASES[name]
    return shoal.kernel_function(architecture, width=width_of(architecture, 50), **options)


def inputs(shape: tuple[int, ...] = (3, 6)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) / math.sqrt(shape[1])


@EVERY
def test_inputs_with_themselves(name):
    """To the digits that pairs have at an angle of zero, all of them for one input."""
    function, squares = function_of(name), torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)
    for own, pair in zip(
        function.diagonal(squares), function(squares, squares, squares), strict=True
    ):
        torch.testing.assert_close(own, pair, rtol=1e-10, atol=0)


@EVERY
def test_power_series(name):
    if name.startswith("implicit network"):
        return  # no series is known for it
    function = function_of(name)
    series = kernel_series(
        function.architecture, norm=math.sqrt(SQUARE), degree=96, width=function.width
    )
    cosines = COSINES[1:4]
    wanted = function(SQUARE, SQUARE, SQUARE * cosines)
    for got, pair in zip(series(cosines.numpy()), wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(got), pair, rtol=1e-9, atol=1e-12)


@EVERY
def test_matrices(name):
    x, function = inputs(), function_of(name)
    squares = x.square().sum(1)
    wanted = function(squares[:, None], squares, x @ x.T)
    found = shoal.kernel(function.architecture, x, width=function.width)
    for matrix, pairs in zip(found, wanted, strict=True):
        torch.testing.assert_close(matrix, pairs, rtol=1e-7, atol=1e-9)


@EVERY
def test_groups_add_up(name):
    whole = function_of(name)
    point = (SQUARE, 0.7, 0.4)
    shares = [
        function_of(name, trainable={group})(*point).ntk
        for group in whole.architecture.parameter_groups
    ]
    torch.testing.assert_close(torch.stack(shares).sum(0), whole(*point).ntk, rtol=1e-12, atol=0)


@pytest.mark.thorough("deq, biases", "deq, two layers", "gated, biases")
@pytest.mark.parametrize("name", [name for name in CHEAP if CASES[name].variances])
def test_derivatives_in_variances(name):
    """Against central differences of another architecture."""
    x, architecture = inputs(), CASES[name]
    for field in architecture.variances:
        value = torch.tensor(getattr(architecture, field), dtype=torch.float64, requires_grad=True)

        def total(variance: torch.Tensor, field: str = field) -> torch.Tensor:
            width = width_of(architecture, 50)
            found = shoal.kernel(architecture, x, width=width, variances={field: variance})
            return (found.ck * found.ck + found.ntk).sum()

        (slope,) = torch.autograd.grad(total(value), value)
        step = 1e-4
        ends = [float(total(value.detach() + sign * step)) for sign in (1, -1)]
        assert float(slope) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5), field


def errors(architecture: shoal.Architecture, width: int, seeds: int) -> tuple[list[float], bool]:
    """The spread of both kernels of random networks, and whether their means are the limits.

    That is, whether they are within four of their own standard errors, and what the width leaves.
    """
    images = architecture in IMAGES.values()
    x, options = (inputs((2, 3, 4, 4)), {"pixels": (4, 4)}) if images else (inputs(), {})
    limit = shoal.kernel(architecture, x, width=width_of(architecture, width))
    found = [
        shoal.empirical_kernel(
            shoal.build(
                architecture,
                in_features=x.shape[1],
                width=width,
                seed=seed,
                dtype=torch.float64,
                **options,
            ),
            x,
        )
        for seed in range(seeds)
    ]
    spreads, right = [], True
    for which, wanted in zip(("ck", "ntk"), limit, strict=True):
        samples = torch.stack([getattr(k, which) for k in found])
        scale = float(wanted.abs().max())
        near = 4 * samples.std(0) / math.sqrt(seeds) + 4 * scale / width
        right = right and bool(((samples.mean(0) - wanted).abs() <= near).all())
        spreads.append(float((samples - wanted).square().mean().sqrt()) / scale)
    return spreads, right


IMAGES = {
    "convolutional": ConvResNet(Softplus(), 2, residual_scale=0.5),
    "convolutional, biases": ConvResNet(Tanh(), 2, bias_variance=0.4, padding="circular"),
    "convolutional, explicit": ConvNet((ReLU(), Tanh()), bias_variance=0.3),
    "convolutional, deq": ConvDEQ(ReLU(), 0.3, 0.8, bias_variance=0.2),
    "convolutional, deq, pooled": ConvDEQ(Tanh(), 0.2, 0.8, pooling="average", padding="circular"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*CASES, *IMAGES])
def test_finite_networks(name):
    """A fourfold width halves the error; twenty networks know it to about a quarter."""
    architecture = {**CASES, **IMAGES}[name]
    (narrow, near), (wide, nearer) = (errors(architecture, width, 20) for width in (40, 160))
    assert near
    assert nearer
    for before, after in zip(narrow, wide, strict=True):
        assert 1.3 < before / after < 3.1


@pytest.mark.parametrize("name", IMAGES)
def test_groups_of_images_add_up(name):
    x, architecture = inputs((2, 3, 3, 2)), IMAGES[name]
    shares = [
        shoal.kernel(architecture, x, trainable={group}).ntk
        for group in architecture.parameter_groups
    ]
    whole = shoal.kernel(architecture, x).ntk
    torch.testing.assert_close(sum(shares), whole, rtol=1e-11, atol=0)
