"""Kernels of residual networks against Du 2018's recursion by plain quadrature."""

import math

import numpy as np
import pytest
import torch

import shoal
from shoal import ConvResNet, FullyConnected, ResNet, kernel, kernel_function
from shoal.activations import ReLU, Softplus, Tanh

# the trapezoidal rule, which converges exponentially for analytic functions
NODES = np.linspace(-9.5, 9.5, 241)
WEIGHTS = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()


def softplus(x):
    return np.logaddexp(0.0, x)


def logistic(x):
    return 1 / (1 + np.exp(-x))


def pair(f, a, b, c):
    """E[f(u) f(v)] by a product rule."""
    u = math.sqrt(a) * NODES[:, None]
    v = c / math.sqrt(a) * NODES[:, None] + math.sqrt(max(0.0, b - c * c / a)) * NODES
    return float(WEIGHTS @ (f(u) * f(v)) @ WEIGHTS)


def one(f, a):
    return float(WEIGHTS @ f(math.sqrt(a) * NODES))


def du2018(x, depth, scale):
    """The features' Gram matrix and, for each layer's weights, their share of the NTK.

    The last share is K^(H) of equation 5.
    """
    n, k = len(x), scale / depth
    c_sigma = 1 / one(lambda t: softplus(t) ** 2, 1.0)
    below = x @ x.T
    gram, mean, slopes = np.empty((n, n)), np.empty(n), np.empty((n, n))
    for i in range(n):
        mean[i] = math.sqrt(c_sigma) * one(softplus, below[i, i])
        for j in range(n):
            entry = below[i, i], below[j, j], below[i, j]
            gram[i, j] = c_sigma * pair(softplus, *entry)
            slopes[i, j] = pair(logistic, *entry)
    shares = [c_sigma * below * slopes]
    for _ in range(2, depth + 1):
        first = np.array([one(softplus, gram[i, i]) for i in range(n)])
        slopes = np.empty((n, n))
        new = gram + k * (np.outer(mean, first) + np.outer(first, mean))
        for i in range(n):
            for j in range(n):
                entry = gram[i, i], gram[j, j], gram[i, j]
                new[i, j] += k**2 * pair(softplus, *entry)
                slopes[i, j] = pair(logistic, *entry)
        shares = [(1 + k**2 * slopes) * below for below in shares] + [k**2 * gram * slopes]
        gram, mean = new, mean + k * first
    return gram, shares


def points(n=4, p=3, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, p))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.thorough("4-3.0-norms0")
@pytest.mark.parametrize("norms", [(1.0, 1.0, 1.0, 1.0), (0.6, 1.0, 1.4, 1.0)])
@pytest.mark.parametrize(("depth", "scale"), [(2, 1.0), (4, 3.0)])
def test_du2018_equation_5(norms, depth, scale):
    """At unit norms it is right as printed; at others with the cross terms of Theorem D.1."""
    x = points() * np.array(norms)[:, None]
    gram, shares = du2018(x, depth, scale)
    net = ResNet(Softplus(), depth, residual_scale=scale)
    np.testing.assert_allclose(kernel(net, x).ck, gram, rtol=1e-9)
    for group, share in zip(net.parameter_groups, shares, strict=True):
        found = kernel(net, x, trainable={group}).ntk
        np.testing.assert_allclose(found, share, rtol=1e-9, atol=1e-12)


def test_the_features_of_lower_layers_are_shallower_networks():
    """K^(h) of a net of depth H: residual scales are relative to the depth."""
    x, h, depth, scale = points(), 3, 5, 2.0
    k = scale / depth
    shallow = ResNet(Softplus(), h, residual_scale=k * h)
    gram, _ = du2018(x, h, k * h)
    np.testing.assert_allclose(kernel(shallow, x).ck, gram, rtol=1e-9)


@pytest.mark.parametrize("phi", [Softplus(), Tanh(), ReLU()], ids=repr)
def test_one_layer_is_fully_connected(phi):
    f, g = kernel_function(ResNet(phi, 1)), kernel_function(FullyConnected.du2018(phi, 1))
    for point in ((1.0, 1.0, 0.3), (0.5, 2.0, -0.4)):
        torch.testing.assert_close(f(*point), g(*point), rtol=1e-14, atol=0)


def test_without_residuals_the_first_layer_is_all():
    x = torch.from_numpy(points())
    still, first = ResNet(Softplus(), 4, residual_scale=0), ResNet(Softplus(), 1)
    torch.testing.assert_close(kernel(still, x), kernel(first, x), rtol=1e-13, atol=0)
    assert (kernel(still, x, trainable={"layer3"}).ntk == 0).all()


def test_nearly_parallel_inputs():
    """1 - κ/κ(0) = O(θ²), with all digits from the half angle."""
    net = ResNet(Softplus(), 3)
    theta = 1e-6
    x = torch.tensor([[1.0, 0.0], [math.cos(theta), math.sin(theta)]]).double()
    k = kernel(net, x).ck
    f = kernel_function(net)
    slope = float(f.derivative(1.0, 1.0, 1.0 - 1e-9, orders=(0, 0, 1)).ck)
    assert float(k[0, 0] - k[0, 1]) == pytest.approx(slope * theta**2 / 2, rel=1e-3)


@pytest.mark.parametrize("orders", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_derivatives(orders):
    f = kernel_function(ResNet((Softplus(), Tanh(), Softplus()), 3, residual_scale=2.0))
    point, h = (1.3, 0.8, 0.4), 1e-5
    up, down = (
        f(*(p + sign * h * o for p, o in zip(point, orders, strict=True))) for sign in (1, -1)
    )
    for found, u, d in zip(f.derivative(*point, orders=orders), up, down, strict=True):
        assert float(found) == pytest.approx(float(u - d) / (2 * h), rel=1e-8)
    second = tuple(2 * o for o in orders)
    for found, u, m, d in zip(
        f.derivative(*point, orders=second),
        *(f(*(p + s * 1e-3 * o for p, o in zip(point, orders, strict=True))) for s in (1, 0, -1)),
        strict=True,
    ):
        assert float(found) == pytest.approx(float(u - 2 * m + d) / 1e-6, rel=1e-4, abs=1e-7)


def test_rectifiers_scale_with_the_norms():
    net = ResNet(ReLU(), 3)
    assert net.positively_homogeneous
    f = kernel_function(net)
    unit, scaled = f(1.0, 1.0, 0.3), f(4.0, 9.0, 1.8)
    for k, other in zip(unit, scaled, strict=True):
        assert float(other) == pytest.approx(6 * float(k), rel=1e-13)
    assert not ResNet((ReLU(), Tanh()), 2).positively_homogeneous


def test_the_papers_residual_scale():
    x = points(5, 3)
    gram = x @ x.T
    least = min(
        np.linalg.eigvalsh(gram[np.ix_([i, j], [i, j])])[0] for i in range(5) for j in range(i)
    )
    found = shoal.kernels.pair_eigenvalue(x)
    assert found == pytest.approx(least, rel=1e-12)
    assert shoal.kernels.pair_eigenvalue(torch.from_numpy(3 * x)) == pytest.approx(
        9 * least, rel=1e-12
    )


def test_pairs_that_are_nearly_parallel():
    theta = 1e-9
    x = np.array([[1.0, 0.0], [0.0, 1.0], [-math.cos(theta), math.sin(theta)]])
    assert shoal.kernels.pair_eigenvalue(x) == pytest.approx(theta**2 / 2, rel=1e-6)
    assert shoal.kernels.pair_eigenvalue(np.array([[1.0, 0.0], [2.0, 0.0]])) == 0
    assert shoal.kernels.pair_eigenvalue(np.array([[1.0], [2.0]])) == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: shoal.kernels.pair_eigenvalue(np.ones((1, 3))), ValueError, "n >= 2"),
        (lambda: shoal.kernels.pair_eigenvalue(np.ones(3)), ValueError, "x must have shape"),
        (lambda: shoal.kernels.pair_eigenvalue([[1.0]]), TypeError, "x must be"),
        (lambda: ResNet((Tanh(), Tanh()), 3), ValueError, "depth = 3 of them, got 2"),
        (lambda: ResNet((Tanh(), torch.relu), 2), TypeError, r"activation\[1\] must be an Activ"),
        (lambda: kernel_function(ConvResNet(Tanh(), 2)), TypeError, "no functions of norms"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
