"""Kernels of the implicit network against Monte Carlo, orthant probabilities and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from shoal import (
    ConvergenceError,
    FullyConnected,
    ImplicitNetwork,
    kernel,
    kernel_function,
)
from shoal.activations import ReLU
from shoal.kernels.implicit_network import Diagonal, rectified


def integrals(std, theta, psi):
    found = rectified(std, *(torch.tensor([t], dtype=torch.float64) for t in (theta, psi)))
    return Diagonal.at(std).square - float(found.drop), float(found.passed), float(found.active)


def test_without_recurrence_the_state_is_the_feature_map():
    """At γ = 0 the NTK is twice that of one layer."""
    f, g = kernel_function(ImplicitNetwork(0.0)), kernel_function(FullyConnected([ReLU()]))
    for c in (-0.8, 0.0, 0.5, 1.0):
        for found, layer in zip(f(1.0, 1.0, c), g(1.0, 1.0, c), strict=True):
            assert float(found) == pytest.approx(2 * float(layer), rel=1e-13, abs=1e-15)


def smoothed(a, b, rho):
    """E[max(a + y, 0) max(b + y', 0)] and P(a + y > 0, b + y' > 0), correlation rho, by Plackett.

    Both are integrals of the density over correlations, from independence on.
    """
    nodes, weights = np.polynomial.legendre.leggauss(100)
    angle = math.asin(rho)
    step = stats.norm.cdf(a) * stats.norm.cdf(b)
    ramp = (a * stats.norm.cdf(a) + stats.norm.pdf(a)) * (b * stats.norm.cdf(b) + stats.norm.pdf(b))
    ramp = ramp + rho * step
    for node, weight in zip(nodes, weights, strict=True):
        t = math.sin(angle * (1 + node) / 2)
        # the density times dt, whose cosine cancels the root of the determinant
        share = np.exp(-(a * a - 2 * t * a * b + b * b) / (2 * (1 - t * t)))
        share = share * weight * angle / (4 * math.pi)
        step, ramp = step + share, ramp + (rho - t) * share
    return ramp, step


def gao2022(gamma, rho):
    """P, G and the shares of A and W, by quadrature over the preactivations of the input layer."""
    square = 0.5
    for _ in range(4000):
        std = gamma * math.sqrt(square)
        angle = math.atan(std)
        cap = math.pi - angle + math.sin(angle) * math.cos(angle)
        square = std**2 / 4 + (1 + std**2) * cap / (2 * math.pi)
    rule = np.polynomial.legendre.leggauss(70)
    u, weights = 4.5 * (1 + rule[0]), 4.5 * rule[1]
    first, second = u[:, None], u[None, :]
    density = {
        sign: np.outer(weights, weights)
        * stats.multivariate_normal(cov=[[1, sign * rho], [sign * rho, 1]]).pdf(
            np.stack(np.broadcast_arrays(first, second), -1)
        )
        for sign in (1, -1)
    }
    state = rho * square
    for _ in range(40):  # Newton: the slope is γ²Ė
        value = active = passed = 0.0
        for one, other in ((1, 1), (1, 0), (0, 1), (0, 0)):
            found = smoothed(one * first / std, other * second / std, state / square)
            mass = density[1 if one == other else -1]
            value += std**2 * float((mass * found[0]).sum())
            joint = float((mass * found[1]).sum())
            active, passed = active + joint, passed + one * other * joint
        moved = (value - state) / (1 - gamma**2 * active)
        state += moved
        if abs(moved) < 1e-15:
            break
    theta, through = math.acos(rho), 1 / (1 - gamma**2 * active)
    free = (math.pi - theta) / (2 * math.pi)
    return {
        "readout": state,
        "skip": math.sin(theta) / (2 * math.pi) + free * rho,
        "recurrent": gamma**2 * state * active * through,
        "input": rho * (passed * through + free),
    }


@pytest.mark.thorough("0.95", "1.35")
@pytest.mark.parametrize(("gamma", "rho"), [(0.4, -0.6), (0.95, 0.8), (1.35, 0.3)])
def test_the_shares_by_quadrature(gamma, rho):
    expected = gao2022(gamma, rho)
    for group, share in expected.items():
        found = kernel_function(ImplicitNetwork(gamma), trainable={group})(1.0, 1.0, rho)
        assert float(found.ntk) == pytest.approx(share, rel=1e-9)
        assert float(found.ck) == pytest.approx(expected["readout"] + expected["skip"], rel=1e-9)


def test_norms_are_factors():
    f = kernel_function(ImplicitNetwork(0.5))
    for k, other in zip(f(1.0, 1.0, 0.3), f(4.0, 0.25, 0.3), strict=True):
        assert float(other) == pytest.approx(float(k), rel=1e-13)
    assert [float(k) for k in f(0.0, 1.0, 0.0)] == [0.0, 0.0]


def test_derivatives():
    f, point, h = kernel_function(ImplicitNetwork(0.5)), (1.3, 0.7, 0.2), 1e-3
    for axis in range(3):
        unit = [float(i == axis) for i in range(3)]
        low, mid, high = (
            f(*(p + s * h * u for p, u in zip(point, unit, strict=True))) for s in (-1, 0, 1)
        )
        orders = tuple(int(u) for u in unit)
        first, second = (
            f.derivative(*point, orders=orders),
            f.derivative(*point, orders=tuple(2 * o for o in orders)),
        )
        for k in range(2):
            assert float(first[k]) == pytest.approx(float(high[k] - low[k]) / (2 * h), abs=1e-6)
            bend = float(high[k] - 2 * mid[k] + low[k]) / h**2
            assert float(second[k]) == pytest.approx(bend, abs=1e-5)
    third = f.derivative(*point, orders=(0, 0, 3)).ntk
    ends = [f.derivative(1.3, 0.7, 0.2 + s * h, orders=(0, 0, 2)).ntk for s in (-1, 1)]
    assert float(third) == pytest.approx(float(ends[1] - ends[0]) / (2 * h), abs=1e-5)


def test_a_kernel_that_does_not_exist():
    """P = s²/2 + ... grows faster than it is fed back from γ² = 2 on."""
    with pytest.raises(ConvergenceError, match=r"gamma² is 2\.25, at least 2"):
        kernel_function(ImplicitNetwork(1.5))(1.0, 1.0, 0.0)
    assert kernel_function(ImplicitNetwork(1.4))(1.0, 1.0, 0.0).ck.isfinite()


def test_a_bias_is_an_input_of_its_own():
    """A network with biases is one without, at inputs (x, √β), whose weights are two groups."""
    biased, plain = ImplicitNetwork(0.7, bias_variance=0.4), ImplicitNetwork(0.7)
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    longer = torch.cat([x, math.sqrt(0.4) * torch.ones(6, 1).double()], 1)
    for groups, same in (
        ({"readout"}, {"readout"}),
        ({"skip", "recurrent"}, {"skip", "recurrent"}),
        ({"input", "bias"}, {"input"}),
    ):
        found, wanted = kernel(biased, x, trainable=groups), kernel(plain, longer, trainable=same)
        for k, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(k, other, rtol=1e-10, atol=1e-12)
    shares = [kernel_function(biased, trainable={g})(1.0, 1.0, 0.5).ntk for g in ("input", "bias")]
    assert float(shares[0] / shares[1]) == pytest.approx(0.5 / 0.4, rel=1e-13)


@pytest.mark.thorough
def test_many_inputs_of_a_network_with_biases():
    """More pairs than are solved one by one."""
    network = ImplicitNetwork(0.5, bias_variance=0.1)
    x = torch.randn(95, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    i, j = torch.triu_indices(95, 95, 1)[:, ::50]
    square = (x**2).sum(1)
    exact = kernel_function(network)(square[i], square[j], (x[i] * x[j]).sum(1))
    for matrix, values in zip(kernel(network, x), exact, strict=True):
        assert (matrix[i, j] - values).abs().max() <= 1e-9
