"""Designs for residual and implicit networks: kernels that agree with the original's."""

import math

import pytest
import torch

import shoal
from shoal import kernel, kernel_function


def gap(one, other, norm, which):
    cosines = torch.linspace(-0.9, 0.9, 13, dtype=torch.float64)
    values = [
        getattr(kernel_function(a)(norm**2, norm**2, norm**2 * cosines), which)
        for a in (one, other)
    ]
    return float((values[0] - values[1]).abs().max() / values[0].abs().max())


@pytest.mark.thorough("ImplicitNetwork")
@pytest.mark.parametrize("which", ["ck", "ntk"])
@pytest.mark.parametrize(
    "architecture",
    [
        shoal.ResNet(shoal.activations.Softplus(), 3, residual_scale=1.5),
        shoal.ImplicitNetwork(gamma=0.4),
    ],
    ids=repr,
)
def test_one_layer_on_the_sphere(architecture, which):
    d = shoal.design(architecture, input_norm=1.2, which=which, method="sphere")
    assert d.residual < 1e-6
    assert gap(architecture, d.architecture, 1.2, which) < 1e-6


@pytest.mark.thorough
def test_an_implicit_network_at_every_norm():
    net = shoal.ImplicitNetwork(gamma=0.4)
    d = shoal.design(net, input_norm=1.0, method=shoal.designs.SphereMatching(norm_gated=True))
    for norm in (0.3, 2.0):
        assert gap(net, d.architecture, norm, "ntk") < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_a_residual_network_by_moments(which):
    """On high-dimensional mixtures the kernel matrices of both agree, the better the higher."""
    net = shoal.ResNet(shoal.activations.Softplus(), 2)
    d = shoal.design(net, input_norm=1.0, which=which)
    assert isinstance(d.original, shoal.ResNet)
    errors = []
    for p in (150, 600):
        generator = torch.Generator().manual_seed(p)
        x = torch.randn(p // 2, p, dtype=torch.float64, generator=generator) / math.sqrt(p)
        exact, found = (getattr(kernel(a, x), which) for a in (d.original, d.architecture))
        errors.append(
            float(torch.linalg.matrix_norm(exact - found, 2) / torch.linalg.matrix_norm(exact, 2))
        )
    bound = d.errors["predicted"]
    assert errors[1] < bound + 0.03
    assert errors[1] - bound < 0.7 * (errors[0] - bound) + 1e-3
