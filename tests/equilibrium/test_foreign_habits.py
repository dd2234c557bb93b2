"""What users do to modules of their own: hooks, fused attention, states of any kind."""

from collections import namedtuple

import pytest
import torch
from torch import nn

import shoal

F64 = torch.float64
METHODS = [shoal.Implicit(), shoal.Neumann(3), shoal.OneStep(), shoal.Unrolled()]
METHODS += [shoal.Reversible(0.5, steps=12)]


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def unrolled(cell, z, *inputs, steps=100):
    for _ in range(steps):
        z = cell(z, *inputs)
    return z


X, Z0 = random(3, 4), torch.zeros(3, 4, dtype=F64)


@pytest.mark.parametrize("gradient", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("late", [False, True])
def test_hooks_of_parameters_are_called_once_for_the_whole_gradient(gradient, late):
    """As those that scale, clip or project gradients."""
    weight = nn.Parameter(0.2 * random(4, 4, seed=1))
    seen = []

    def hook(found):
        seen.append(found.clone())
        return 2 * found

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, z, x):
            return torch.tanh(z @ self.weight + x)

    layer = shoal.Equilibrium(Cell(), gradient=gradient, on_failure="status")
    (exact,) = torch.autograd.grad(layer(Z0, X).sin().sum(), weight)
    handle = None if late else weight.register_hook(hook)
    loss = layer(Z0, X).sin().sum()
    handle = handle or weight.register_hook(hook)
    loss.backward()
    handle.remove()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], exact, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(weight.grad, 2 * exact, rtol=1e-8, atol=1e-9)


class Attending(nn.Module):
    """PyTorch's transformer block, with its fused attention."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.block = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True, dtype=F64)

    def forward(self, z, x):
        return 0.05 * self.block(z) + x


TOKENS = random(2, 3, 4)


def test_newtons_method_takes_fused_attention():
    cell, z0 = Attending(), torch.zeros_like(TOKENS)
    z = shoal.Equilibrium(cell, solver=shoal.NewtonKrylov())(z0, TOKENS)
    torch.testing.assert_close(z, unrolled(cell, z0, TOKENS, steps=30), rtol=1e-9, atol=1e-10)


def test_gradient_penalties_take_fused_attention():
    """By finite differences of the first derivatives."""
    cell, z0 = Attending(), torch.zeros_like(TOKENS)
    layer, weight = shoal.Equilibrium(cell), cell.block.linear1.weight
    v, step = random(8, 4, seed=2), 1e-5

    def penalty(**options):
        x = TOKENS.clone().requires_grad_()
        (slope,) = torch.autograd.grad(layer(z0, x).sin().sum(), x, **options)
        return slope.square().sum()

    (found,) = torch.autograd.grad(penalty(create_graph=True), weight)
    ends = []
    for side in (1, -2):
        with torch.no_grad():
            weight.add_(side * step * v)
        ends.append(float(penalty()))
    assert (found * v).sum().item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5)


Pair = namedtuple("Pair", "left right")


def test_dictionaries_may_come_back_in_another_order():
    def cell(state, x):
        return {"b": 0.5 * torch.sin(state["a"]), "a": torch.tanh(0.3 * state["b"] + x)}

    start = {"a": Z0, "b": Z0}
    found, exact = shoal.Equilibrium(cell)(start, X), unrolled(cell, start, X)
    assert list(found) == ["a", "b"]
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, exact[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("start", "returned", "message"),
    [
        ({"a": Z0}, {"c": Z0}, r"of shapes dict\(a=\(3, 4\)\), got dict\(c=\(3, 4\)\)"),
        ({"a": Z0}, (Z0,), r"of shapes dict\(a=\(3, 4\)\), got tuple\(\(3, 4\)\)"),
        (Pair(Z0, Z0), (Z0, Z0), r"of shapes Pair\(\(3, 4\), \(3, 4\)\), got tuple\(\(3, 4\), "),
        ((Z0, Z0), (Z0, None), r"of shapes tuple\(\(3, 4\), \(3, 4\)\), got tuple\(.*, NoneType\)"),
        ([Z0, Z0], [Z0, (Z0, Z0)], r"got list\(\(3, 4\), tuple\(\(3, 4\), \(3, 4\)\)\)"),
        (Z0, (Z0, Z0), r"z0, of shape \(3, 4\), got tuple\(\(3, 4\), \(3, 4\)\)"),
    ],
)
def test_states_of_another_kind_are_told_by_their_shapes(start, returned, message):
    with pytest.raises(ValueError, match=message):
        shoal.Equilibrium(lambda _: returned)(start)


@pytest.mark.parametrize("start", [[0.0, 1.0], {"a": "no"}, 0.5, None], ids=repr)
def test_states_of_other_than_tensors_are_refused(start):
    for batched in (True, False):
        with pytest.raises(TypeError, match="z0 must be a tensor, or a tuple, list or dictionary"):
            shoal.Equilibrium(lambda z: z, batched=batched)(start)


def test_what_comes_out_may_be_changed_in_place():
    weight = (0.2 * random(4, 4, seed=1)).requires_grad_()

    def cell(z, x):
        return torch.tanh(z @ weight + x)

    z = shoal.Equilibrium(cell)(Z0, X)
    (found,) = torch.autograd.grad(z.mul_(2).sin().sum(), weight)
    (exact,) = torch.autograd.grad((2 * unrolled(cell, Z0, X)).sin().sum(), weight)
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-10)
