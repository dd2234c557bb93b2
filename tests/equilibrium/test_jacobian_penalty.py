"""The Jacobian penalty against explicit Jacobians, and its gradient against differences."""

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import shoal
from equilibrium.foreign_cells import CELLS, WithDropout

every_cell = pytest.mark.parametrize("kind", CELLS, ids=lambda kind: kind.__name__)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def prepared(kind):
    torch.manual_seed(0)
    z0, inputs, named, own = CELLS[kind]()
    layer = shoal.Equilibrium(kind().double(), on_failure="raise", **own)
    layer.train(kind is WithDropout)
    torch.manual_seed(1)
    return layer, layer(z0, *inputs, **named), inputs, named


def explicit(layer, z, inputs, named):
    """The penalty by the whole Jacobian of all samples; those of other samples are zero."""
    leaves, tree = pytree.tree_flatten(z)

    def flat(*parts):
        torch.manual_seed(1)  # of the dropout
        value = layer.cell(pytree.tree_unflatten(list(parts), tree), *inputs, **named)
        return torch.cat([leaf.flatten() for leaf in pytree.tree_leaves(value)])

    found = torch.autograd.functional.jacobian(flat, tuple(leaf.detach() for leaf in leaves))
    squares = sum(part.square().sum() for part in found)
    return float(squares / sum(leaf.numel() for leaf in leaves))


@every_cell
def test_a_basis_of_probes_gives_the_norm_of_the_explicit_jacobian(kind):
    layer, z, inputs, named = prepared(kind)
    found = shoal.jacobian_penalty(layer, z, *inputs, probes=100, **named)
    assert found.item() == pytest.approx(explicit(layer, z, inputs, named), rel=1e-10)


@pytest.mark.thorough
@every_cell
def test_random_probes_give_it_in_the_mean(kind):
    layer, z, inputs, named = prepared(kind)
    leaves = pytree.tree_leaves(z)
    size = sum(leaf[0].numel() if layer.batched else leaf.numel() for leaf in leaves)
    generator = torch.Generator().manual_seed(0)
    found = [
        shoal.jacobian_penalty(layer, z, *inputs, probes=p, generator=generator, **named).item()
        for p in [max(size - 1, 1)] * 60
    ]
    mean, error = torch.tensor(found).mean(), torch.tensor(found).std() / 60**0.5
    assert abs(mean - explicit(layer, z, inputs, named)) <= 5 * error + 1e-12


def test_dropout_is_that_of_the_solve():
    """Otherwise the point would be no equilibrium of the map that is linearized."""
    layer, z, inputs, _ = prepared(WithDropout)
    before = torch.get_rng_state()
    first, second = (shoal.jacobian_penalty(layer, z, *inputs, probes=4) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state())


def test_gradients_count_that_the_equilibrium_moves():
    x, inject = normal(3, 2, seed=1), normal(2, 4, seed=2)

    def penalty(w, x, detached=False):
        layer = shoal.Equilibrium(lambda z, x: torch.tanh(0.3 * z @ w + x @ inject))
        z = layer(torch.zeros(3, 4, dtype=torch.float64), x)
        generator = torch.Generator().manual_seed(0)
        z = z.detach() if detached else z
        return shoal.jacobian_penalty(layer, z, x, probes=2, generator=generator)

    tensors = normal(4, 4).requires_grad_(), x.requires_grad_()
    assert torch.autograd.gradcheck(penalty, tensors)
    whole, partial = (torch.autograd.grad(penalty(*tensors, d), tensors[0])[0] for d in (0, 1))
    assert partial.norm() > 0
    assert (whole - partial).norm() > 1e-3 * whole.norm()


@pytest.mark.parametrize(
    "architecture",
    [
        shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8, bias_variance=0.1),
        shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8, parametrization="standard"),
        shoal.ImplicitNetwork(gamma=0.3),
    ],
    ids=lambda a: type(a).__name__,
)
def test_of_the_recurrent_layer_of_a_network(architecture):
    net = shoal.build(architecture, in_features=3, width=6, dtype=torch.float64)
    x = normal(4, 3)
    z = net.features(x)
    (layer, weight), big = net.recurrent_layers[0], z / net.feature_scale
    inner = layer.preactivation(big, net.inject(x), weight)
    jacobians = layer.activation.first_derivative(inner)[:, :, None] * layer.scale * weight
    expected = jacobians.square().sum() / (4 * 6)
    found = shoal.jacobian_penalty(net, z, x, probes=6)
    torch.testing.assert_close(found, expected)
    mine, theirs = (
        torch.autograd.grad(v, net.recurrent, retain_graph=True)[0] for v in (found, expected)
    )
    torch.testing.assert_close(mine, theirs)


def test_training_with_it_makes_the_jacobian_small():
    torch.manual_seed(0)
    linear = nn.Linear(8, 8).double()
    layer = shoal.Equilibrium(lambda z, x: torch.tanh(linear(z) + x))
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.02)
    x, seen = normal(10, 8), []
    for _ in range(20):
        optimizer.zero_grad()
        z = layer(torch.zeros_like(x), x)
        seen.append(shoal.jacobian_penalty(layer, z.detach(), x, probes=8).item())
        shoal.jacobian_penalty(layer, z, x).backward()
        optimizer.step()
    assert seen[-1] < 0.2 * seen[0]


def test_no_gradient_where_none_is_wanted():
    layer, z, inputs, _ = prepared(next(iter(CELLS)))
    with torch.no_grad():
        assert not shoal.jacobian_penalty(layer, z, *inputs).requires_grad


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layer": nn.Linear(2, 2)}, TypeError, "layer must be an Equilibrium or a network"),
        ({"probes": 0}, ValueError, "probes must be >= 1"),
        ({"generator": 3}, TypeError, "generator must be a Generator"),
    ],
)
def test_bad_arguments(change, error, message):
    layer, z, inputs, _ = prepared(WithDropout)
    arguments = {"layer": layer, **change}
    with pytest.raises(error, match=message):
        shoal.jacobian_penalty(arguments.pop("layer"), z, *inputs, **arguments)
    net = shoal.build(shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8), in_features=3, width=6)
    with pytest.raises(ValueError, match=r"z must have shape \(4, 6\), got \(4, 5\)"):
        shoal.jacobian_penalty(net, torch.zeros(4, 5), torch.zeros(4, 3))
