"""Finite convolutional networks against the kernels of infinitely wide ones."""

import pytest
import torch

from shoal import GELU, ConvResNet, ReLU, build, empirical_kernel, kernel
from shoal.experiments.conv_width import printed_gram


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


@pytest.mark.parametrize(("architecture", "shape"), CONVERGING, ids=repr)
def test_convergence_to_infinite_width(architecture, shape):
    """The deviation falls like one over the root of the width, for every layer's weights."""
    x = images(*shape)
    for group in architecture.parameter_groups:
        exact, deviations = kernel(architecture, x, trainable={group}), []
        for width in (32, 512):
            found = [
                empirical_kernel(net, x, trainable={group})
                for net in networks(architecture, x, width, 8)
            ]
            squares = [
                torch.stack([k[i] - exact[i] for k in found]).square().mean() for i in range(2)
            ]
            deviations.append(torch.stack(squares).sqrt())
        ratio = deviations[0] / deviations[1]
        assert (deviations[1] < 0.15 * torch.stack([k.mean() for k in exact])).all(), group
        assert (ratio > 2).all(), group
        assert (ratio < 8).all(), group


@pytest.mark.parametrize("depth", [3, 4])
def test_the_gram_matrix_is_not_the_printed_one(depth):
    """Each entry within the standard error of its mean over networks; equation 6 is far off."""
    architecture, x = ConvResNet(GELU(), depth), images(3, 3, 8)
    last = architecture.parameter_groups[-1:]
    limit = kernel(architecture, x, trainable=last).ntk
    found = torch.stack(
        [empirical_kernel(net, x, trainable=last).ntk for net in networks(architecture, x, 500, 24)]
    )
    error = found.std(0) / len(found) ** 0.5
    assert (error < 0.06 * limit).all()
    assert ((found.mean(0) - limit).abs() < 3 * error).all()
    ratio = printed_gram(architecture, x) / limit
    assert (ratio > (2 if depth == 3 else 10)).all()
