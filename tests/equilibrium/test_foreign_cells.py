"""Every cell that shoal did not write: values, gradients in both modes, second ones, training."""

import copy

import pytest
import torch
from torch.utils import _pytree as pytree

from equilibrium.foreign_cells import (
    CELLS,
    MultiScale,
    Normalized,
    Parametrized,
    Surrounded,
    prepared,
)

# PyTorch's compiler looks at gradients of tensors that have none
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
]

# PyTorch's forward mode still loads parts that it calls deprecated itself
forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
gradcheck, gradgradcheck = torch.autograd.gradcheck, torch.autograd.gradgradcheck
every_cell = pytest.mark.parametrize("kind", CELLS, ids=lambda kind: kind.__name__)


def as_function(layer, z0, inputs, named):
    """The layer as a function of its parameters and inputs, for gradcheck."""
    parameters = {n: p for n, p in layer.named_parameters() if p.requires_grad}
    names = list(parameters)

    def call(*tensors):
        given = dict(zip(names, tensors, strict=False))
        rest = tensors[len(names) :]
        positional, by_name = (
            rest[: len(inputs)],
            dict(zip(named, rest[len(inputs) :], strict=True)),
        )
        torch.manual_seed(1)  # of the dropout
        state = torch.func.functional_call(layer, given, (z0, *positional), by_name)
        return torch.cat([leaf.flatten() for leaf in pytree.tree_leaves(state)])

    tensors = [*parameters.values(), *inputs, *named.values()]
    return call, tuple(t.detach().clone().requires_grad_() for t in tensors)


@every_cell
def test_it_is_an_equilibrium(kind):
    layer, z0, inputs, named = prepared(kind)
    torch.manual_seed(1)
    state = layer(z0, *inputs, **named)
    assert layer.solution.converged.all()
    torch.manual_seed(1)
    again = layer.cell(state, *inputs, **named)
    assert pytree.tree_structure(state) == pytree.tree_structure(z0)
    for left, right in zip(pytree.tree_leaves(state), pytree.tree_leaves(again), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


@pytest.mark.thorough
@forward_mode
@every_cell
def test_gradients_in_both_modes(kind):
    function, tensors = as_function(*prepared(kind))
    assert gradcheck(function, tensors, check_forward_ad=True, fast_mode=True)


def teach(layer, z0, inputs, named):
    """What the layer returns with other parameters, before these are put back."""
    own = copy.deepcopy(layer.state_dict())
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
        torch.manual_seed(1)  # of the dropout
        target = layer(z0, *inputs, **named)
    layer.load_state_dict(own)
    return pytree.tree_leaves(target)


def losses(layer, z0, inputs, named):
    """The distances from what another layer of the kind returns, in 60 steps of Adam."""
    target = teach(layer, z0, inputs, named)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    found = []
    for _ in range(60):
        optimizer.zero_grad()
        torch.manual_seed(1)
        state = pytree.tree_leaves(layer(z0, *inputs, **named))
        loss = sum((leaf - aim).square().mean() for leaf, aim in zip(state, target, strict=True))
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Normalized, MultiScale, Parametrized], ids=lambda k: k.__name__)
def test_training(kind):
    """It learns what another of its kind does: of the loss at most 0.5% are left, as measured."""
    layer, *given = prepared(kind)
    first, *_, last = losses(layer, *given)
    assert last < first / 50
    assert "all" in str(layer.log)


def test_the_model_is_compiled():
    """What comes before the equilibrium and what comes after it, each in a graph of its own."""
    graphs = []

    def backend(graph, _inputs):
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        graphs.append([node.target.__name__ for node in calls])
        return graph.forward

    model, z0, inputs, _ = prepared(Surrounded, backend=backend)
    model(z0, *inputs)
    assert graphs == [["linear", "tanh"], ["mul"]]


@pytest.mark.thorough
def test_gradients_and_training_of_a_model_with_compiled_gradients():
    """The backend that also makes graphs of backward passes, which know reverse mode alone."""
    model, *given = prepared(Surrounded, backend="aot_eager")
    function, tensors = as_function(model, *given)
    assert gradcheck(function, tensors, fast_mode=True)
    first, *_, last = losses(model, *given)
    assert last < first / 50
