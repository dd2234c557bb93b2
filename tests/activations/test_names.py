"""Activations by name and by PyTorch's modules, wherever an activation is asked for."""

import pytest
import torch
from torch import nn

import shoal
from shoal.activations.names import as_activation

MODULES = [
    nn.ReLU(),
    nn.LeakyReLU(0.1),
    nn.Tanh(),
    nn.Hardtanh(-2.0, 2.0),
    nn.SiLU(),
    nn.Mish(),
    nn.GELU(),
    nn.Softplus(),
    nn.Sigmoid(),
    nn.ELU(0.5),
    nn.SELU(),
    nn.Identity(),
]


@pytest.mark.parametrize("module", MODULES, ids=repr)
def test_modules_mean_the_activations_that_compute_the_same(module):
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    found = as_activation("activation", module)
    assert (found(x) - module(x)).abs().max() <= 1e-14
    x.requires_grad_()
    (slope,) = torch.autograd.grad(module(x).sum(), x)
    away = x.detach().abs() > 1e-9
    assert (found.derivative(x.detach()) - slope)[away].abs().max() <= 1e-13


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("tanh", shoal.activations.Tanh()),
        ("SiLU", shoal.activations.Swish()),
        ("leaky_relu:0.1", shoal.activations.LeakyReLU(0.1)),
        ("mish", shoal.activations.Mish()),
    ],
)
def test_names_do_everywhere(name, activation):
    assert shoal.DEQ(name, 0.2, 0.8) == shoal.DEQ(activation, 0.2, 0.8)
    assert shoal.FullyConnected((name, "relu")).activations == (
        activation,
        shoal.activations.ReLU(),
    )
    assert shoal.ResNet(name, 2) == shoal.ResNet(activation, 2)
    assert shoal.ConvDEQ(name, 0.1, 0.8) == shoal.ConvDEQ(activation, 0.1, 0.8)
    assert shoal.gaussian.moments(name, 1.0) == shoal.gaussian.moments(activation, 1.0)


def test_several_modules_make_a_cell_of_several_layers():
    assert shoal.DEQ((nn.Tanh(), "relu"), 0.2, 0.8) == shoal.DEQ(
        (shoal.activations.Tanh(), shoal.activations.ReLU()), 0.2, 0.8
    )


@pytest.mark.thorough
def test_a_kernel_of_mish_is_that_of_wide_networks():
    x = torch.nn.functional.normalize(torch.randn(3, 5, generator=torch.Generator().manual_seed(0)))
    deq = shoal.DEQ(nn.Mish(), 0.2, 0.8)
    exact = shoal.kernel(deq, x.double()).ck
    errors = []
    for width in (100, 1600):
        nets = [
            shoal.build(
                deq, in_features=5, width=width, out_features=1, seed=s, dtype=torch.float64
            )
            for s in range(4)
        ]
        found = [shoal.empirical_kernel(net, x.double()).ck for net in nets]
        errors.append(float(torch.stack([(k - exact).norm() for k in found]).mean()))
    assert errors[1] <= errors[0] / 2  # a quarter is expected
    assert errors[1] <= 0.1 * float(exact.norm())


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("tanhh", ValueError, "activation must be one of .*selu.*tanh, got 'tanhh'"),
        (nn.GELU(approximate="tanh"), ValueError, "has options that no activation here has"),
        (nn.Hardtanh(0.0, 6.0), ValueError, "has options that no activation here has"),
        (nn.Linear(2, 2), TypeError, "its name, such as 'relu', or one of the modules ReLU,"),
        (torch.tanh, TypeError, "activation must be an Activation, such as ReLU"),
        (3, TypeError, "got 3"),
    ],
    ids=["unknown", "approximate", "lopsided", "linear", "function", "number"],
)
def test_others_are_refused(value, error, message):
    with pytest.raises(error, match=message):
        shoal.DEQ(value, 0.2, 0.8)
