"""Equivalents inside GPyTorch: exact values and gradients, against dense matrices."""

import math
import warnings

import pytest
import torch
from torch import Tensor

from shoal.asymptotics import Basis, EquivalentOperator
from shoal.asymptotics.linear import EquivalentLinearOperator

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # gpytorch's own
    gpytorch = pytest.importorskip("gpytorch")


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def arguments(n: int, p: int) -> tuple[Tensor, ...]:
    core = normal(2, 2, seed=2)
    numbers = (torch.tensor(v, dtype=torch.float64) for v in (0.6, 1.7))
    return normal(n, p), normal(n, 2, seed=1), core @ core.T, *numbers


def dense_matrix(x: Tensor, u: Tensor, core: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    core = (core + core.T) / 2
    return scale * x @ x.T + u @ core @ u.T + shift * torch.eye(len(x), dtype=x.dtype)


@pytest.mark.parametrize(("n", "p"), [(9, 15), (30, 6), (900, 4)])  # 900: no Cholesky of its own
def test_values_and_gradients_are_those_of_the_matrix(n: int, p: int) -> None:
    b = normal(n, 2, seed=3)
    found, expected = [], []
    for operator_made, results in ((True, found), (False, expected)):
        leaves = [a.clone().requires_grad_() for a in (*arguments(n, p), b)]
        noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        *parts, right = leaves
        if operator_made:
            operator = (2.0 * EquivalentLinearOperator(*parts)).add_diagonal(noise)
            quadratic, logdet = operator.inv_quad_logdet(right, logdet=True)
            assert isinstance(operator, EquivalentLinearOperator)
        else:
            matrix = 2.0 * dense_matrix(*parts) + noise * torch.eye(n, dtype=torch.float64)
            quadratic = (right * torch.linalg.solve(matrix, right)).sum()
            logdet = torch.logdet(matrix)
        (quadratic + 3 * logdet).backward()
        results += [quadratic.detach(), logdet.detach(), noise.grad]
        results += [leaf.grad for leaf in leaves]
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


def test_solve_has_gradients() -> None:
    parts = [a.requires_grad_() for a in arguments(12, 3)]
    b = normal(12, seed=3).requires_grad_()

    def solve(*leaves: Tensor) -> Tensor:
        *inner, right = leaves
        inner[2] = (inner[2] + inner[2].T) / 2
        return EquivalentLinearOperator(*inner).solve(right)

    assert torch.autograd.gradcheck(solve, (*parts, b))
    left = normal(2, 12, seed=5)
    operator = EquivalentLinearOperator(*parts)
    torch.testing.assert_close(operator.solve(b, left), left @ operator.solve(b))


def test_the_rest_of_the_interface() -> None:
    x, u, core, scale, shift = arguments(30, 6)
    plain = EquivalentOperator(Basis(x, u), scale=0.6, core=core, shift=1.7)
    operator, dense = plain.linear_operator(), dense_matrix(x, u, core, scale, shift)
    b = normal(30, 2, seed=3)
    torch.testing.assert_close(operator.to_dense(), dense)
    torch.testing.assert_close(operator @ b, dense @ b)
    torch.testing.assert_close(operator.diagonal(), dense.diagonal())
    torch.testing.assert_close(operator.mT.to_dense(), dense)
    torch.testing.assert_close(operator[3:9, 3:9].to_dense(), dense[3:9, 3:9])
    assert isinstance(operator[3:9, 3:9], EquivalentLinearOperator)
    torch.testing.assert_close(operator[:20, 20:].to_dense(), dense[:20, 20:])
    torch.testing.assert_close(operator.logdet(), torch.logdet(dense))
    torch.testing.assert_close(operator.inv_quad_logdet(b[:, 0], logdet=True)[1], dense.logdet())
    each, none = operator.inv_quad_logdet(b, reduce_inv_quad=False)
    torch.testing.assert_close(each, (b * torch.linalg.solve(dense, b)).sum(0))
    assert none is None
    weights = torch.linspace(0.1, 1.0, 30, dtype=torch.float64)
    uneven = operator.add_diagonal(weights)  # no longer of the form: theirs to handle
    torch.testing.assert_close(uneven.to_dense(), dense + weights.diag())
    torch.testing.assert_close((operator * weights.mean()).to_dense(), dense * weights.mean())


def test_the_marginal_likelihood_of_a_gaussian_process() -> None:
    n = 1000
    x, u, core, scale, shift = arguments(n, 5)
    operator = EquivalentOperator(Basis(x, u), scale=0.6, core=core, shift=1.7).linear_operator()
    y = normal(n, seed=3)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.25
    prior = gpytorch.distributions.MultivariateNormal(torch.zeros(n, dtype=torch.float64), operator)
    found = likelihood(prior).log_prob(y)
    matrix = dense_matrix(x, u, core, scale, shift) + 0.25 * torch.eye(n, dtype=torch.float64)
    quadratic = y @ torch.linalg.solve(matrix, y)
    expected = -0.5 * (quadratic + torch.logdet(matrix) + n * math.log(2 * math.pi))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=0.0)
    found.backward()
    inverse = torch.linalg.inv(matrix)
    slope = 0.5 * ((y @ inverse @ inverse @ y) - inverse.trace())
    (raw,) = likelihood.parameters()
    unconstrained = float(torch.sigmoid(raw.detach()))  # the derivative of softplus
    torch.testing.assert_close(raw.grad.squeeze(), slope * unconstrained, rtol=1e-9, atol=0.0)
