"""Derivatives of derivatives of kernel functions, in every order in which autograd is asked."""

from itertools import product

import pytest
import torch

import shoal


@pytest.mark.parametrize("phi", [shoal.activations.ReLU(), shoal.activations.Erf()])
def test_the_last_pass_need_not_be_recorded(phi: shoal.Activation) -> None:
    function = shoal.kernel_function(shoal.DEQ(phi, 0.3, 0.8, bias_variance=0.1))
    point = torch.tensor([1.1, 0.7, 0.4], dtype=torch.float64).unbind()
    for kernel, (i, j) in product(range(2), [(2, 2), (2, 0), (0, 1)]):
        leaves = [t.clone().requires_grad_() for t in point]
        value = function(*leaves)[kernel]
        (first,) = torch.autograd.grad(value, leaves[i], create_graph=True)
        (second,) = torch.autograd.grad(first, leaves[j])
        orders = [0, 0, 0]
        orders[i] += 1
        orders[j] += 1
        expected = function.derivative(*point, orders=(orders[0], orders[1], orders[2]))[kernel]
        assert float(second) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)
