"""Diagnoses of models whose answers are known."""

import json
import math

import pytest
import torch
from torch import nn

import shoal

U = torch.tensor([[-1.0], [-0.3], [0.4], [1.0]], dtype=torch.float64)
ZERO = torch.zeros_like(U)


def test_a_contraction_of_known_rate() -> None:
    # z_k = (1 - r^k) z*: within 1% of the limit after ceil(log 0.01 / log r) applications
    d = shoal.diagnose(lambda z, u: 0.8 * z + u, ZERO, U)
    assert set(d.iterations[0].behaviors) == {"settles"}
    assert all(one.counts == {"settles": 4} for one in d.iterations)
    assert d.depth.depths == (math.ceil(math.log(0.01) / math.log(0.8)),) * 4
    assert d.depth.decisions is None
    torch.testing.assert_close(d.spectrum.radius, 0.8, atol=1e-9, rtol=0)
    torch.testing.assert_close(d.spectrum.norm, 0.8, atol=1e-9, rtol=0)
    torch.testing.assert_close(min(d.spectrum.nearest_one), 0.2, atol=1e-9, rtol=0)
    assert d.equilibria.counts == (1,) * 4
    assert d.equilibria.unique is None  # one was found, and no bound proves that it is alone
    errors = {cost.name: cost.relative for cost in d.gradients}
    assert errors["Implicit"] == 0
    for terms in (1, 5, 20):  # the rest of the geometric series
        assert errors[f"Neumann({terms})"] == pytest.approx(0.8 ** (terms + 1), rel=1e-6)
    assert errors["OneStep"] == pytest.approx(0.8, rel=1e-6)
    assert not any(cost.wrong for cost in d.gradients)
    states = torch.cat(d.equilibria.states)
    torch.testing.assert_close(states, 5 * U)


def test_two_equilibria() -> None:
    # z = tanh(2z): ±0.9575 attract, 0 repels
    d = shoal.diagnose(lambda z: torch.tanh(2 * z), ZERO + 0.1, starts=8)
    assert d.behavior == "settles"
    assert d.equilibria.unique is False
    known = torch.tensor([-0.957504024, 0.0, 0.957504024], dtype=torch.float64)
    for states in d.equilibria.states:
        assert 2 <= len(states) <= 3
        distance = (states - known).abs().amin(1)
        assert float(distance.max()) < 1e-6
    assert any("same state" in remedy.what for remedy in d.remedies)
    assert d.gradients == ()  # nothing to differentiate by


@pytest.mark.thorough("3.02", "3.5", "3.83")
@pytest.mark.parametrize(("rate", "period"), [(3.02, 2), (3.2, 2), (3.5, 4), (3.83, 3)])
def test_a_cycle_of_the_logistic_map(rate: float, period: int) -> None:
    start = torch.full((2, 1), 0.3, dtype=torch.float64)
    d = shoal.diagnose(lambda z: rate * z * (1 - z), start)
    assert d.behavior == "cycles"
    assert d.iterations[0].periods == (period, period)
    assert d.depth is None
    # a solver finds the equilibrium that the iteration leaves
    assert d.solved == 2
    assert d.spectrum.radius == pytest.approx(rate - 2, rel=1e-6)
    assert "solver=" in d.remedies[0].what


def test_a_loop_that_drifts() -> None:
    d = shoal.diagnose(lambda z, u: z + u, ZERO, U)
    assert d.behaviors == {"drifts": 4}
    assert d.solved == 0
    assert d.spectrum is None
    assert d.gradients == ()
    assert d.equilibria.contraction == "refuted"
    assert "GainConstraint" in d.remedies[0].what


def test_a_loop_that_wanders() -> None:
    # chaos: as often as not it is nearer to its equilibrium in the end than it was before
    start = torch.linspace(0.1, 0.45, 32, dtype=torch.float64)[:, None]
    d = shoal.diagnose(lambda z: 3.9 * z * (1 - z), start, starts=1)
    assert d.behaviors == {"wanders": 32}
    assert d.solved == 32


@pytest.mark.thorough("0.99999")
@pytest.mark.parametrize("rate", [0.9995, -0.999, 0.99999, -0.99999])
def test_a_slow_loop_is_told_from_a_drift(rate: float) -> None:
    d = shoal.diagnose(lambda z, u: rate * z + u, ZERO, U)
    assert d.behaviors == {"settles slowly": 4}
    assert d.solvers[0].converged == 0
    assert "solver=" in d.remedies[0].what


def test_an_expanding_map_that_a_solver_solves() -> None:
    d = shoal.diagnose(lambda z, u: -1.5 * z + u, ZERO, U)
    assert d.behaviors == {"diverges": 4}
    assert d.solved == 4
    torch.testing.assert_close(torch.cat(d.equilibria.states), U / 2.5)
    solved = {cost.name: cost.converged for cost in d.solvers}
    assert (solved["Picard"], solved["Anderson"], solved["NewtonKrylov"]) == (0, 4, 4)
    # partial sums of 1 - 1.5 + 2.25 - ... have alternating signs, the exact gradient is positive
    wrong = {cost.name: cost.wrong for cost in d.gradients}
    assert not wrong["OneStep"]
    assert wrong["Neumann(1)"]
    assert wrong["Neumann(5)"]
    assert not wrong["Neumann(20)"]


class Turning(nn.Module):
    """A contraction that turns: what pushes the state one way moves the equilibrium another."""

    def __init__(self) -> None:
        super().__init__()
        self.push = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        turn = torch.tensor([[0.0, -0.9], [0.9, 0.0]], dtype=torch.float64)
        self.register_buffer("turn", turn)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z @ self.turn.T + self.push * torch.tensor([1.0, 0.0], dtype=torch.float64)


def test_a_one_step_gradient_that_points_the_wrong_way() -> None:
    # J = 0.9 R: dz/dp = (I - J)^-1 (1, 0) = (1, 0.9) / 1.81, of one step (1, 0).
    # The loss -z_1/2 + z_2 has the slopes 0.4/1.81 > 0 and -1/2 < 0.
    z0 = torch.zeros(1, 2, dtype=torch.float64)
    slope = torch.tensor([[-0.5, 1.0]], dtype=torch.float64)
    d = shoal.diagnose(Turning(), z0, cotangent=slope)
    assert d.behavior == "settles"
    costs = {cost.name: cost for cost in d.gradients}
    assert costs["OneStep"].wrong
    assert costs["OneStep"].cosine == pytest.approx(-1)
    assert costs["OneStep"].relative == pytest.approx(1 + 0.5 * 1.81 / 0.4)
    assert not costs["Unrolled"].wrong
    assert any("Implicit" in remedy.what for remedy in d.remedies)
    turned = sorted(d.spectrum.eigenvalues[0], key=lambda value: value.imag)
    assert turned == pytest.approx([-0.9j, 0.9j])
    assert "WRONG DIRECTION" in str(d)


def test_gradients_are_compared_only_where_the_exact_one_is_known() -> None:
    # at a slope of one there is an equilibrium and no gradient: I - J is singular
    slopes = torch.tensor([[0.5], [1.0], [-0.5], [0.25]], dtype=torch.float64)
    d = shoal.diagnose(
        lambda z, a, u: a * z + u * (a != 1), ZERO + 1, slopes, U, cotangent=torch.ones_like(U)
    )
    assert d.solved == 4
    assert {cost.samples for cost in d.gradients} == {3}
    # by u: errors a^(k+1) / (1 - a) of 1 / (1 - a); by a those times z, the first sample's is -2
    one = next(cost for cost in d.gradients if cost.name == "OneStep")
    kept = slopes[[0, 2, 3], 0]
    z = U[[0, 2, 3], 0] / (1 - kept)
    truth = torch.cat([1 / (1 - kept), z / (1 - kept)])
    step = torch.cat([torch.ones(3, dtype=torch.float64), z])
    assert one.relative == pytest.approx(float((step - truth).norm() / truth.norm()), rel=1e-6)
    assert "3 of 4" in str(d)


@pytest.mark.thorough
def test_samples_may_behave_differently() -> None:
    factors = torch.tensor([[0.5], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    d = shoal.diagnose(lambda z, a: a * z + 1, ZERO, factors)
    assert d.iterations[0].behaviors == ("settles", "cycles", "drifts", "diverges")
    assert d.iterations[0].periods == (0, 2, 0, 0)
    assert d.equilibria.counts == (1, 1, 0, 1)
    assert len(d.depth.depths) == 1


def test_norms_and_radii_without_forming_the_jacobian() -> None:
    # 150 entries: more than are formed; a matrix that is far from normal, with known values
    size = 150
    diagonal = torch.linspace(-0.3, 0.5, size, dtype=torch.float64)
    diagonal[-1] = -0.9
    matrix = torch.diag(diagonal)
    matrix[0, -1] = 3.0
    d = shoal.diagnose(
        lambda z, u: z @ matrix.T + u, torch.zeros(2, size).double(), torch.ones(2, size).double()
    )
    assert not d.spectrum.exact
    assert d.spectrum.radius == pytest.approx(0.9, rel=1e-6)
    assert d.spectrum.norm == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-6)
    assert max(d.spectrum.residuals) < 1e-6
    assert d.equilibria.contraction == "refuted"  # its norm is above one
    assert d.behavior == "settles"


@pytest.mark.thorough
def test_of_large_states_fewer_samples_are_looked_at() -> None:
    # a Krylov space of 48 vectors for 4 samples of 120,000 numbers would take 184 MB
    rates = torch.linspace(0.1, 0.6, 120_000)
    d = shoal.diagnose(lambda z: rates * z + 1, torch.zeros(4, 120_000), starts=1, steps=60)
    assert len(d.spectrum.samples) == 2
    assert d.spectrum.norm <= 0.6 + 1e-6
    assert d.spectrum.norm == pytest.approx(0.6, rel=1e-2)


def test_what_is_not_a_number_is_said_first() -> None:
    d = shoal.diagnose(lambda z, u: torch.log(z - 5 + 0 * u), ZERO, U)
    assert d.behaviors == {"diverges": 4}
    assert d.samples == 4
    assert ["NaN" in remedy.what for remedy in d.remedies] == [True]  # weights are not to blame
    assert json.loads(d.to_json())["equilibria"]["counts"] == [0] * 4


def test_states_near_the_largest_number() -> None:
    d = shoal.diagnose(lambda z: z**2, torch.full((2, 2), 1e30))
    assert d.behaviors == {"diverges": 2}
    assert "shoal.GainConstraint" in str(shoal.diagnose(lambda z: 1 + z**2, torch.ones(2, 2)))
    one = str(shoal.diagnose(lambda z: 0.5 * z + 1, torch.ones(1, 1)))
    assert "1 sample, " in one
    assert "1 samples" not in one


@pytest.mark.thorough("dtype0")
@pytest.mark.parametrize(
    ("dtype", "rate"),
    [(torch.float32, 0.99999), (torch.bfloat16, 0.25), (torch.float16, 0.5), (torch.float32, -0.5)],
)
def test_solvers_that_stop_early_do_not_make_two_equilibria_of_one(
    dtype: torch.dtype, rate: float
) -> None:
    # z = rate z + (1 - rate) u has the one equilibrium u, of which solvers are off by their
    # tolerance over 1 - rate
    u = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    d = shoal.diagnose(lambda z, u: rate * z + (1 - rate) * u, torch.zeros_like(u), u, starts=6)
    assert d.equilibria.counts == (1,) * 16
    assert d.equilibria.unique is None
    for row, (states, error) in enumerate(
        zip(d.equilibria.states, d.equilibria.errors, strict=True)
    ):
        off = float((states[0] - u[row]).double().norm() / u[row].double().norm())
        assert off < 3 * error + 1e-2


@pytest.mark.thorough
def test_what_only_looks_like_an_equilibrium_is_said_to_be_vague() -> None:
    # far out z + 1 / (1 + z^2) hardly moves: within every tolerance, and nowhere at rest
    d = shoal.diagnose(lambda z: z + 1 / (1 + z * z), torch.ones(1, 1, dtype=torch.float64))
    assert d.equilibria.counts == (1,)
    assert d.equilibria.errors[0] > 0.1
    assert "hardly determined" in str(d)
    assert d.behavior == "drifts"


def test_an_infinite_input_diverges_and_leaves_the_others_alone() -> None:
    u = torch.tensor([[1.0], [math.inf]], dtype=torch.float64)
    d = shoal.diagnose(lambda z, u: 0.5 * z + u, torch.zeros_like(u), u)
    assert d.iterations[0].behaviors == ("settles", "diverges")


def test_a_slow_way_to_zero_settles_slowly() -> None:
    d = shoal.diagnose(lambda z: -0.999 * z, ZERO + 1)
    assert d.behaviors == {"settles slowly": 4}


@pytest.mark.thorough("0.3", "0.001")
@pytest.mark.parametrize("tolerance", [0.3, 1e-3, 1e-9])
def test_depths_of_fine_tolerances_are_reached(tolerance: float) -> None:
    d = shoal.diagnose(lambda z, u: 0.9 * z + u, ZERO, U, tolerance=tolerance)
    assert d.depth.depths == (math.ceil(math.log(tolerance) / math.log(0.9)),) * 4


def test_a_tolerance_that_rounding_does_not_reach_has_no_depth() -> None:
    u = U.to(torch.bfloat16)
    d = shoal.diagnose(lambda z, u: 0.9 * z + 0.1 * u, torch.zeros_like(u), u, tolerance=1e-4)
    assert d.depth is None or len(d.depth.depths) < 4
    assert "applications of the cell" not in str(d.remedies)


@pytest.mark.thorough
def test_small_moves_far_from_the_equilibrium_are_not_the_end() -> None:
    # in float32 a step of 1e-5 of the way counts as none
    u = U.float()
    d = shoal.diagnose(lambda z, u: 0.99999 * z + 1e-5 * u, torch.full_like(u, 2.0), u)
    assert d.behaviors == {"settles slowly": 4}
    assert d.depth is None


@pytest.mark.parametrize("size", [1e6, 1e9, 1e-6])
def test_the_unit_of_the_state_does_not_matter(size: float) -> None:
    d = shoal.diagnose(lambda z, u: 0.5 * z + size * u, ZERO, U)
    assert d.behaviors == {"settles": 4}
    assert d.depth.depths == (7,) * 4  # 2^-7 < 0.01
    away = shoal.diagnose(lambda z, u: 2 * z + size * u, ZERO, U)
    assert away.behaviors == {"diverges": 4}


def test_every_state_is_an_equilibrium_of_the_identity() -> None:
    d = shoal.diagnose(lambda z: z, ZERO)
    assert d.equilibria.unique is False
    assert min(d.equilibria.counts) > 1
    assert min(d.spectrum.nearest_one) == 0


@pytest.mark.thorough
def test_words_claim_no_more_than_was_measured() -> None:
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    turning = shoal.diagnose(lambda z: z @ turn.T, torch.ones(1, 2, dtype=torch.float64))
    assert "leaves it" not in str(turning)  # at a radius of one it neither leaves nor comes
    # a state far from normal: larger norms, and a contraction in another one
    shear = torch.tensor([[0.5, 9.0], [0.0, 0.5]], dtype=torch.float64)
    sheared = shoal.diagnose(lambda z: z @ shear.T, torch.ones(1, 2, dtype=torch.float64))
    assert sheared.behavior == "settles"
    assert "no contraction in the Euclidean norm" in str(sheared)
    drifting = shoal.diagnose(lambda z, u: z + u, ZERO, U)
    assert not any("solver=" in remedy.what for remedy in drifting.remedies)  # none solves it
    assert "nothing was found" in drifting.remedies[0].why
    short = shoal.diagnose(lambda z, u: 0.5 * z + u, ZERO, U, steps=4)
    assert len({remedy.what for remedy in short.remedies}) == len(short.remedies)


def test_json_holds_all_and_is_json() -> None:
    d = shoal.diagnose(lambda z, u: z + u, ZERO, U)
    document = json.loads(d.to_json())
    assert document["behavior"] == "drifts"
    assert document["jacobian"] is None
    assert [one["solver"].split("(")[0] for one in document["solvers"]][:2] == [
        "Picard",
        "DampedPicard",
    ]


@pytest.mark.thorough("20-", "5-")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [1, 2, 5, 20])
def test_eigenvalues_of_jacobians_of_low_rank(rank, dtype):
    """States so large that their Jacobians are not formed, whose Krylov spaces soon end."""
    generator = torch.Generator().manual_seed(rank)
    left, right = (torch.randn(200, rank, generator=generator).double() / 20 for _ in range(2))
    weight = (left @ right.T).to(dtype)
    zero, x = torch.zeros(3, 200, dtype=dtype), torch.ones(3, 200, dtype=dtype)
    rel = 1e-9 if dtype is torch.float64 else 1e-4
    d = shoal.diagnose(lambda z, x: z @ weight.T + x, zero, x)
    radius = float(torch.linalg.eigvals(right.T @ left).abs().max())
    assert d.spectrum.radius == pytest.approx(radius, rel=rel)
    assert d.spectrum.norm == pytest.approx(float(torch.linalg.matrix_norm(weight, 2)), rel=rel)
    assert max(d.spectrum.residuals) < rel
    # one product in the cell's dtype: its rounding, in float32
    half = shoal.diagnose(lambda z, x: z / 2 + x, zero, x).spectrum
    assert half.radii == pytest.approx([0.5] * 3, rel=1e-6)
    assert half.nearest_one == pytest.approx([0.5] * 3, rel=1e-6)
