"""Finite convolutional networks against the kernels of infinitely wide ones."""

import pytest
import torch

from shoal import ConvResNet, build, empirical_kernel, kernel
from shoal.activations import GELU, ReLU


def images(*shape, seed=0):
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x / x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1))


def networks(architecture, x, width, count):
    axes = x.dim() - 2
    options = {"in_features": x.shape[1], "width": width, "pixel_axes": axes}
    for seed in range(count):
        yield build(architecture, seed=seed, dtype=torch.float64, **options)


CONVERGING = [
    (ConvResNet(GELU(), 3, residual_scale=3.0), (4, 3, 5)),
    (ConvResNet(ReLU(), 2, residual_scale=2.0, padding="circular"), (4, 2, 3, 3)),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("architecture", "shape"), CONVERGING, ids=repr)
def test_convergence_to_infinite_width(architecture, shape):
    """For every layer's weights: means within their error, deviations like m^(-1/2)."""
    x = images(*shape)
    for group in architecture.parameter_groups:
        exact, deviations = torch.stack(kernel(architecture, x, trainable={group})), []
        for width in (32, 512):
            found = torch.stack(
                [
                    torch.stack(empirical_kernel(net, x, trainable={group}))
                    for net in networks(architecture, x, width, 16)
                ]
            )
            deviations.append((found - exact).square().mean((0, 2, 3)).sqrt())
        assert ((found.mean(0) - exact).abs() < found.std(0)).all(), group  # 4 standard errors
        ratio = deviations[0] / deviations[1]
        assert (ratio > 2).all(), group
        assert (ratio < 8).all(), group
