"""Inputs of any size, of which neither the norms nor the squares may be in range."""

import pytest
import torch

from shoal import DEQ, build
from shoal.activations import ReLU
from shoal.equilibrium import Anderson, Broyden, DampedPicard, NewtonKrylov, Picard, Status

SOLVERS = [
    solver.with_tolerances(None, 0.0)
    for solver in (Picard(), DampedPicard(0.3), Anderson(), Broyden(), NewtonKrylov())
]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_networks_with_inputs_of_any_size(solver, size):
    """A ReLU network is homogeneous: its outputs, and their gradients, scale."""
    options = {"in_features": 4, "width": 32, "dtype": torch.float32, "solver": solver}
    net = build(DEQ(ReLU(), 0.1, 0.8), **options)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net(x * size) / size, net(x), rtol=1e-4, atol=1e-5)
    assert (net.last_solve.status == Status.CONVERGED).all()
    assert (net.last_solve.residual > 0).any()
