"""The fixed-point problems of SciPy's and optimistix's test suites: which solver solves which."""

import math

import pytest
import torch
from torch.utils import _pytree as pytree

from fixed_points import OPTIMISTIX, SCIPY
from shoal import Anderson, Broyden, Equilibrium, NewtonKrylov, Picard
from shoal.equilibrium import DampedPicard

PROBLEMS = SCIPY | OPTIMISTIX
# how many of the 18 each must solve
SOLVERS = {
    Picard(): 14,
    DampedPicard(): 14,
    Anderson(): 17,
    Broyden(): 17,
    NewtonKrylov(): 17,
    None: 18,
}


def solved(name, solver):
    """Whether a problem was solved; its status must say what its residual says."""
    function, start, *_ = PROBLEMS[name]
    layer = Equilibrium(function, solver=solver, batched=False, on_failure="status")
    state = layer(start)
    pairs = zip(pytree.tree_leaves(function(state)), pytree.tree_leaves(state), strict=True)
    change, size = zip(*(((f - z).square().sum(), z.square().sum()) for f, z in pairs), strict=True)
    residual, size = (float(sum(squares)) ** 0.5 for squares in (change, size))
    converged = bool(layer.solution.converged.all())
    if converged:
        assert residual <= 1e-12 * size + 1e-15
    else:
        assert not residual <= 1e-14 * size
    return converged and math.isfinite(residual)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_how_many_are_solved(solver):
    missed = [name for name in PROBLEMS if not solved(name, solver)]
    assert len(PROBLEMS) - len(missed) >= SOLVERS[solver], missed


@pytest.mark.parametrize("name", SCIPY)
def test_the_solutions_of_scipy(name):
    function, start, exact = SCIPY[name]
    found = Equilibrium(function, on_failure="raise")(start)
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-8)
