"""A status is a claim about a number: the residual, computed again in float64 with plain code.

Each map is written for states of the order of one, and run at the scale s as s·g(z/s). Scales are
powers of two, so that scaling rounds nothing, and constants are exact in every dtype, so that the
map in float64 is the same map.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import shoal
from shoal.equilibrium import DampedPicard, Status, fixed_point

ALL = ("Picard", "DampedPicard", "Anderson", "Broyden", "NewtonKrylov")
NEWTON = ("NewtonKrylov",)
SOLVERS = {
    "Picard": shoal.Picard(max_steps=60),
    "DampedPicard": DampedPicard(0.5, max_steps=150),
    "Anderson": shoal.Anderson(max_steps=40),
    "Broyden": shoal.Broyden(max_steps=40),
    "NewtonKrylov": shoal.NewtonKrylov(max_steps=10),
}
RTOL = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}  # as documented
# 1e±30 in float32, 1e±150 in float64: numbers are in range, and their squares are not
WIDE = (1.0, 2.0**-100, 2.0**100)
SIZES = {torch.float64: (1.0, 2.0**-500, 2.0**500)}
NAN, INF = math.nan, math.inf
ROWS = (0, 1, 2, 3)
START = ((0.5, -0.25, 1.0), (0.0, 0.0, 0.0), (1.0, 2.0, -1.0), (-0.75, 0.125, 0.25))
ONES = ((1.0, 1.0, 1.0),) * 4
APART = tuple((2.0 ** (10 * row - 20),) * 3 for row in ROWS)
LATER = ((0.5, 0.25, 0.125), (2.0, 2.0, 2.0), (0.5, 0.5, 0.5), (3.0, 2.0, 4.0))


@dataclass(frozen=True)
class Map:
    """A map of rows of three numbers, and what is true of it.

    Attributes:
        g: Called with the state and a column with the number of each row.
        start: Where to start.
        solvers: Those that are documented to find the equilibria of all rows but the next ones.
        never: The rows without an equilibrium, at any distance from the start.
        fine: Whether that holds in float64 only, as the residual is small beside the state.
        zero: Whether an equilibrium is zero. The absolute tolerance does not grow with the start,
            so a large one would have to fall to where z/s is below the normal numbers.
    """

    g: Callable[[Tensor, Tensor], Tensor]
    start: tuple = START
    solvers: tuple = ()
    never: tuple = ()
    fine: bool = False
    zero: bool = False


def mixed(z):
    """A product with a matrix of norm ⅜ that is not symmetric."""
    return z / 8 + z.roll(1, 1) / 4


def affine(z, u):
    return mixed(z) + (u + 1) / 4


def turned(z, by=1.0, offset=0.0):
    return torch.cat([offset - by * z[:, 1:2], by * z[:, :1], z[:, 2:] / 2], 1)


def with_bad_row(bad):
    return lambda z, u: torch.where(u == 1, bad(z), affine(z, u))


# every solver must find the equilibria of contractions, so that "no" is no safe answer
CONTRACTIONS = {
    "affine": affine,
    "tanh": lambda z, u: torch.tanh(mixed(z) + (u - 2.5) / 4),
    "relu": lambda z, u: torch.relu(mixed(z) + torch.cat([u + 1, -u - 1, u / 4], 1)),
    "kinks": lambda z, u: (z.roll(1, 1) - 0.5).abs() / 4 - u / 4,
    "constant": lambda z, u: 0 * z + u + 1,
    "identity": lambda z, _: z,
    "columns apart": lambda z, _: torch.cat([z[:, :1] / 2 + 1024, z[:, 1:] / 4 + 2.0**-10], 1),
}
NOWHERE = {  # without an equilibrium
    "cycle of two": lambda z: torch.where(z > 0, 0 * z - 1, 0 * z + 1),
    "cycle of three": lambda z: torch.where(z > 0.5, -1, torch.where(z < -0.5, 0, 1)) + 0 * z,
    "drift": lambda z: z + 1,
    "turning drift": lambda z: z.roll(1, 1) + 1,
    "kinked drift": lambda z: z.abs() + 1,
    "escape": lambda z: 2 * z.abs() + 1,
    "blow-up": lambda z: z * z + 1,
    "exponential": torch.exp,
    "narrow pass": lambda z: z + z * z + 2.0**-10,
    "NaN": lambda z: z * NAN,
    "infinity": lambda z: z + INF,
    "one NaN entry": lambda z: torch.cat([z[:, :2] / 2, z[:, 2:] * NAN], 1),
    "NaN later": lambda z: torch.where(z > 2, NAN, z + 1),
}
MAPS = {
    **{name: Map(g, solvers=ALL) for name, g in CONTRACTIONS.items()},
    **{name: Map(lambda z, _, g=g: g(z), never=ROWS) for name, g in NOWHERE.items()},
    **{
        f"one row: {name}": Map(with_bad_row(g), never=(1,), solvers=ALL)
        for name, g in NOWHERE.items()
        if name in ("cycle of two", "blow-up", "NaN", "infinity", "NaN later")
    },
    "slow drift": Map(lambda z, _: z + 2.0**-10, ONES, never=ROWS, fine=True),
    "leaves its domain": Map(lambda z, _: torch.sqrt(z - 1), LATER, never=ROWS),
    "zero": Map(lambda z, _: z / 2, solvers=ALL, zero=True),
    "at the start": Map(lambda z, _: 1 + mixed(z - 1), ONES, ALL),
    "rows apart": Map(lambda z, u: mixed(z) + torch.exp2(10 * u - 20), APART, ALL),
    # equilibria that not all solvers are documented to find
    "nearly expanding": Map(lambda z, _: (1 - 2.0**-10) * z + 1, solvers=ALL[2:]),
    "turns around": Map(lambda z, _: 1 - z, solvers=ALL[1:]),
    "overshoots": Map(lambda z, _: 3 - 2 * z, solvers=("DampedPicard", *NEWTON)),
    "rotates": Map(lambda z, _: turned(z, 1, 1), solvers=("DampedPicard", *NEWTON)),
    "growing cycle": Map(lambda z, _: 1 - 1.5 * z, ONES, ("DampedPicard", *NEWTON)),
    "expands": Map(lambda z, _: 2 * z + 1, solvers=NEWTON),
    "period three": Map(lambda z, _: z.roll(1, 1)),
    "limit cycle": Map(lambda z, _: torch.tanh(turned(z, 3)), ONES, zero=True),
    "chaos": Map(lambda z, _: 4 * z * (1 - z), ((0.3, 0.4, 0.7),) * 4),
    "near only": Map(lambda z, _: z * z, LATER, zero=True),
    "sublinear": Map(lambda z, _: z - z**3, zero=True),
    "fading drift": Map(lambda z, _: z + torch.exp(-z), ONES),  # may converge, as documented
}
SIMPLE = ("affine", "tanh", "relu", "constant", "cycle of two", "drift", "escape", "one row: NaN")
CASES = [(name, dtype) for name in MAPS for dtype in (torch.float32, torch.float64)]
CASES += [(name, torch.bfloat16) for name in SIMPLE]  # its rounding hides the rest


class Cell(torch.nn.Module):
    """Maps at scales: each has some rows of the state, with their numbers and scales."""

    def __init__(self, *maps):
        super().__init__()
        self.maps = maps

    def forward(self, z, u, size):
        z = z / size
        counts = [len(z) // len(self.maps)] * len(self.maps)
        parts = zip(self.maps, z.split(counts), u.split(counts), strict=True)
        return torch.cat([known.g(rows, number) for known, rows, number in parts]) * size


def begin(known, dtype, sizes=(1.0,), device="cpu"):
    """The start, the number of each row, and its scale; four rows for each scale."""
    sizes = [size for size in sizes if size <= 1 or not known.zero]
    start = torch.tensor(known.start, dtype=torch.float64).repeat(len(sizes), 1)
    size = torch.tensor(sizes, dtype=torch.float64).repeat_interleave(4)[:, None]
    rows = torch.arange(4.0).repeat(len(sizes))[:, None]
    return tuple(t.to(device, dtype) for t in (start * size, rows, size))


def norms(rows):
    """Euclidean norms of rows whose squares may not be in range."""
    largest = rows.abs().amax(1)
    unit = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return (rows / unit[:, None]).norm(dim=1) * unit


def check(known, found, given, method, tolerances=None):
    """Compute all that a solution says once more, in float64 and in units of the scale."""
    dtype, converged = given[0].dtype, found.converged.cpu()
    info = torch.finfo(dtype)
    value, start, u, size = (t.detach().cpu().double() for t in (found.value, *given))
    z, z0, size = value / size, start / size, size[:, 0]
    image, first = known.g(z, u), norms(known.g(z0, u) - z0)
    residual, norm, reported = norms(image - z), norms(z), found.residual.cpu().double() / size
    # The solver has the map as rounded in the dtype of the state. No map above has terms that are
    # larger than image and state together, nor more than four roundings of them; below the normal
    # numbers a rounding is absolute.
    rounding = 4 * info.eps * (norms(image) + norm) + 16 * info.tiny * info.eps / size
    rtol, atol = tolerances or (RTOL[dtype], None)
    if atol is None:  # a thousandth of rtol, times the start or its residual where these are small
        least = torch.fmin(torch.fmax(norms(z0), first), 1 / size)
        tolerance = 1e-3 * rtol * least + rtol * norm
    else:
        tolerance = atol / size + rtol * norm
    # a row converged if, and only if, its residual meets the tolerance
    assert (residual <= tolerance + rounding)[converged].all(), (residual / tolerance, converged)
    finite = residual.isfinite()
    failed = finite & ~converged
    assert (residual >= tolerance - rounding)[failed].all(), (residual / tolerance, converged)
    # the reported residual is the one of the value that is returned
    off = (reported - residual).abs()
    vanishing = math.sqrt(info.tiny * info.eps)  # whose square may be zero
    assert (off <= rounding + vanishing + 4 * info.eps * residual)[finite].all(), (
        reported,
        residual,
    )
    assert not reported[~finite].isfinite().any()
    # what is returned is finite, and of rows that failed no worse than the start
    assert z.isfinite().all()
    assert (residual <= first + rounding)[first.isfinite() & ~converged].all(), (residual, first)
    # no solution where there is none, and one where there is
    assert torch.equal(found.converged, found.status == Status.CONVERGED)
    never = torch.isin(u[:, 0], torch.tensor(known.never, dtype=u.dtype))
    if not known.fine or dtype == torch.float64:
        assert not converged[never].any(), found.status
    if method in known.solvers:
        assert converged[~never].all(), found.status


def by_layer(cell, given, **options):
    layer = shoal.Equilibrium(cell, on_failure="status", **options)
    assert torch.equal(layer(*given), layer.solution.value)
    return layer.solution


def part(found, rows=slice(None), value=None):
    names = ("status", "residual", "converged")
    value = found.value if value is None else value
    return SimpleNamespace(value=value[rows], **{n: getattr(found, n)[rows] for n in names})


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_statuses_are_true(name, dtype, method):
    known = MAPS[name]
    given = begin(known, dtype, SIZES.get(dtype, WIDE))
    check(known, by_layer(Cell(known), given, solver=SOLVERS[method]), given, method)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_all_maps_in_one_batch(dtype, method):
    """No row spoils another; and norms are formed plainly, as all of them are in range."""
    each = [begin(known, dtype) for known in MAPS.values()]
    given = [torch.cat(tensors) for tensors in zip(*each, strict=True)]
    found = by_layer(Cell(*MAPS.values()), given, solver=SOLVERS[method])
    for number, known in enumerate(MAPS.values()):
        rows = slice(4 * number, 4 * number + 4)
        check(known, part(found, rows), [tensor[rows] for tensor in given], method)


def of_tree(cell, given):
    """The state in two tensors, whose norms count together."""

    def split_cell(state, *rest):
        return cell(torch.cat(state, 1), *rest).split((1, 2), 1)

    layer = shoal.Equilibrium(split_cell, solver=SOLVERS["Picard"], on_failure="status")
    layer(given[0].split((1, 2), 1), *given[1:])
    return part(layer.solution, value=torch.cat(layer.solution.value, 1))


PICARD = {"solver": SOLVERS["Picard"]}
DOORS = {
    "fixed_point": lambda cell, given: fixed_point(
        cell, given[0], inputs=given[1:], **PICARD, on_failure="status"
    ),
    "separable": lambda *a: by_layer(*a, **PICARD, separable=True),
    "fallbacks": lambda *a: by_layer(*a, solver=list(SOLVERS.values())),
    "tree": of_tree,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", MAPS)
def test_every_door_says_the_same(name, door):
    known = MAPS[name]
    given = begin(known, torch.float64, WIDE)
    check(known, DOORS[door](Cell(known), given), given, "Picard")


@pytest.mark.parametrize("tolerances", [(1e-3, 0.0), (1e-9, 1e-6), (0.0, 1e-8)])
@pytest.mark.parametrize("method", ALL)
def test_tolerances_that_are_given(method, tolerances):
    solver = SOLVERS[method].with_tolerances(*tolerances)
    for name in SIMPLE:
        given = begin(MAPS[name], torch.float64)
        found = by_layer(Cell(MAPS[name]), given, solver=solver)
        check(MAPS[name], found, given, method, tolerances)


@pytest.mark.parametrize("number", [NAN, INF])
def test_a_start_that_is_no_number_is_refused(number):
    given = begin(MAPS["affine"], torch.float64)
    given[0][1, 1] = number
    for door in DOORS.values():
        with pytest.raises(ValueError, match="must be finite"):
            door(Cell(MAPS["affine"]), given)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_solves_on_a_gpu(name, dtype):
    """One layer, from several starts."""
    known = MAPS[name]
    for sizes in ((1.0,), WIDE):
        given = begin(known, dtype, sizes, "cuda")
        layer = shoal.Equilibrium(
            Cell(known), solver=SOLVERS["Picard"], on_failure="status", graphs=True
        )
        for nearer in (8, 1, 4, 2):
            now = (given[0] / nearer, *given[1:])
            layer(*now)
            check(known, layer.solution, now, "Picard")
