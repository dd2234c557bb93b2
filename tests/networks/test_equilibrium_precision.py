"""Implicit networks in single and half precision, and under autocast."""

import pytest
import torch

from networks.small import inputs, network
from shoal import (
    DEQ,
    Anderson,
    Broyden,
    Implicit,
    ImplicitNetwork,
    NewtonKrylov,
    OneStep,
    Picard,
    Unrolled,
)
from shoal.activations import Tanh


def test_single_precision_is_close_to_double():
    x = inputs(20, 50)
    double = network(features=50, width=200)
    single = network(features=50, width=200, dtype=torch.float32)
    assert single(x.float()).dtype == torch.float32
    difference = single(x.float()).double() - double(x)
    assert difference.abs().max() < 1e-4
    assert difference.abs().max() > 0


@pytest.mark.parametrize("architecture", [DEQ(Tanh(), 0.2, 0.8), ImplicitNetwork(gamma=0.4)])
@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(), OneStep()], ids=repr)
@pytest.mark.parametrize("within", [False, True])
def test_autocast(gradient, architecture, within):
    """Products around the equilibrium are rounded; the equilibrium is solved for in float32."""
    net = network(architecture, dtype=torch.float32, width=64, gradient=gradient)
    x = inputs(dtype=torch.float32)
    expected = torch.autograd.grad(net(x).sum(), net.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        output = net(x)
        solution = net.solve(x)
        torch.testing.assert_close(solution.value, net.features(x).detach())
    assert output.dtype == torch.bfloat16
    assert solution.value.dtype == torch.float32
    assert (solution.residual <= 2e-6 * solution.value.norm(dim=1)).all()
    assert (net.last_solve.residual <= 2e-6 * net.last_solve.value.norm(dim=1)).all()
    with torch.autocast("cpu", torch.bfloat16, enabled=within):
        found = torch.autograd.grad(output.float().sum(), net.parameters())
    if isinstance(gradient, Implicit):
        adjoint = net.last_adjoint
        assert (adjoint.residual <= 2e-6 * adjoint.value.norm(dim=1)).all()
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == torch.float32
        assert (left - right).norm() < 0.03 * right.norm()


def test_autocast_of_second_derivatives():
    net, x = network(dtype=torch.float32, width=64), inputs(dtype=torch.float32)

    def curvature():
        (first,) = torch.autograd.grad(net(x).sum(), net.recurrent, create_graph=True)
        return torch.autograd.grad(first.square().sum(), net.recurrent)[0]

    expected = curvature()
    with torch.autocast("cpu", torch.bfloat16):
        assert (curvature() - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("solver", [Picard(), Anderson(), Broyden(), NewtonKrylov()], ids=repr)
def test_half_precision(dtype, solver):
    net, x = network(dtype=dtype, width=64, solver=solver), inputs(dtype=dtype)
    output = net(x)
    assert output.dtype == dtype
    output.sum().backward()
    assert (output.double() - network(width=64)(inputs())).abs().max() < 0.3
    assert all(p.grad.isfinite().all() for p in net.parameters())
