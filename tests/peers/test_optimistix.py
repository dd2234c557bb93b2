"""optimistix: the fixed points it finds for the problems of its test suite, beside ours."""

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import shoal
from fixed_points import OPTIMISTIX

jax = pytest.importorskip("jax", reason="JAX is not installed")
optimistix = pytest.importorskip("optimistix", reason="optimistix is not installed")

SUITE = "optimistix: fixed-point problems"
PACKAGE = "optimistix"

SOLVERS = (
    None,
    shoal.Picard(),
    shoal.equilibrium.DampedPicard(),
    shoal.Anderson(),
    shoal.Broyden(),
    shoal.NewtonKrylov(),
)


def theirs(function, start):
    """The fixed point by their iteration, which calls the function of tensors."""
    flat, spec = pytree.tree_flatten(start)
    flat = [leaf.numpy() for leaf in flat]

    def on_tensors(*leaves):
        tensors = [torch.from_numpy(np.array(leaf)) for leaf in leaves]
        found = function(pytree.tree_unflatten(tensors, spec))
        return [leaf.numpy() for leaf in pytree.tree_leaves(found)]

    with jax.experimental.enable_x64():
        solution = optimistix.fixed_point(
            lambda leaves, _: jax.pure_callback(on_tensors, leaves, *leaves),
            optimistix.FixedPointIteration(rtol=1e-12, atol=1e-13),
            [jax.numpy.asarray(leaf) for leaf in flat],
            max_steps=10_000,
        )
        return [np.array(leaf) for leaf in solution.value]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("name", OPTIMISTIX)
def test_fixed_points(name, solver):
    function, start = OPTIMISTIX[name]
    layer = shoal.Equilibrium(function, solver=solver, batched=False, on_failure="raise")
    found = pytree.tree_leaves(layer(start))
    for ours, wanted in zip(found, theirs(function, start), strict=True):
        np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-10, atol=1e-11)
