"""Squares of pixels as channels, and readouts of windows: which networks have these kernels."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import conv2d, pad, pixel_unshuffle, unfold

import shoal

RECURRENT, INPUT, PATCH = 0.7, 0.9, 9
FLAT = shoal.ConvDEQ(shoal.activations.ReLU(), RECURRENT, INPUT, padding="circular")


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 1, 8, 10, generator=generator, dtype=torch.float64)


def around(positions):
    """The numbers of positions on a torus, displaced by each step of a patch."""
    for step in itertools.product((-1, 0, 1), repeat=2):
        yield positions.roll(step, (0, 1)).flatten()


def strided_kernels(x, other, steps=60):
    """CK and NTK of all pairs of positions of two images. shapes: (positions, positions).

    The network is $z = m^{-1/2} relu(A * z + B * x)$ on a torus, where the filters of $A$ have 3 by
    3 entries and stride one, and those of $B$ 6 by 6 and stride two.
    """
    seen = [
        unfold(pad(image[None], (2,) * 4, mode="circular"), 6, stride=2)[0] for image in (x, other)
    ]
    positions = torch.arange(x.numel() // 4).view(x.shape[1] // 2, x.shape[2] // 2)

    def patches(field):  # both positions are displaced alike
        return sum(field[some][:, some] for some in around(positions)) / PATCH

    def dual(one, two, covariance):
        root = (one[:, None] * two).sqrt()
        cosine = (covariance / root).clamp(-1, 1)
        angle = cosine.arccos()
        value = root * (angle.sin() + (math.pi - angle) * cosine)
        return value / (2 * math.pi), (math.pi - angle) / (2 * math.pi)

    given = {(i, j): INPUT * seen[i].T @ seen[j] / PATCH for i, j in ((0, 0), (1, 1), (0, 1))}
    fields, tangent = dict(given), torch.zeros_like(given[0, 1])
    for _ in range(steps):
        own = [fields[i, i].diagonal() for i in (0, 1)]
        duals = {(i, j): dual(own[i], own[j], field) for (i, j), field in fields.items()}
        fields = {pair: RECURRENT * patches(duals[pair][0]) + given[pair] for pair in given}
        ck, slope = duals[0, 1]
        tangent = slope * (RECURRENT * patches(tangent + ck) + given[0, 1])
    return ck, ck + tangent


@pytest.fixture(scope="module")
def strided():
    return strided_kernels(*images())


def test_folding_is_a_first_layer_of_six_by_six_with_stride_two(strided):
    first, second = pixel_unshuffle(images(), 2).split(1)
    found = shoal.kernel(FLAT, first, second)
    for kernel, field in zip(found, strided, strict=True):
        torch.testing.assert_close(kernel[0, 0], field.diagonal().mean(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("step", [1, 2])
def test_windows_are_means_over_moved_images(strided, step):
    first, second = pixel_unshuffle(images(), 2).split(1)
    positions = torch.arange(20).view(4, 5)
    window = torch.zeros(20, 20, dtype=torch.float64)  # of means over two by two, ``step`` apart
    for move in itertools.product((0, step), repeat=2):
        window[torch.arange(20), positions.roll(move, (0, 1)).flatten()] += 1 / 4
    shares = {0: 2 / 4, 1: 1 / 4, -1: 1 / 4}
    moved = [
        (shares[i] * shares[j], second.roll((step * i, step * j), (2, 3)))
        for i, j in itertools.product(shares, repeat=2)
    ]
    for k, field in enumerate(strided):
        mean = sum(share * shoal.kernel(FLAT, first, image)[k] for share, image in moved)
        wanted = (window @ field @ window.T).diagonal().mean()
        torch.testing.assert_close(mean[0, 0], wanted, rtol=1e-12, atol=0)


@pytest.mark.thorough
def test_wide_networks_with_stride_have_the_kernel_of_folded_images():
    x, width = images(), 800
    wanted = shoal.kernel(FLAT, pixel_unshuffle(x, 2)).ck
    generator = torch.Generator().manual_seed(1)
    entering = torch.randn(width, 1, 6, 6, generator=generator, dtype=torch.float64) / 3
    loop = torch.randn(width, width, 3, 3, generator=generator, dtype=torch.float64) / 3
    given = INPUT**0.5 * conv2d(pad(x, (2,) * 4, mode="circular"), entering, stride=2)
    z = torch.zeros_like(given)
    for _ in range(20):
        inner = conv2d(pad(z, (1,) * 4, mode="circular"), loop)
        z = torch.relu(RECURRENT**0.5 * inner + given) / width**0.5
    found = z.flatten(1) @ z.flatten(1).T / z[0, 0].numel()
    assert float((found - wanted).abs().max() / wanted.max()) < 3 / width**0.5
