"""Gradients of kernels of nearly parallel and nearly opposite inputs, against pairs solved alone.

The references (oracles/edge_slopes.py) solve and differentiate the scalar equations of each pair
without shoal. All errors are relative to the diagonal, the root of the product of both inputs'
kernels with themselves, and so are those that docs/kernels.md and docs/accuracy.md state for
kernels: 1e-10 in float64, 6e-7 in float32 (5e-6 for NTKs of activations with kinks). Gradients have
errors of "about that of the kernel", which is taken for at most ten times as much. For NTKs of
kinks that are not positively homogeneous, the docstring of kernel states 1e-8 at angles to 1e-6.
"""

import json
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import ACTIVATIONS

from oracles.edge_slopes import BASE, TABULATED, VARIANCES, label, points, solved
from shoal import DEQ, kernel

ABOUT = 10.0  # "about that of the kernel"
KERNEL_ERROR = {"float64": 1e-10, "float32": 6e-7}
NTK_ERROR = {"float64": 1e-10, "float32": 5e-6}  # of activations with kinks
KINKED_PARALLEL_ERROR = 1e-8  # of those that are not positively homogeneous
SPREAD = {"float64": 1e-13, "float32": 1e-6}  # of norms that are one, but for rounding
GROUPS = ("readout", "recurrent", "input")
SUBSETS = tuple(chain.from_iterable(combinations(GROUPS, k) for k in (3, 1, 2)))
KINKED = ("ReLU", "LeakyReLU", *TABULATED)
NAMES = (*KINKED, "Tanh", "Sigmoid", "Erf", "Swish", "GELU", "Softplus", "Mish", "Sine", "Cosine",
         "Identity", "HermiteSeries")  # fmt: skip
# not tabulated; a cubic has no kernel at the second variances
FEWER = (*TABULATED, "HermiteSeries")
SETTINGS = [(dtype, variances) for dtype in ("float64", "float32") for variances in VARIANCES]
CASES = [
    pytest.param(
        name, *setting, one_norm, SUBSETS[(3 * i + 2 * k + one_norm) % len(SUBSETS)],
        id=f"{name}-{setting[0]}-{setting[1][0]}-{'one norm' if one_norm else 'different norms'}",
    )
    for i, name in enumerate(NAMES)
    for k, setting in enumerate(SETTINGS)
    for one_norm in (True, False)
    if setting[1] == VARIANCES[0] or name not in FEWER
]  # fmt: skip


@cache
def tabulated():
    path = Path(__file__).parents[1] / "oracles/edge_slopes.json"
    return {key: np.array(row).reshape(3, 6) for key, row in json.loads(path.read_text()).items()}


@cache
def reference(name, y, s, w):
    """Derivatives of the groups of a pair, or None if it is not tabulated. shape: (3, 6)."""
    if name in TABULATED:
        return tabulated().get(label(name, y, s, w))
    return solved(name, BASE, y, s, w)


def pairs(name, dtype, s, w, *, one_norm):
    """Partners of BASE, and references. shapes: (n, 3), (n, 3, 6)."""
    partners = [y for y in map(tuple, points(dtype).tolist())
                if (abs(np.hypot(*y[:2]) - 1) < SPREAD[dtype]) == one_norm]  # fmt: skip
    known = [(y, reference(name, y, s, w)) for y in partners]
    known = [(y, groups) for y, groups in known if groups is not None]
    if not known:
        pytest.skip("not tabulated")
    return tuple(np.array(t) for t in zip(*known, strict=True))


def slopes_of(value, x, base, variances):
    """The gradients of a sum over pairs in the directions of the references.

    Returns:
        Derivatives in the logarithm of the norm of each x, in its angle and out of the plane. shape
        (3, n); and in the logarithms of the norm of base and of both variances. shape: (3,)
    """
    gradients = torch.autograd.grad(value, [x, base, *variances.values()], retain_graph=True)
    rows, into = (t.detach().double().numpy() for t in (x, gradients[0]))
    turned = np.stack([-rows[:, 1], rows[:, 0]], axis=1)  # in which the angle to BASE grows
    out = np.linalg.norm(rows, axis=1) * into[:, 2]
    single = (into * rows).sum(1), (into[:, :2] * turned).sum(1), out
    logs = (v.detach() * g for v, g in zip(variances.values(), gradients[2:], strict=True))
    return np.array(single), np.array([float(gradients[1][0, 0]), *map(float, logs)])


def check(deq, name, dtype, trainable, x, expected):
    """All gradients of the kernels of some inputs and BASE, against references."""
    s, w = deq.recurrent_variance, deq.input_variance
    x = torch.tensor(x, dtype=getattr(torch, dtype), requires_grad=True)
    base = torch.tensor([BASE], dtype=x.dtype, requires_grad=True)
    variances = {
        field: torch.tensor(getattr(deq, field), dtype=torch.float64, requires_grad=True)
        for field in ("recurrent_variance", "input_variance")
    }
    found = kernel(deq, x, base, trainable=trainable, variances=variances)
    own = [kernel(deq, t.detach(), diag=True, trainable=trainable) for t in (x, base)]
    for which, groups in (("ck", ("readout",)), ("ntk", trainable)):
        pair = sum(expected[:, GROUPS.index(group)] for group in groups)
        size = (getattr(own[0], which) * getattr(own[1], which)).sqrt().double().numpy()
        single, total = slopes_of(getattr(found, which).sum(), x, base, variances)
        sums = pair.sum(0)
        error = ABOUT * (NTK_ERROR if which == "ntk" and name in KINKED else KERNEL_ERROR)[dtype]
        if which == "ntk" and name in TABULATED:
            error = max(error, ABOUT * KINKED_PARALLEL_ERROR)
        wanted = np.array([pair[:, 2], pair[:, 3], 0 * size])
        assert np.max(np.abs(single - wanted) / size) <= error
        assert np.max(np.abs(total - [sums[1], s * sums[4], w * sums[5]])) <= error * size.sum()


@pytest.mark.thorough("float32", "0.45", "ELU_0.5-float64-0.2-different")
@pytest.mark.parametrize(("name", "dtype", "variances", "one_norm", "trainable"), CASES)
def test_slopes(name, dtype, variances, one_norm, trainable):
    """Kernels of pairs with one input: one series in the angle, or the equations of each pair."""
    x, expected = pairs(name, dtype, *variances, one_norm=one_norm)
    check(DEQ(ACTIVATIONS[name], *variances), name, dtype, trainable, x, expected)


@pytest.mark.parametrize("name", ["ReLU", "Tanh"])
def test_twins_and_zero(name):
    """An input and its copy move apart without slope; smooth kernels have one at zero."""
    deq, step = DEQ(ACTIVATIONS[name], 0.2, 0.8), 1e-5
    rows = [BASE, BASE, (0.0, 0.0, 0.0), (-1.0, 0.0, 0.0)]
    x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    found = kernel(deq, x)
    own = kernel(
        deq, torch.tensor([[1 + step, 0, 0], [1 - step, 0, 0]], dtype=torch.float64), diag=True
    )
    for value, line, group in zip(found, own, (slice(0, 1), slice(0, 3)), strict=True):
        (twin,) = torch.autograd.grad(value[0, 1], x, retain_graph=True)
        slope = float(line[0] - line[1]) / (4 * step)  # half of it for each of two copies
        expected = torch.zeros(4, 3, dtype=torch.float64)
        expected[:2, 0] = slope
        torch.testing.assert_close(twin, expected, rtol=0, atol=1e-9)
        (zero,) = torch.autograd.grad(value[0, 2], x, retain_graph=True)
        assert float(zero[2, 1:].abs().max()) <= 1e-9
        if name == "Tanh":
            sides = [solved(name, BASE, (end * step, 0.0, 0.0), 0.2, 0.8) for end in (1, -1)]
            rise = (sides[0] - sides[1])[group, 0].sum() / (2 * step)
            assert float(zero[2, 0]) == pytest.approx(rise, abs=1e-9)


@pytest.mark.thorough("Tanh")
@pytest.mark.parametrize("name", ["ReLU", "Tanh", "GELU"])
def test_edges_in_a_large_matrix(name):
    """Where nearly all entries are those of a surface, which does not know the edges."""
    s, w = VARIANCES[0]
    deq = DEQ(ACTIVATIONS[name], s, w)
    edges, expected = pairs(name, "float64", s, w, one_norm=True)
    others = np.random.default_rng(0).normal(size=(32, 3))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    x = torch.tensor(np.concatenate([[BASE], edges, others]), requires_grad=True)
    found = kernel(deq, x)
    for value, groups in ((found.ck, 1), (found.ntk, 3)):
        pair = expected[:, :groups].sum(1)
        size = value[0, 0].item()
        (into,) = torch.autograd.grad(value[0, 1 : len(edges) + 1].sum(), x, retain_graph=True)
        radial = (into[1 : len(edges) + 1] * x[1 : len(edges) + 1]).sum(1).detach().numpy()
        around = into[1 : len(edges) + 1, 1].numpy() * edges[:, 0]
        around -= into[1 : len(edges) + 1, 0].numpy() * edges[:, 1]
        assert np.max(np.abs(radial - pair[:, 2])) <= ABOUT * KERNEL_ERROR["float64"] * size
        assert np.max(np.abs(around - pair[:, 3])) <= ABOUT * KERNEL_ERROR["float64"] * size
        assert abs(float(into[0, 0]) - pair[:, 1].sum()) <= 1e-9 * len(edges) * size
        assert float(into[len(edges) + 1 :].abs().max()) == 0
