"""Compiled loops over the entries of kernel matrices, against scalar equations."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import chebval

from kernels.points import inputs, norms_between
from shoal import DEQ, GELU, FullyConnected, ReLU, Tanh, kernel, kernel_function

numba = pytest.importorskip("numba", reason="compiled loops need Numba")

from shoal.kernels import backends  # noqa: E402
from shoal.kernels.approximations.surface import angular_surface  # noqa: E402
from shoal.kernels.backends import compiled_loops as backend  # noqa: E402
from shoal.kernels.backends.compiled_loops import arc_cosine, compiled  # noqa: E402
from shoal.kernels.backends.loops import Loops  # noqa: E402
from shoal.kernels.gradients.derivatives import differentiable_angular_surface  # noqa: E402


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


def test_the_arc_cosine():
    points = np.cos(np.linspace(0, np.pi, 10_001))
    points = np.concatenate([points, [-1.0, 1.0, 0.5, -0.5, 0.0, 1e-9, -1e-9, 1 - 1e-15, 1.0001]])
    found = np.array([arc_cosine(c) for c in points])
    assert np.abs(found - np.arccos(points.clip(-1, 1))).max() <= 1e-15


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


def test_small_matrices_load_nothing(loops, monkeypatch):
    monkeypatch.setattr(backends, "_MANY", 1 << 18)
    kernel(DEQ(ReLU(), 0.2, 0.8), inputs(100, 3))
    assert not loops


def test_without_a_folder_that_can_be_written_to(monkeypatch):
    compile_for = numba.njit
    refused = []

    def njit(*arguments, cache=False, **options):
        if cache:
            refused.append(1)
            raise RuntimeError("cannot cache function: no locator available")
        return compile_for(*arguments, **options)

    monkeypatch.setattr(numba, "njit", njit)
    signature = numba.void(numba.float64[:, :], *[numba.int64] * 4)
    loop = compiled(signature, backend._mirror_columns)
    matrix = np.arange(9.0).reshape(3, 3)
    loop(matrix, 0, 3, 0, 3)
    assert refused
    assert np.array_equal(matrix, [[0, 1, 2], [1, 4, 5], [2, 5, 8]])


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


@pytest.mark.parametrize("norms", ["one", "any"])
def test_gradients_of_the_ck_alone_are_those_of_blocks(norms, loops, monkeypatch):
    x = inputs(150, 12, one_norm=True) if norms == "one" else norms_between(0.6, 2.5, 150, 12, 0)
    weights = torch.randn(150, 150, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def gradients():
        leaf = x.clone().requires_grad_()
        names = ("recurrent_variance", "input_variance")
        variances = torch.tensor([0.2, 0.8], dtype=torch.float64).requires_grad_()
        given = dict(zip(names, variances, strict=True))
        (kernel(DEQ(Tanh(), 0.2, 0.8), leaf, variances=given).ck * weights).sum().backward()
        return leaf.grad, variances.grad

    found = gradients()
    assert loops
    monkeypatch.setattr(backends, "_loops", lambda: None)
    for own, other in zip(found, gradients(), strict=True):
        assert (own - other).abs().max() <= 1e-9 * other.abs().max()


@pytest.mark.parametrize("cut", [2e-12, 1e-9])
@pytest.mark.parametrize("low", [0.0, 0.125, 0.5])
@pytest.mark.parametrize("phi", [ReLU(), Tanh()], ids=repr)
def test_series_in_the_cosine_are_those_in_the_angle(phi, low, cut):
    function = kernel_function(DEQ(phi, 0.2, 0.8))
    whole = angular_surface(function, 1.0, 1e-12)
    known = 0
    for eighths in range(1, 24):
        part = whole.restricted((low, min(low + eighths / 8, math.pi)), cut)
        found = part.in_cosines(cut)
        if found is None:
            continue
        known += 1
        angle = torch.linspace(*part.angles, 500, dtype=torch.float64)
        least, most = math.cos(part.angles[1]), math.cos(part.angles[0])
        t = (2 * angle.cos() - least - most) / (most - least)
        ones = torch.ones(500, 1, dtype=torch.float64)
        expected = part.pairs(ones, ones, angle)
        for wanted, series in zip(expected, found[:, 0, 0], strict=True):
            values = torch.from_numpy(chebval(t.numpy(), series.numpy()))
            torch.testing.assert_close(values, wanted, rtol=0, atol=cut)
    assert known or low < 0.5  # next to 0 kernels are no short series in the cosine


@pytest.mark.parametrize("low", [0.5, 1.0])
@pytest.mark.parametrize("phi", [ReLU(), Tanh()], ids=repr)
def test_slopes_in_the_cosine_are_those_of_the_scalar_equations(phi, low):
    function = kernel_function(DEQ(phi, 0.2, 0.8))
    known = 0
    for eighths in (2, 4, 8, 16):
        span = low, min(low + eighths / 8, math.pi - 0.125)
        part = differentiable_angular_surface(function, 1.0, span, 1e-12)
        found = part.slopes_in_cosines(2e-12)
        if found is None:
            continue
        known += 1
        ends = math.cos(span[1]), math.cos(span[0])
        cosine = torch.linspace(*ends, 300, dtype=torch.float64).requires_grad_()
        log = torch.zeros_like(cosine).requires_grad_()
        square = torch.exp(2 * log)
        t = (2 * cosine.detach() - sum(ends)) / (ends[1] - ends[0])
        values = torch.from_numpy(chebval(t.numpy(), found.T.numpy()))
        for q, kernels in enumerate(function(square, square, square * cosine)):
            size = part.diagonal[q]
            in_log, in_cosine = torch.autograd.grad(kernels.sum(), (log, cosine), retain_graph=True)
            # to the tolerance of derivatives at one norm
            torch.testing.assert_close(values[q] * size, in_log / 2, rtol=0, atol=1e-9)
            torch.testing.assert_close(values[2 + q] * size, in_cosine, rtol=0, atol=1e-9)
    assert known


@pytest.mark.parametrize("count", [None, 90], ids=["symmetric", "rows and columns"])
@pytest.mark.parametrize("norms", ["one", "any"])
def test_gradients_by_threads_and_groups_of_strips(norms, count, loops):
    x = inputs(300, 12, one_norm=True) if norms == "one" else norms_between(0.6, 2.5, 300, 12, 0)
    deq, generator = DEQ(Tanh(), 0.2, 0.8), torch.Generator().manual_seed(0)
    weights = torch.randn(2, 300, count or 300, dtype=torch.float64, generator=generator)

    def gradient(threads, memory):
        leaf, before = x.clone().requires_grad_(), torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            found = kernel(deq, leaf, None if count is None else leaf[:count], memory=memory)
            sum((w * k).sum() for w, k in zip(weights, found, strict=True)).backward()
        finally:
            torch.set_num_threads(before)
        return leaf.grad

    whole = gradient(1, None)
    assert loops
    for threads, memory in ((3, None), (1, "256KiB"), (2, "1MiB")):
        other = gradient(threads, memory)
        assert (other - whole).abs().max() <= 1e-10 * whole.abs().max()
    assert torch.equal(gradient(3, None), gradient(3, None))
