"""The contraction of logarithms: against explicit Jacobians, differences and known bounds."""

import pytest
import torch

import shoal


def uniform(*shape, seed=0):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Softplus(torch.nn.Module):
    """A cell of weights of both signs whose values are positive, on a state of two tensors."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(uniform(5, 5) - 0.5)

    def forward(self, z, x):
        both = torch.cat(z, -1) @ self.weight.T + x
        return torch.nn.functional.softplus(both).split((2, 3), -1)


def test_against_the_explicit_jacobian_in_logarithms():
    cell, x = Softplus(), uniform(4, 5, seed=1)
    z = uniform(4, 5, seed=2) + 0.1
    layer = shoal.Equilibrium(cell)
    found = shoal.equilibrium.subhomogeneity(layer, z.split((2, 3), -1), x)

    def logarithm(y, row):
        return torch.cat(cell(y.exp().split((2, 3), -1), row), -1).log()

    for k in range(4):
        explicit = torch.autograd.functional.jacobian(lambda y, k=k: logarithm(y, x[k]), z[k].log())
        assert found[k].item() == pytest.approx(explicit.abs().sum(1).max().item(), rel=1e-12)


def test_it_bounds_how_logarithms_approach_each_other():
    weights, x = 3 * uniform(6, 6), uniform(1, 6, seed=1)
    layer = shoal.Equilibrium(lambda z, x: torch.sigmoid(z @ weights + x))
    grid = 10 ** (6 * uniform(300, 6, seed=2) - 4)
    factors = shoal.equilibrium.subhomogeneity(layer, grid, x.expand(300, -1))
    t = torch.linspace(0, 20, 200_001, dtype=torch.float64)
    bound = (t * (1 - torch.sigmoid(t))).max()
    assert bound == pytest.approx(0.2785, abs=1e-4)
    assert (factors <= bound).all()
    assert torch.linalg.matrix_norm(weights, 2) > 5
    maps = layer.cell(grid, x).log()
    moved = (maps[:150] - maps[150:]).abs().amax(1)
    assert (moved <= bound * (grid[:150] / grid[150:]).log().abs().amax(1)).all()


def test_of_a_network():
    deq = shoal.DEQ("sigmoid", 0.2, 0.8)
    net = shoal.build(deq, in_features=3, width=7, dtype=torch.float64)
    x = uniform(2, 3)
    z = net.features(x).detach()
    big, injected = z * 7**0.5, net.inject(x).detach()  # of z sqrt(m), as it is solved for
    inner = 0.2**0.5 / 7**0.5 * big @ net.recurrent.T + injected
    slopes = torch.sigmoid(inner) * (1 - torch.sigmoid(inner))
    jacobian = slopes[:, :, None] * (0.2 / 7) ** 0.5 * net.recurrent
    explicit = ((jacobian.abs() * big[:, None]).sum(2) / torch.sigmoid(inner)).amax(1)
    torch.testing.assert_close(shoal.equilibrium.subhomogeneity(net, z, x), explicit.detach())


@pytest.mark.parametrize(
    ("function", "z", "words"),
    [
        (torch.sigmoid, torch.tensor([[0.5, 0.0]]), "z must be positive, got 0"),
        (torch.tanh, torch.tensor([[0.5, -1.0]]), "z must be positive, got -1"),
        (lambda z: z - 1, torch.tensor([[0.5, 2.0]]), "the layer's value at z must be positive"),
    ],
)
def test_states_must_be_positive(function, z, words):
    with pytest.raises(ValueError, match=words):
        shoal.equilibrium.subhomogeneity(shoal.Equilibrium(function), z)


def test_only_of_layers():
    with pytest.raises(TypeError, match="layer must be an Equilibrium"):
        shoal.equilibrium.subhomogeneity(torch.sigmoid, torch.ones(1, 1))
