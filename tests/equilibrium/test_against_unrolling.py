"""Cells of PyTorch's modules beside 500 unrolled steps in float64: all kinds of derivatives."""

import copy
import gc
import resource

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import weight_norm
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import shoal


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, z, x):
        return torch.tanh(0.5 * self.attention(z, z, z, need_weights=False)[0] + x)


class RMSNormalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.RMSNorm(4)

    def forward(self, z, x):
        return self.norm(x + 0.3 * torch.tanh(self.linear(z)))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, z, x):
        return torch.tanh(self.outer(torch.relu(0.7 * self.inner(z))) + x)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, state, x):
        a, b = state
        return torch.tanh(0.5 * self.left(b) + x), torch.sin(0.5 * self.right(a))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, z, x):
        return torch.tanh(0.5 * self.second(torch.tanh(self.first(z))) + x)


class WeightNormalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = weight_norm(nn.Linear(4, 4))

    def forward(self, z, x):
        return torch.tanh(0.6 * self.linear(z) + x)


SHAPES = {
    Attention: ((3, 4), (3, 4)),
    RMSNormalized: ((4,), (4,)),
    Convolution: ((2, 5, 5), (2, 5, 5)),
    Pair: (((4,), (3,)), (4,)),
    Shared: ((4,), (4,)),
    WeightNormalized: ((4,), (4,)),
}
every_cell = pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)


def example(kind):
    """The layer, the start, and an input of two samples."""
    torch.manual_seed(0)
    cell, (state, given) = kind().double(), SHAPES[kind]
    shapes = state if isinstance(state[0], tuple) else (state,)
    zeros = tuple(torch.zeros(2, *shape, dtype=torch.float64) for shape in shapes)
    solver = shoal.Picard(rtol=1e-13, max_steps=500)
    layer = shoal.Equilibrium(cell, solver=solver, gradient=shoal.Implicit(solver))
    x = torch.randn(2, *given, dtype=torch.float64)
    return layer, zeros if len(zeros) > 1 else zeros[0], x


def solved(layer, z0):
    """The equilibrium as one tensor, as a function of parameters and input."""
    return lambda p, x: flat(functional_call(layer, p, (z0, x)))


def unrolled(layer, z0):
    """The same by 500 steps of the cell."""

    def call(p, x):
        p, z = {name.removeprefix("cell."): t for name, t in p.items()}, z0
        with sdpa_kernel(SDPBackend.MATH):  # the fused one has no second derivatives
            for _ in range(500):
                z = functional_call(layer.cell, p, (z, x))
        return flat(z)

    return call


def flat(state):
    return torch.cat([leaf.flatten(1) for leaf in pytree.tree_leaves(state)], 1)


def parameters(layer):
    return {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}


def close(left, right):
    for a, b in zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@every_cell
def test_gradients_and_second_derivatives(kind):
    layer, z0, x = example(kind)
    results = []
    for function in (solved(layer, z0), unrolled(layer, z0)):
        p, at = parameters(layer), x.clone().requires_grad_()
        tensors = [*p.values(), at]
        first = torch.autograd.grad(function(p, at).sin().sum(), tensors, create_graph=True)
        square = torch.stack([g.square().sum() for g in first]).sum()
        second = torch.autograd.grad(square, tensors, materialize_grads=True)
        results.append((first, second))
    close(*results)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch maps some in a loop
@every_cell
def test_transforms(kind):
    layer, z0, x = example(kind)
    p = {name: t.detach() for name, t in parameters(layer).items()}
    tangents = {n: torch.randn_like(t) for n, t in p.items()}, torch.randn_like(x)
    several = torch.stack([x, -x])
    results = []
    for function in (solved(layer, z0), unrolled(layer, z0)):
        alone = lambda x, function=function: function(p, x).sum(0)  # noqa: E731
        found = [jacrev(alone)(x), vmap(alone)(several), vmap(jacrev(alone))(several)]
        if kind is not WeightNormalized:  # which has no forward mode in PyTorch
            found.append(jvp(function, (p, x), tangents))
        results.append(found)
    close(*results)


@every_cell
def test_checkpointing_and_copies(kind):
    layer, z0, x = example(kind)
    twin, tensors = copy.deepcopy(layer), list(layer.parameters())
    plain = torch.autograd.grad(flat(layer(z0, x)).sin().sum(), tensors)
    again = checkpoint(layer, z0, x.clone().requires_grad_(), use_reentrant=False)
    close(torch.autograd.grad(flat(again).sin().sum(), tensors), plain)
    close(torch.autograd.grad(flat(twin(z0, x)).sin().sum(), list(twin.parameters())), plain)


@every_cell
def test_checkpoints_of_the_cell_from_before_it_was_wrapped(kind):
    layer, z0, x = example(kind)
    torch.manual_seed(1)
    cell = kind().double()
    layer.cell.load_state_dict(cell.state_dict())
    close(layer(z0, x), shoal.Equilibrium(cell, solver=layer.options.solver)(z0, x))


@pytest.mark.parametrize("network", [False, True], ids=["a foreign cell", "a network of build"])
def test_memory_is_constant_over_200_steps_of_training(network):
    """The number of tensors is the same after 20 and after 200 steps, and no pages are added."""
    if network:
        deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
        model = shoal.build(deq, in_features=64, width=256, warm_start=True)
        call, x = model, torch.randn(128, 64)
    else:
        model, z0 = shoal.Equilibrium(Shared(), warm_start=True), torch.zeros(4096, 4)
        x = torch.randn(4096, 4)
        call = lambda x: model(z0, x)  # noqa: E731
    optimizer, counts, pages = torch.optim.Adam(model.parameters(), lr=1e-4), [], []
    for step in range(1, 201):
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()
        if step in (20, 200):
            gc.collect()
            counts.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))
            pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # KiB
    assert counts[0] == counts[1]
    assert pages[1] - pages[0] < 2048
