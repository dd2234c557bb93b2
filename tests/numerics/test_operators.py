"""What all operators have in common, against their matrices."""

import numpy as np
import pytest
import torch

import shoal
from shoal.asymptotics import Basis, CrossOperator, EquivalentOperator
from shoal.learning import Decomposition
from shoal.numerics import CholeskyFactor, DiagonalOperator, LowRankPlusIdentity, Operator

DEQ = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def operators():
    x, new = normal(8, 3), normal(5, 3, seed=1)
    kernel = shoal.kernel(DEQ, x).ntk
    ones, core = torch.ones(8, 1).double(), torch.tensor([[-0.5]]).double()
    own = torch.tensor([5.0, 0.5, 2.0]).double()
    halves = normal(8, 3).half()
    half = halves.double()
    equivalent = EquivalentOperator(Basis(x, ones), scale=2.0, core=core, shift=5.0)
    cross = CrossOperator(Basis(new, ones[:5]), Basis(x, ones), scale=2.0, core=core)
    left = torch.cat([2 * new, -0.5 * ones[:5]], 1)
    return {
        "kernel": (shoal.kernel_operator(DEQ, x).ntk, kernel),
        "kernels of others": (
            shoal.kernel_operator(DEQ, new, x).ck,
            shoal.kernel(DEQ, new, x).ck,
        ),
        "equivalent": (equivalent, 2 * x @ x.T - 0.5 + 5 * torch.eye(8).double()),
        "cross": (cross, left @ torch.cat([x, ones], 1).T),
        "factor": (
            CholeskyFactor(kernel.clone(), kernel.diagonal().clone(), 0.3),
            kernel + 0.3 * torch.eye(8).double(),
        ),
        "decomposition": (
            Decomposition.from_matrix(kernel).shifted(0.3),
            kernel + 0.3 * torch.eye(8).double(),
        ),
        "diagonal": (DiagonalOperator(own), own.diag()),
        "columns": (
            LowRankPlusIdentity(halves, half.T @ half, 0.25, 2.0),
            2 * (half @ half.T + 0.25 * torch.eye(8).double()),
        ),
    }


OPERATORS = operators()
CASES = pytest.mark.parametrize(("operator", "matrix"), OPERATORS.values(), ids=OPERATORS)


@CASES
def test_products_are_those_of_the_matrix(operator, matrix):
    assert isinstance(operator, Operator)
    assert operator.shape == matrix.shape
    assert (operator.dtype, operator.device) == (matrix.dtype, matrix.device)
    assert f"shape={tuple(matrix.shape)}" in repr(operator)
    torch.testing.assert_close(operator.to_dense(), matrix)
    columns = normal(matrix.shape[1], 2, seed=2)
    torch.testing.assert_close(operator @ columns, matrix @ columns)
    torch.testing.assert_close(operator @ columns[:, 0], matrix @ columns[:, 0])
    torch.testing.assert_close(operator @ columns.float(), matrix @ columns.float().double())
    found = operator @ columns.numpy()
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, matrix @ columns)


@CASES
def test_bad_factors_are_named_alike(operator, matrix):
    size = matrix.shape[1]
    with pytest.raises(ValueError, match=f"other must have {size} rows and at most two dim"):
        operator @ torch.ones(size + 1)
    with pytest.raises(ValueError, match="other must not require gradients"):
        operator @ torch.ones(size, requires_grad=True)
    with pytest.raises(ValueError, match="other must be finite"):
        operator @ torch.full((size,), torch.nan)
    with pytest.raises(ValueError, match="other must be on the operator's device, cpu, got meta"):
        operator @ torch.ones(size, device="meta")
    with pytest.raises(TypeError, match="other must be a floating-point tensor"):
        operator @ torch.ones(size, dtype=torch.int64)


@pytest.mark.parametrize(
    "name", ["equivalent", "factor", "decomposition", "diagonal", "columns", "kernel"]
)
def test_solutions_determinants_and_inverses(name):
    operator, matrix = OPERATORS[name]
    b = normal(len(matrix), 2, seed=3)
    shift = 0.3 * torch.eye(len(matrix)).double() if name == "kernel" else 0.0
    options = {"shift": 0.3, "rtol": 1e-12} if name == "kernel" else {}
    expected = torch.linalg.solve(matrix + shift, b)
    torch.testing.assert_close(operator.solve(b, **options), expected)
    if hasattr(operator, "logdet"):
        assert float(operator.logdet()) == pytest.approx(float(torch.logdet(matrix)))
    if hasattr(operator, "inverse_diagonal"):
        inverse = torch.linalg.inv(matrix)
        torch.testing.assert_close(operator.inverse_diagonal(), inverse.diagonal())
        torch.testing.assert_close(operator.quadratic(b), (b * expected).sum(0))
