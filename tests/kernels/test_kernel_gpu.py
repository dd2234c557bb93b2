"""Kernel matrices on a GPU against those on a CPU."""

import pytest
import torch

from shoal import DEQ, ConvResNet, HardTanh, ReLU, Tanh, kernel, kernel_operator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def inputs(one_norm):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(333, 50, dtype=torch.float64, generator=generator)
    x /= x.norm(dim=1, keepdim=True)
    x[5], x[9] = x[7], -x[8]
    x[11] = x[10] * (1 + 1e-9)
    if not one_norm:
        x *= 0.7 + torch.rand(333, 1, dtype=torch.float64, generator=generator)
        x[3] = 0.0
    return x


@pytest.mark.parametrize("phi", [ReLU(), Tanh(), HardTanh()], ids=repr)
@pytest.mark.parametrize("one_norm", [True, False])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)], ids=str
)
def test_both_devices_agree(phi, one_norm, dtype, tolerance):
    x, deq = inputs(one_norm).to(dtype), DEQ(phi, 0.2, 0.8)
    for there, here in zip(kernel(deq, x.cuda()), kernel(deq, x), strict=True):
        assert there.device.type == "cuda"
        assert torch.equal(there, there.T)
        assert (there.cpu() - here).abs().max() <= tolerance * here.max()


def test_rectangles_and_limits():
    x, deq = inputs(one_norm=False), DEQ(Tanh(), 0.2, 0.8)
    whole = kernel(deq, x)
    part = kernel(deq, x[:100].cuda(), x[57:].cuda(), memory="100KiB")
    for left, right in zip(part, whole, strict=True):
        assert (left.cpu() - right[:100, 57:]).abs().max() <= 1e-11 * right.max()
    vector = torch.ones(333, dtype=torch.float64)
    product = kernel_operator(deq, x.cuda(), memory="1MiB").ntk @ vector.cuda()
    assert (product.cpu() - whole.ntk @ vector).abs().max() <= 1e-9


@pytest.mark.parametrize("phi", [ReLU(), Tanh()], ids=repr)
def test_images(phi):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 2, 4, 3, dtype=torch.float64, generator=generator)
    network = ConvResNet(phi, 2)
    for there, here in zip(
        kernel(network, x.cuda(), memory="1MiB"), kernel(network, x), strict=True
    ):
        assert there.device.type == "cuda"
        assert (there.cpu() - here).abs().max() <= 1e-11 * here.max()
