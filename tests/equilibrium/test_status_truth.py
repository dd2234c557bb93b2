"""A status is a claim about a number: the residual, computed again in float64 with plain code.

Each map is written for states of the order of one, and run at the scale s as s·g(z/s). Scales are
powers of two, so that scaling rounds nothing, and constants are exact in every dtype, so that the
map in float64 is the same map.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import shoal
from shoal.equilibrium import DampedPicard, Status

ALL = ("Picard", "DampedPicard", "Anderson", "Broyden", "NewtonKrylov")
NEWTON = ("NewtonKrylov",)
SOLVERS = {
    "Picard": shoal.Picard(),
    "DampedPicard": DampedPicard(0.5),
    "Anderson": shoal.Anderson(),
    "Broyden": shoal.Broyden(),
    "NewtonKrylov": shoal.NewtonKrylov(),
}
RTOL = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}  # as documented
# 1e±30 in float32 and 1e±150 in float64: numbers are in range, their squares are not
SIZES = {
    torch.float32: (1.0, 2.0**-100, 2.0**100),
    torch.float64: (1.0, 2.0**-500, 2.0**500),
    torch.bfloat16: (1.0, 2.0**-100, 2.0**100),
}
NAN, INF = math.nan, math.inf
ROWS = (0, 1, 2, 3)
START = ((0.5, -0.25, 1.0), (0.0, 0.0, 0.0), (1.0, 2.0, -1.0), (-0.75, 0.125, 0.25))
ONES = ((1.0, 1.0, 1.0),) * 4
LATER = ((0.5, 0.25, 0.125), (2.0, 2.0, 2.0), (0.5, 0.5, 0.5), (3.0, 2.0, 4.0))


@dataclass(frozen=True)
class Map:
    """A map of rows of three numbers, and what is true of it.

    Attributes:
        g: Called with the state and a column with the number of each row.
        start: Where to start.
        never: The rows without an equilibrium, at any distance from the start.
        always: The rows that must converge, by the solvers that follow.
        solvers: Those that are documented to solve such a map.
        fine: Whether ``never`` holds in float64 only, as the residual is small beside the state.
    """

    g: Callable[[Tensor, Tensor], Tensor]
    start: tuple = START
    never: tuple = ()
    always: tuple = ()
    solvers: tuple = ALL
    fine: bool = False


def mixed(z):
    """A product with a matrix of norm ⅜ that is not symmetric."""
    return z / 8 + z.roll(1, 1) / 4


def affine(z, u):
    return mixed(z) + (u + 1) / 4


def in_row(row, bad, otherwise=affine):
    return lambda z, u: torch.where(u == row, bad(z), otherwise(z, u))


def two_steps(z, u):
    return torch.where(z > 0, 0 * z - 1, 0 * z + 1)


def three_steps(z, u):
    return torch.where(z > 0.5, 0 * z - 1, torch.where(z < -0.5, 0 * z, 0 * z + 1))


def bad_start(number):
    return (START[0], (0.5, number, 1.0), *START[2:])


GOOD = (0, 2, 3)
MAPS = {
    # contractions: every solver must find their equilibria, so that "no" is no safe answer
    "affine": Map(affine, always=ROWS),
    "tanh": Map(lambda z, u: torch.tanh(mixed(z) + u / 4), always=ROWS),
    "relu": Map(lambda z, u: torch.relu(mixed(z) + u / 2 - 0.5), always=ROWS),
    "kinks": Map(lambda z, u: (z.roll(1, 1) - 0.5).abs() / 4 - u / 4, always=ROWS),
    "constant": Map(lambda z, u: 0 * z + u + 1, always=ROWS),
    "identity": Map(lambda z, u: z, always=ROWS),
    "zero": Map(lambda z, u: z / 2, always=ROWS),
    "at the start": Map(lambda z, u: 1 + mixed(z - 1), start=ONES, always=ROWS),
    "rows apart": Map(
        lambda z, u: mixed(z) + torch.exp2(10 * u - 20),
        start=tuple((2.0 ** (10 * row - 20),) * 3 for row in ROWS),
        always=ROWS,
    ),
    "columns apart": Map(
        lambda z, u: torch.cat([z[:, :1] / 2 + 1024, z[:, 1:] / 4 + 2.0**-10], 1), always=ROWS
    ),
    # equilibria that only some solvers are documented to find
    "nearly expanding": Map(
        lambda z, u: (1 - 2.0**-10) * z + 1, always=ROWS, solvers=("Anderson", "Broyden", *NEWTON)
    ),
    "turns around": Map(lambda z, u: 1 - z, always=ROWS, solvers=ALL[1:]),
    "overshoots": Map(lambda z, u: 3 - 2 * z, always=ROWS, solvers=("DampedPicard", *NEWTON)),
    "rotates": Map(
        lambda z, u: torch.cat([1 - z[:, 1:2], z[:, :1], 0 * z[:, 2:]], 1),
        always=ROWS,
        solvers=("DampedPicard", *NEWTON),
    ),
    "period three": Map(lambda z, u: z.roll(1, 1), solvers=()),
    "expands": Map(lambda z, u: 2 * z + 1, always=ROWS, solvers=NEWTON),
    "limit cycle": Map(
        lambda z, u: torch.tanh(torch.cat([-3 * z[:, 1:2], 3 * z[:, :1], z[:, 2:] / 2], 1)), ONES
    ),
    "chaos": Map(lambda z, u: 4 * z * (1 - z), start=((0.3, 0.4, 0.7),) * 4),
    "near only": Map(lambda z, u: z * z, start=LATER, always=(0, 2), solvers=("Picard",)),
    "sublinear": Map(lambda z, u: z - z**3),
    "fading drift": Map(lambda z, u: z + torch.exp(-z), start=ONES),  # converges, as documented
    "growing cycle": Map(lambda z, u: -1.5 * z + 1, start=ONES, always=ROWS, solvers=NEWTON),
    # no equilibrium anywhere
    "cycle of two": Map(two_steps, never=ROWS),
    "cycle of three": Map(three_steps, never=ROWS),
    "drift": Map(lambda z, u: z + 1, never=ROWS),
    "slow drift": Map(lambda z, u: z + 2.0**-10, start=ONES, never=ROWS, fine=True),
    "turning drift": Map(lambda z, u: z.roll(1, 1) + 1, never=ROWS),
    "kinked drift": Map(lambda z, u: z.abs() + 1, never=ROWS),
    "escape": Map(lambda z, u: 2 * z.abs() + 1, never=ROWS),
    "blow-up": Map(lambda z, u: z * z + 1, never=ROWS),
    "exponential": Map(lambda z, u: torch.exp(z), never=ROWS),
    "narrow pass": Map(lambda z, u: z + z * z + 2.0**-10, never=ROWS),
    "leaves its domain": Map(lambda z, u: torch.sqrt(z - 1), start=LATER, never=ROWS),
    # one row among others
    "NaN": Map(in_row(1, lambda z: z * NAN), never=(1,), always=GOOD),
    "infinity": Map(in_row(1, lambda z: z + INF), never=(1,), always=GOOD),
    "NaN later": Map(
        in_row(1, lambda z: torch.where(z > 2, NAN, z + 1)), never=(1,), always=GOOD
    ),
    "one NaN entry": Map(
        in_row(1, lambda z: torch.cat([z[:, :2] / 2, z[:, 2:] * NAN], 1)), never=(1,), always=GOOD
    ),
    "NaN at the start": Map(affine, start=bad_start(NAN), never=(1,), always=GOOD),
    "infinity at the start": Map(affine, start=bad_start(INF), never=(1,), always=GOOD),
    "one escapes": Map(in_row(1, lambda z: 2 * z.abs() + 1), never=(1,), always=GOOD),
    "one blows up": Map(in_row(1, lambda z: z * z + 1), never=(1,), always=GOOD),
    "one cycles": Map(in_row(1, lambda z: two_steps(z, 0)), never=(1,), always=GOOD),
}
SIMPLE = ("affine", "tanh", "relu", "constant", "cycle of two", "drift", "escape", "NaN")
CASES = [
    pytest.param(name, dtype, size, id=f"{name}-{str(dtype)[6:]}-{size:.0e}")
    for dtype, sizes in SIZES.items()
    for name in (SIMPLE if dtype == torch.bfloat16 else MAPS)
    for size in sizes
]


class Cell(torch.nn.Module):
    """The map at a scale."""

    def __init__(self, name, size):
        super().__init__()
        self.g, self.size = MAPS[name].g, size

    def forward(self, z, u):
        return self.g(z / self.size, u) * self.size


def begin(name, dtype, size, device="cpu"):
    start = torch.tensor(MAPS[name].start, dtype=torch.float64) * size
    return start.to(device, dtype), torch.arange(4.0, device=device).to(dtype)[:, None]


def check(name, solution, start, u, size, solver, tolerances=None):
    """Compute all that a solution claims once more, in float64 and in units of the scale."""
    known, dtype = MAPS[name], start.dtype
    info = torch.finfo(dtype)
    value, start, u = (t.detach().cpu().double() for t in (solution.value, start, u))
    converged, reported = solution.converged.cpu(), solution.residual.cpu().double() / size
    z, z0 = value / size, start / size
    image, first = known.g(z, u), known.g(z0, u) - z0
    residual, norm = (image - z).norm(dim=1), z.norm(dim=1)
    # The solver sees the map as rounded in the dtype of the state. No sum in a map above has
    # terms larger than image and state together, and none has more than four roundings; below
    # the normal numbers, roundings are absolute.
    rounding = 4 * info.eps * (image.norm(dim=1) + norm) + 16 * info.tiny * info.eps / size
    rtol, atol = tolerances or (RTOL[dtype], None)
    if atol is None:  # a thousandth of rtol, times the start or its residual where those are small
        atol = 1e-3 * rtol * torch.fmax(z0.norm(dim=1), first.norm(dim=1)).clamp(max=1 / size)
    else:
        atol = torch.tensor(atol / size, dtype=torch.float64)
    tolerance = atol + rtol * norm

    assert z[converged].isfinite().all()
    assert (residual <= tolerance + rounding)[converged].all(), (residual / tolerance, converged)
    finite = residual.isfinite()
    off = (reported - residual).abs()
    assert (off <= rounding + 4 * info.eps * residual)[finite].all(), (reported, residual)
    assert not reported[~finite].isfinite().any()
    # what failed is no solution either, and no worse than the start
    assert (residual >= tolerance - rounding)[~converged & finite].all(), (residual, tolerance)
    startable = z0.isfinite().all(1)
    assert z[startable].isfinite().all()
    begun = startable & first.isfinite().all(1)
    assert (residual <= first.norm(dim=1) + rounding)[begun & ~converged].all()
    assert (solution.status[~solution.converged] != Status.CONVERGED).all()
    if not known.fine or dtype == torch.float64:
        assert not converged[list(known.never)].any(), solution.status
    if type(solver).__name__ in known.solvers:
        assert converged[list(known.always)].all(), solution.status


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(("name", "dtype", "size"), CASES)
def test_statuses_are_true(name, dtype, size, method):
    start, u = begin(name, dtype, size)
    layer = shoal.Equilibrium(Cell(name, size), solver=SOLVERS[method], on_failure="status")
    found = layer(start, u)
    assert torch.equal(found, layer.solution.value)
    check(name, layer.solution, start, u, size, SOLVERS[method])
