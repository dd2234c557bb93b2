"""Explicit networks against their equations, and what all networks do with bad arguments."""

import math

import pytest
import torch

from shoal import (
    DEQ,
    Anderson,
    ConvDEQ,
    ConvResNet,
    FullyConnected,
    ImplicitNetwork,
    ResNet,
    build,
    kernel,
)
from shoal.activations import Softplus, Tanh
from shoal.architectures import ImageArchitecture
from shoal.gaussian import moments

SOFTPLUS = Softplus()
C = float(1 / moments(SOFTPLUS, 1.0).square)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(architecture, *, features=3, width=16, **options):
    options = {"dtype": torch.float64, **options}
    return build(architecture, in_features=features, width=width, **options)


def softplus(x):
    return torch.nn.functional.softplus(x)


def test_fully_connected_of_du_2018():
    net, x = network(FullyConnected.du2018(SOFTPLUS, depth=3)), normal(4, 3)
    for layer in ("layer1", "layer2", "layer3"):
        x = math.sqrt(C / 16) * softplus(x @ net.get_parameter(layer).T)
    torch.testing.assert_close(net(normal(4, 3)), x @ net.readout.T)
    assert set(net.groups) == {"layer1", "layer2", "layer3"}
    assert "readout" in dict(net.named_buffers())
    assert set(net.readout.flatten().tolist()) == {-1.0, 1.0}


def test_normalized_layers_keep_norms_on_average():
    net = network(FullyConnected.du2018(SOFTPLUS, depth=3), width=2000)
    x = normal(5, 3)
    x = x / x.norm(dim=1, keepdim=True)
    assert (net.trace(x).features.norm(dim=1) - 1).abs().max() < 0.1


def test_resnet():
    net, x = network(ResNet(SOFTPLUS, depth=3, residual_scale=0.5)), normal(4, 3)
    x = math.sqrt(C / 16) * softplus(x @ net.layer1.T)
    for layer in ("layer2", "layer3"):
        x = x + 0.5 / (3 * 4) * softplus(x @ net.get_parameter(layer).T)
    torch.testing.assert_close(net(normal(4, 3)), x @ net.readout.T)


def convolve(x, weight, padding):
    """One pixel row at a time, patch by patch: channels by pixels."""
    channels, pixels = x.shape
    reach = weight.shape[2] // 2
    columns = []
    for p in range(pixels):
        column = torch.zeros(channels, weight.shape[2]).double()
        for offset in range(-reach, reach + 1):
            q = p + offset
            if padding == "circular":
                column[:, offset + reach] = x[:, q % pixels]
            elif 0 <= q < pixels:
                column[:, offset + reach] = x[:, q]
        columns.append(weight.flatten(1) @ column.flatten())
    return torch.stack(columns, 1)


@pytest.mark.parametrize("padding", ["zeros", "circular"])
def test_conv_resnet_on_a_row_of_pixels(padding):
    architecture = ConvResNet(SOFTPLUS, depth=2, residual_scale=0.5, padding=padding)
    net = network(architecture, features=2, pixel_axes=1)
    x = normal(3, 2, 5)
    expected = []
    for sample in x:
        z = math.sqrt(C / 16) * softplus(convolve(sample, net.layer1, padding))
        z = z + 0.5 / (2 * 4) * softplus(convolve(z, net.layer2, padding))
        expected.append((net.readout[0][:, None] * z).sum())
    torch.testing.assert_close(net(x)[:, 0], torch.stack(expected))


EXPLICIT = [
    FullyConnected((Tanh(), Softplus())),
    FullyConnected.du2018(SOFTPLUS, depth=2),
    ResNet(SOFTPLUS, depth=2),
]


@pytest.mark.parametrize("architecture", EXPLICIT, ids=repr)
def test_gradients(architecture):
    net = network(architecture, width=4)
    parameters = dict(net.named_parameters())

    def function(x, *values):
        named = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(net, named, (x,))

    x = normal(2, 3).requires_grad_()
    assert torch.autograd.gradcheck(function, (x, *parameters.values()))


@pytest.mark.parametrize("architecture", [*EXPLICIT[1:], ConvResNet(SOFTPLUS, depth=2)], ids=repr)
def test_an_option_trains_all_layers(architecture):
    net = network(architecture, trainable="all")
    assert set(net.groups) == {"readout", "layer1", "layer2"}
    assert all(p.requires_grad for p in net.parameters())
    net = network(architecture, trainable={"readout"})
    assert [name for name, p in net.groups.items() if p.requires_grad] == ["readout"]


@pytest.mark.parametrize("weights", ["gaussian", "rademacher", "uniform"])
def test_laws(weights):
    net = network(DEQ(Tanh(), 0.2, 0.8), width=300, weights=weights)
    entries = net.recurrent.detach().flatten()
    assert abs(float(entries.mean())) < 0.02
    assert abs(float(entries.var()) - 1) < 0.02
    fourth = float(entries.pow(4).mean())
    assert abs(fourth - {"gaussian": 3, "rademacher": 1, "uniform": 9 / 5}[weights]) < 0.1


def test_the_representation_says_what_is_trained_now():
    net = network(DEQ(Tanh(), 0.2, 0.8))
    assert "trainable: readout, recurrent, input" in repr(net)
    net.recurrent.requires_grad_(False)
    assert "trainable: readout, input" in repr(net)
    assert "trainable: nothing" in repr(net.requires_grad_(False))


def test_a_seed_means_the_same_in_every_dtype():
    architecture = DEQ(Tanh(), 0.2, 0.8)
    double = network(architecture)
    single = network(architecture, dtype=torch.float32)
    for name, parameter in single.groups.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, double.groups[name].float())
    assert torch.equal(network(architecture).input, double.input)
    assert not torch.equal(network(architecture, seed=1).input, double.input)


def test_the_readout_can_start_at_zero():
    net, x = network(ImplicitNetwork(gamma=0.3), readout_scale=0.0), normal(4, 3)
    assert torch.equal(net(x), torch.zeros(4, 1).double())
    half = network(DEQ(Tanh(), 0.2, 0.8), readout_scale=0.5)
    whole = network(DEQ(Tanh(), 0.2, 0.8))
    torch.testing.assert_close(half(x), whole(x) / 2)


DEFAULT = DEQ(Tanh(), 0.2, 0.8)


@pytest.mark.parametrize(
    ("architecture", "options", "error", "message"),
    [
        ("deq", {}, TypeError, "architecture must be an Architecture"),
        (DEFAULT, {"width": 0}, ValueError, "width must be >= 1"),
        (DEFAULT, {"features": 2.5}, TypeError, "in_features must be an integer"),
        (DEFAULT, {"out_features": 0}, ValueError, "out_features must be >= 1"),
        (DEFAULT, {"weights": "cauchy"}, ValueError, "weights must be one of 'gaussian'"),
        (DEFAULT, {"seed": -1}, ValueError, "seed must be >= 0"),
        (DEFAULT, {"seed": 2**64}, ValueError, "seed must be < "),
        (DEFAULT, {"dtype": torch.float8_e4m3fn}, TypeError, "dtype must be a floating-point"),
        (DEFAULT, {"dtype": torch.int32}, TypeError, "dtype must be a floating-point dtype"),
        (DEFAULT, {"readout_scale": math.nan}, ValueError, "readout_scale must be finite"),
        (DEFAULT, {"trainable": "readout"}, TypeError, "trainable must be a set of group names"),
        (DEFAULT, {"trainable": {"skip"}}, ValueError, "trainable must be chosen from 'readout'"),
        (DEFAULT, {"trainable": {"readout", "skip"}}, ValueError, "trainable must be chosen"),
        (DEFAULT, {"trainable": ()}, ValueError, "at least one"),
        (DEFAULT, {"solver": "anderson"}, TypeError, "solver must be a Solver"),
        (DEFAULT, {"gradient": "jfb"}, TypeError, "gradient must be a Gradient"),
        (DEFAULT, {"on_failure": "ignore"}, ValueError, "on_failure must be one of 'raise'"),
        (DEFAULT, {"warm_start": 1}, TypeError, "warm_start must be True or False"),
        (DEFAULT, {"max_iter": 3}, TypeError, "max_iter"),
        (EXPLICIT[0], {"solver": Anderson()}, TypeError, "only to implicit architectures"),
        (EXPLICIT[0], {"warm_start": True}, TypeError, "only to implicit architectures"),
        (EXPLICIT[0], {"on_failure": "raise"}, TypeError, "only to implicit architectures"),
        (DEFAULT, {"pixel_axes": 1}, TypeError, "pixel_axes is for networks of images"),
        (
            ConvResNet(SOFTPLUS, depth=1),
            {"pixel_axes": 4},
            ValueError,
            "pixel_axes must be 1, 2 or 3",
        ),
    ],
)
def test_bad_arguments(architecture, options, error, message):
    with pytest.raises(error, match=message):
        network(architecture, **options)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.ones(4), ValueError, r"x must have shape \(samples, in_features\).*got \(4,\)"),
        (torch.ones(2, 4), ValueError, r"in_features = 3, got \(2, 4\)"),
        (torch.ones(2, 3).float(), TypeError, "dtype and device, torch.float64 on cpu, got"),
        (torch.full((2, 3), math.inf).double(), ValueError, "x must be finite"),
        (torch.ones(0, 4).double(), ValueError, r"in_features = 3, got \(0, 4\)"),
        ([[1.0, 2.0, 3.0]], TypeError, "x must be a floating-point tensor"),
    ],
)
@pytest.mark.parametrize("architecture", [DEFAULT, EXPLICIT[0]], ids=["implicit", "explicit"])
def test_bad_inputs(architecture, x, error, message):
    x = x.double() if isinstance(x, torch.Tensor) and error is ValueError else x
    with pytest.raises(error, match=message):
        network(architecture)(x)


@pytest.mark.parametrize(
    "architecture", [DEFAULT, ImplicitNetwork(0.3), *EXPLICIT, ConvDEQ("relu", 0.3, 0.8)]
)
def test_empty_batches_have_empty_outputs_and_gradients_of_zero(architecture):
    images = isinstance(architecture, ImageArchitecture)
    net = network(architecture, out_features=2, **({"pixels": (4, 4)} if images else {}))
    x = torch.zeros(0, 3, *(4, 4) * images, dtype=torch.float64, requires_grad=True)
    output = net(x)
    assert output.shape == (0, 2)
    output.sum().backward()
    assert x.grad.shape == x.shape
    assert all(not p.grad.any() for p in net.parameters())
    assert kernel(architecture, x.detach()).ntk.shape == (0, 0)


def test_pixels_must_suffice_for_circular_patches():
    net = network(ConvResNet(SOFTPLUS, depth=1, patch_size=7, padding="circular"), pixel_axes=1)
    with pytest.raises(ValueError, match="at least 3 pixels along each axis"):
        net(normal(2, 3, 2))
