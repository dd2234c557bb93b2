"""SciPy: the tests of ``scipy.optimize.fixed_point``, with each of our solvers in its place."""

import numpy as np
import pytest
import torch

import shoal

test_minpack = pytest.importorskip(
    "scipy.optimize.tests.test_minpack", reason="SciPy is installed without its tests"
)

SUITE = "SciPy: `TestFixedPoint`"
PACKAGE = "scipy"

CONTRACTS = "Picard iteration needs a contraction; these functions expand."
LEAVES = "The first secant or tangent step leaves the function's domain."
GROWING = dict.fromkeys(
    ("test_scalar_trivial", "test_scalar_basic1", "test_array_trivial", "test_array_basic1"),
    CONTRACTS,
)
SOLVERS = {
    None: {},
    shoal.Picard(): GROWING,
    shoal.equilibrium.DampedPicard(): GROWING,
    shoal.Anderson(): {"test_no_acceleration": LEAVES},
    shoal.Broyden(): {"test_no_acceleration": LEAVES},
    shoal.NewtonKrylov(): {"test_no_acceleration": LEAVES},
}


class Argument(torch.Tensor):
    """A tensor that NumPy's functions take for one of their own."""

    def __array_ufunc__(self, function, method, *inputs):
        return getattr(torch, function.__name__)(*map(torch.as_tensor, inputs))


@pytest.fixture(autouse=True, params=SOLVERS, ids=lambda solver: type(solver).__name__)
def fixed_point(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve by an equilibrium layer what the tests give to SciPy's function."""
    solver = request.param
    reason = SOLVERS[solver].get(request.node.originalname)
    if reason:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    def solve(func, x0, args=(), **_):
        layer = shoal.Equilibrium(
            lambda z: func(z.as_subclass(Argument), *args).as_subclass(torch.Tensor),
            solver=solver,
            batched=False,
            on_failure="raise",
        )
        start = torch.tensor(np.atleast_1d(x0), dtype=torch.float64)
        return layer(start).numpy().reshape(np.shape(x0))[()]

    monkeypatch.setattr(test_minpack, "fixed_point", solve)


class TestFixedPoint(test_minpack.TestFixedPoint):
    """As they are."""
