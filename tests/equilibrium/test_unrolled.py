"""The gradient of the iteration: of the very one that found the solution, and never none."""

import pytest
import torch

from shoal import DEQ, build
from shoal.activations import ReLU, Tanh
from shoal.equilibrium import (
    Anderson,
    Broyden,
    DampedPicard,
    Implicit,
    NewtonKrylov,
    Picard,
    Unrolled,
    fixed_point,
)

both = pytest.mark.parametrize("solver", [Picard(), DampedPicard(0.8)], ids=repr)


def inputs(count=4, features=5):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, features, dtype=torch.float64, generator=generator)


def network(architecture=None, **options):
    architecture = architecture or DEQ(Tanh(), 0.2, 0.8)
    options = {"gradient": Unrolled(), **options}
    return build(architecture, in_features=5, width=16, dtype=torch.float64, **options)


@both
def test_warm_starts_are_not_used(solver):
    x = inputs()
    warm = network(solver=solver, warm_start=True)
    cold = network(solver=solver)
    for net in (warm, cold):
        for _ in range(3):  # on the same inputs, with the same weights
            net.zero_grad()
            output = net(x)
            output.square().sum().backward()
    assert torch.equal(warm(x), cold(x))
    for left, right in zip(warm.parameters(), cold.parameters(), strict=True):
        assert torch.equal(left.grad, right.grad)


@both
def test_the_value_is_the_one_that_was_judged(solver):
    """All samples end with the last step, though some were done before."""
    x = inputs() * torch.tensor([[1e-6], [1.0], [0.0], [3.0]], dtype=torch.float64)
    net = network(solver=solver)
    features = net.features(x) / net.feature_scale
    steps = net.last_solve.steps
    assert steps[0] == steps[3]
    difference = (features - net.last_solve.value).norm(dim=1)
    assert (difference <= 1e-14 * features.norm(dim=1)).all()


@both
def test_a_start_at_the_solution_has_a_gradient(solver):
    a = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    z = fixed_point(
        lambda z, a: a * torch.zeros_like(z) + a,
        torch.full((2, 1), 0.5, dtype=torch.float64),
        parameters=(a,),
        solver=solver,
        gradient=Unrolled(),
    )
    (gradient,) = torch.autograd.grad(z.sum(), a)
    # the map is constant: one Picard step is exact, a damped one is as far as it goes
    assert float(gradient) == pytest.approx(2 * (1 - getattr(solver, "damping", 0.0)))


@pytest.mark.parametrize("parametrization", ["ntk", "standard"])
def test_without_recurrence_all_weights_have_gradients(parametrization):
    x = inputs()
    gradients = []
    for gradient in (Implicit(), Unrolled()):
        architecture = DEQ(ReLU(), 0.0, 1.0, parametrization=parametrization)
        net = network(architecture, gradient=gradient)
        gradients.append(torch.autograd.grad(net(x).sin().sum(), list(net.parameters())))
    for implicit, unrolled in zip(*gradients, strict=True):
        torch.testing.assert_close(implicit, unrolled, rtol=1e-12, atol=1e-12)


@both
def test_samples_that_finish_early(solver):
    x = torch.cat([inputs(), torch.zeros(2, 5, dtype=torch.float64)])
    gradients = []
    for gradient in (Implicit(), Unrolled()):
        net = network(solver=solver, gradient=gradient)
        gradients.append(torch.autograd.grad(net(x).sin().sum(), list(net.parameters())))
    for implicit, unrolled in zip(*gradients, strict=True):
        torch.testing.assert_close(implicit, unrolled, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("solver", [Anderson(), Broyden(), NewtonKrylov()], ids=repr)
def test_other_solvers_are_refused_with_a_remedy(solver):
    match = r"got Unrolled\(\), which is for Picard and DampedPicard: Implicit\(\) is exact"
    with pytest.raises(ValueError, match=match):
        network(solver=solver)
    z0 = torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match=match):
        fixed_point(torch.cos, z0, solver=solver, gradient=Unrolled())
