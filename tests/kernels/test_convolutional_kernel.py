"""Kernels of convolutional residual networks against their recursion, pair of pixels by pair."""

import itertools
import math

import numpy as np
import pytest
import torch

from kernels.convolutional_reference import Reference
from shoal import AccuracyError, ConvResNet, ResNet, kernel, kernel_function, kernel_operator
from shoal.activations import ReLU, Sine, Softplus, Tanh


def images(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator) / 2


CASES = [
    (ConvResNet(ReLU(), 3, residual_scale=2.0), (2, 5)),
    (ConvResNet(Softplus(), 3, residual_scale=2.0), (1, 4)),
    (ConvResNet(Softplus(), 2, patch_size=5, padding="circular"), (2, 3)),
    (ConvResNet(ReLU(), 3, padding="circular"), (1, 2, 3)),
    (ConvResNet(ReLU(), 2, patch_size=5, residual_scale=1.5), (2, 3, 2)),
    (ConvResNet(Tanh(), 2, residual_scale=3.0), (3, 2, 2)),
    (ConvResNet(Sine(), 3, patch_size=1, residual_scale=3.0), (2, 3)),
    (ConvResNet(ReLU(), 2, residual_scale=1.5), (1, 2, 1, 2)),
    (ConvResNet(ReLU(), 2, patch_size=3, padding="circular"), (1, 1, 2)),
]


@pytest.mark.thorough("Softplus(), depth=3", "Tanh()")
@pytest.mark.parametrize(("architecture", "shape"), CASES, ids=repr)
def test_the_recursion_with_loops(architecture, shape):
    x, y = images(2, *shape), images(2, *shape, seed=1)
    groups = architecture.parameter_groups
    for trainable in (groups, groups[:1], groups[-1:]):
        found = kernel(architecture, x, y, trainable=trainable)
        for i, j in ((0, 0), (1, 0)):
            expected = Reference(architecture, x[i], y[j]).kernels(trainable)
            for matrix, value in zip(found, expected, strict=True):
                assert float(matrix[i, j]) == pytest.approx(value, rel=1e-10)


@pytest.mark.thorough("Tanh()", "Softplus()")
@pytest.mark.parametrize("sigma", [Tanh(), Softplus(), ReLU()], ids=repr)
@pytest.mark.parametrize("padding", ["zeros", "circular"])
def test_empty_patches(sigma, padding):
    """Variances of zero: of all pixels whose patches are empty, of whole images."""
    architecture = ConvResNet(sigma, 3, residual_scale=2.0, padding=padding)
    x = images(3, 1, 7)
    x[0, :, 2:], x[1, :, :5], x[2] = 0.0, 0.0, 0.0
    found = kernel(architecture, x)
    for i, j in itertools.combinations_with_replacement(range(3), 2):
        expected = Reference(architecture, x[i], x[j]).kernels(architecture.parameter_groups)
        for matrix, value in zip(found, expected, strict=True):
            assert float(matrix[i, j]) == pytest.approx(value, rel=1e-9, abs=1e-14)


def test_one_layer_in_closed_form():
    """Sums of the dual of ReLU over all pairs of patches, as products of patch matrices."""
    x = images(4, 3, 5, 4)
    patches = torch.nn.functional.unfold(x, 3, padding=1)  # (n, channels * 9, pixels)
    products = torch.einsum("idp,jdq->ijpq", patches, patches)
    norms = patches.square().sum(1).sqrt()
    cosine = (products / (norms[:, None, :, None] * norms[None, :, None, :])).clamp(-1, 1)
    angle = cosine.acos()
    derivative = (math.pi - angle) / math.pi  # c_σ = 2
    value = norms[:, None, :, None] * norms[None, :, None, :] * angle.sin() / math.pi
    found = kernel(ConvResNet(ReLU(), 1), x)
    torch.testing.assert_close(found.ck, (value + derivative * products).sum((2, 3)))
    torch.testing.assert_close(found.ntk, (derivative * products).sum((2, 3)), rtol=1e-7, atol=0.0)


def of_vectors(architecture):
    return ResNet(
        architecture.activation, architecture.depth, residual_scale=architecture.residual_scale
    )


@pytest.mark.thorough("Softplus()")
@pytest.mark.parametrize(
    ("sigma", "padding"), [(Softplus(), "zeros"), (ReLU(), "circular")], ids=str
)
def test_patches_of_one_pixel_are_a_residual_network_on_each(sigma, padding):
    architecture = ConvResNet(sigma, 3, patch_size=1, residual_scale=2.0, padding=padding)
    x, y = images(3, 4, 2, 3), images(2, 4, 2, 3, seed=1)
    pixels = [t.flatten(2).movedim(1, 2).reshape(-1, 4) for t in (x, y)]
    for trainable in (None, {"layer2"}):
        found = kernel(architecture, x, y, trainable=trainable)
        expected = kernel(of_vectors(architecture), *pixels, trainable=trainable)
        for matrix, pairs in zip(found, expected, strict=True):
            sums = pairs.view(3, 6, 2, 6).sum((1, 3))
            torch.testing.assert_close(matrix, sums, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_images_of_one_pixel_are_vectors(axes):
    architecture = ConvResNet(Softplus(), 3, residual_scale=2.0)
    x = images(5, 4)
    found = kernel(architecture, x.view(5, 4, *[1] * axes))
    expected = kernel(of_vectors(architecture), x)
    for matrix, other in zip(found, expected, strict=True):
        torch.testing.assert_close(matrix, other, rtol=1e-10, atol=0.0)


def test_symmetries():
    """Circular shifts of one image; of both, mirroring, exchanged axes; rotated channels."""
    x, y = images(3, 2, 4, 4), images(2, 2, 4, 4, seed=1)
    circular = ConvResNet(ReLU(), 3, padding="circular")
    zeros = ConvResNet(ReLU(), 3)
    turn = torch.linalg.qr(images(2, 2, seed=2))[0]

    def agree(architecture, first, second):
        found, expected = kernel(architecture, first, second), kernel(architecture, x, y)
        return all(
            torch.allclose(a, b, rtol=1e-9, atol=0.0) for a, b in zip(found, expected, strict=True)
        )

    assert agree(circular, x, torch.roll(y, (1, 2), (2, 3)))
    assert not agree(zeros, x, torch.roll(y, (1, 2), (2, 3)))
    assert agree(zeros, x.flip(2), y.flip(2))
    assert agree(zeros, x.transpose(2, 3), y.transpose(2, 3))
    assert agree(zeros, *(torch.einsum("ab,nbhw->nahw", turn, t) for t in (x, y)))


@pytest.mark.thorough("Tanh()")
@pytest.mark.parametrize(
    ("sigma", "memory"),
    [(ReLU(), 1_000), (ReLU(), 5_000), (ReLU(), "30KB"), (ReLU(), "1GiB"), (Tanh(), "20KB")],
    ids=repr,
)
def test_blocks_of_any_size(sigma, memory):
    architecture, x, y = ConvResNet(sigma, 2), images(4, 2, 3, 2), images(3, 2, 3, 2, seed=1)
    for inputs, diag in (((x,), False), ((x, y), False), ((x[:3], y), True)):
        whole = kernel(architecture, *inputs, diag=diag)
        parts = kernel(architecture, *inputs, diag=diag, memory=memory)
        for matrix, other in zip(whole, parts, strict=True):
            torch.testing.assert_close(matrix, other, rtol=1e-11, atol=0.0)


def test_matrices_diagonals_and_partners():
    architecture, x, y = ConvResNet(ReLU(), 2), images(5, 2, 4), images(5, 2, 4, seed=1)
    found, crossed = kernel(architecture, x), kernel(architecture, x, y)
    own, partners = kernel(architecture, x, diag=True), kernel(architecture, x, y, diag=True)
    copied = kernel(architecture, x, x.clone())
    for k in range(2):
        assert torch.equal(found[k], found[k].T)
        torch.testing.assert_close(found[k], copied[k], rtol=1e-12, atol=0.0)
        torch.testing.assert_close(found[k].diagonal(), own[k], rtol=1e-13, atol=0.0)
        torch.testing.assert_close(crossed[k].diagonal(), partners[k], rtol=1e-13, atol=0.0)
        assert torch.linalg.eigvalsh(found[k]).min() > 0


def test_dtypes_and_arrays():
    architecture, x = ConvResNet(Softplus(), 2), images(3, 1, 4)
    exact = kernel(architecture, x)
    single = kernel(architecture, x.float())
    arrays = kernel(architecture, x.numpy())
    for k in range(2):
        assert single[k].dtype == torch.float32
        torch.testing.assert_close(single[k].double(), exact[k], rtol=3e-7, atol=0.0)
        assert isinstance(arrays[k], np.ndarray)
        assert np.array_equal(arrays[k], exact[k].numpy())


def test_progress():
    architecture, shares = ConvResNet(ReLU(), 2), []
    kernel(architecture, images(4, 1, 5), memory=800, on_progress=shares.append)
    assert len(shares) == 4 * 5 // 2 * 5
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    vectors = []
    kernel(of_vectors(architecture), images(70, 5), memory=50_000, on_progress=vectors.append)
    assert len(vectors) > 1
    assert vectors[-1] == 1.0


def test_what_overflows():
    architecture = ConvResNet(ReLU(), 2, residual_scale=1e12)
    with pytest.raises(AccuracyError, match=r"overflows torch\.float32"):
        kernel(architecture, images(2, 1, 4, dtype=torch.float32) * 1e9)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a, x: kernel(a, x[0, 0]), ValueError, r"x1 must have shape \(samples, channels"),
        (lambda a, x: kernel(a, x[..., None, None, None]), ValueError, "one to three axes"),
        (lambda a, x: kernel(a, x, x[:, :1]), ValueError, "as many channels and pixels"),
        (lambda a, x: kernel(a, x, x[..., :2]), ValueError, "as many channels and pixels"),
        (lambda a, x: kernel(a, x, x.float()), ValueError, "one dtype and device"),
        (lambda a, x: kernel(a, x, x[:1], diag=True), ValueError, "diag needs as many x1 as x2"),
        (lambda a, x: kernel(a, x.half()), TypeError, "x1 must be float32 or float64"),
        (lambda a, x: kernel(a, x * math.nan), ValueError, "x1 must be finite"),
        (lambda a, x: kernel(a, x, memory=1), ValueError, "memory must be at least 456 bytes"),
        (lambda a, x: kernel(a, x, trainable={"readout"}), ValueError, "chosen from 'layer1'"),
        (lambda a, x: kernel(a, x, trainable=()), ValueError, "at least one"),
        (lambda a, x: kernel(a, x, width=5), ValueError, "width has no meaning"),
        (lambda a, x: kernel(a, x, variances={"v": x}), ValueError, r"ConvResNet \(none\)"),
        (lambda a, x: kernel(a, x, memory="much"), ValueError, "memory must be a size"),
        (lambda a, _: kernel_function(a), TypeError, "shoal.kernel makes its matrices"),
        (lambda a, x: kernel_operator(a, x.requires_grad_()), ValueError, "not differentiated"),
        (
            lambda _, x: kernel(ConvResNet(ReLU(), 1, patch_size=9, padding="circular"), x),
            ValueError,
            "x1 must have at least 4 pixels",
        ),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(ConvResNet(ReLU(), 2), images(2, 2, 3))
