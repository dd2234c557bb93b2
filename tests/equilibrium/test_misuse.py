"""What people do to layers, and what must not go wrong in silence."""

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal import Equilibrium, Neumann

F64 = torch.float64


class Cell(nn.Module):
    """A contraction with weights."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(5, 5, generator=generator, dtype=F64) / 5)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(z @ self.weight) / 2 + x


def inputs() -> Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=F64)


def unrolled(cell: nn.Module, x: Tensor, steps: int = 400) -> Tensor:
    z = torch.zeros_like(x)
    for _ in range(steps):
        z = cell(z, x)
    return z


def test_weights_changed_before_the_backward_pass_are_an_error() -> None:
    layer = shoal.Equilibrium(Cell())
    z = layer(torch.zeros(4, 5, dtype=F64), inputs())
    with torch.no_grad():
        layer.cell.weight.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        z.sum().backward()


@pytest.mark.parametrize("name", ["input", "weight"])
def test_results_are_tensors_of_their_own(name: str) -> None:
    """Not the cell's input or weight, which changes of the result would change too."""
    cell, x = Cell(), torch.ones(5, 5, dtype=F64)
    given = x if name == "input" else cell.weight
    with torch.no_grad():
        z = shoal.Equilibrium(lambda _z, _x: given)(torch.zeros(5, 5, dtype=F64), x)
        before = given.clone()
        z.add_(1)
    assert torch.equal(given, before)


def test_inputs_changed_in_place_by_the_cell_are_refused() -> None:
    def growing(z: Tensor, x: Tensor) -> Tensor:
        return z / 2 + x.add_(1)

    with pytest.raises(ValueError, match="must not change its inputs in place"):
        shoal.Equilibrium(growing)(torch.zeros(4, 5, dtype=F64), inputs())


def test_starts_may_be_mapped_over() -> None:
    layer, x = shoal.Equilibrium(Cell()), inputs()
    each = torch.func.vmap(lambda x: layer(torch.zeros_like(x)[None], x[None])[0])(x)
    torch.testing.assert_close(each, unrolled(layer.cell, x), rtol=1e-9, atol=1e-9)


def test_reversible_gradients_are_not_differentiated_again() -> None:
    layer = shoal.Equilibrium(Cell(), gradient=shoal.Reversible(0.5, steps=8), on_failure="status")
    x = inputs().requires_grad_()
    z = layer(torch.zeros(4, 5, dtype=F64), x)
    with pytest.raises(NotImplementedError, match="create_graph"):
        torch.autograd.grad(z.square().sum(), x, create_graph=True)


class Inner(nn.Module):
    """A layer with an equilibrium."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5, dtype=F64)
        self.loop = shoal.Equilibrium(lambda z, x: torch.cos(z) / 2 + x)

    def forward(self, x: Tensor) -> Tensor:
        return self.loop(torch.zeros_like(x), self.linear(x))


class Tied(nn.Module):
    """One layer under two names, and one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Inner(), nn.Linear(5, 5, bias=False, dtype=F64)
        self.second, self.last.weight = self.first, self.first.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x)))


def test_measuring_a_module_leaves_shared_layers_as_they_are() -> None:
    torch.manual_seed(0)
    net, x = Tied(), inputs() / 5
    ntk = shoal.empirical_kernel(net, x).ntk
    assert isinstance(net.first.linear.weight, nn.Parameter)
    parameters = list(net.parameters())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(out, parameters, retain_graph=True)])
        for out in net(x).flatten()
    ]
    exact = torch.stack(rows).view(4, 5, -1).flatten(1)
    torch.testing.assert_close(ntk, exact @ exact.T / 5, rtol=1e-8, atol=1e-8)
    run = shoal.train(net, x, x, steps=2, optimizer=torch.optim.Adam)
    assert run.status == "finished"


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_backward_pass_through_a_tangent_is_refused() -> None:
    """The tangent itself is exact; how the equilibrium moves is not in its graph."""
    w = (0.3 * torch.eye(2, dtype=torch.float64)).requires_grad_()
    x, v = torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        layer = shoal.Equilibrium(lambda z, x: torch.tanh(z @ w + x))
        z = layer(torch.zeros_like(x), forward_ad.make_dual(x, v))
        tangent = forward_ad.unpack_dual(z).tangent
    slope = 1 - z.detach() ** 2
    torch.testing.assert_close(tangent.detach(), slope / (1 - 0.3 * slope))
    with pytest.raises(NotImplementedError, match=r"take torch\.func\.jvp"):
        tangent.sum().backward()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Equilibrium(3), TypeError, "cell must be a module or a function, got int"),
        (lambda: Equilibrium(torch.cos, solver="anderson"), TypeError, "solver must be a Solver"),
        (lambda: Equilibrium(torch.cos, solver=()), TypeError, "solver must be a Solver"),
        (lambda: Equilibrium(torch.cos, gradient="jfb"), TypeError, "gradient must be a Gradient"),
        (lambda: Equilibrium(torch.cos, on_failure="no"), ValueError, "on_failure must be one of"),
        (lambda: Equilibrium(torch.cos, batched=1), TypeError, "batched must be True or False"),
        (
            lambda: Equilibrium(torch.cos, batched=False, separable=True),
            ValueError,
            "separable must be False",
        ),
        (lambda: Equilibrium(torch.cos)(torch.tensor(1.0)), ValueError, "z0 must have shape"),
        (lambda: Equilibrium(torch.cos)([]), ValueError, "z0 must hold at least one tensor"),
        (lambda: Equilibrium(torch.cos)([1.0]), TypeError, "z0 must be a tensor"),
        (lambda: Equilibrium(torch.cos)("z"), TypeError, "z0 must be a"),
        (
            lambda: Equilibrium(lambda z: z)((torch.ones(2, 1), torch.ones(3, 1))),
            ValueError,
            r"one entry per sample, got shapes \(2, 1\), \(3, 1\)",
        ),
        (
            lambda: Equilibrium(lambda z: z)((torch.ones(2), torch.ones(2).double())),
            ValueError,
            "tensors of one dtype",
        ),
        (
            lambda: Equilibrium(lambda z: (z, z))(torch.ones(2, 1)),
            ValueError,
            r"the cell must return a state like z0, of shape \(2, 1\), got tuple",
        ),
        (
            lambda: Equilibrium(torch.add, separable=True)(torch.ones(2, 1), torch.ones(3)),
            ValueError,
            "inputs must have one entry per sample of z0, 2",
        ),
        (lambda: Neumann(-1), ValueError, "terms must be"),
        (lambda: Equilibrium(torch.nn.Identity), TypeError, "a module or a function, got Identity"),
        (
            lambda: Equilibrium(torch.cos).gradient_error(torch.ones(2, 1)),
            ValueError,
            "gradient_error needs parameters or inputs",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")
def test_traces_are_refused():
    """They would freeze the number of steps."""
    with pytest.raises(TypeError, match="support only explicit networks"):
        torch.jit.trace(Equilibrium(torch.cos), (torch.ones(2, 1),))
