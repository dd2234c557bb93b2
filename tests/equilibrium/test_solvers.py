"""What every solver must do, whatever its method."""

import math

import pytest
import torch

import shoal
from shoal import ConvergenceError, ConvergenceWarning
from shoal.equilibrium import Anderson, Broyden, DampedPicard, NewtonKrylov, Picard, Status, solve

SOLVERS = [Picard(), DampedPicard(0.3), Anderson(), Broyden(), NewtonKrylov()]
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)


META = torch.ones(2, 1, device="meta")


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def codes(solution):
    return {Status(code) for code in solution.status.tolist()}


def check_converged(solution, f, solver):
    """The residual is the true one, of the value returned, and within the tolerance."""
    value = solution.value.flatten(1)
    true = (f(solution.value).flatten(1) - value).norm(dim=1)
    torch.testing.assert_close(solution.residual, true, rtol=1e-6, atol=1e-15)
    rtol, atol = solver.tolerances(value.dtype)
    assert (true <= 1.001 * (atol + rtol * value.norm(dim=1))).all()
    assert solution.converged.all()
    assert codes(solution) == {Status.CONVERGED}
    assert solution.failures == {}


@every_solver
def test_any_shape_and_a_start_at_the_solution(solver):
    shift = normal(3, 2, 4)

    def f(z):
        return 0.3 * torch.tanh(z) + shift

    solution = solve(f, torch.zeros_like(shift), solver=solver)
    assert solution.value.shape == shift.shape
    check_converged(solution, f, solver)
    again = solve(f, solution.value, solver=solver)
    assert (again.steps == 0).all()
    assert torch.equal(again.value, solution.value)


@every_solver
def test_solvers_are_values(solver):
    assert solver == type(solver)(**vars(solver))
    assert hash(solver) == hash(type(solver)(**vars(solver)))
    with pytest.raises(AttributeError):
        solver.rtol = 1.0
    assert solver.tolerances(torch.float64) == (1e-12, 1e-15)
    assert solver.with_tolerances(1e-3, 0.5).tolerances(torch.float32) == (1e-3, 0.5)


def test_failures_are_raised_warned_of_or_returned():
    arguments = (lambda z: 2 * z + 1, torch.zeros(7, 2).double())
    with pytest.raises(
        ConvergenceError, match=r"(?s)7 of 7 samples \(0, 1, 2, 3, 4, \.\.\.\).*What helps"
    ):
        solve(*arguments, on_failure="raise")
    with pytest.warns(ConvergenceWarning, match="grew without bound"):
        solution = solve(*arguments)
    assert solution.failures == {Status.DIVERGED: 7}
    assert "0 of 7 samples converged" in repr(solution)
    with pytest.raises(ConvergenceError) as error:
        solve(*arguments, on_failure="raise")
    assert error.value.solution.failures == {Status.DIVERGED: 7}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Picard(rtol=-1), ValueError, "rtol must be >= 0"),
        (lambda: Picard(rtol=2), ValueError, "rtol must be < 1"),
        (lambda: Picard(max_steps=0), ValueError, "max_steps must be >= 1"),
        (lambda: Picard(tolerance=1), TypeError, "tolerance"),
        (lambda: DampedPicard(1), ValueError, "damping must be < 1"),
        (lambda: DampedPicard(-0.5), ValueError, "damping must be >= 0"),
        (lambda: Anderson(history=0), ValueError, "history must be >= 1"),
        (lambda: Anderson(mixing=0), ValueError, "mixing must be > 0"),
        (lambda: Broyden(history=1.5), TypeError, "history must be an integer"),
        (lambda: NewtonKrylov(inner_rtol=0), ValueError, "inner_rtol must be > 0"),
        (lambda: NewtonKrylov(inner_steps=0), ValueError, "inner_steps must be >= 1"),
    ],
)
def test_bad_options(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("f", "z0", "options", "error", "message"),
    [
        (1, torch.ones(2, 1), {}, TypeError, "f must be callable"),
        (torch.cos, [1.0], {}, TypeError, "z0 must be a floating-point tensor"),
        (torch.cos, torch.tensor(1.0), {}, ValueError, r"z0 must have shape \(samples"),
        (torch.cos, torch.ones(2, 1) * math.nan, {}, ValueError, "z0 must be finite"),
        (lambda z: z[:1], torch.ones(2, 1), {}, ValueError, r"shape \(2, 1\), got \(1, 1\)"),
        (lambda _: 1.0, torch.ones(2, 1), {}, ValueError, "got float"),
        (lambda z: z.double(), torch.ones(2, 1), {}, TypeError, "dtype of z0, torch.float32"),
        (torch.cos, torch.ones(2, 1), {"solver": "anderson"}, TypeError, "must be a Solver"),
        (torch.cos, torch.ones(2, 1), {"on_failure": "no"}, ValueError, "one of 'raise'"),
        (torch.cos, torch.ones(2, 1), {"inputs": (1.0,)}, TypeError, "inputs must be tensors"),
        (torch.cos, torch.ones(2, 1), {"inputs": (torch.ones(3),)}, ValueError, "entry per sample"),
        (torch.cos, 1.0, {}, TypeError, "z0 must be a floating-point tensor"),
        (torch.cos, torch.ones(2, 1), {"separable": 1}, TypeError, "separable must be True or"),
        (torch.cos, torch.ones(2, 1), {"inputs": torch.ones(2)}, TypeError, "must be a sequence"),
        (torch.cos, torch.ones(2, 1), {"parameters": 2.0}, TypeError, "must be a sequence of"),
        (torch.cos, torch.ones(2, 1), {"parameters": (META,)}, TypeError, "got a meta tensor"),
        (torch.cos, torch.ones(2, 1), {"inputs": (META,)}, TypeError, "got a meta tensor"),
    ],
)
def test_bad_arguments(f, z0, options, error, message):
    with pytest.raises(error, match=message):
        solve(f, z0, **options)
    with pytest.raises(error, match=message):
        shoal.fixed_point(f, z0, **options)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_other_kinds_are_refused_by_name():
    nested = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(1)])
    for tensor, kind in ((nested, "nested"), (torch.zeros(2, 1).to_mkldnn(), "MKL-DNN")):
        for name in ("inputs", "parameters"):
            with pytest.raises(TypeError, match=f"{name} must be ordinary tensors, got a {kind}"):
                solve(lambda z, u: z + u, torch.ones(2, 1), **{name: (tensor,)})


@pytest.mark.parametrize("inference", [False, True])
def test_the_start_is_left_alone(inference):
    with torch.inference_mode(inference):
        z0 = torch.full((2, 1), 2.0, dtype=torch.float64)
        solution = solve(lambda z: z / 2 + 1, z0)  # there already
        solution.value.zero_()
        assert (z0 == 2).all()


def test_a_function_that_works_in_place_is_refused():
    z0 = torch.zeros(2, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="f must not change z in place"):
        solve(lambda z: z.mul_(0.5).add_(1), z0)
    with pytest.raises(ValueError, match="f must not change z in place"):
        shoal.fixed_point(lambda z: z.mul_(0.5).add_(1), z0)
    assert (z0 == 0).all()
    with torch.inference_mode():  # where changes leave no trace: it works on a copy
        assert (solve(lambda z: z.mul_(0.5).add_(1), z0).value - 2).abs().max() < 1e-11
    assert (z0 == 0).all()
