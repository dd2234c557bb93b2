"""Recorded solves on a GPU return what ordinary ones do, whatever happens to the cell."""

import copy

import pytest
import torch
from torch import nn

import shoal
from shoal.equilibrium import DampedPicard

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Block(nn.Module):
    """Attention and an MLP with normalization, and a second input."""

    def __init__(self, width=16):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.scale = nn.RMSNorm(width), 0.3

    def forward(self, z, x, shift):
        seen, _ = self.attention(z, z, z, need_weights=False)
        change = self.outer(torch.nn.functional.gelu(self.inner(z + self.scale * seen)))
        return 0.3 * self.norm(x + self.scale * change) + shift


class Pair(nn.Module):
    """A state of two tensors."""

    def __init__(self, width=16):
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, z, x):
        a, b = z
        return torch.tanh(0.5 * self.left(b) + x), torch.tanh(0.5 * self.right(a) - x)


def both(cell, **options):
    """A layer that records and one that does not, with the same weights."""
    cell = cell.double().cuda()
    options = {"on_failure": "status", **options}
    return (
        shoal.Equilibrium(cell, graphs=True, **options),
        shoal.Equilibrium(copy.deepcopy(cell), **options),
    )


def outcome(layer, z0, *inputs):
    """A state, its statuses, and the gradients of inputs and weights."""
    layer.zero_grad()
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    state = layer(z0, *inputs)
    leaves = state if isinstance(state, tuple) else (state,)
    sum(
        (leaf * torch.linspace(-1, 2, leaf.numel()).cuda().view_as(leaf)).sum() for leaf in leaves
    ).backward()
    gradients = [x.grad for x in inputs] + [p.grad.clone() for p in layer.parameters()]
    return [leaf.detach() for leaf in leaves], gradients, layer.solution.status.clone()


def same(layers, z0, *inputs):
    """Compare the two layers."""
    ours, theirs = (outcome(layer, z0, *inputs) for layer in layers)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
    return ours


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, device="cuda")


def recordings(layer):
    """How many computations a layer has recorded."""
    kinds = layer.recorder._kinds.values()
    return sum(one is not None for kind in kinds for one in kind._recordings.values())


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_foreign_cells_batch_sizes_and_training():
    layers = both(Block())
    optimizers = [torch.optim.SGD(layer.parameters(), lr=1e-2) for layer in layers]
    for samples in (4, 4, 4, 3, 3, 4, 3):
        x = draw(samples, 5, 16)
        same(layers, torch.zeros_like(x), x, draw(16) / 10)
        for optimizer in optimizers:
            optimizer.step()
    assert recordings(layers[0]) >= 2


def test_states_of_two_tensors():
    layers = both(Pair())
    for _ in range(4):
        x = draw(6, 16)
        same(layers, (torch.zeros_like(x), torch.zeros_like(x)), x)
    assert recordings(layers[0]) >= 1


def test_a_cell_that_changes_behind_the_recording():
    """A number of Python is no tensor: the recording has the old one, and is not believed."""
    layers = both(Block())
    for scale in (0.3, 0.3, 0.3, 0.1, 0.1, 0.2):
        for layer in layers:
            layer.cell.scale = scale
        x = draw(4, 5, 16)
        same(layers, torch.zeros_like(x), x, draw(16) / 10)


def test_weights_that_are_replaced():
    layers = both(Pair())
    for _ in range(3):
        for _ in range(3):
            x = draw(6, 16)
            same(layers, (torch.zeros_like(x), torch.zeros_like(x)), x)
        for layer in layers:
            layer.cell.left.weight.data = layer.cell.left.weight.data * 0.7


def test_two_forward_passes_before_their_backward_passes():
    layers = both(Pair())
    for _ in range(3):
        xs = [draw(6, 16).requires_grad_() for _ in range(2)]
        found = []
        for layer in layers:
            states = [layer((torch.zeros_like(x), torch.zeros_like(x)), x) for x in xs]
            total = sum((a * b * (k + 1)).sum() for k, (a, b) in enumerate(states))
            found.append(torch.autograd.grad(total, xs))
        torch.testing.assert_close(*found, rtol=1e-8, atol=1e-9)


def test_second_derivatives_after_recorded_ones():
    layers = both(Pair())
    for _ in range(3):
        x = draw(3, 16).requires_grad_()
        found = []
        for layer in layers:
            a, b = layer((torch.zeros_like(x), torch.zeros_like(x)), x)
            (first,) = torch.autograd.grad((a * b).sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), x)[0])
        torch.testing.assert_close(*found, rtol=1e-7, atol=1e-8)


def test_failures_have_the_statuses_of_ordinary_solves():
    class Expanding(nn.Linear):
        def forward(self, z, x):
            return torch.tanh(2.5 * super().forward(z) + x)

    layers = both(Expanding(16, 16), solver=shoal.Picard(max_steps=40))
    for _ in range(4):
        x = draw(8, 16)
        statuses = []
        for layer in layers:
            layer(torch.zeros_like(x), x)
            statuses.append(layer.solution.status)
        assert torch.equal(*statuses)
        assert (statuses[0] != 0).any()


@pytest.mark.parametrize("kind", ["waits for the device", "draws numbers"])
def test_what_cannot_be_recorded_is_solved_step_by_step(kind):
    class Cell(nn.Linear):
        def forward(self, z, x):
            if kind == "draws numbers":
                return torch.tanh(0.3 * super().forward(nn.functional.dropout(z, 0.2)) + x)
            half = 0.5 if float(z.sum()) < 1e9 else 0.1
            return torch.tanh(half * super().forward(z) + x)

    layer, _ = both(Cell(16, 16))
    for _ in range(4):
        x = draw(5, 16)
        with torch.no_grad():
            layer(torch.zeros_like(x), x)
        assert (layer.solution.status == 0).all()
    assert recordings(layer) == 0


def test_copies_autocast_inference_and_other_solvers():
    layer, _ = both(Pair())
    x = draw(6, 16)
    z0 = torch.zeros_like(x), torch.zeros_like(x)
    expected = layer(z0, x)[0].detach()
    for _ in range(3):
        with torch.inference_mode():
            torch.testing.assert_close(layer(z0, x)[0], expected)
        with torch.autocast("cuda", torch.bfloat16):
            state = layer(z0, x)[0].detach()  # products with eight bits
            torch.testing.assert_close(state, expected, rtol=0.1, atol=0.05)
        torch.testing.assert_close(copy.deepcopy(layer)(z0, x)[0].detach(), expected)
    for solver in (DampedPicard(0.3), shoal.Anderson(), shoal.Broyden()):
        other = shoal.Equilibrium(layer.cell, graphs=True, solver=solver)
        for _ in range(3):
            torch.testing.assert_close(other(z0, x)[0].detach(), expected)
