"""Kernel matrices against the scalar equations of their entries."""

import math

import pytest
import torch

from shoal import DEQ, ELU, FullyConnected, HardTanh, LeakyReLU, ReLU, Tanh, kernel, kernel_function


def inputs(count, features, seed=0, *, one_norm=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, dtype=dtype, generator=generator)
    return x / x.norm(dim=1, keepdim=True) if one_norm else x


ARCHITECTURES = [
    DEQ(ReLU(), 0.2, 0.8),
    DEQ(LeakyReLU(0.1), 0.6, 0.4),
    DEQ(Tanh(), 0.2, 0.8),
    FullyConnected([ReLU(), ReLU()]),
    FullyConnected([Tanh(), ELU()]),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=repr)
@pytest.mark.parametrize("one_norm", [True, False])
def test_entries(architecture, one_norm):
    x, y = inputs(7, 4, 1, one_norm=one_norm), inputs(5, 4, 2, one_norm=one_norm)
    found = kernel(architecture, x, y)
    expected = kernel_function(architecture)((x * x).sum(1)[:, None], (y * y).sum(1), x @ y.T)
    for left, right in zip(found, expected, strict=True):
        assert left.shape == (7, 5)
        assert (left - right).abs().max() <= 1e-12 * right.abs().max()


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=repr)
@pytest.mark.parametrize("one_norm", [True, False])
def test_symmetric_matrices(architecture, one_norm):
    count = 9
    x = inputs(count, 3, 3, one_norm=one_norm)
    found = kernel(architecture, x)
    diagonal = kernel(architecture, x, diag=True)
    rectangular = kernel(architecture, x, x.clone())
    for matrix, exact, other in zip(found, diagonal, rectangular, strict=True):
        assert torch.equal(matrix, matrix.T)
        torch.testing.assert_close(matrix.diagonal(), exact, rtol=1e-13, atol=0.0)
        assert (matrix - other).abs().max() <= 1e-12 * exact.max()
        assert torch.linalg.eigvalsh(matrix).min() >= -1e-12 * count * exact.max()


def test_sizes_that_no_block_divides():
    x = inputs(1031, 5, one_norm=True)
    whole = kernel(DEQ(ReLU(), 0.2, 0.8), x)
    part = kernel(DEQ(ReLU(), 0.2, 0.8), x[500:540], x[1000:])
    assert torch.equal(whole.ntk, whole.ntk.T)
    torch.testing.assert_close(whole.ntk[500:540, 1000:], part.ntk, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9])
def test_nearly_equal_and_opposite_inputs(gap):
    """The angle of two directions that differ by ``gap`` is known; a Gram matrix has lost it."""
    angle = 2 * math.asin(gap / 2)
    x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    net = FullyConnected([ReLU()])
    # NTK of the hidden layer: x·x' (π-θ)/(2π)
    found = kernel(net, x, trainable={"layer1"}).ntk[0, 1]
    assert found.item() == pytest.approx(
        math.cos(angle) * (math.pi - angle) / (2 * math.pi), rel=1e-13
    )
    opposite = kernel(net, x, -x, trainable={"layer1"}).ntk[0, 1]
    expected = -math.cos(angle) * angle / (2 * math.pi)
    assert opposite.item() == pytest.approx(expected, abs=1e-13)  # of a diagonal of 1/2


@pytest.mark.parametrize("phi", [ReLU(), Tanh(), HardTanh()], ids=repr)
def test_degenerate_inputs(phi):
    deq = DEQ(phi, 0.2, 0.8)
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [-1.0, -2.0], [0.0, 0.0]], dtype=torch.float64)
    ck, ntk = kernel(deq, x)
    assert ck[0, 0] == ck[1, 1]
    assert (ck[0, 1] - ck[0, 0]).abs() <= 1e-12 * ck[0, 0]
    assert (ntk[0, 1] - ntk[0, 0]).abs() <= 1e-10 * ntk[0, 0]
    assert ck[3].abs().max() <= 1e-60
    assert ntk[3].abs().max() <= 1e-60
    assert ck[0, 2] <= 0 or phi == ReLU()
    assert kernel(deq, x[:1]).ck.shape == (1, 1)
    assert kernel(deq, x[:, :1]).ck.isfinite().all()
    assert kernel(deq, torch.zeros(2, 3).double()).ntk.abs().max() <= 1e-60


def test_single_precision():
    x = inputs(40, 50, one_norm=True)
    deq = DEQ(Tanh(), 0.2, 0.8)
    exact, single = kernel(deq, x), kernel(deq, x.float())
    for left, right in zip(single, exact, strict=True):
        assert left.dtype == torch.float32
        assert (left.double() - right).abs().max() <= 1e-5 * right.max()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1.0]],), TypeError, "x1 must be a floating-point tensor"),
        ((torch.ones(3),), ValueError, r"x1 must have shape \(samples, features\), got \(3,\)"),
        ((torch.ones(0, 3),), ValueError, "x1 must not be empty"),
        ((torch.full((2, 2), math.nan),), ValueError, "x1 must be finite"),
        ((torch.ones(2, 3), torch.ones(2, 4)), ValueError, "as many features, got 3 and 4"),
        ((torch.ones(2, 3), torch.ones(2, 3).double()), ValueError, "one dtype and device"),
        ((torch.ones(2, 3, dtype=torch.int32),), TypeError, "floating-point"),
    ],
)
def test_bad_inputs(arguments, error, message):
    with pytest.raises(error, match=message):
        kernel(DEQ(Tanh(), 0.2, 0.8), *arguments)


def test_the_diagonal_needs_partners():
    x = inputs(3, 2)
    with pytest.raises(ValueError, match="diag needs as many x1 as x2, got 3 and 2"):
        kernel(DEQ(ReLU(), 0.2, 0.8), x, x[:2], diag=True)
