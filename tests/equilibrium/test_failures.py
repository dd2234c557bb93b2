"""Gradients of samples whose solve failed, forward or backward: stated, bounded and marked."""

import pytest
import torch

import shoal
from shoal import DEQ, build
from shoal.activations import Tanh
from shoal.equilibrium import (
    Implicit,
    NewtonKrylov,
    OneStep,
    Picard,
    Solution,
    Status,
    Unrolled,
    fixed_point,
)

TREATMENTS = pytest.mark.parametrize("failed", ["best", "zero"])
SLOPES = (0.5, 1.5, -3.0, 0.2)  # of which Picard iteration solves the first and the last


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def affine(gradient, solver):
    """Fixed points of a·z + u, which are u/(1 - a), and their gradient with respect to u."""
    u = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
    found = fixed_point(
        lambda z, u, a: a * z + u,
        torch.zeros(4, 1, dtype=torch.float64),
        inputs=(u, column(*SLOPES)),
        solver=solver,
        gradient=gradient,
        on_failure="status",
    )
    assert isinstance(found, Solution)
    (slope,) = torch.autograd.grad(found.value.sum(), u)
    return found, slope[:, 0].tolist()


@TREATMENTS
def test_a_backward_solve_that_fails(failed):
    """The forward solve succeeds by another method; best is the gradient without the inverse."""
    found, slopes = affine(Implicit(Picard(), failed=failed), NewtonKrylov())
    assert found.converged.all()
    torch.testing.assert_close(found.value, 1 / (1 - column(*SLOPES)))
    assert found.adjoint.converged.tolist() == [True, False, False, True]
    assert found.adjoint.failures == {Status.DIVERGED: 2}
    instead = {"best": 1.0, "zero": 0.0}[failed]
    assert slopes == pytest.approx([2.0, instead, instead, 1.25], rel=1e-10)
    residuals = {"best": [1.5, 3.0], "zero": [1.0, 1.0]}[failed]
    assert found.adjoint.residual[1:3].tolist() == pytest.approx(residuals)


@TREATMENTS
@pytest.mark.parametrize("gradient", [Implicit, OneStep, Unrolled])
def test_a_forward_solve_that_fails(gradient, failed):
    found, slopes = affine(gradient(failed=failed), Picard())
    assert found.converged.tolist() == [True, False, False, True]
    assert found.value[1:3, 0].tolist() == [0.0, 0.0]  # the start is the best
    instead = {"best": 1.0, "zero": 0.0}[failed]
    exact = [1.0, 1.0] if gradient is OneStep else [2.0, 1.25]
    assert slopes == pytest.approx([exact[0], instead, instead, exact[1]], rel=1e-10)


def test_the_status_comes_with_the_solution_whatever_the_gradient():
    z0 = torch.zeros(2, 1, dtype=torch.float64)
    a = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for gradient in (Implicit(), OneStep(), Unrolled()):
        found = fixed_point(
            lambda z, a: a * z + 1, z0, parameters=(a,), gradient=gradient, on_failure="status"
        )
        assert found.converged.all()
        assert found.adjoint is None
        found.value.sum().backward()
        assert (found.adjoint is not None) == isinstance(gradient, Implicit)
        assert isinstance(fixed_point(lambda z: z / 2 + 1, z0, gradient=gradient), torch.Tensor)


def test_the_status_passes_through_transforms():
    def status(a):
        z0 = torch.zeros(1, 1, dtype=torch.float64)
        found = fixed_point(lambda z, a: a * z + 1, z0, parameters=(a,), on_failure="status")
        return found.status, found.value

    codes, _ = torch.func.vmap(status)(column(*SLOPES)[:, 0])
    assert (codes[:, 0] == Status.CONVERGED).tolist() == [True, False, False, True]


@TREATMENTS
def test_training_with_failures_stays_bounded(failed):
    """A network whose equilibria are lost: no gradient grows with the number of steps."""
    torch.manual_seed(0)
    x = torch.randn(20, 4, dtype=torch.float64)
    norms = []
    for steps in (20, 400):
        net = build(
            DEQ(Tanh(), 6.0, 0.1),
            in_features=4,
            width=64,
            dtype=torch.float64,
            solver=Picard(max_steps=steps),
            gradient=Implicit(failed=failed),
            on_failure="status",
        )
        loss = net(x).square().sum()
        assert not net.last_solve.converged.any()
        loss.backward()
        norms.append(float(torch.cat([p.grad.flatten() for p in net.parameters()]).norm()))
        if failed == "zero":
            assert net.recurrent.grad.abs().max() == 0
            assert net.readout.grad.abs().max() > 0  # it sees the best iterate all the same
    assert all(norm < 20 for norm in norms)


def test_the_treatment_is_one_of_two():
    with pytest.raises(ValueError, match="failed must be one of 'best', 'zero', got 'nan'"):
        Implicit(failed="nan")
    with pytest.raises(ValueError, match="failed must be one of"):
        OneStep(failed="last")


class Expanding(torch.nn.Module):
    """A cell whose weights have grown, as in training without a remedy."""

    def __init__(self, *, normalized):
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = torch.nn.Linear(64, 64)
        self.norm = torch.nn.LayerNorm(64) if normalized else torch.nn.Identity()
        with torch.no_grad():
            weight = self.recurrent.weight
            weight.mul_(8 / torch.linalg.matrix_norm(weight, 2))

    def forward(self, z, x):
        return self.norm(torch.tanh(self.recurrent(z) + x))


@pytest.mark.parametrize("normalized", [False, True])
def test_the_first_remedy_that_the_message_names_helps(normalized):
    cell, x = Expanding(normalized=normalized), torch.randn(50, 64)
    layer = shoal.Equilibrium(cell)
    with pytest.warns(shoal.ConvergenceWarning) as caught:
        layer(torch.zeros(50, 64), x)
    assert caught[0].filename == __file__  # the line that called it
    text = str(caught[0].message)
    first, second = (text.index(name) for name in ("(1) keep the norms", "(2) the solver Newton"))
    assert first < text.index("GainConstraint") < text.index("jacobian_penalty") < second
    assert "Anderson()" not in text  # which has failed
    assert "Broyden()" not in text
    shoal.GainConstraint(cell, max_gain=0.95, weights="recurrent").apply()
    layer(torch.zeros(50, 64), x)
    assert layer.solution.converged.all()


def test_remedies_are_such_as_the_gradient_takes():
    x = torch.ones(2, 1, requires_grad=True)
    unrolled = shoal.Equilibrium(lambda z, x: z**2 + 2 + x, gradient=Unrolled())
    with pytest.warns(shoal.ConvergenceWarning) as caught:
        unrolled(torch.zeros(2, 1), x)
    assert "the solver" not in str(caught[0].message)
    # the derivative by the state is one, so that there is no gradient
    layer = shoal.Equilibrium(
        lambda z, x: x + z - z.detach(), gradient=Implicit(NewtonKrylov(max_steps=4))
    )
    z = layer(torch.zeros(2, 1), x)
    with pytest.warns(shoal.ConvergenceWarning) as caught:
        z.sum().backward()
    text = str(caught[0].message)
    assert "the solver Broyden()" in text
    assert "NewtonKrylov()" not in text
    assert layer.solution.adjoint.evaluations < 100  # one solver, once
