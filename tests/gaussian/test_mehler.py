"""Duals of few variances by Mehler's formula, against quadrature."""

import math
from importlib import import_module

import pytest
import torch

from shoal.activations import ELU, Activation, HardTanh, Softplus, Tanh
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.mehler import Mehler
from shoal.gaussian.mixed import mixed_dual

_VARIANCES = torch.tensor([0.0, 1e-6, 0.7, 25.0], dtype=torch.float64)
_ANGLES = torch.tensor([0.0, 1e-4, 0.3, 1.5, math.pi], dtype=torch.float64)


def _points() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grid = torch.meshgrid(_VARIANCES, _VARIANCES, _ANGLES, indexing="ij")
    a, b, angle = (t.flatten() for t in grid)
    return a, b, a.sqrt() * b.sqrt() * angle.cos()


@pytest.mark.parametrize("orders", [(0, 0), (1, 1), (2, 0), (1, 3)])
@pytest.mark.parametrize("phi", [Tanh(), Softplus()])
def test_sums_are_the_integrals_wherever_they_claim_to_be(
    phi: Activation, orders: tuple[int, int]
) -> None:
    a, b, c = _points()
    sums = Mehler.of(phi, *orders, a, b)
    assert sums is not None
    value, known = sums(a, b, c)
    squares = [mixed_dual(phi, n, n, t, t, t) for n, t in zip(orders, (a, b), strict=True)]
    error = (value - mixed_dual(phi, *orders, a, b, c)).abs()
    assert float(known.double().mean()) > 0.7
    bound = 2e-14 * (squares[0] * squares[1]).sqrt()
    assert bool((error <= bound + 1e-16)[known].all())


def test_jumps_and_rough_functions_are_left_to_quadrature() -> None:
    a, b, c = _points()
    assert Mehler.of(HardTanh(), 2, 0, a, b) is None
    assert Mehler.of(ELU(0.5), 2, 0, a, b) is None
    sums = Mehler.of(HardTanh(), 1, 1, a, b)
    assert sums is not None
    value, known = sums(a, b, c)
    near = (a == b) & (a == 25.0) & (c == a * math.cos(1e-4))
    assert not bool(known[near].any())
    error = (value - mixed_dual(HardTanh(), 1, 1, a, b, c))[known].abs()
    assert float(error.max()) < 1e-13


def test_ordinary_pairs_need_no_double_integrals(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> torch.Tensor:
        raise AssertionError(f"a double integral was taken at {arguments}")

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    square = x.square().sum(1)
    a, b = square[:, None], square
    exact = mixed_dual(Tanh(), 1, 1, a.expand(12, 12).flatten(), b.repeat(12), (x @ x.T).flatten())
    monkeypatch.setattr(import_module("shoal.gaussian.dual"), "mixed_dual", refused)
    off = ~torch.eye(12, dtype=torch.bool)
    found = dual_derivative(Tanh(), a, b, x @ x.T)
    assert float((found - exact.view(12, 12))[off].abs().max()) < 1e-13
    inputs = [t.clone().requires_grad_() for t in (a, b, (x @ x.T).mul(1 - 1e-3))]
    dual(Tanh(), *inputs).sum().backward()
    assert inputs[2].grad is not None
    slope = dual_derivative(Tanh(), a, b, inputs[2].detach())
    assert torch.allclose(inputs[2].grad, slope, rtol=0, atol=1e-13)
