"""Compiled loops over the entries of kernel matrices, against scalar equations."""

import pytest
import torch

from kernels.points import inputs, norms_between
from shoal import DEQ, GELU, FullyConnected, ReLU, Tanh, kernel, kernel_function
from shoal.kernels import backends
from shoal.kernels.backends.loops import Loops


@pytest.fixture
def loops(monkeypatch):
    """Loops for matrices of any size, and how often they were used."""
    used = []

    class Counted(Loops):
        def evaluate(self, *arguments):
            used.append(1)
            return super().evaluate(*arguments)

    monkeypatch.setattr(backends, "_MANY", 1)
    monkeypatch.setattr(backends, "_loops", Counted)
    return used


ARCHITECTURES = [
    DEQ(ReLU(), 0.2, 0.8),
    DEQ(Tanh(), 0.2, 0.8),
    DEQ(GELU(), 0.3, 0.7, bias_variance=0.1),
    FullyConnected((Tanh(), ReLU())),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=["relu", "tanh", "gelu", "layers"])
@pytest.mark.parametrize("norms", ["one", "any"])
def test_entries_are_those_of_the_scalar_equations(architecture, norms, loops):
    x = inputs(600, 12, one_norm=True) if norms == "one" else norms_between(0.6, 2.5, 600, 12, 0)
    found = kernel(architecture, x)
    assert loops
    i, j = torch.randint(len(x), (2, 300), generator=torch.Generator().manual_seed(0))
    squares = x.square().sum(1)
    exact = kernel_function(architecture)(squares[i], squares[j], (x[i] * x[j]).sum(1))
    for own, true in zip(found, exact, strict=True):
        size = (own.diagonal()[i] * own.diagonal()[j]).sqrt()
        distinct = i != j
        assert ((own[i, j] - true).abs() / size)[distinct].max() <= 1e-11
        assert torch.equal(own, own.T)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("counts", [(256, 512), (257, 70), (1, 300), (300, 1)])
def test_blocks_of_any_shape_agree(dtype, counts, loops, monkeypatch):
    x = norms_between(0.7, 1.6, 900, 9, 5).to(dtype)
    left, right = x[: counts[0]], x[-counts[1] :]
    deq = DEQ(ReLU() if 1 in counts else Tanh(), 0.2, 0.8)  # few pairs with Tanh are solved for
    found = kernel(deq, left, right)
    assert loops
    monkeypatch.setattr(backends, "_loops", lambda: None)
    other = kernel(deq, left, right)
    tolerance = 1e-11 if dtype == torch.float64 else 2e-6
    for a, b in zip(found, other, strict=True):
        assert a.dtype == dtype
        assert (a - b).abs().max() <= tolerance * b.abs().max()


def test_threads_memory_and_zeros_change_nothing(loops):
    x = norms_between(0.7, 1.6, 200, 6, 5)
    x[7] = 0
    x[11] = x[12]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = kernel(DEQ(Tanh(), 0.15, 0.8), x)
        torch.set_num_threads(3)
        together = kernel(DEQ(Tanh(), 0.15, 0.8), x)
    finally:
        torch.set_num_threads(threads)
    parts = kernel(DEQ(Tanh(), 0.15, 0.8), x, memory="64KiB")
    assert loops
    for a, b, c in zip(alone, together, parts, strict=True):
        assert (a - b).abs().max() <= 1e-12 * a.max()
        assert (a - c).abs().max() <= 1e-11 * a.max()
        assert (a[7] == 0).all()
        assert abs(float(a[11, 12] - a[11, 11])) <= 1e-12


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=["relu", "tanh", "gelu", "layers"])
@pytest.mark.parametrize("norms", ["one", "any"])
@pytest.mark.parametrize("rows", [None, 70])
def test_gradients_are_those_of_blocks(architecture, norms, rows, loops, monkeypatch):
    x = inputs(150, 12, one_norm=True) if norms == "one" else norms_between(0.6, 2.5, 150, 12, 0)
    weights = torch.randn(2, rows or len(x), len(x), generator=torch.Generator().manual_seed(0))

    def gradient():
        leaf = x.clone().requires_grad_()
        both = (
            kernel(architecture, leaf) if rows is None else kernel(architecture, leaf[:rows], leaf)
        )
        torch.autograd.backward(list(both), list(weights.double()))
        return leaf.grad

    found = gradient()
    assert loops
    monkeypatch.setattr(backends, "_loops", lambda: None)
    other = gradient()
    assert (found - other).abs().max() <= 1e-9 * other.abs().max()
