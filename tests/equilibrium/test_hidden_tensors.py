"""Tensors that a function uses without being given them, or not everywhere."""

import pytest
import torch
from torch import nn

import shoal
from shoal.equilibrium import fixed_point

# PyTorch's forward mode still loads parts that it calls deprecated itself
forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

Z0 = torch.ones(2, 1, dtype=torch.float64)
A = torch.tensor(0.5, dtype=torch.float64)


def hidden(a):
    return fixed_point(lambda z: torch.cos(a * z), Z0).sum()


def given(a):
    return fixed_point(lambda z, a: torch.cos(a * z), Z0, parameters=(a,)).sum()


def closed_form(a):
    """The sum of two equal fixed points of cos(a z), by Newton's method in plain numbers."""
    z = torch.ones((), dtype=torch.float64)
    for _ in range(60):
        z = z - (z - torch.cos(a * z)) / (1 + a * torch.sin(a * z))
    return 2 * z


def test_first_derivatives_come_by_themselves_and_others_are_refused():
    a = A.clone().requires_grad_()
    found, exact = (torch.autograd.grad(f(a), a)[0] for f in (hidden, given))
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-11)
    with pytest.raises(TypeError, match="not among its inputs"):
        torch.autograd.grad(hidden(a), a, create_graph=True)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.hessian):
        with pytest.raises(TypeError, match="not among its inputs"):
            transform(hidden)(A)
        torch.testing.assert_close(transform(given)(A), transform(closed_form)(A))
    with pytest.raises(TypeError, match="neither inputs nor parameters"):
        shoal.Equilibrium(lambda z: a * torch.cos(z), gradient=shoal.Reversible())(Z0)


@forward_mode
def test_tangents_come_by_themselves_once():
    one = torch.ones_like(A)
    found = torch.func.jvp(hidden, (A,), (one,))[1]
    torch.testing.assert_close(found, torch.func.grad(closed_form)(A), rtol=1e-10, atol=1e-11)
    with pytest.raises(TypeError, match="not among its inputs"):
        torch.func.jacfwd(torch.func.jacfwd(hidden))(A)
    found = torch.func.jacfwd(torch.func.jacfwd(given))(A)
    torch.testing.assert_close(found, torch.func.hessian(closed_form)(A))


def routed():
    """A mixture of experts, of which the start uses one."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(3, 3).double()
            self.experts = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(3))

        def forward(self, z, x):
            chosen, out = self.gate(z).argmax(1), torch.zeros_like(z)
            for index, expert in enumerate(self.experts):
                rows = (chosen == index).nonzero()[:, 0]
                if len(rows):
                    out = out.index_put((rows,), expert(z[rows]))
            return torch.tanh(0.4 * out + x)

    torch.manual_seed(0)
    layer, x = shoal.Equilibrium(Experts(), on_failure="raise"), torch.randn(6, 3).double()

    def loss(given):
        return torch.func.functional_call(layer, given, (torch.zeros_like(x), x)).pow(3).sum()

    return loss, dict(layer.named_parameters())


@forward_mode
def test_parameters_that_are_not_used_at_the_start():
    loss, parameters = routed()
    exact = torch.autograd.grad(
        loss(parameters), [*parameters.values()], allow_unused=True, materialize_grads=True
    )
    assert sum(bool(gradient.any()) for gradient in exact) > 2
    values = {name: p.detach() for name, p in parameters.items()}
    found = torch.func.grad(loss)(values)
    torch.testing.assert_close([*found.values()], [*exact], rtol=1e-8, atol=1e-11)
    ones = {name: torch.ones_like(p) for name, p in values.items()}
    tangent = torch.func.jvp(loss, (values,), (ones,))[1]
    torch.testing.assert_close(tangent, torch.stack([g.sum() for g in exact]).sum())


@forward_mode
def test_states_that_carry_an_input_through():
    """One part of the state is the input itself, untouched by any operation."""
    torch.manual_seed(0)
    x = torch.randn(4, 3).double().requires_grad_()

    def loss(x, gradient=None):
        strict = "raise" if gradient is None else "status"
        layer = shoal.Equilibrium(
            lambda z, x: (torch.tanh(z[0] / 2 + z[1]), x), gradient=gradient, on_failure=strict
        )
        start = torch.zeros(x.shape, dtype=x.dtype)
        return layer((start, start), x)[0].pow(3).sum()

    z = torch.zeros(4, 3).double()
    for _ in range(80):
        z = torch.tanh(z / 2 + x)
    (exact,) = torch.autograd.grad(z.pow(3).sum(), x, create_graph=True)
    second = torch.autograd.grad(exact.sum(), x)[0]
    (found,) = torch.autograd.grad(loss(x), x, create_graph=True)
    torch.testing.assert_close(found, exact)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], second)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(loss)(x.detach()), exact.detach())
    hessian = torch.func.hessian(loss)(x.detach())
    torch.testing.assert_close(hessian.sum((0, 1)), second)
    (reversed_,) = torch.autograd.grad(loss(x, shoal.Reversible(0.3, steps=20)), x)
    assert (reversed_ - exact).norm() < 1e-4 * exact.norm()  # as far as 20 steps go


def test_torch_func_inside_a_cell():
    """Energies whose gradient the cell takes."""
    torch.manual_seed(0)
    x, w = (torch.randn(4, 3).double().requires_grad_() for _ in range(2))

    def energy(z, x):
        return (z * w).square().sum() / 2 + torch.cosh(z).sum() - (z * x).sum()

    cells = (
        lambda z, x: z - 0.1 * torch.func.grad(energy)(z, x),
        lambda z, x: z - 0.1 * (z * w * w + torch.sinh(z) - x),
    )
    zero, found = torch.zeros(4, 3).double(), []
    for cell in cells:
        z = shoal.Equilibrium(cell, on_failure="raise")(zero, x)
        found.append((z, *torch.autograd.grad(z.square().sum(), (x, w))))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


def test_inputs_that_are_used_in_some_branches():
    class Branches(nn.Module):
        def forward(self, z, x, y):
            return torch.tanh(z / 3 + x) if z.any() else torch.tanh(z / 5 + y)

    torch.manual_seed(0)
    layer, zero = shoal.Equilibrium(Branches(), on_failure="raise"), torch.zeros(3, 4).double()
    x, y = (torch.randn(3, 4).double().requires_grad_() for _ in range(2))
    (exact,) = torch.autograd.grad(layer(zero, x, y).sum(), x)
    found = torch.func.grad(lambda x, y: layer(zero, x, y).sum(), (0, 1))(x.detach(), y.detach())
    torch.testing.assert_close(found, (exact, torch.zeros_like(y)))
    assert exact.norm() > 1
