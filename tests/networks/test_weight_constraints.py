"""Constraints on the weights of modules that shoal did not build, against explicit matrices."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from shoal import DEQ, Equilibrium, GainConstraint, Picard, build
from shoal.activations import Tanh
from shoal.networks import operator_norm_bounds


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def explicit_norm(layer, *shape):
    """The norm of the linear part of a layer for inputs of a shape, by its whole matrix."""
    zero = torch.zeros(1, *shape, dtype=torch.float64)
    units = torch.eye(zero.numel(), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        rows = (layer(units) - layer(zero)).flatten(1)
    return float(torch.linalg.svdvals(rows)[0])


# layer, and shape of its inputs
CONVOLUTIONS = {
    "plain": (lambda: nn.Conv1d(2, 3, 3), (2, 7)),
    "padded": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 5, 4)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 5)),
    "small circular": (lambda: nn.Conv1d(1, 1, 5, padding=2, padding_mode="circular"), (1, 3)),
    "wide circular": (lambda: nn.Conv1d(2, 2, 2, padding=3, padding_mode="circular"), (2, 3)),
    "reflected": (lambda: nn.Conv1d(2, 2, 3, padding=2, padding_mode="reflect"), (2, 3)),
    "replicated": (lambda: nn.Conv1d(2, 2, 3, padding=2, padding_mode="replicate"), (2, 1)),
    "same": (lambda: nn.Conv1d(2, 2, 4, padding="same", padding_mode="circular"), (2, 6)),
    "stride": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 6, 5)),
    "patches": (lambda: nn.Conv2d(2, 3, 2, stride=2), (2, 4, 4)),
    "dilation": (lambda: nn.Conv1d(2, 3, 3, dilation=2, padding=2), (2, 8)),
    "dilation and stride": (lambda: nn.Conv1d(2, 3, 4, dilation=2, stride=4), (2, 15)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 4, 4)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 4, 4)),
    "volume": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), (2, 3, 3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("positive", [False, True])
def test_norms_of_convolutions_are_bounded(name, positive):
    """Positive weights are the worst case: all positions of the kernel add up."""
    torch.manual_seed(0)
    make, shape = CONVOLUTIONS[name]
    layer = make().double()
    with torch.no_grad():
        layer.weight.mul_(3)
        if positive:
            layer.weight.abs_()
    norm = explicit_norm(layer, *shape)
    bound = GainConstraint(layer, max_gain=1e6).apply()
    positions = layer.weight[0, 0].numel()
    assert norm <= bound <= 3.1 * math.sqrt(positions) * norm
    assert GainConstraint(layer, max_gain=0.3).apply() <= 0.3
    assert explicit_norm(layer, *shape) <= 0.3


def test_the_bound_is_attained():
    """By patches that do not overlap, and by ones where all places of the kernel add up."""
    torch.manual_seed(0)
    patches = nn.Conv2d(2, 3, 2, stride=2).double()
    bound = GainConstraint(patches, max_gain=1e6).apply()
    assert bound == pytest.approx(explicit_norm(patches, 2, 4, 4), rel=2e-3)
    ones = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular").double()
    nn.init.ones_(ones.weight)
    bound = GainConstraint(ones, max_gain=1e6).apply()
    assert bound == pytest.approx(explicit_norm(ones, 1, 5), rel=2e-3)


def test_blocks_have_the_norm_of_the_largest():
    blocks = torch.stack([normal(3, 5, seed=s) for s in range(4)])
    lower, upper = operator_norm_bounds(blocks)
    true = float(torch.linalg.svdvals(torch.block_diag(*blocks))[0])
    assert 0.9 * true <= lower <= true * (1 + 1e-12)
    assert true <= upper <= true * 1.001 * (1 + 1e-9)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.inject = nn.Linear(16, 16), nn.Linear(3, 16)
        self.matrix = nn.Parameter(torch.randn(16, 16))
        self.cube = nn.Parameter(torch.randn(2, 2, 2))

    def forward(self, z, x):
        return torch.tanh(self.recurrent(z) + self.inject(x))


def test_it_holds_at_every_step_of_an_optimizer():
    torch.manual_seed(0)
    layer = Equilibrium(Cell(), on_failure="raise")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    constraint = GainConstraint(layer, max_gain=0.8, weights="recurrent")
    handle = constraint.attach(optimizer)
    x, norms = torch.randn(6, 3), []
    for _ in range(15):
        optimizer.zero_grad()
        loss = layer(torch.zeros(6, 16), x).square().sum()
        loss = loss - layer.cell.recurrent.weight.square().sum()
        loss.backward()
        optimizer.step()
        norms.append(float(torch.linalg.svdvals(layer.cell.recurrent.weight.detach().double())[0]))
        assert constraint.apply() <= 0.8
    handle.remove()
    assert 0.7 < max(norms) <= 0.8


@pytest.mark.parametrize("residual", [False, True])
def test_a_norm_below_one_makes_plain_cells_contract_and_residual_ones_drift(residual):
    torch.manual_seed(0)
    cell, x = Cell(), torch.randn(6, 3)
    GainConstraint(cell, max_gain=0.1, weights="recurrent").apply()
    step = (lambda z, x: z + 1 + 0.01 * cell(z, x)) if residual else cell
    layer = Equilibrium(step, solver=Picard(), on_failure="status")
    layer(torch.zeros(6, 16), x)
    assert bool((layer.solution.converged != residual).all())


def norm_of(weight):
    return float(torch.linalg.svdvals(weight.detach().double())[0])


def test_chosen_weights_alone_are_scaled():
    torch.manual_seed(0)
    cell = Cell()
    with torch.no_grad():
        cell.inject.weight.mul_(10)
    before = norm_of(cell.inject.weight), norm_of(cell.matrix)
    GainConstraint(cell, max_gain=0.5, weights=["recurrent.*"]).apply()
    assert norm_of(cell.recurrent.weight) <= 0.5
    assert (norm_of(cell.inject.weight), norm_of(cell.matrix)) == before
    GainConstraint(cell, max_gain=0.5, weights=("matrix",)).apply()
    assert norm_of(cell.matrix) <= 0.5
    assert norm_of(cell.inject.weight) == before[0]
    GainConstraint(cell, max_gain=0.5).apply()
    assert norm_of(cell.inject.weight) <= 0.5


def test_weights_below_the_bound_stay_and_frozen_ones_do_not():
    cell = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).requires_grad_(False)
    cell[1].weight.mul_(100)
    before = cell[0].weight.clone()
    assert GainConstraint(cell, max_gain=2.0).apply() <= 2
    assert torch.equal(cell[0].weight, before)
    assert norm_of(cell[1].weight) <= 2


def test_shared_weights_are_scaled_once():
    first, second = nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 2, 3, stride=3)
    second.weight = first.weight
    with torch.no_grad():
        first.weight.mul_(100)
    both = nn.Sequential(second, first, first).double()
    second.weight = first.weight
    constraint = GainConstraint(both, max_gain=0.9)
    assert constraint.apply() <= 0.9
    assert 0.4 < explicit_norm(first, 2, 6) <= 0.9  # and not twice
    assert explicit_norm(second, 2, 6) <= 0.9


@pytest.mark.parametrize(
    ("network", "weights", "error", "message"),
    [
        (nn.Tanh(), None, ValueError, "network must have a linear or convolutional layer"),
        (
            Cell(),
            "unknown*",
            ValueError,
            r"got 'unknown\*'; there are matrix, cube, recurrent.weig",
        ),
        (Cell(), "cube", ValueError, "'cube' of shape"),
        (Cell(), 3, TypeError, "weights must be names"),
        (
            Equilibrium(torch.tanh),
            None,
            TypeError,
            "network must have a recurrent layer, or be a m",
        ),
        (nn.LazyLinear(3), None, TypeError, "lazy layer"),
        (parametrizations.spectral_norm(nn.Linear(3, 3)), None, ValueError, "a parametrization"),
        (nn.utils.spectral_norm(nn.Linear(3, 3)), None, ValueError, "a parametrization"),
        (build(DEQ(Tanh(), 0.1, 0.8), in_features=4, width=8), "a", ValueError, "must be None"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Lazy modules", "ignore:.*spectral_norm.* is deprecated")
def test_what_cannot_be_constrained_is_refused(network, weights, error, message):
    with pytest.raises(error, match=message):
        GainConstraint(network, weights=weights)


def test_parametrized_networks_are_refused():
    """Scaling what a parametrization has made would leave the network as it is."""
    net = build(DEQ(Tanh(), 0.5, 0.5), in_features=4, width=8)
    parametrize.register_parametrization(net, "recurrent", nn.Tanh())
    with pytest.raises(ValueError, match="with a parametrization"):
        GainConstraint(net)
