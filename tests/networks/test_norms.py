"""Certified norms against singular values, and the constraint that is made of them."""

import math

import pytest
import torch

from shoal import DEQ, FullyConnected, GainConstraint, build
from shoal.activations import Hermite, Tanh
from shoal.networks import operator_norm_bounds


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def orthogonal(size):
    return torch.linalg.qr(normal(size, size))[0]


MATRICES = {
    "gaussian": normal(100, 100),
    "wide": normal(20, 90),
    "tall": normal(90, 20),
    "rank one": torch.outer(normal(50), normal(50, seed=1)),
    "orthogonal": orthogonal(60),  # all singular values equal: the worst case for the bound
    "tiny": 1e-200 * normal(30, 30),
    "huge": 1e200 * normal(30, 30),
    "scalar": torch.tensor([[-3.0]]).double(),
    "nilpotent": torch.diag(torch.ones(40).double(), 1),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("tightness", [1e-1, 1e-3, 1e-5])
def test_bounds_enclose_the_norm_tightly(name, tightness):
    matrix = MATRICES[name]
    true = float(torch.linalg.svdvals(matrix)[0])
    lower, upper = operator_norm_bounds(matrix, tightness=tightness)
    assert lower <= true * (1 + 1e-12)
    assert true <= upper * (1 + 1e-14)
    assert upper <= true * (1 + tightness) * (1 + 1e-9)
    assert lower >= true * 0.9


def test_zero_and_single_precision():
    assert operator_norm_bounds(torch.zeros(3, 3)) == (0.0, 0.0)
    matrix = normal(50, 50).float()
    lower, upper = operator_norm_bounds(matrix)
    true = float(torch.linalg.svdvals(matrix.double())[0])
    assert lower <= true * (1 + 1e-12)
    assert true <= upper <= 1.002 * true


@pytest.mark.parametrize(
    ("matrix", "options", "error", "message"),
    [
        (torch.ones(3), {}, ValueError, r"matrix must have shape \(rows, columns\)"),
        (torch.full((2, 2), math.nan), {}, ValueError, "matrix must be finite"),
        (torch.ones(2, 2), {"tightness": 0}, ValueError, "tightness must be > 0"),
    ],
)
def test_bad_arguments(matrix, options, error, message):
    with pytest.raises(error, match=message):
        operator_norm_bounds(matrix, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_constraint_holds_at_every_step(dtype):
    """A loss that rewards large weights drives the norm up; the constraint keeps it down."""
    gains = {}
    for constrained in (False, True):
        net = build(DEQ(Tanh(), 0.15, 0.8), in_features=4, width=40, dtype=dtype, on_failure="warn")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        x, y = normal(10, 4).to(dtype), normal(10, 1, seed=1).to(dtype)
        if constrained:
            handle = GainConstraint(net, max_gain=0.8).attach(optimizer)
        gains[constrained] = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = (net(x) - y).square().sum() - 0.1 * net.recurrent.square().sum()
            loss.backward()
            optimizer.step()
            norm = float(torch.linalg.svdvals(net.recurrent.detach().double())[0])
            gains[constrained].append(math.sqrt(0.15 / 40) * norm)
        if constrained:
            handle.remove()
    assert max(gains[False]) > 0.8
    assert max(gains[True]) <= 0.8
    assert max(gains[True]) > 0.7  # and not far below


@pytest.mark.thorough("standard", "0.5")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("max_gain", [0.9, 0.5, 1e-4])
@pytest.mark.parametrize("parametrization", ["ntk", "standard"])
def test_the_bound_holds_after_rounding(dtype, max_gain, parametrization):
    deq = DEQ(Tanh(), 0.5, 0.5, parametrization=parametrization)
    net = build(deq, in_features=4, width=300, dtype=dtype)
    constraint = GainConstraint(net, max_gain=max_gain)
    factor = math.sqrt(0.5 / 300) if parametrization == "ntk" else 1.0
    for step in range(4):
        bound = constraint.apply()
        norm = float(torch.linalg.svdvals(net.recurrent.detach().double())[0])
        assert factor * norm <= bound <= max_gain
        assert factor * norm > 0.9 * max_gain or step > 0
        with torch.no_grad():
            noise = normal(300, 300, seed=step) * (0.01 * max_gain / factor / 300**0.5)
            net.recurrent += noise.to(dtype)


def test_bad_constraints():
    deq = build(DEQ(Tanh(), 0.1, 0.8), in_features=4, width=8)
    with pytest.raises(ValueError, match="max_gain must be > 0"):
        GainConstraint(deq, max_gain=0)
    with pytest.raises(TypeError, match="must have a recurrent layer"):
        GainConstraint(build(FullyConnected([Tanh()]), in_features=4, width=8))
    steep = build(DEQ(Hermite((0.0, 0.1, 0.1)), 0.01, 0.1), in_features=4, width=8)
    with pytest.raises(ValueError, match="Lipschitz"):
        GainConstraint(steep)
    with torch.no_grad():
        deq.recurrent[0, 0] = math.nan
    with pytest.raises(ValueError, match="finite"):
        GainConstraint(deq).apply()
