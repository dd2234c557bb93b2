"""Compiled loops over pairs of images, against fields of pairs of pixels."""

import pytest
import torch

import shoal
from shoal import ConvDEQ
from shoal.activations import ReLU
from shoal.kernels.images import fused_passes as image_tiles

pytest.importorskip("numba", reason="compiled loops need Numba")

CASES = [
    (ConvDEQ(ReLU(), 1.0, 0.8), (7, 1, 9, 8)),
    (ConvDEQ(ReLU(), 1.6, 0.8, padding="circular", kernel_size=5), (7, 3, 4, 6)),
    (ConvDEQ(ReLU(), 1.9, 0.5, kernel_size=5, bias_variance=0.1), (7, 2, 11)),
    (ConvDEQ(ReLU(), 0.0, 0.8, padding="circular"), (7, 2, 1, 1)),
    (ConvDEQ(ReLU(), 1.9, 0.8, kernel_size=1), (7, 2, 3, 1)),
    (ConvDEQ(ReLU(), 2.5, 0.8, kernel_size=9), (7, 2, 3, 2)),
]


def images(*shape, seed=0):
    """Of which some are empty in part or as a whole, equal, opposite, bright or dark."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[0, :, : shape[2] // 2] = 0
    x[2], x[3], x[4], x[5], x[6] = x[1], -x[1], 0, 1e3 * x[5], 1e-3 * x[6]
    return x


@pytest.mark.thorough("recurrent'", "readout'")
@pytest.mark.parametrize("groups", [None, ("recurrent",), ("input", "readout")], ids=str)
@pytest.mark.parametrize(("net", "shape"), CASES, ids=str)
def test_loops_make_the_same_kernels(monkeypatch, net, shape, groups):
    x, y = images(*shape), images(*shape, seed=1)
    wanted = [shoal.kernel(net, x, other, trainable=groups) for other in (None, y)]
    sizes = [shoal.kernel(net, some, diag=True, trainable=groups) for some in (x, y)]
    monkeypatch.setattr(image_tiles, "_MANY", 0)
    for other, exact in zip((None, y), wanted, strict=True):
        found = shoal.kernel(net, x, other, trainable=groups)
        for k, matrix, *own in zip(found, exact, sizes[0], sizes[other is not None], strict=True):
            bound = own[0].sqrt()[:, None] * own[1].sqrt()
            assert bool(((k - matrix).abs() <= 1e-10 * bound).all())


def test_loops_in_blocks_threads_and_single_precision(monkeypatch):
    monkeypatch.setattr(image_tiles, "_MANY", 0)
    net, x = CASES[0][0], images(23, 1, 5, 6)
    whole = shoal.kernel(net, x)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for k, small in zip(whole, shoal.kernel(net, x, memory="8KB"), strict=True):
            assert torch.equal(k, small)
            assert torch.equal(k, k.T)
    finally:
        torch.set_num_threads(threads)
    single = shoal.kernel(net, x.float())
    exact = shoal.kernel(net, x.float().double())
    for k, double in zip(single, exact, strict=True):
        assert torch.equal(k, double.float())
    torch.testing.assert_close(
        shoal.kernel_operator(net, x).ntk @ x[:, 0, 0, :2], whole.ntk @ x[:, 0, 0, :2]
    )
