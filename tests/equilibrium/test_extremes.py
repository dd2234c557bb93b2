"""Numbers of any size, of which neither the norms nor the squares may be in range."""

import pytest
import torch

from shoal import DEQ, ReLU, build
from shoal.equilibrium import Anderson, Broyden, DampedPicard, NewtonKrylov, Picard, Status, solve

SOLVERS = [
    solver.with_tolerances(None, 0.0)
    for solver in (Picard(), DampedPicard(0.3), Anderson(), Broyden(), NewtonKrylov())
]
SIZES = {
    torch.float32: (1e-32, 1e-25, 1e-18, 1.0, 1e18, 1e25, 1e35),
    torch.float64: (1e-135, 1e-100, 1.0, 1e100, 1e145),
    torch.bfloat16: (1e-25, 1.0, 1e25),
    torch.float16: (1e-3, 1.0, 1e4),
}
CASES = [(dtype, size) for dtype, sizes in SIZES.items() for size in sizes]


def affine(size, dtype):
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(3, 6, dtype=torch.float64, generator=generator) + 0.5
    matrix = torch.rand(6, 6, dtype=torch.float64, generator=generator) / 12
    expected = torch.linalg.solve(torch.eye(6, dtype=torch.float64) - matrix.T, u, left=False)
    u, matrix = (u * size).to(dtype), matrix.to(dtype)
    return lambda z: z @ matrix.T + u, u, expected * size


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(("dtype", "size"), CASES)
def test_residuals_of_any_size_are_true(solver, dtype, size):
    f, z0, expected = affine(size, dtype)
    solution = solve(f, z0, solver=solver)
    assert solution.converged.all()
    error = (solution.value.double() - expected).norm(dim=1) / expected.norm(dim=1)
    assert (error < 4 * solver.tolerances(dtype)[0]).all()
    true = (f(solution.value) - solution.value).double().div(size).norm(dim=1)
    finest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps / size
    found = solution.residual.double() / size
    torch.testing.assert_close(found, true, rtol=0.01, atol=1e-9 + finest)


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
