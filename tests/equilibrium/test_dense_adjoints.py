r"""Derivatives of equilibria against dense linear algebra, by the name of each tensor.

The oracle forms the Jacobian J of the cell over the whole state of the batch and solves
$(I - J)^\top u = v$ for the upstream gradient v in float64; a vector-Jacobian product of the cell
with u is the gradient. Second derivatives are those of two dense Newton steps.
"""

import math
import warnings
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, jvp, vjp
from torch.nn.utils.parametrizations import weight_norm
from torch.utils import _pytree as pytree

import shoal
from shoal import Anderson, Broyden, Implicit, NewtonKrylov, Picard
from shoal.equilibrium import DampedPicard

# PyTorch's forward mode still loads parts that it calls deprecated itself
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

F64, RTOL = torch.float64, 1e-12  # the tolerance of solves in float64 by default
SCALES = (1e-6, 1e2, 1e6, 1e-3)  # sizes of upstream rows


class Cell(nn.Module):
    """Layers that a function of them, the state and the inputs calls."""

    def __init__(self, function, **layers):
        super().__init__()
        self.layers, self.function = nn.ModuleDict(layers), function

    def forward(self, z, *inputs):
        return self.function(self.layers, z, *inputs)


def linear(scale=0.4):
    layer = nn.Linear(4, 4)
    nn.init.normal_(layer.weight, 0.0, scale / 2)
    return layer


def attention(m, z, x):
    weights = torch.softmax(m["query"](z) @ m["key"](z).mT, -1)
    return torch.tanh(weights @ m["value"](z) + x)


def two_scales(m, z, x):
    up = z["coarse"].repeat_interleave(2, 2)
    coarse = 0.3 * torch.sin(z["coarse"] + nn.functional.avg_pool1d(z["fine"], 2))
    return {"fine": torch.tanh(0.5 * m["conv"](z["fine"] + up) + x), "coarse": coarse}


def rms(m, z, x):
    z = m["b"](torch.tanh(m["a"](z))) + x
    return 0.8 * z / (z.square().mean(-1, keepdim=True) + 1e-3).sqrt()


def plain(z, x, w):
    return torch.tanh(z @ w.mT + x)


def directed(z, x, w):  # each sample depends on the next one, and none on one before it
    return torch.tanh(z @ w.mT + 0.5 * torch.cat([z[1:], 0 * z[:1]]) + x)


def balanced(z, x, w):  # samples send each other what sums to zero
    sent = torch.sin(z.roll(1, 0))
    return x + 0.4 * (sent - sent.roll(1, 1)) + z @ w / 9


def case(function, layers=dict, x=(4, 4), start=(4,)):
    """A function that makes a cell, where to start, and the shapes of its inputs by name."""
    start = pytree.tree_map(
        lambda n: torch.zeros(4, *n), start, is_leaf=lambda n: isinstance(n, tuple)
    )
    start = tuple(start) if isinstance(start, list) else start
    if function in (plain, directed, balanced):
        return lambda: (function, start, {"x": x, "w": (4, 4)})
    return lambda: (Cell(function, **layers()), start, {"x": x})


def heads():
    return {"query": linear(1.0), "key": linear(1.0), "value": linear(0.6)}


INDEPENDENT = {
    "function": case(plain),
    "gru": case(lambda m, z, x: m["a"](x, z) / 2, lambda: {"a": nn.GRUCell(4, 4)}),
    "lstm": case(
        lambda m, z, x: m["a"](x, z), lambda: {"a": nn.LSTMCell(4, 3)}, start=[(3,), (3,)]
    ),
    "layer norm": case(
        lambda m, z, x: 0.7 * m["b"](x + m["a"](z)), lambda: {"a": linear(), "b": nn.LayerNorm(4)}
    ),
    "weight norm": case(
        lambda m, z, x: torch.tanh(m["a"](z) + x), lambda: {"a": weight_norm(linear())}
    ),
    "rms norm": case(rms, lambda: {"a": linear(), "b": linear()}),
    "attention": case(attention, heads, (4, 2, 4), (2, 4)),
    "convolution": case(
        two_scales,
        lambda: {"conv": nn.Conv1d(1, 1, 3, padding=1)},
        (4, 1, 4),
        {"fine": (1, 4), "coarse": (1, 2)},
    ),
    "shared": case(
        lambda m, z, x: torch.tanh(m["b"](torch.tanh(m["a"](z)) + x)),
        lambda: dict.fromkeys("ab", linear(0.8)),
    ),
}
COUPLED = {
    "mean": case(lambda m, z, x: torch.tanh(m["a"](z - z.mean(0)) + x), lambda: {"a": linear(0.9)}),
    "batch attention": case(attention, heads),
    "directed": case(directed),
    "balanced": case(balanced),
}
ALL = INDEPENDENT | COUPLED
every_cell = pytest.mark.parametrize("name", ALL)


def flat(state):
    return torch.cat([leaf.flatten() for leaf in pytree.tree_leaves(state)])


class Dense:
    """The oracle: a map of tensors by name and of a flat state, at its fixed point.

    Args:
        function: Takes a dictionary of tensors and a state; returns a state.
        tensors: The dictionary: inputs and parameters.
        near: The state near which the fixed point lies.
    """

    def __init__(self, function, tensors, near):
        self.tensors = {name: t.detach().to(F64) for name, t in tensors.items()}
        near = pytree.tree_map(lambda leaf: leaf.detach().to(F64), near)
        leaves, self.form = pytree.tree_flatten(near)
        self.shapes = [leaf.shape for leaf in leaves]
        self.map = lambda tensors, z: flat(function(tensors, self.state(z)))
        self.z = flat(near)
        for _ in range(3):
            self.z = self.root(self.tensors)
        jacobian = jacrev(self.map, argnums=1)(self.tensors, self.z)
        self.jacobian, self.factor = jacobian, torch.eye(len(self.z), dtype=F64) - jacobian
        self.amplified = max(1.0, float(torch.linalg.matrix_norm(self.factor.inverse(), 2)))

    def state(self, z):
        parts = z.split([shape.numel() for shape in self.shapes])
        shaped = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return pytree.tree_unflatten(shaped, self.form)

    def root(self, tensors):
        """The fixed point, with derivatives up to the third."""
        z = self.z
        for _ in range(2):
            jacobian = jacrev(self.map, argnums=1)(tensors, z)
            residual = self.map(tensors, z) - z
            z = z + torch.linalg.solve(torch.eye(len(z), dtype=F64) - jacobian, residual)
        return z

    def adjoint(self, upstream):
        return torch.linalg.solve(self.factor.mT, flat(upstream).to(F64))

    def pull(self, u):
        """The gradients of the tensors by one vector-Jacobian product of the cell."""
        return vjp(lambda tensors: self.map(tensors, self.z), self.tensors)[1](u)[0]

    def tangent(self, tangents):
        moved = jvp(lambda tensors: self.map(tensors, self.z), (self.tensors,), (tangents,))[1]
        return self.state(torch.linalg.solve(self.factor, moved))

    def allowed(self, order=1, rtol=RTOL):
        """A solve is off by the residual amplified, and each order amplifies what it is given."""
        found = 100 * self.amplified ** (1 + order) * rtol
        assert found < 2e4 * rtol
        return found


def prepared(name, **options):
    """A layer as a function of tensors by name, these tensors, and the oracle."""
    torch.manual_seed(0)
    cell, z0, shapes = ALL[name]()
    options = {"on_failure": "raise", **options}
    layer = shoal.Equilibrium(cell.double() if isinstance(cell, nn.Module) else cell, **options)
    z0 = pytree.tree_map(lambda leaf: leaf.to(F64), z0)
    tensors = {key: torch.randn(shape, dtype=F64) for key, shape in shapes.items()}
    if "w" in tensors:
        tensors["w"] *= 0.2
    tensors |= dict(layer.named_parameters())
    tensors = {key: t.detach().clone().requires_grad_() for key, t in tensors.items()}

    def call(of, prefix, tensors, z):
        inputs = [tensors[key] for key in shapes]
        if not isinstance(cell, nn.Module):
            return of(z, *inputs)
        given = {k.removeprefix(prefix): t for k, t in tensors.items() if k not in shapes}
        return functional_call(of, given, (z, *inputs))

    with torch.no_grad():
        near = layer(z0, *(tensors[key] for key in shapes))
    oracle = Dense(lambda tensors, z: call(cell, "cell.", tensors, z), tensors, near)
    return lambda tensors: call(layer, "", tensors, z0), tensors, oracle


def upstream_of(oracle, scales=SCALES):
    torch.manual_seed(1)
    state = oracle.state(torch.randn(len(oracle.z), dtype=F64))
    factors = torch.tensor(scales, dtype=F64)
    return pytree.tree_map(lambda t: t * factors.view(-1, *[1] * (t.dim() - 1)), state)


def pulled(solved, tensors, upstream):
    """The gradients of all tensors by backward."""
    state = pytree.tree_leaves(solved(tensors))
    upstream = [g.to(t.dtype) for g, t in zip(pytree.tree_leaves(upstream), state, strict=True)]
    found = torch.autograd.grad(state, list(tensors.values()), upstream)
    return dict(zip(tensors, found, strict=True))


def assert_near(found, exact, tolerance, *, rows=False):
    """By name; each row of the inputs relative to its own size where that is said."""
    largest = max(float(t.norm()) for t in exact.values())
    for name, expected in exact.items():
        error = found[name].to(F64) - expected
        if rows and name == "x":
            error, size = error.flatten(1).norm(dim=1), expected.flatten(1).norm(dim=1)
        else:
            error, size = error.norm(), expected.norm().clamp_min(1e-3 * largest)
        assert (error <= tolerance * size).all(), f"{name}: {error / size} > {tolerance}"


@every_cell
def test_reverse_mode(name):
    solved, tensors, oracle = prepared(name)
    upstream = upstream_of(oracle)
    found = pulled(solved, tensors, upstream)
    exact = oracle.pull(oracle.adjoint(upstream))
    assert_near(found, exact, oracle.allowed(), rows=name in INDEPENDENT)


def random_like(tensors, seed):
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(t.shape, dtype=F64, generator=generator) for k, t in tensors.items()}


@pytest.mark.parametrize("name", sorted({*ALL} - {"weight norm"}))  # which PyTorch has not
def test_forward_mode(name):
    solved, tensors, oracle = prepared(name)
    tensors = {key: t.detach() for key, t in tensors.items()}
    tangents = random_like(tensors, 2)
    exact = flat(oracle.tangent(tangents))
    with torch.autograd.forward_ad.dual_level():
        make = torch.autograd.forward_ad.make_dual
        duals = pytree.tree_leaves(solved({k: make(t, tangents[k]) for k, t in tensors.items()}))
        dual = flat([torch.autograd.forward_ad.unpack_dual(leaf).tangent for leaf in duals])
    found = flat(jvp(solved, (tensors,), (tangents,))[1])
    for kind, one in (("jvp", found), ("dual", dual)):
        assert_near({kind: one}, {kind: exact}, oracle.allowed())


def total(state):
    return sum(leaf.pow(3).sum() + leaf.sin().sum() for leaf in pytree.tree_leaves(state))


@every_cell
def test_second_derivatives(name):
    """Products with the Hessian in all tensors, by double backward and forward over reverse."""
    solved, tensors, oracle = prepared(name)
    directions = random_like(tensors, 3)
    exact = vjp(grad(lambda t: total(oracle.root(t))), oracle.tensors)[1](directions)[0]
    first = torch.autograd.grad(total(solved(tensors)), [*tensors.values()], create_graph=True)
    slope = sum((g * v).sum() for g, v in zip(first, directions.values(), strict=True))
    second = torch.autograd.grad(slope, [*tensors.values()])
    assert_near(dict(zip(tensors, second, strict=True)), exact, oracle.allowed(2))
    if name != "weight norm":
        tensors = {key: t.detach() for key, t in tensors.items()}
        _, found = jvp(grad(lambda t: total(solved(t))), (tensors,), (directions,))
        assert_near(found, exact, oracle.allowed(2))


SOLVERS = [Picard(), DampedPicard(0.8), Anderson(), Broyden(), NewtonKrylov()]


@pytest.mark.parametrize("name", ["rms norm", "mean", "directed", "balanced"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_solvers(solver, name):
    """In both passes, and with an absolute tolerance in the backward one, at size one."""
    alone = name in INDEPENDENT
    for gradient in (Implicit(), Implicit(replace(solver, rtol=RTOL, atol=1e-14))):
        for setting in ({"separable": alone}, {}) if alone else ({"batched": False},):
            solved, tensors, oracle = prepared(name, solver=solver, gradient=gradient, **setting)
            upstream = upstream_of(oracle)
            exact = oracle.pull(oracle.adjoint(upstream))
            rows = alone and (gradient.solver is None or setting.get("separable", False))
            assert_near(pulled(solved, tensors, upstream), exact, oracle.allowed(), rows=rows)


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_samples_that_the_layer_takes_for_a_batch(name):
    """Upstream rows of zeros, and apart: numbers reach samples that were solved before."""
    for atol, scales in product((None, 1e-14), [(1, 0, 0, 0), (0, 0, 1, 0), (1, 1e-2, 10, 1e-3)]):
        gradient = None if atol is None else Implicit(Picard(rtol=RTOL, atol=atol))
        solved, tensors, oracle = prepared(name, gradient=gradient)
        upstream = upstream_of(oracle, scales)
        with warnings.catch_warnings():  # of rows of zeros, which are below any absolute tolerance
            warnings.simplefilter("ignore", shoal.ConvergenceWarning)
            found = pulled(solved, tensors, upstream)
        assert_near(found, oracle.pull(oracle.adjoint(upstream)), oracle.allowed())


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_samples_with_upstream_rows_far_apart(name):
    """Squares of the smallest rows vanish beside the largest one."""
    solved, tensors, oracle = prepared(name, batched=False)
    for scales in ([1.0, 1e-200, 0.0, 1e-160], [1e-300, 1e-290, 1e-100, 1e-250]):
        upstream = upstream_of(oracle, scales)
        exact = oracle.pull(oracle.adjoint(upstream))
        assert_near(pulled(solved, tensors, upstream), exact, oracle.allowed())


@pytest.mark.parametrize("name", ["function", "attention", "lstm", "batch attention", "directed"])
def test_inexact_gradients(name):
    """A partial sum of the Neumann series, to rounding."""
    for gradient, terms in [(shoal.OneStep(), 0)] + [(shoal.Neumann(k), k) for k in (0, 1, 4)]:
        solved, tensors, oracle = prepared(name, gradient=gradient)
        upstream = upstream_of(oracle)
        u = power = flat(upstream)
        for _ in range(terms):
            power = oracle.jacobian.mT @ power
            u = u + power
        found = pulled(solved, tensors, upstream)
        assert_near(found, oracle.pull(u), oracle.allowed(), rows=name in INDEPENDENT)


def iterated(oracle, tensors, gradient, count):
    """So many steps as documented, from zero."""
    y = z = torch.zeros_like(oracle.z)
    for _ in range(count):
        if isinstance(gradient, shoal.Unrolled):
            z = oracle.map(tensors, z)
        else:
            y = y + gradient.damping * (oracle.map(tensors, z) - y)
            z = z + gradient.damping * (oracle.map(tensors, y) - z)
    return z


@pytest.mark.parametrize("name", ["function", "lstm", "convolution", "mean", "directed"])
@pytest.mark.parametrize("gradient", [shoal.Unrolled(), shoal.Reversible(0.5)], ids=repr)
def test_gradients_of_iterations(gradient, name):
    """Those of as many steps as are made, converged or not, to rounding."""
    options = {"solver": Picard(max_steps=6), "gradient": gradient, "on_failure": "status"}
    solved, tensors, oracle = prepared(name, **options)
    upstream = upstream_of(oracle)
    pull = vjp(lambda tensors: iterated(oracle, tensors, gradient, 6), oracle.tensors)[1]
    found = pulled(solved, tensors, upstream)
    assert_near(found, pull(flat(upstream))[0], 1e-10, rows=name in INDEPENDENT)


def inner(weights, x, z):
    seen = math.sqrt(0.3 / 5) * z @ weights["recurrent"].mT + math.sqrt(0.1) * weights["bias"]
    return seen + math.sqrt(0.8) * x @ weights["input"].mT


def convolved(weights, x, z):
    pairs = ((z, "recurrent", math.sqrt(0.3 / 5 / 3)), (x, "input", math.sqrt(0.8 / 3)))
    return torch.tanh(
        sum(s * nn.functional.conv1d(t, weights[name], padding=1) for t, name, s in pairs)
    )


def mapped(weights, x):
    return torch.relu(x @ weights["input"].mT) / math.sqrt(5)


def read(weights, x, z):  # noqa: ARG001
    return z.flatten(1) @ weights["readout"].mT / math.sqrt(z[0].numel())


def implicit(weights, x, z):
    return torch.relu(0.2 / math.sqrt(5) * z @ weights["recurrent"].mT + mapped(weights, x))


NETWORKS = {  # architecture, cell and readout as they are documented
    **{
        f"DEQ {name}": (
            shoal.DEQ(name, 0.3, 0.8, bias_variance=0.1),
            lambda *given, phi=phi: phi(inner(*given)),
            read,
        )
        for name, phi in (("tanh", torch.tanh), ("relu", torch.relu))
    },
    "ConvDEQ": (shoal.ConvDEQ("tanh", 0.3, 0.8), convolved, read),
    "ImplicitNetwork": (
        shoal.ImplicitNetwork(0.2),
        implicit,
        lambda p, x, z: z @ p["readout"].mT + mapped(p, x) @ p["skip"].mT,
    ),
}


def built(name, dtype=F64, **options):
    """A network as a function of tensors by name, these, the oracle of its state, its readout."""
    architecture, cell, readout = NETWORKS[name]
    images = {"pixel_axes": 1, "pixels": (4,)} if name == "ConvDEQ" else {}
    options |= {"in_features": 3, "width": 5, "out_features": 2, "dtype": dtype, **images}
    net = shoal.build(architecture, trainable="all", **options)
    torch.manual_seed(0)
    x = torch.randn(4, 3, *images.get("pixels", ()), dtype=F64).to(dtype)
    tensors = {"x": x, **{key: p.detach().clone() for key, p in net.named_parameters()}}
    oracle = Dense(lambda t, z: cell(t, t["x"], z), tensors, net.solve(x).value)

    def solved(tensors):
        given = {key: t for key, t in tensors.items() if key != "x"}
        return functional_call(net, given, (tensors["x"],))

    def output(tensors):
        return readout(tensors, tensors["x"], oracle.state(oracle.root(tensors)))

    return solved, {key: t.requires_grad_() for key, t in tensors.items()}, oracle, output


@pytest.mark.parametrize("name", NETWORKS)
def test_built_networks(name):
    """First derivatives in both modes and products with the Hessian, of the output."""
    for options in ({}, {"gradient": Implicit(Anderson())}, {"solver": NewtonKrylov()}):
        solved, tensors, oracle, output = built(name, **options)
        upstream = torch.randn(4, 2, dtype=F64) * torch.tensor(SCALES, dtype=F64)[:, None]
        value, pull = vjp(output, oracle.tensors)
        assert_near({"y": solved(tensors)}, {"y": value}, oracle.allowed())
        found, exact = pulled(solved, tensors, upstream), pull(upstream)[0]
        assert_near(found, exact, oracle.allowed(), rows=True)
    directions = random_like(tensors, 3)
    _, exact = jvp(grad(lambda t: total(output(t))), (oracle.tensors,), (directions,))
    first = torch.autograd.grad(total(solved(tensors)), [*tensors.values()], create_graph=True)
    slope = sum((g * v).sum() for g, v in zip(first, directions.values(), strict=True))
    second = torch.autograd.grad(slope, [*tensors.values()], materialize_grads=True)
    assert_near(dict(zip(tensors, second, strict=True)), exact, oracle.allowed(2))
    _, exact = jvp(output, (oracle.tensors,), (directions,))
    fixed = {key: t.detach() for key, t in tensors.items()}
    assert_near({"y": jvp(solved, (fixed,), (directions,))[1]}, {"y": exact}, oracle.allowed())


@pytest.mark.parametrize("name", NETWORKS)
def test_single_precision(name):
    """Rows far apart, to the tolerance of float32."""
    solved, tensors, oracle, output = built(name, torch.float32)
    upstream = torch.randn(4, 2, dtype=F64) * torch.tensor(SCALES, dtype=F64)[:, None]
    exact = vjp(output, oracle.tensors)[1](upstream)[0]
    assert_near(pulled(solved, tensors, upstream), exact, oracle.allowed(rtol=1e-6), rows=True)
