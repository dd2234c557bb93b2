"""Monotone cells: one equilibrium whatever the parameters, with exact gradients."""

import pytest
import torch
from torch.optim import Adam

import shoal
from shoal import GainConstraint, MonotoneCell

forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
ACTIVATIONS = [
    "relu",
    "hardtanh",
    "identity",
    "leakyrelu:0.2",
    "tanh",
    "softplus",
    "sigmoid",
    "elu",
]
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cell_of(activation="relu", scale=1.0, width=6, margin=1.0, seed=0):
    """A cell whose parameters are normal, of norms that grow with the scale."""
    cell = MonotoneCell(3, width, activation, margin=margin).double()
    with torch.no_grad():
        for index, parameter in enumerate(cell.parameters()):
            parameter.copy_(scale * normal(*parameter.shape, seed=seed + index) / width**0.5)
    return cell


def equation(cell, z, x):
    """What z = φ(Wz + Ux + b) misses by."""
    return z - cell.activation(z @ cell.weight.T + cell.input(x))


def test_the_weight_is_monotone_by_its_margin():
    for margin in (0.3, 1.0, 2.0):
        form = torch.eye(6) - cell_of(scale=2.0, margin=margin).weight.detach()
        least = torch.linalg.eigvalsh((form + form.T) / 2)[0]
        assert least >= margin - 1e-12


@every_activation
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_it_contracts_at_its_rate(activation, scale):
    cell = cell_of(activation, scale)
    x, states = normal(20, 3), [3 * normal(20, 6, seed=s) for s in (5, 6)]
    m = torch.eye(6) - cell.weight.detach()
    metric = torch.eye(6) + cell.step_size * m  # of its distances
    before, after = (
        (left - right) @ metric.T for left, right in (states, [cell(z, x) for z in states])
    )
    assert cell.rate < 1
    assert (after.norm(dim=1) <= cell.rate * before.norm(dim=1) * (1 + 1e-12)).all()
    reflection = torch.linalg.solve(metric, 2 * torch.eye(6) - metric)
    assert float(torch.linalg.svdvals(reflection)[0]) <= cell.rate


@pytest.mark.thorough("softplus", "sigmoid", "hardtanh", "identity")
@every_activation
def test_another_method_finds_the_same_equilibrium(activation):
    """Small steps along the plain residual, which follow a differential equation to its rest."""
    cell, x = cell_of(activation), normal(4, 3)
    found = shoal.Equilibrium(cell, on_failure="raise")(torch.zeros(4, 6).double(), x).detach()
    z = torch.zeros(4, 6).double()
    for _ in range(4000):
        z = z - 0.05 * equation(cell, z, x).detach()
    torch.testing.assert_close(found, z, rtol=1e-7, atol=1e-9)


def test_it_converges_where_the_plain_layer_diverges():
    x, zero = normal(5, 3), torch.zeros(5, 6, dtype=torch.float64)
    solver = shoal.Picard(max_steps=20_000)
    for seed in range(3):
        cell = cell_of(scale=4.0, seed=10 * seed)
        plain = shoal.Equilibrium(
            lambda z, x, c=cell: torch.relu(z @ c.weight.T + c.input(x)),
            solver=shoal.Picard(max_steps=500),
            on_failure="status",
        )
        plain(zero, x)
        assert not plain.solution.converged.any()
        z = shoal.Equilibrium(cell, solver=solver, on_failure="raise")(zero, x).detach()
        assert equation(cell, z, x).abs().max() < 1e-7


@forward_mode
@pytest.mark.thorough("tanh")
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients(activation):
    cell = cell_of(activation, 0.5, width=2)
    layer = shoal.Equilibrium(cell, on_failure="raise")
    names = [name for name, _ in layer.named_parameters()]
    zero = torch.zeros(1, 2, dtype=torch.float64)

    def call(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, given, (zero, x))

    values = [normal(1, 3, seed=4), *layer.parameters()]
    tensors = tuple(value.detach().clone().requires_grad_() for value in values)
    assert torch.autograd.gradcheck(call, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)


@forward_mode
def test_transforms_of_functions():
    layer = shoal.Equilibrium(cell_of("tanh", 0.7, width=3), on_failure="raise")
    x = normal(2, 3, seed=4)
    zero = torch.zeros(2, 3, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda x: layer(zero, x), x)
    found = torch.func.jacrev(lambda x: layer(zero, x))(x)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def test_rounding_of_the_inverse_does_not_move_the_equilibrium(monkeypatch):
    cell, x, zero = cell_of("tanh", 2.0), normal(4, 3), torch.zeros(4, 6).double()
    exact = torch.linalg.inv
    monkeypatch.setattr(torch.linalg, "inv", lambda matrix: exact(matrix) * 1.01)
    z = shoal.Equilibrium(cell, on_failure="raise")(zero, x).detach()
    assert equation(cell, z, x).abs().max() < 1e-8


def test_training_with_large_steps_keeps_the_equilibrium():
    torch.manual_seed(0)
    cell = MonotoneCell(3, 8)
    layer = shoal.Equilibrium(cell, on_failure="raise")
    optimizer = Adam(layer.parameters(), lr=0.1)
    GainConstraint(cell, max_gain=1.0, weights=["symmetric", "skew"]).attach(optimizer)
    x = torch.randn(20, 3)
    for _ in range(20):
        optimizer.zero_grad()
        (layer(torch.zeros(20, 8), x).sum(1) - 10 * x.norm(dim=1)).square().mean().backward()
        optimizer.step()
        assert cell.rate < 0.853  # p <= 2, s <= 2 and a step size of at most one


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"activation": "gelu"}, ValueError, "activation must be nondecreasing"),
        ({"activation": shoal.activations.Erf()}, ValueError, "slopes of at most one"),
        ({"activation": shoal.activations.Sine()}, ValueError, "activation must be nondecreasing"),
        ({"activation": "no"}, ValueError, "activation must be one of"),
        ({"activation": 3.0}, TypeError, "activation must be an Activation"),
        ({"margin": 0}, ValueError, "margin must be > 0"),
        ({"width": 0}, ValueError, "width must be >= 1"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        MonotoneCell(**{"in_features": 3, "width": 4, **arguments})
