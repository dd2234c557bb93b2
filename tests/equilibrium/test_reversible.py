"""Iterations that are run backwards: their gradient against autograd's through stored steps."""

import pytest
import torch
from torch.utils import _pytree as pytree

from equilibrium.foreign_cells import CELLS, Normalized, Splitting, WithDropout
from shoal import ConvergenceWarning, Equilibrium, Picard, Reversible

every_cell = pytest.mark.parametrize("kind", [Normalized, Splitting, WithDropout])


def stored(cell, z0, inputs, beta, steps):
    """The same iteration with all its steps in a graph."""
    y = z = z0
    for _ in range(steps):
        torch.manual_seed(1)
        value = cell(z, *inputs)
        y = pytree.tree_map(lambda a, b: (1 - beta) * a + beta * b, y, value)
        torch.manual_seed(1)
        value = cell(y, *inputs)
        z = pytree.tree_map(lambda a, b: (1 - beta) * a + beta * b, z, value)
    return z


def total(state):
    return sum(leaf.sin().sum() for leaf in pytree.tree_leaves(state))


@every_cell
def test_the_gradient_of_the_iteration(kind):
    """Few steps, so that it is far from converged and the implicit gradient another one."""
    torch.manual_seed(0)
    cell, (z0, inputs, _, _) = kind().double(), CELLS[kind]()
    inputs[0].requires_grad_()
    layer = Equilibrium(cell, gradient=Reversible(0.6, steps=3), on_failure="status")
    tensors = (inputs[0], *cell.parameters())
    torch.manual_seed(1)
    found = layer(z0, *inputs)
    exact = stored(cell, z0, inputs, 0.4, 3)
    for left, right in zip(pytree.tree_leaves(found), pytree.tree_leaves(exact), strict=True):
        torch.testing.assert_close(left, right)
    torch.testing.assert_close(
        torch.autograd.grad(total(found), tensors), torch.autograd.grad(total(exact), tensors)
    )


def test_it_converges_to_the_implicit_gradient():
    torch.manual_seed(0)
    cell, (z0, inputs, _, _) = Normalized().double(), CELLS[Normalized]()
    gradients = []
    for gradient in (None, Reversible(0.5)):
        layer = Equilibrium(cell, solver=Picard(rtol=1e-8), gradient=gradient)
        loss = total(layer(z0, *inputs))
        assert layer.solution.converged.all()
        gradients.append(torch.autograd.grad(loss, tuple(cell.parameters())))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert layer.solution.adjoint.converged.all()


def test_memory_does_not_grow_with_the_steps():
    sizes = []
    weight = torch.eye(8, requires_grad=True)
    for steps in (2, 20):
        gradient = Reversible(0.7, steps=steps)
        layer = Equilibrium(lambda z, w: z @ (0.1 * w) + 1, gradient=gradient, on_failure="status")
        held = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, held=held: held.append(t.numel()) or t, lambda t: t
        ):
            layer(torch.zeros(4, 8), weight)
        sizes.append(sum(held))
    assert sizes[0] == sizes[1]


def test_rounding_that_grows_backwards_is_said():
    w = torch.tensor(0.5, requires_grad=True)
    layer = Equilibrium(lambda z, w: w * torch.cos(z), gradient=Reversible(0.1, steps=40))
    z = layer(torch.ones(2, 1), w)
    with pytest.warns(ConvergenceWarning, match="did not return to its start"):
        z.sum().backward()
    assert not layer.solution.adjoint.converged.any()


@pytest.mark.parametrize("damping", [0, 1, "half"])
def test_bad_input(damping):
    with pytest.raises((TypeError, ValueError), match="damping must be"):
        Reversible(damping)


@pytest.mark.parametrize("steps", [None, 20])
def test_samples_that_diverge_rest_where_they_were_best(steps):
    """They are marked, their gradients are bounded, and those of the others are right."""
    slopes = torch.tensor([[0.3], [3.0], [-0.2]], dtype=torch.float64)
    weight = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
    layer = Equilibrium(
        lambda z, s, w: w * s * z + 1,
        solver=Picard(max_steps=30, rtol=1e-4),
        gradient=Reversible(0.5, steps=steps),
        on_failure="status",
    )
    z = layer(torch.zeros_like(slopes), slopes, weight)
    z.sum().backward()
    assert layer.solution.status.tolist() == [0, 2, 0]
    assert z[1].abs() < 10
    assert weight.grad[1].abs() < 10
    exact = slopes / (1 - slopes) ** 2  # of 1 / (1 - weight slope)
    torch.testing.assert_close(weight.grad[[0, 2]], exact[[0, 2]], rtol=1e-2, atol=0)
    assert layer.solution.adjoint.converged.all()


def test_divergence_is_told_from_nan_and_no_solver_is_blamed():
    layer = Equilibrium(lambda z, x: 3 * z + x, gradient=Reversible(0.5))
    x = torch.ones(2, 1, requires_grad=True)
    with pytest.warns(ConvergenceWarning, match="grew without bound") as caught:
        z = layer(torch.zeros(2, 1), x)
    assert "solver" not in str(caught[0].message)
    assert z.isfinite().all()
    with pytest.raises(NotImplementedError, match=r"vectorize=True.*one at a time"):
        torch.autograd.grad(z, x, torch.eye(2).view(2, 2, 1), is_grads_batched=True)


def test_steps_are_counted_in_every_dtype():
    layer = Equilibrium(
        lambda z, x: z / 2 + x, gradient=Reversible(0.5, steps=301), on_failure="status"
    )
    layer(torch.zeros(2, 1, dtype=torch.bfloat16), torch.ones(2, 1, dtype=torch.bfloat16))
    assert layer.solution.steps.tolist() == [301, 301]
