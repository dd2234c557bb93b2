"""Solvers and implicit gradients on random problems whose solutions are known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.equilibrium import (
    Anderson,
    Broyden,
    DampedPicard,
    NewtonKrylov,
    Picard,
    fixed_point,
    solve,
)

SOLVERS = [Picard(), DampedPicard(0.7), Anderson(), Broyden(), NewtonKrylov()]
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
few = settings(max_examples=15)


def affine(seed: int, samples: int, width: int, gain: float, size: float):
    """A matrix of a norm below one, and shifts of a size."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(width, width, dtype=torch.float64, generator=generator)
    matrix = gain * matrix / torch.linalg.matrix_norm(matrix, 2)
    shift = size * torch.randn(samples, width, dtype=torch.float64, generator=generator)
    return matrix, shift


PROBLEMS = st.builds(
    affine,
    seed=st.integers(0, 2**31),
    samples=st.integers(1, 4),
    width=st.integers(1, 6),
    gain=st.floats(0, 0.9),
    size=st.sampled_from([1e-8, 1.0, 1e8]),
)


@every_solver
@few
@given(problem=PROBLEMS)
def test_contractions_are_solved_whatever_their_size(solver, problem) -> None:
    matrix, shift = problem
    identity = torch.eye(len(matrix), dtype=torch.float64)
    expected = torch.linalg.solve(identity - matrix, shift.T).T
    found = solve(lambda z: z @ matrix.T + shift, torch.zeros_like(shift), solver=solver)
    assert found.converged.all()
    # ‖z − z*‖ ≤ ‖f(z) − z‖/(1 − gain), and residuals are below atol + rtol ‖z‖
    rtol, atol = solver.tolerances(torch.float64)
    bound = 1.01 * (atol + rtol * found.value.norm(dim=1)) / (1 - 0.9)
    rounding = 1e-14 * expected.norm(dim=1)
    assert ((found.value - expected).norm(dim=1) <= bound + rounding).all()


@every_solver
@few
@given(problem=PROBLEMS, order=st.randoms(use_true_random=False))
def test_samples_do_not_see_each_other(solver, problem, order) -> None:
    matrix, shift = problem
    rows = list(range(len(shift)))
    order.shuffle(rows)

    def found(u):
        return solve(lambda z: torch.tanh(z @ matrix.T + u), torch.zeros_like(u), solver=solver)

    whole, mixed = found(shift).value, found(shift[rows]).value
    torch.testing.assert_close(mixed, whole[rows], rtol=1e-7, atol=1e-9)


@few
@given(problem=PROBLEMS, seed=st.integers(0, 9))
def test_implicit_gradients_are_those_of_the_closed_form(problem, seed: int) -> None:
    matrix, shift = (tensor.clone().requires_grad_() for tensor in problem)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(shift.shape, dtype=torch.float64, generator=generator)
    z = fixed_point(
        lambda z, u, a: z @ a.T + u,
        torch.zeros_like(shift),
        inputs=(shift,),
        parameters=(matrix,),
    )
    found = torch.autograd.grad((weights * z).sum(), (shift, matrix))
    identity = torch.eye(len(matrix), dtype=torch.float64)
    closed = torch.linalg.solve(identity - matrix, shift.T).T
    expected = torch.autograd.grad((weights * closed).sum(), (shift, matrix))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-300


@few
@given(seed=st.integers(0, 2**31), width=st.integers(1, 4), scale=st.floats(0.05, 0.9))
def test_implicit_gradients_are_those_of_differences(seed: int, width: int, scale: float) -> None:
    matrix, shift = affine(seed, 2, width, scale, 1.0)

    def value(u, a):
        return fixed_point(
            lambda z, u, a: torch.tanh(z @ a.T + u),
            torch.zeros_like(u),
            inputs=(u,),
            parameters=(a,),
            solver=Picard(rtol=1e-13, atol=1e-14, max_steps=2000),
        ).sum()

    matrix.requires_grad_()
    (gradient,) = torch.autograd.grad(value(shift, matrix), matrix)
    direction = affine(seed + 1, 1, width, 1.0, 1.0)[0]
    step = 1e-4
    with torch.no_grad():
        ahead, behind = (value(shift, matrix + s * step * direction) for s in (1, -1))
    quotient = float(ahead - behind) / (2 * step)
    assert float((gradient * direction).sum()) == pytest.approx(quotient, rel=1e-5, abs=1e-6)
