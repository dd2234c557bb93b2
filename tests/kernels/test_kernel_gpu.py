"""Kernel matrices on a GPU against those on a CPU."""

import pytest
import torch

from shoal import DEQ, ConvResNet, kernel, kernel_operator
from shoal.activations import HardTanh, ReLU, Tanh

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
@pytest.mark.parametrize(  # tiles leave out 2e-12 of the diagonal at most
    ("dtype", "tolerance"), [(torch.float64, 3e-12), (torch.float32, 1e-6)], ids=str
)
@pytest.mark.parametrize("memory", [None, "2MiB"])  # of one strip, and of several
def test_both_devices_agree(phi, one_norm, dtype, tolerance, memory):
    x, deq = inputs(one_norm).to(dtype), DEQ(phi, 0.2, 0.8)
    for there, here in zip(kernel(deq, x.cuda(), memory=memory), kernel(deq, x), strict=True):
        assert there.device.type == "cuda"
        assert torch.equal(there, there.T)
        assert (there.cpu() - here).abs().max() <= tolerance * here.max()


@pytest.mark.parametrize("phi", [ReLU(), Tanh(), HardTanh()], ids=repr)
@pytest.mark.parametrize("one_norm", [True, False])
@pytest.mark.parametrize("rows", [None, 100])
def test_gradients_agree(phi, one_norm, rows):
    deq, generator = DEQ(phi, 0.2, 0.8), torch.Generator().manual_seed(1)
    weights = torch.randn(2, rows or 333, 333, dtype=torch.float64, generator=generator)
    found = []
    for device in ("cpu", "cuda"):
        x = inputs(one_norm).to(device).requires_grad_()
        both = kernel(deq, x) if rows is None else kernel(deq, x[:rows], x)
        torch.autograd.backward(list(both), list(weights.to(device)))
        found.append(x.grad.cpu())
    for gradient in found:
        gradient[[3, 5, 7, 8, 9, 10, 11]] = 0.0  # at zero and at parallel inputs rounding decides
    assert (found[0] - found[1]).abs().max() <= 1e-8 * found[0].abs().max()


def test_a_kernel_that_is_zero():
    deq, x = DEQ(Tanh(), 0.5, 0.0), inputs(one_norm=True)
    for there, here in zip(kernel(deq, x.cuda()), kernel(deq, x), strict=True):
        assert torch.equal(there.cpu(), here)


def test_rectangles_and_limits():
    x, deq = inputs(one_norm=False), DEQ(Tanh(), 0.2, 0.8)
    whole = kernel(deq, x)
    part = kernel(deq, x[:100].cuda(), x[57:].cuda(), memory="100KiB")
    for left, right in zip(part, whole, strict=True):
        assert (left.cpu() - right[:100, 57:]).abs().max() <= 1e-11 * right.max()
    vector = torch.ones(333, dtype=torch.float64)
    product = kernel_operator(deq, x.cuda(), memory="1MiB").ntk @ vector.cuda()
    assert (product.cpu() - whole.ntk @ vector).abs().max() <= 1e-9


@pytest.mark.parametrize("shape", [(70_000, 1), (100_000, 500), (1, 100_000)], ids=str)
@pytest.mark.parametrize("one_norm", [True, False])
def test_tall_and_wide_matrices(shape, one_norm):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 8, dtype=torch.float64, generator=generator) for n in shape)
    if one_norm:
        x, y = (t / t.norm(dim=1, keepdim=True) for t in (x, y))
    deq, i, j = DEQ(ReLU(), 0.2, 0.8), [0, shape[0] // 2, -1], [0, shape[1] // 2, -1]
    for there, here in zip(kernel(deq, x.cuda(), y.cuda()), kernel(deq, x[i], y[j]), strict=True):
        assert there.shape == shape
        assert (there.cpu()[i][:, j] - here).abs().max() <= 1e-12 * here.max()


@pytest.mark.parametrize("columns", [1, 500])
def test_memory_bounds_tall_matrices(columns):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 8, dtype=torch.float64, generator=generator).cuda()
    deq, limit = DEQ(Tanh(), 0.2, 0.8), 64 * 2**20
    kernel(deq, x[:1000], x[:columns])  # whatever is kept between calls
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = kernel(deq, x, x[:columns], memory=limit)
    sizes = sum(k.numel() * 8 for k in result) + 12 * x.numel() * 8  # results, and what rows have
    assert torch.cuda.max_memory_allocated() - before <= sizes + limit


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
