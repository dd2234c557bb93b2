"""Networks that see directions and multiply by norms."""

import pytest
import torch

from shoal import FullyConnected, build, empirical_kernel, kernel, kernel_function, load, save
from shoal.activations import ReLU, Tanh

GATED = FullyConnected((Tanh(), Tanh()), norm_gated=True)
PLAIN = FullyConnected((Tanh(), Tanh()))


def inputs(n=7, d=5, seed=0):
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x * torch.linspace(0.1, 3, n, dtype=torch.float64)[:, None]


def test_kernels_are_those_of_directions_times_norms():
    x = inputs()
    norm = torch.linalg.vector_norm(x, dim=1)
    gated, plain = kernel(GATED, x), kernel(PLAIN, x / norm[:, None])
    for found, exact in zip(gated, plain, strict=True):
        torch.testing.assert_close(found, norm[:, None] * norm * exact, rtol=1e-11, atol=1e-12)
    assert GATED.positively_homogeneous
    assert not PLAIN.positively_homogeneous


def test_pairs_own_kernels_and_zero():
    f, plain = kernel_function(GATED), kernel_function(PLAIN)
    for found, exact in zip(f(4.0, 9.0, 3.0), plain(1.0, 1.0, 0.5), strict=True):
        assert float(found) == pytest.approx(6 * float(exact), rel=1e-13)
    for found, exact in zip(f(3.0, 3.0, 3.0), plain(1.0, 1.0, 1.0), strict=True):
        assert float(found) == pytest.approx(3 * float(exact), rel=1e-13)
    assert [float(k) for k in f(0.0, 2.0, 0.0)] == [0.0, 0.0]


def test_for_relu_it_changes_nothing():
    a, b, c = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 4.0], [2.0, 9.0], [0.5, -3.0]))
    gate, plain = (
        kernel_function(FullyConnected((ReLU(),), norm_gated=g))(a, b, c) for g in (True, False)
    )
    for found, exact in zip(gate, plain, strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-13, atol=0.0)


def test_the_finite_network():
    x = inputs()
    net = build(GATED, in_features=5, width=4096, dtype=torch.float64)
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    torch.testing.assert_close(net(x), norm * net(x / norm))
    assert not net(torch.zeros(1, 5, dtype=torch.float64)).any()
    limit, found = kernel(GATED, x), empirical_kernel(net, x)
    for exact, own in zip(limit, found, strict=True):
        assert float((own - exact).abs().max() / exact.max()) < 0.1


def test_it_is_saved(tmp_path):
    net = build(GATED, in_features=5, width=6)
    save(net, tmp_path / "net")
    assert load(tmp_path / "net").architecture == GATED
