"""Kernels of images wherever kernels are used: gradients, operators, regressions, adapters."""

import numpy as np
import pytest
import torch

import shoal
from shoal import ConvDEQ, ConvNet, ConvResNet
from shoal.activations import Erf, HardTanh, ReLU, Tanh
from shoal.gaussian import dual, dual_derivative

FLAT = ConvDEQ(ReLU(), 0.6, 0.8)
POOLED = ConvDEQ(Erf(), 0.6, 0.8, pooling="average", padding="circular", bias_variance=0.1)
BOTH = pytest.mark.parametrize("net", [FLAT, POOLED], ids=repr)


def images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def check(function, *inputs):
    """First derivatives against central differences."""
    tensors = tuple(t.requires_grad_() for t in inputs)
    assert torch.autograd.gradcheck(function, tensors, eps=1e-5, atol=1e-6, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("phi", [ReLU(), Erf()], ids=repr)
@pytest.mark.parametrize(("pooling", "padding"), [(None, "zeros"), ("average", "circular")])
def test_gradients_in_images_and_variances(phi, pooling, padding):
    net = ConvDEQ(phi, 0.5, 0.8, pooling=pooling, padding=padding)
    variances = [torch.tensor(v, dtype=torch.float64) for v in (0.5, 0.8)]

    def matrices(x, y, recurrent, entering):
        given = {"recurrent_variance": recurrent, "input_variance": entering}
        return tuple(shoal.kernel(net, x, y, variances=given))

    check(matrices, images(1, 2, 3), images(2, 2, 3, seed=1), *variances)


@pytest.mark.thorough
@pytest.mark.parametrize("phi", [ReLU(), HardTanh(), Tanh()], ids=repr)
@pytest.mark.parametrize("pooling", [None, "average"])
def test_gradients_of_images_with_themselves(phi, pooling):
    net = ConvDEQ(phi, 0.5, 0.8, pooling=pooling, bias_variance=0.1)
    bias = torch.tensor(0.1, dtype=torch.float64)
    check(
        lambda x, b: tuple(shoal.kernel(net, x, variances={"bias_variance": b})),
        images(2, 1, 3),
        bias,
    )
    check(lambda x: tuple(shoal.kernel(net, x, diag=True)), images(2, 1, 2, 2))


def test_gradients():
    """A small case of all of those that take longer."""
    variance = torch.tensor(0.6, dtype=torch.float64)
    given = {"recurrent_variance": variance}
    check(lambda x, _: tuple(shoal.kernel(FLAT, x, variances=given)), images(2, 1, 2), variance)


@pytest.mark.thorough
def test_gradients_of_explicit_networks_and_in_small_blocks():
    x = images(2, 1, 3)
    check(lambda x: tuple(shoal.kernel(ConvNet([ReLU(), ReLU()]), x, memory=456)), x)
    check(lambda x: tuple(shoal.kernel(ConvResNet(Erf(), 2), x)), images(2, 1, 2))


@pytest.mark.thorough
def test_empty_patches_have_derivatives():
    """Where all that a patch sees is zero, as at the border of most pictures."""
    x = images(2, 1, 5)
    x[:, :, :3] = 0
    net = ConvDEQ(Erf(), 0.5, 0.8)
    check(lambda x: tuple(shoal.kernel(net, x[:1], x[1:])), x)
    grad = torch.autograd.grad(shoal.kernel(FLAT, x[:1], x[1:]).ntk.sum(), x)[0]
    assert bool(grad.isfinite().all())


def test_second_derivatives_are_refused():
    x = images(1, 1, 3).requires_grad_()
    (grad,) = torch.autograd.grad(shoal.kernel(FLAT, x).ck.sum(), x, create_graph=True)
    assert grad.shape == x.shape
    with pytest.raises(RuntimeError, match="of the first order only"):
        grad.sum().backward()


@pytest.mark.thorough
@BOTH
def test_operators(net):
    x, y, v = images(5, 2, 3), images(3, 2, 3, seed=1), images(5, 2, seed=2)
    dense, cross = shoal.kernel(net, x), shoal.kernel(net, y, x)
    for memory in ("1KiB", "1MiB"):
        operators = shoal.kernel_operator(net, x, memory=memory)
        across = shoal.kernel_operator(net, y, x, memory=memory)
        for op, matrix in zip((*operators, *across), (*dense, *cross), strict=True):
            torch.testing.assert_close(op @ v, matrix @ v, rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(op.to_dense(), matrix, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(operators.ntk.diagonal(), dense.ntk.diagonal(), rtol=1e-12, atol=0)
    found = operators.ntk.solve(v, shift=0.1, rtol=1e-10)
    wanted = torch.linalg.solve(dense.ntk + 0.1 * torch.eye(5, dtype=torch.float64), v)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9)


@BOTH
@pytest.mark.parametrize(
    "method", ["cholesky", shoal.learning.ConjugateGradients(shoal.learning.Nystrom(3))], ids=repr
)
def test_regression(net, method):
    x, tests, y = images(8, 1, 3, 2), images(3, 1, 3, 2, seed=1), images(8, seed=2)
    fit = shoal.kernel_regression(net, x, y, ridge=0.1, center=False, method=method)
    ntk = shoal.kernel(net, x).ntk + 0.1 * torch.eye(8, dtype=torch.float64)
    cross = shoal.kernel(net, tests, x).ntk
    wanted = cross @ torch.linalg.solve(ntk, y)
    torch.testing.assert_close(fit.predict(tests), wanted, rtol=1e-5, atol=1e-6)
    reduced = (cross @ torch.linalg.solve(ntk, cross.T)).diagonal()
    left = shoal.kernel(net, tests, diag=True).ntk - reduced
    torch.testing.assert_close(fit.variance(tests), left, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"x must have shape \(inputs, 1, 3, 2\)"):
        fit.predict(images(2, 1, 3, 3))


def test_scikit_learn():
    pytest.importorskip("sklearn")
    from sklearn.gaussian_process import GaussianProcessRegressor

    from shoal.adapters import KernelClassifier, KernelRegressor, SklearnKernel

    x, y = images(12, 2, 2, 2), images(12, seed=1)
    rows = x.flatten(1).numpy()
    kernel = SklearnKernel(architecture=FLAT, image_shape=(2, 2, 2))
    np.testing.assert_allclose(kernel(rows), shoal.kernel(FLAT, x).ck.numpy(), rtol=1e-12)
    np.testing.assert_allclose(kernel.diag(rows), shoal.kernel(FLAT, x, diag=True).ck.numpy())
    process = GaussianProcessRegressor(kernel, alpha=1e-3).fit(rows, y.numpy())
    assert process.predict(rows).shape == (12,)
    model = KernelRegressor(
        architecture=FLAT, image_shape=(2, 2, 2), ridge=0.1, fit_intercept=False
    )
    wanted = shoal.kernel_regression(FLAT, x, y, ridge=0.1, center=False).predict(x)
    np.testing.assert_allclose(model.fit(rows, y.numpy()).predict(rows), wanted.numpy(), rtol=1e-9)
    labels = (y > 0).long().numpy()
    classifier = KernelClassifier(architecture=POOLED, image_shape=(2, 2, 2), ridge=1e-4)
    assert classifier.fit(rows, labels).score(rows, labels) > 0.5
    for shape, message in ((None, "image_shape must be given"), ((3, 3), "shape \\(n, 9\\)")):
        with pytest.raises(ValueError, match=message):
            SklearnKernel(architecture=FLAT, image_shape=shape)(rows)
    with pytest.raises(ValueError, match="image_shape is for networks of images"):
        SklearnKernel(image_shape=(2, 2, 2))(rows)


def test_gpytorch():
    pytest.importorskip("gpytorch")
    from shoal.adapters import GPyTorchKernel

    x = images(3, 1, 2, 2)
    covariance = GPyTorchKernel(FLAT, image_shape=(1, 2, 2)).double()
    rows = x.flatten(1)
    found = covariance(rows).to_dense()
    torch.testing.assert_close(found, shoal.kernel(FLAT, x).ck, rtol=1e-6, atol=1e-7)
    found.sum().backward()
    grads = [p.grad for _, p in covariance.named_parameters()]
    assert len(grads) == 2
    assert all(g is not None and float(g.abs()) > 0 for g in grads)


def test_patches_with_borders_keep_fields_small():
    """The gain is that of the matrix of averages over patches."""
    for net, sides in ((FLAT, (4, 3)), (ConvDEQ(ReLU(), 1.0, 1.0, kernel_size=5), (6,))):
        place = [torch.arange(side) for side in sides]
        near = [((p[:, None] - p).abs() <= net.kernel_size // 2).double() for p in place]
        whole = near[0] if len(near) == 1 else torch.kron(*near)
        exact = float(torch.linalg.eigvalsh(whole)[-1]) / net.kernel_size ** len(sides)
        assert net.patch_gain(sides) == pytest.approx(exact, rel=1e-12)
    assert ConvDEQ(ReLU(), 1.0, 1.0, padding="circular").patch_gain((5, 5)) == pytest.approx(1.0)


def test_borders_let_kernels_exist_beyond_the_edge():
    """ReLU needs a gain below two: with zeros beyond the border, more than that variance."""
    x = images(2, 1, 3)
    gain = FLAT.patch_gain((3,))
    inside = ConvDEQ(ReLU(), 1.98 / gain, 0.8)
    assert inside.recurrent_variance > 2
    assert bool(shoal.kernel(inside, x).ntk.isfinite().all())
    with pytest.raises(shoal.ConvergenceError, match="patch_gain"):
        shoal.kernel(ConvDEQ(ReLU(), 3.0 / gain, 0.8), x)


@pytest.mark.parametrize("share", [0.9988, 0.99999])
def test_kernels_near_the_edge(share):
    """Against dense Newton steps and solutions for the fields of six pixels in a row."""
    net = ConvDEQ(ReLU(), 2 * share / FLAT.patch_gain((6,)), 0.8)
    x = images(2, 1, 6)
    place = torch.arange(6)
    mean = ((place[:, None] - place).abs() <= 1).double() / 3
    eye, factor = torch.eye(6, dtype=torch.float64), net.recurrent_variance
    given = mean @ (x[0, 0] * x[1, 0])
    own = torch.linalg.solve(eye - factor / 2 * mean, 0.8 * mean @ x[:, 0].square().T)
    field = 0.8 * given
    for _ in range(50):
        value, slope = (f(ReLU(), *own.T, field) for f in (dual, dual_derivative))
        step = factor * mean @ value + 0.8 * given - field
        field = field + torch.linalg.solve(eye - factor * mean * slope, step)
    value, slope = (f(ReLU(), *own.T, field) for f in (dual, dual_derivative))
    first = slope * (factor * mean @ value + 0.8 * given)
    tangents = torch.linalg.solve(eye - factor * slope[:, None] * mean, first)
    found = shoal.kernel(net, x)
    assert float(found.ck[0, 1]) == pytest.approx(float(value.mean()), rel=1e-9)
    assert float(found.ntk[0, 1]) == pytest.approx(float((value + tangents).mean()), rel=1e-9)
    assert float(found.ck[0, 0]) == pytest.approx(float(own[:, 0].mean()) / 2, rel=1e-9)
