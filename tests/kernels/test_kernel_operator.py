"""Kernels as operators against the dense matrices."""

from functools import partial

import numpy as np
import pytest
import torch

from shoal import DEQ, ConvergenceError, equivalent, kernel, kernel_operator
from shoal.activations import ReLU, Tanh


def inputs(count, features=5, seed=0, *, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, dtype=dtype, generator=generator)


@pytest.mark.parametrize("memory", ["2GiB", "20KiB", 5_000])
def test_products(memory):
    x, deq = inputs(53), DEQ(ReLU(), 0.2, 0.8)
    operators, dense = kernel_operator(deq, x, memory=memory), kernel(deq, x)
    vectors = inputs(53, 3, seed=1)
    for operator, matrix in zip(operators, dense, strict=True):
        assert operator.shape == matrix.shape
        torch.testing.assert_close(operator @ vectors, matrix @ vectors, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(operator @ vectors[:, 0], matrix @ vectors[:, 0])
        torch.testing.assert_close(operator.to_dense(), matrix, rtol=1e-12, atol=1e-14)
        assert torch.equal(operator.diagonal(), matrix.diagonal())


@pytest.mark.thorough
@pytest.mark.parametrize("memory", ["1GiB", 10_000])  # the whole matrix has 432 bytes
def test_rectangular_products(memory):
    x, y, deq = inputs(9), inputs(6, seed=2), DEQ(Tanh(), 0.2, 0.8)
    operators = kernel_operator(deq, x, y, memory=memory, trainable={"readout", "recurrent"})
    dense = kernel(deq, x, y, trainable={"readout", "recurrent"})
    vectors = inputs(6, 2, seed=3)
    for operator, matrix in zip(operators, dense, strict=True):
        torch.testing.assert_close(operator @ vectors, matrix @ vectors, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(operator.to_dense(), matrix, rtol=1e-12, atol=1e-14)
        with pytest.raises(ValueError, match="solve needs a symmetric matrix"):
            operator.solve(vectors)


def test_solve():
    x, deq = inputs(60, 8), DEQ(ReLU(), 0.2, 0.8)
    b = inputs(60, 2, seed=4)
    operator, matrix = kernel_operator(deq, x).ntk, kernel(deq, x).ntk
    found = operator.solve(b, shift=0.1, rtol=1e-11)
    exact = torch.linalg.solve(matrix + 0.1 * torch.eye(60, dtype=torch.float64), b)
    assert (found - exact).norm() <= 1e-8 * exact.norm()
    assert operator.solve(torch.zeros(60, dtype=torch.float64)).abs().max() == 0


def test_an_unsolved_system_is_not_returned():
    operator = kernel_operator(DEQ(ReLU(), 0.2, 0.8), inputs(60, 2)).ck
    with pytest.raises(ConvergenceError, match="in 3 steps: allow more of them"):
        operator.solve(inputs(60, 1), rtol=1e-12, max_steps=3)


def test_arrays():
    x = inputs(20).numpy()
    operator = kernel_operator(DEQ(ReLU(), 0.2, 0.8), x).ck
    product = operator @ x[:, 0]
    assert isinstance(product, np.ndarray)
    assert np.allclose(product, kernel(DEQ(ReLU(), 0.2, 0.8), x).ck @ x[:, 0], rtol=1e-13)


def test_repr_and_bad_factors():
    operator = kernel_operator(DEQ(ReLU(), 0.2, 0.8), inputs(4)).ck
    assert repr(operator) == "KernelOperator(ck, shape=(4, 4), dtype=torch.float64)"
    with pytest.raises(ValueError, match=r"must have 4 rows.*got shape \(3,\)"):
        operator @ torch.ones(3)
    with pytest.raises(ValueError, match=r"shape \(samples, features\)"):
        kernel_operator(DEQ(ReLU(), 0.2, 0.8), torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match="memory must be a size such as"):
        kernel_operator(DEQ(ReLU(), 0.2, 0.8), torch.ones(2, 3), memory="lots")
    with pytest.raises(ValueError, match="memory must be at least"):
        kernel_operator(DEQ(ReLU(), 0.2, 0.8), torch.ones(2, 3), memory=1)


def operators():
    x, deq = inputs(12), DEQ(ReLU(), 0.2, 0.8)
    with pytest.warns(UserWarning, match="the squared norms of x vary"):  # few dimensions
        near = equivalent(deq, x)
    return [kernel_operator(deq, x).ck, near.ck, near.cross(inputs(12, seed=1)).ck]


def test_factors_are_neither_detached_nor_moved():
    b = inputs(12, 1, seed=2)
    for operator in operators():
        expected = operator @ b
        applied = [operator.__matmul__]
        if hasattr(operator, "solve"):
            applied.append(partial(operator.solve, shift=1.0))
        for apply in applied:
            with pytest.raises(ValueError, match="must not require gradients"):
                apply(b.clone().requires_grad_())
            with pytest.raises(ValueError, match="must be on the operator's device, cpu, got meta"):
                apply(b.to("meta"))
        with torch.no_grad():
            assert torch.equal(operator @ b.clone().requires_grad_(), expected)
    with pytest.raises(ValueError, match="x1 must not require gradients"):
        kernel_operator(DEQ(ReLU(), 0.2, 0.8), b.clone().requires_grad_())
