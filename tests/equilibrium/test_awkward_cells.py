"""Cells that are compiled, random, residual or empty, beside the plain iteration of the same."""

import warnings

import pytest
import torch
from torch import nn
from torch.func import jacfwd, jacrev

import shoal
from shoal import ConvergenceWarning, Equilibrium, Picard

# PyTorch's forward mode still loads parts that it calls deprecated itself
forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
DRIFTS = "The state grows by a constant each iteration"


class Cell(nn.Module):
    """A third of a block, and the input."""

    def __init__(self, *block):
        super().__init__()
        self.block = nn.Sequential(*block).double()

    def forward(self, z, x):
        return 0.3 * self.block(z) + x


def unrolled(cell, x, steps=60):
    z = torch.zeros_like(x)
    for _ in range(steps):
        z = cell(z, x)
    return z


def inputs(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo's
def test_a_compiled_block_inside_a_cell():
    torch.manual_seed(0)
    cell, x = Cell(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), inputs(64, 8)
    exact = torch.autograd.grad(unrolled(cell, x).sin().sum(), cell.parameters())
    cell.block.compile(backend="aot_eager")
    layer = Equilibrium(cell, on_failure="raise")
    for _ in range(2):
        layer.zero_grad()
        layer(torch.zeros_like(x), x).sin().sum().backward()
        found = [parameter.grad for parameter in cell.parameters()]
        torch.testing.assert_close(found, [*exact], rtol=1e-8, atol=1e-10)


class Residual(nn.Module):
    """A residual stream that only its branch normalizes, as in transformers."""

    def __init__(self):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, z, x):
        return z + torch.relu(self.branch(self.norm(z))) + x


def test_a_residual_stream_is_named_again_and_again():
    """A share of failures above a half is reported after 1, 10 and 100 solves."""
    torch.manual_seed(0)
    layer, x = Equilibrium(Residual(), solver=shoal.Picard(max_steps=40)), torch.randn(4, 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(100):
            layer(torch.zeros(4, 6), x)
    assert len(caught) == 3
    for warning in caught:
        assert warning.category is ConvergenceWarning
        assert DRIFTS in str(warning.message)
        assert "normalize the state, or run a fixed number of iterations" in str(warning.message)


@forward_mode
def test_dropout_in_training_mode_under_jacrev():
    torch.manual_seed(0)
    cell, x = Cell(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()), inputs(2, 4)
    layer = Equilibrium(cell).train()

    def seeded(x):
        torch.manual_seed(3)
        return layer(torch.zeros_like(x), x)

    row = torch.autograd.functional.jacobian(seeded, x)
    torch.testing.assert_close(jacrev(seeded)(x), row, rtol=1e-9, atol=1e-11)


@forward_mode
def test_second_derivatives_of_layer_norm_end_in_reverse_mode():
    """By reverse mode inside: PyTorch's tangents of LayerNorm have a wrong derivative."""
    torch.manual_seed(0)
    cell, x = Cell(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4)), inputs(2, 4)
    layer = Equilibrium(cell)

    def loss(x):
        return layer(torch.zeros_like(x), x).sin().sum()

    exact = jacrev(jacrev(lambda x: unrolled(cell, x).sin().sum()))(x)
    for outer in (jacrev, jacfwd):
        torch.testing.assert_close(outer(jacrev(loss))(x), exact, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("gradient", [None, shoal.Unrolled(), shoal.Reversible()], ids=repr)
def test_no_samples_have_empty_equilibria_and_gradients_of_zero(gradient):
    layer = Equilibrium(Cell(nn.Linear(4, 4)), gradient=gradient)
    z = layer(inputs(0, 4), inputs(0, 4))
    z.sum().backward()
    assert z.shape == (0, 4)
    assert layer.solution.converged.shape == (0,)
    assert not layer.cell.block[0].weight.grad.any()
    pair = Equilibrium(lambda z: (z[0] / 2, z[1]))((inputs(0, 3), inputs(0, 2, 2)))
    assert [part.shape for part in pair] == [(0, 3), (0, 2, 2)]


@pytest.mark.parametrize(
    ("cell", "rtol", "steps"),
    [(lambda z, x: torch.cos(3 * z) / 4 + x, 1e-12, 100), (lambda z, x: 0.999 * z + x, 1e-6, 200)],
    ids=["rounding", "slow"],
)
def test_contractions_are_no_residual_streams(cell, rtol, steps):
    x = torch.randn(80, 60, generator=torch.Generator().manual_seed(1))
    layer = Equilibrium(cell, solver=Picard(rtol=rtol, max_steps=steps))
    with pytest.warns(ConvergenceWarning) as caught:
        layer(torch.zeros_like(x), x)
    assert DRIFTS not in str(caught[0].message)
