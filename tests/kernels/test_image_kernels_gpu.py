"""The fused pass for images on a GPU, against pairs of pixels in float64."""

import pytest
import torch

from shoal import ConvDEQ, ConvNet, kernel, kernel_operator, kernel_regression
from shoal.activations import ReLU, Tanh

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def images(*shape, seed=0):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    x[0, :, : shape[2] // 2] = 0  # empty patches
    x[1, :, -2:] = x[2, :, -2:]  # equal ones
    return x


CASES = [
    (ConvDEQ(ReLU(), 1.0, 0.8), (40, 1, 28, 28)),
    (ConvDEQ(ReLU(), 1.6, 0.8, padding="circular", kernel_size=5), (24, 3, 17, 32)),
    (ConvDEQ(ReLU(), 0.5, 0.8, pooling="average", bias_variance=0.1), (5, 2, 8, 6)),
    (ConvDEQ(ReLU(), 1.0, 0.8, pooling="average", padding="circular"), (5, 1, 9)),
]


@pytest.mark.parametrize(("net", "shape"), CASES, ids=str)
@pytest.mark.parametrize("groups", [None, ("recurrent",), ("input", "readout")], ids=str)
def test_single_precision_is_near_double(net, shape, groups):
    x = images(*shape)
    there = kernel(net, x.cuda(), trainable=groups)
    exact = kernel(net, x.cuda().double(), trainable=groups)
    for fused, wanted in zip(there, exact, strict=True):
        assert fused.dtype == torch.float32
        assert torch.equal(fused, fused.T)
        assert float((fused - wanted).abs().max()) <= 2e-5 * float(wanted.max())
        if net.pooling is None:  # a pixel with itself is computed in float64
            own = (fused - wanted).diagonal().abs().max()
            assert float(own) <= 2e-7 * float(wanted.max())


CHAINS = [
    (ConvNet([ReLU()] * 21, normalized=True), (24, 1, 28, 28)),
    (ConvNet([ReLU()] * 21), (12, 3, 14, 14)),
    (ConvNet([ReLU()] * 4, bias_variance=0.1, kernel_size=5, padding="circular"), (24, 3, 17, 32)),
    (ConvNet([ReLU()] * 3, bias_variance=0.1, normalized=True, pooling="average"), (5, 2, 8, 6)),
    (ConvNet([ReLU()] * 3, pooling="average", padding="circular"), (5, 1, 9)),
]


@pytest.mark.parametrize(("net", "shape"), CHAINS, ids=lambda given: str(given)[:40])
@pytest.mark.parametrize("groups", [None, ("layer2", "readout")], ids=str)
def test_explicit_layers_in_single_precision_are_near_double(net, shape, groups):
    x = images(*shape)
    there = kernel(net, x.cuda(), trainable=groups)
    for fused, wanted in zip(there, kernel(net, x.double(), trainable=groups), strict=True):
        assert torch.equal(fused, fused.T)
        assert float((fused.cpu() - wanted).abs().max()) <= 2e-5 * float(wanted.max())


@pytest.mark.parametrize("memory", ["1MiB", None])
def test_rectangles_and_operators(memory):
    net, x, y = CASES[0][0], images(20, 1, 28, 28), images(33, 1, 28, 28, seed=1)
    there, exact = (
        kernel(net, x.cuda(), y.cuda(), memory=memory),
        kernel(net, x.double(), y.double()),
    )
    for fused, wanted in zip(there, exact, strict=True):
        assert float((fused.cpu() - wanted).abs().max()) <= 2e-5 * float(wanted.max())
    product = kernel_operator(net, x.cuda()).ntk @ torch.ones(20, 2).cuda()
    wanted = kernel(net, x.double()).ntk.sum(1)
    assert float((product[:, 0].cpu() - wanted).abs().max()) <= 2e-5 * float(wanted.max())


def test_other_networks_and_devices_agree():
    """What the fused pass does not know is computed pair by pair, as on a CPU."""
    x, net = images(4, 2, 6, 5), ConvDEQ(Tanh(), 0.6, 0.8, pooling="average")
    for there, here in zip(kernel(net, x.cuda()), kernel(net, x), strict=True):
        assert float((there.cpu() - here).abs().max()) <= 1e-6 * float(here.max())


def test_regressions_of_single_precision():
    """With float64 in all that is made of the entries."""
    net, x, tests = CASES[0][0], images(60, 1, 28, 28).cuda(), images(9, 1, 28, 28, seed=1).cuda()
    y = torch.randn(60, 2, generator=torch.Generator().manual_seed(2)).cuda()
    ridge = 0.01 * float(kernel(net, x, diag=True).ntk.mean())
    exact = kernel_regression(net, x.double(), y.double(), ridge=ridge).predict(tests.double())
    fit = kernel_regression(net, x, y, ridge=ridge)
    found = fit.predict(tests)
    assert found.dtype == torch.float32
    assert float((found - exact).abs().max()) <= 1e-3 * float(exact.abs().max())
    assert float(fit.report.residual.max()) <= 1e-6
