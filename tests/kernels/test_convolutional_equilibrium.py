"""Kernels of convolutional equilibria against a direct solution and wide networks."""

import itertools

import pytest
import torch

import shoal
from kernels.convolutional_reference import ACTIVATIONS
from shoal import DEQ, ConvDEQ
from shoal.activations import Erf, ReLU, Tanh


def images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def neighbors(net, sides, pixel):
    """The pixels of a patch that are inside the image, or ``None``, in one order."""
    reach = net.kernel_size // 2
    for step in itertools.product(range(-reach, reach + 1), repeat=len(sides)):
        moved = tuple(p + k for p, k in zip(pixel, step, strict=True))
        if net.padding == "circular":
            moved = tuple(p % side for p, side in zip(moved, sides, strict=True))
        inside = all(0 <= p < side for p, side in zip(moved, sides, strict=True))
        yield moved if inside else None


def patch_matrix(net, sides):
    """The linear map from a field over pairs of pixels to its means over patches."""
    pixels = list(itertools.product(*map(range, sides)))
    number, share = {pixel: i for i, pixel in enumerate(pixels)}, net.kernel_size ** -len(sides)
    count = len(pixels)
    matrix = torch.zeros(count, count, count, count, dtype=torch.float64)
    for p, q in itertools.product(pixels, repeat=2):
        for one, other in zip(neighbors(net, sides, p), neighbors(net, sides, q), strict=True):
            if one is not None and other is not None:
                matrix[number[p], number[q], number[one], number[other]] += share
    return matrix.reshape(count**2, count**2)


def duals(phi, first, second, cross):
    """Both duals of all pairs of pixels, given three matrices of covariances."""
    expectations, _ = ACTIVATIONS[phi]
    size = len(cross)
    triples = [
        (float(first[p, p]), float(second[q, q]), float(cross[p, q]))
        for p in range(size)
        for q in range(size)
    ]
    found = [expectations(*triple)[2:] for triple in triples]
    return (torch.tensor(part, dtype=torch.float64) for part in zip(*found, strict=True))


def direct(net, x, y):
    """Both kernels of two images: all covariances by iteration, the NTK by a linear system."""
    count, sides = x[0].numel(), x.shape[1:]
    mean = patch_matrix(net, sides)
    pairs = ((x, x), (y, y), (x, y))
    given = [mean @ (u.flatten(1).T @ v.flatten(1)).flatten() for u, v in pairs]
    enter = [net.input_variance * g + net.bias_variance for g in given]
    fields = [e.view(count, count) for e in enter]
    for _ in range(60):
        own = (fields[0], fields[0], fields[0]), (fields[1], fields[1], fields[1]), fields
        fields = [
            (net.recurrent_variance * mean @ next(duals(net.activation, *three)) + e).view(
                count, count
            )
            for three, e in zip(own, enter, strict=True)
        ]
    g, slope = duals(net.activation, *fields)
    own = slope * (net.recurrent_variance * mean @ g + net.input_variance * given[2])
    own = own + slope * net.bias_variance
    system = torch.eye(count**2).double() - net.recurrent_variance * slope[:, None] * mean
    ntk = g + torch.linalg.solve(system, own)
    if net.pooling == "average":
        return float(g.mean()), float(ntk.mean())
    return tuple(float(t.view(count, count).diagonal().mean()) for t in (g, ntk))


@pytest.mark.thorough("Tanh")
@pytest.mark.parametrize(
    ("net", "sides"),
    [
        (ConvDEQ(ReLU(), 0.6, 0.8), (3, 2)),
        (ConvDEQ(ReLU(), 0.6, 0.8, pooling="average", bias_variance=0.3), (2, 3)),
        (ConvDEQ(ReLU(), 0.5, 0.8, padding="circular", pooling="average"), (4,)),
        (ConvDEQ(ReLU(), 0.7, 0.9, padding="circular", kernel_size=5, bias_variance=0.1), (5,)),
        (ConvDEQ(Tanh(), 0.7, 0.9, pooling="average"), (3,)),
    ],
    ids=repr,
)
def test_tiny_images_directly(net, sides):
    x = images(2, 2, *sides)
    found = shoal.kernel(net, x)
    for i, j in ((0, 0), (0, 1)):
        for k, wanted in zip(found, direct(net, x[i], x[j]), strict=True):
            assert float(k[i, j]) == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize("pooling", [None, "average"])
@pytest.mark.parametrize("deq", [DEQ(Tanh(), 0.4, 0.8, bias_variance=0.2), DEQ(ReLU(), 1.4, 0.8)])
def test_images_of_one_pixel_are_vectors(deq, pooling):
    """Also where the equation of the variance is no contraction, and is iterated."""
    x = images(4, 3)
    conv = ConvDEQ(
        deq.activation, deq.recurrent_variance, deq.input_variance, kernel_size=1,
        pooling=pooling, bias_variance=deq.bias_variance,
    )  # fmt: skip
    for image, vector in zip(shoal.kernel(conv, x[:, :, None]), shoal.kernel(deq, x), strict=True):
        # where a kink's slope in the angle counts, the angle of an image with itself is known to √ε
        own = image.diagonal()
        torch.testing.assert_close(own, vector.diagonal(), rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(
            image - own.diag(), vector - vector.diagonal().diag(), rtol=1e-10, atol=1e-10
        )


def test_what_is_not_there():
    net = ConvDEQ(ReLU(), 0.2, 0.8)
    with pytest.raises(TypeError, match="kernels of a ConvDEQ are no functions"):
        shoal.kernel_function(net)
    with pytest.raises(ValueError, match="kernel_size must be odd, got 2"):
        ConvDEQ(ReLU(), 0.2, 0.8, kernel_size=2)
    with pytest.raises(ValueError, match="pooling must be None or 'average', got 'max'"):
        ConvDEQ(ReLU(), 0.2, 0.8, pooling="max")
    with pytest.raises(shoal.ConvergenceError, match="does not exist"):
        shoal.kernel(ConvDEQ(ReLU(), 2.5, 0.8, padding="circular"), images(2, 1, 3))


@pytest.mark.parametrize("phi", [ReLU(), Erf()], ids=repr)
@pytest.mark.parametrize("pooling", [None, "average"])
def test_dark_images_beside_bright_ones(phi, pooling):
    """What an image is compared with in one call does not change its kernel."""
    x, net = images(2, 1, 3, 3), ConvDEQ(phi, 0.5, 1.0, pooling=pooling)
    x = torch.stack([1e4 * x[0], 1e-4 * x[1]])
    together, alone = shoal.kernel(net, x), shoal.kernel(net, x[1:])
    for k, own in zip(together, alone, strict=True):
        assert float(k[1, 1]) == pytest.approx(float(own), rel=1e-12, abs=0)
    for k, pair in zip(together, shoal.kernel(net, x[1:], x[:1]), strict=True):
        assert float(k[1, 0]) == pytest.approx(float(pair), rel=1e-11, abs=0)


def test_bright_images():
    """A kernel of ReLU grows with the squares, beyond what float32 holds."""
    x, net = images(2, 1, 3, 3), ConvDEQ(ReLU(), 1.0, 1.0)
    for bright, k in zip(shoal.kernel(net, 1e30 * x), shoal.kernel(net, x), strict=True):
        torch.testing.assert_close(bright, 1e60 * k, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [1, 3])
def test_no_kernel_from_the_edge_on(size):
    """Perron's vector shows it at once: no iteration has to diverge first."""
    edge = 2 / ConvDEQ(ReLU(), 1.0, 1.0, kernel_size=size).patch_gain((4, 4))
    net = ConvDEQ(ReLU(), 1.0001 * edge, 1.0, kernel_size=size)
    with pytest.raises(shoal.ConvergenceError, match=r"does not exist.*patch_gain"):
        shoal.kernel(net, images(2, 1, 4, 4))
    assert not shoal.kernel(net, torch.zeros(2, 1, 4, 4, dtype=torch.float64)).ntk.any()


def test_lost_angles_near_the_edge_are_not_passed_off_as_known():
    """There the NTK of parallel images, which homogeneity tells, is what rounding decides."""
    x = images(2, 2, 4, 4)
    parallel, unlike = torch.stack([x[0], 3 * x[0]]), torch.stack([x[0], x[1], x[0]])
    gain = ConvDEQ(ReLU(), 1.0, 1.0).patch_gain((4, 4)) / 2
    ntk = shoal.kernel(ConvDEQ(ReLU(), 0.999 / gain, 1.0), parallel).ntk
    assert float(ntk[0, 1]) == pytest.approx(3 * float(ntk[0, 0]), rel=1e-3)
    near = ConvDEQ(ReLU(), (1 - 1e-5) / gain, 1.0)
    with pytest.raises(shoal.AccuracyError, match="nearly parallel images is lost in rounding"):
        shoal.kernel(near, parallel)
    ntk = shoal.kernel(near, unlike).ntk  # the same image twice is no matter
    assert float(ntk[0, 2]) == pytest.approx(float(ntk[0, 0]), rel=1e-9)
