"""Kernel matrices against the scalar equations of their entries."""

import math

import mpmath
import numpy as np
import pytest
import torch

from kernels.points import inputs, norms_between
from shoal import (
    DEQ,
    AccuracyError,
    ConvDEQ,
    ConvergenceError,
    FullyConnected,
    kernel,
    kernel_function,
)
from shoal.activations import (
    ELU,
    GELU,
    Affine,
    Erf,
    HardTanh,
    Identity,
    LeakyReLU,
    PiecewisePolynomial,
    ReLU,
    Softplus,
    Tanh,
)
from shoal.kernels.plain import kernels

ARCHITECTURES = [
    DEQ(ReLU(), 0.2, 0.8),
    DEQ(LeakyReLU(0.1), 0.6, 0.4),
    DEQ(Tanh(), 0.2, 0.8),
    FullyConnected([ReLU(), ReLU()]),
    FullyConnected([Tanh(), ELU()]),
]


@pytest.mark.parametrize("phi", [Tanh(), GELU(), Softplus(), Erf()], ids=repr)
@pytest.mark.parametrize("trainable", [("readout", "recurrent", "input", "bias"), ("input",)])
def test_the_plain_definition(phi, trainable):
    x, deq = inputs(3, 2, 1), DEQ(phi, 0.2, 0.8, bias_variance=0.1)
    found = kernel(deq, x, trainable=trainable)
    for i, j in ((0, 0), (0, 1), (1, 2)):
        for matrix, entry in zip(found, kernels(deq, x[i], x[j], trainable), strict=True):
            assert abs(matrix[i, j] - entry) <= 1e-11 * matrix.max()


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


@pytest.mark.parametrize(
    "architecture",
    [
        DEQ(ReLU(), 0.2, 0.8),
        DEQ(GELU(), 0.3, 0.7, bias_variance=0.1),
        FullyConnected((Tanh(), ReLU())),
    ],
    ids=["relu", "gelu", "layers"],
)
@pytest.mark.parametrize("one_norm", [True, False])
def test_many_entries(architecture, one_norm):
    x = inputs(600, 12, one_norm=True) if one_norm else norms_between(0.6, 2.5, 600, 12, 0)
    assert_entries_are_exact(architecture, x, 1e-11)


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


@pytest.mark.thorough("HardTanh")
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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1.0]],), TypeError, "x1 must be a floating-point tensor"),
        ((torch.ones(3),), ValueError, r"x1 must have shape \(samples, features\), got \(3,\)"),
        ((torch.full((2, 2), math.nan),), ValueError, "x1 must be finite"),
        ((torch.ones(2, 3), torch.ones(2, 4)), ValueError, "as many features, got 3 and 4"),
        ((torch.ones(2, 3), torch.ones(2, 3).double()), ValueError, "one dtype and device"),
        ((torch.ones(2, 3, dtype=torch.int32),), TypeError, "floating-point"),
    ],
)
def test_bad_inputs(arguments, error, message):
    with pytest.raises(error, match=message):
        kernel(DEQ(Tanh(), 0.2, 0.8), *arguments)


def test_no_inputs():
    deq, x = DEQ(Tanh(), 0.2, 0.8), torch.ones(3, 2)
    assert kernel(deq, x[:0]).ntk.shape == (0, 0)
    assert kernel(deq, x, x[:0]).ck.shape == (3, 0)
    assert kernel(deq, x[:0], diag=True).ck.shape == (0,)
    assert kernel(ConvDEQ(ReLU(), 0.2, 0.8), torch.ones(0, 1, 4)).ck.shape == (0, 0)


def test_too_little_memory():
    deq, x = DEQ(ReLU(), 0.2, 0.8), inputs(40, 3)
    with pytest.raises(ValueError, match=r"memory must be at least \d+ bytes for these inputs"):
        kernel(deq, x, memory=1)
    x = torch.empty(10, 1).expand(4_000_000, 10, 1)[:, 0]
    with pytest.raises(ValueError, match=r"take 1\.28e\+05 GB.* use shoal.kernel_operator"):
        kernel(deq, x)


ACTIVATIONS = [ReLU(), Tanh(), ELU(), HardTanh(), GELU(), Erf(), Affine(ReLU(), 1.0, -0.4)]


def assert_entries_are_exact(architecture, x, tolerance):
    """Entries of a matrix that a surface made, against the scalar equations."""
    found = kernel(architecture, x)
    pairs = torch.triu_indices(len(x), len(x), 1)
    i, j = pairs[:, :: max(3, pairs.shape[1] // 500)]
    squares = (x * x).sum(1)
    expected = kernel_function(architecture)(squares[i], squares[j], (x[i] * x[j]).sum(1))
    for matrix, entries in zip(found, expected, strict=True):
        size = (matrix.diagonal()[i] * matrix.diagonal()[j]).sqrt()
        assert ((matrix[i, j] - entries).abs() <= tolerance * size).all()
        assert torch.equal(matrix, matrix.T)


@pytest.mark.thorough("Tanh", "ELU")
@pytest.mark.parametrize("phi", ACTIVATIONS, ids=repr)
def test_any_norms(phi):
    assert_entries_are_exact(DEQ(phi, 0.15, 0.8), norms_between(0.7, 1.6, 70, 6, 5), 1e-10)


@pytest.mark.thorough("False")
@pytest.mark.parametrize("one_norm", [True, False])
def test_zeros(one_norm):
    x = norms_between(0.7, 0.7 if one_norm else 1.6, 70, 6, 5)
    x[7] = 0.0
    for phi in (Tanh(), Softplus()):
        ck, ntk = kernel(DEQ(phi, 0.15, 0.8), x)
        exact = kernel_function(DEQ(phi, 0.15, 0.8))(0.0, (x * x).sum(1), torch.zeros(70).double())
        for matrix, row in ((ck, exact.ck), (ntk, exact.ntk)):
            assert (matrix[7] - row).abs().max() <= 1e-11 * matrix.max()
            assert torch.equal(matrix, matrix.T)


@pytest.mark.thorough
def test_pairs_beyond_the_range_of_a_surface():
    """Nearly all angles are near a right one, and a few are not."""
    x = norms_between(0.7, 1.6, 70, 400, 8)
    x[2] = x[0] + 0.05 * x[3]
    x[4] = -x[5] + 1e-3 * x[6]
    for phi in (Tanh(), ELU(), ReLU()):
        assert_entries_are_exact(DEQ(phi, 0.15, 0.8), x, 1e-10)


def test_parallel_inputs_of_different_norms():
    """A positively homogeneous kernel there is the product of the norms times a constant."""
    x = norms_between(0.7, 1.6, 30, 400, 8)
    x[1] = 1.1 * x[0]
    for matrix in kernel(DEQ(ReLU(), 0.15, 0.8), x):
        assert abs(matrix[0, 1] / matrix[0, 0] - 1.1) <= 1e-12


@pytest.mark.thorough("Tanh")
@pytest.mark.parametrize("phi", [ReLU(), Tanh()], ids=repr)
def test_batches(phi):
    deq = DEQ(phi, 0.2, 0.8)
    x, y = inputs(24, 3).view(2, 3, 4, 3), inputs(10, 3, seed=1).view(2, 1, 5, 3)
    found, symmetric, diagonal = kernel(deq, x, y), kernel(deq, x), kernel(deq, x, diag=True)
    assert found.ck.shape == (2, 3, 4, 5)
    assert symmetric.ntk.shape == (2, 3, 4, 4)
    error = 1e-12 * float(diagonal.ntk.max())
    for i in range(2):
        for j in range(3):
            alone = kernel(deq, x[i, j], y[i, 0])
            torch.testing.assert_close(found.ntk[i, j], alone.ntk, rtol=0, atol=error)
            torch.testing.assert_close(symmetric.ck[i, j], kernel(deq, x[i, j]).ck)
    torch.testing.assert_close(diagonal.ntk, symmetric.ntk.diagonal(dim1=-2, dim2=-1))
    with pytest.raises(ValueError, match=r"broadcastable batch dimensions, got \(2,\) and \(3,\)"):
        kernel(deq, torch.ones(2, 4, 3), torch.ones(3, 4, 3))


@pytest.mark.thorough
@pytest.mark.parametrize("norm", [10.0, 30.0, 100.0])
def test_large_norms_of_saturating_activations(norm):
    """Erf's kernel is iterated here: D = 2/π arcsin(2c/√((1+2a)(1+2b)))."""
    x = norm * inputs(20, 3, one_norm=True)
    cosine = (x @ x.T / norm**2).clamp(-1.0, 1.0)
    variance, covariance = torch.tensor(1.0).double(), cosine.clone()
    for _ in range(200):
        share = 2 / (1 + 2 * variance)
        covariance = 0.2 * 2 / math.pi * torch.asin(share * covariance) + 0.8 * norm**2 * cosine
        variance = 0.2 * 2 / math.pi * torch.asin(share * variance) + 0.8 * norm**2
    expected = 2 / math.pi * torch.asin(2 / (1 + 2 * variance) * covariance)
    assert (kernel(DEQ(Erf(), 0.2, 0.8), x).ck - expected).abs().max() <= 1e-12
    # of HardTanh, whose series may need too high a degree, against the equations
    assert_entries_are_exact(DEQ(HardTanh(), 0.2, 0.8), x, 1e-10)


def test_inputs_in_one_narrow_cone():
    """All angles are smaller than those at which kinks do no harm."""
    x = (1 + 0.01 * inputs(95, 5)) * torch.linspace(1, 3, 95, dtype=torch.float64)[:, None]
    assert_entries_are_exact(DEQ(HardTanh(), 0.5, 1.0, bias_variance=0.1), x, 1e-10)


def test_a_kernel_that_does_not_exist():
    """The variance has a fixed point, but perturbations of it grow."""
    with pytest.raises(ConvergenceError, match="does not exist"):
        kernel(DEQ(Tanh(), 5.0, 0.8), inputs(3, 2))


@pytest.mark.parametrize("recurrent", [1.9, 1.999, 1.99999])
def test_near_the_edge_of_existence(recurrent):
    """Of ReLU, at 2; kernels by bisection with forty digits, which rounding spoils near there."""
    x = inputs(3, 4)
    found = kernel(DEQ(ReLU(), recurrent, 0.5), x)
    bound = 1e-12 + 4e-16 / (1 - recurrent / 2)
    with mpmath.workdps(40):
        rows = [[mpmath.mpf(float(number)) for number in row] for row in x]
        own = [mpmath.fdot(row, row) for row in rows]
        for i, j in ((0, 1), (0, 2), (1, 2)):
            size = mpmath.sqrt(own[i] * own[j])
            ck, ntk = _rectified_equilibrium(recurrent, 0.5, size, mpmath.fdot(rows[i], rows[j]))
            assert abs(float(found.ck[i, j]) / ck - 1) < bound
            assert abs(float(found.ntk[i, j]) / ntk - 1) < bound


def _rectified_equilibrium(recurrent, injected, size, inner):
    """The CK and the NTK of inputs whose norms have a product ``size``, with mpmath."""
    share = 1 - mpmath.mpf(recurrent) / 2  # of what is injected, in the variance

    def turned(cosine):
        passed = mpmath.sqrt(1 - cosine**2) + cosine * (mpmath.pi - mpmath.acos(cosine))
        return (1 - share) * passed / mpmath.pi + share * inner / size

    below, above = mpmath.mpf(-1), mpmath.mpf(1)
    for _ in range(130):
        middle = (below + above) / 2
        below, above = (middle, above) if turned(middle) > middle else (below, middle)
    covariance = injected * size / share * below
    active = (mpmath.pi - mpmath.acos(below)) / (2 * mpmath.pi)
    ck = (covariance - injected * inner) / recurrent
    return ck, ck + covariance * active / (1 - recurrent * active)


def test_an_input_that_is_not_seen():
    for phi in (ReLU(), Tanh(), Identity()):
        assert kernel(DEQ(phi, 0.2, 0.0), torch.eye(2).double()).ntk.abs().max() <= 1e-60


def test_nearly_equal_norms_in_single_precision():
    x = inputs(80, 5, one_norm=True) * (1 + 2.4e-5 * torch.linspace(-1, 1, 80).double())[:, None]
    x = x.float().double()
    exact, found = kernel(DEQ(Erf(), 0.2, 0.8), x), kernel(DEQ(Erf(), 0.2, 0.8), x.float())
    for left, right in zip(found, exact, strict=True):
        assert (left.double() - right).abs().max() <= 2e-6 * right.max()


def test_overflow_is_said():
    with pytest.raises(AccuracyError, match=r"overflows torch\.float32"):
        kernel(DEQ(ReLU(), 0.2, 0.8), 1e20 * torch.ones(2, 2))


@pytest.mark.thorough
def test_an_activation_that_is_rounded_off_on_a_small_scale():
    # |x|, but a parabola for |x| < 1e-4: no one series in the angle has its kernels
    tiny = 1e-4
    rounded = PiecewisePolynomial((-tiny, tiny), ((tiny / 2, 0.0, tiny / 2),))
    directions = inputs(300, 3, one_norm=True)
    x = directions[0] + 0.2 * directions  # nearly parallel, so that octaves are in use
    x = torch.cat([x, -directions[:20]])
    x = 1.5 * x / x.norm(dim=1, keepdim=True)
    found = kernel(FullyConnected([rounded]), x)
    i, j = torch.arange(30), torch.arange(290, 320)
    angle = (x[i] * x[j]).sum(1).div(2.25).clamp(-1.0, 1.0).acos()
    exact = kernel_function(FullyConnected([rounded]))(2.25, 2.25, 2.25 * angle.cos())
    for matrix, value in zip(found, exact, strict=True):
        assert (matrix[i, j] - value).abs().max() < 1e-10
        assert torch.equal(matrix, matrix.T)
    # the kernels of |x| in closed form
    slope = 1 - 2 * angle / math.pi
    ck = 2.25 * (2 / math.pi * angle.sin() + slope * angle.cos())
    assert (found.ck[i, j] - ck).abs().max() < 1e-7
    assert (found.ntk[i, j] - ck - 2.25 * angle.cos() * slope).abs().max() < 1e-5


@pytest.mark.parametrize("turn", [1.0, -1.0], ids=["equal", "opposite"])
def test_equal_and_opposite_inputs_on_both_sides(turn):
    x, deq = inputs(160, 20) / 20**0.5, DEQ(GELU(), 0.2, 0.8, bias_variance=0.1)
    other = torch.cat([turn * x[60:], x[:1]])
    squares = (x * x).sum(1)[:100, None], (other * other).sum(1)
    exact = kernel_function(deq)(*squares, x[:100] @ other.T)
    for found, entries in zip(kernel(deq, x[:100], other), exact, strict=True):
        assert ((found - entries).abs() <= 1e-10 * entries.max()).all()


@pytest.mark.thorough("9KiB")
@pytest.mark.parametrize("limit", ["9KiB", "1GB"])
def test_memory_limits_change_nothing(limit):
    x = norms_between(0.7, 1.6, 70, 6, 5)
    for phi in (ReLU(), Tanh()):
        whole, part = kernel(DEQ(phi, 0.15, 0.8), x), kernel(DEQ(phi, 0.15, 0.8), x, memory=limit)
        for left, right in zip(whole, part, strict=True):
            # each is within 1e-13 of the kernel
            assert (left - right).abs().max() <= 2e-13 * left.max()
            assert torch.equal(right, right.T)


def test_arrays():
    x, deq = inputs(6, 3), DEQ(ReLU(), 0.2, 0.8)
    found = kernel(deq, x.numpy(), x[:2].numpy())
    assert isinstance(found.ck, np.ndarray)
    assert np.array_equal(found.ntk, kernel(deq, x, x[:2]).ntk.numpy())
    with pytest.raises(TypeError, match="x1 must be float32 or float64"):
        kernel(deq, np.ones((2, 2), dtype=">f8"))
    backwards = np.arange(6.0).reshape(3, 2)[::-1]
    assert kernel(deq, backwards).ck.shape == (3, 3)
