"""How many iterations loops need: trained models of known behavior, and maps of known limits."""

import functools
import json
import math

import pytest
import torch
from torch import Tensor, nn

import shoal
from loops import foreign, trained
from shoal.loops import Diagnosis

U = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
SAMPLES, CHECKED = 64, 400


@functools.cache
def diagnosed(name: str, *, labels: bool = True) -> Diagnosis:
    model, _, data = trained.load(name)
    x, y = data(SAMPLES, 0)
    return shoal.diagnose(model, x, y=y if labels else None)


def loop(cell: object, steps: int | None = 8, z0: Tensor = U) -> shoal.Loop:
    return shoal.Loop(cell, torch.zeros_like(z0), z0, steps=steps)  # type: ignore[arg-type]


def accuracies(name: str, counts: tuple[int, ...]) -> dict[int, float]:
    """The accuracy on other samples, by running the model itself."""
    model, _, data = trained.load(name)
    x, y = data(CHECKED, 7)
    shares = {}
    for n in counts:
        model.steps = n  # type: ignore[assignment]
        with torch.no_grad():
            logits = model(x)
        chosen = logits.argmax(1 if logits.dim() == 4 else -1)
        shares[n] = float((chosen == y)[y != -100].double().mean())
    return shares


KNOWN = {  # behavior of the output, whether the loop matters, what running on does
    "overthinking": ("diverges", "hurts", "hurts"),
    "fixed_point": ("converges", "yes", "changes nothing"),
    "residual": ("converges", "yes", "changes nothing"),
    "slow": ("converges", "yes", "changes nothing"),
    "flipping": ("cycles", "hurts", "hurts"),
    "two_states": ("converges", "hurts", "hurts"),
    "step_index": ("wanders", "hurts", "hurts"),
    "recurrent_depth": ("converges", "yes", "changes nothing"),
    "convolution": ("converges", "yes", "changes nothing"),
    "plain": ("converges", "hurts", "hurts"),
}


@pytest.mark.thorough(*(name for name in KNOWN if name not in ("overthinking", "residual")))
@pytest.mark.parametrize("name", KNOWN)
def test_trained_loops_have_the_right_verdict(name: str) -> None:
    d = diagnosed(name)
    behavior, matters, running = KNOWN[name]
    assert (d.behavior, d.loop_matters, d.running_on) == (behavior, matters, running)
    assert d.trained == trained.MODELS[name][1]
    grid = d.curve.steps
    shares = accuracies(name, grid)
    best = max(shares.values())
    near = [grid.index(n) for n in grid if shares[n] >= best - 0.005]
    assert d.stop_at is not None
    assert min(abs(grid.index(d.stop_at) - place) for place in near) <= 1
    assert shares[d.stop_at] >= best - 0.01
    assert "quilibrium" not in d.verdict
    assert d.equilibrium is None


@pytest.mark.thorough(*(name for name in KNOWN if name != "overthinking"))
@pytest.mark.parametrize("name", KNOWN)
def test_without_labels_nothing_is_lost_against_the_trained_count(name: str) -> None:
    d = diagnosed(name, labels=False)
    assert d.stop_at is not None
    assert d.trained is not None
    shares = accuracies(name, (d.stop_at, d.trained))
    assert shares[d.stop_at] >= shares[d.trained] - 0.01
    assert d.curve.accuracy is None
    assert d.running_on in ("changes nothing", "unknown")


def test_samples_that_diverge_do_not_hide_that_running_on_hurts() -> None:
    u = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    factor = torch.where(torch.arange(40)[:, None] < 2, 3.0, 1.0).double()
    growing = shoal.Loop(lambda z, u, c: c * z + u / 4, torch.zeros_like(u), u, factor, steps=4)
    d = shoal.diagnose(growing, y=growing.run(u, factor))
    assert (d.running_on, d.stop_at) == ("hurts", 4)


def test_a_loss_that_few_samples_show_is_not_called_nothing() -> None:
    u = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    drift = torch.where(torch.arange(40)[:, None] < 2, 0.1, 0.0).double()  # two change their sign
    drifting = shoal.Loop(lambda z, a: z + a, u, drift, steps=4)
    d = shoal.diagnose(drifting, y=(u > 0).long(), decision="sign")
    assert d.running_on == "unknown"
    assert "accuracy 95.0%" in str(d)
    assert "cannot tell" in d.verdict


def test_more_iterations_than_trained_are_advised_where_they_help() -> None:
    model, _, data = trained.load("residual")
    model.steps = 3  # type: ignore[assignment]
    x, y = data(SAMPLES, 0)
    d = shoal.diagnose(model, x, y=y)
    assert d.running_on == "helps"
    assert d.stop_at in (6, 8)
    assert d.behavior == "converges"
    assert d.growth > 5
    assert "state grows" in d.verdict
    assert d.tried[1].name == "3 iterations, the trained count"
    assert d.curve.accuracy is not None
    at = d.curve.at(d.stop_at)
    assert d.curve.accuracy[at].value > d.curve.accuracy[d.curve.at(3)].value + 0.03


def test_running_on_without_labels_needs_a_clear_rise_of_confidence() -> None:
    model, _, data = trained.load("residual")
    model.steps = 3  # type: ignore[assignment]
    d = shoal.diagnose(model, data(SAMPLES, 0)[0])
    assert d.stop_at == 4
    assert "come to rest, and confidence rises from 93.9% to 99.2%" in d.verdict
    x = torch.tensor([[3.0, 0.0]]).repeat(64, 1)
    x[:4] = torch.tensor([0.0, 0.1])  # four samples change their class, and hardly their doubt
    limit = torch.cat([x[:4].flip(1), x[4:]])
    swap = shoal.Loop(lambda z, end: z + 0.4 * (end - z), x, limit, steps=1)
    assert shoal.diagnose(swap).stop_at == 1


def test_running_on_to_a_better_count_helps_even_if_further_ones_hurt() -> None:
    u = torch.linspace(-1, 1, 64, dtype=torch.float64)[:, None]
    growing = shoal.Loop(lambda z, u: z + u / 8, torch.zeros_like(u), u, steps=2)
    d = shoal.diagnose(growing, y=u)
    assert (d.stop_at, d.running_on, d.loop_matters) == (8, "helps", "hurts")
    assert "help, and further ones make it worse" in d.verdict


def test_nothing_is_said_beyond_the_last_iteration() -> None:
    for y in (None, torch.randint(3, (64,))):
        d = shoal.diagnose(foreign.Averaged(), foreign.vectors(64), y=y)
        assert d.curve.steps[-1] == d.trained
        assert d.running_on == "unknown"
        assert "up to there, the output" in d.verdict


def test_few_samples_and_a_doubtful_axis_are_noted() -> None:
    class Channels(foreign.Vectors):
        def forward(self, x: Tensor) -> Tensor:  # (samples, 7, places) to (samples, 3, places)
            z = x = x.transpose(1, 2)
            for n in range(self.steps):
                z = self.turn(z, x, n)
            return self.readout(z).transpose(1, 2)

    notes = shoal.diagnose(Channels(), torch.randn(5, 7, 9)).notes
    assert any("5 samples give wide intervals" in note for note in notes)
    assert any("along the last axis of the output decides" in note for note in notes)
    x = torch.randn(16, 7, 9)
    assert not shoal.diagnose(Channels().eval(), x, y=torch.zeros(16, 9).long()).notes


def test_labels_as_an_argument_are_named() -> None:
    with pytest.raises(ValueError, match="pass labels as y="):
        shoal.diagnose(foreign.Vectors(), foreign.vectors(), torch.zeros(5))


def test_the_curve_is_that_of_the_model() -> None:
    d = diagnosed("overthinking")
    model, _, data = trained.load("overthinking")
    x, y = data(SAMPLES, 0)
    outputs = {}
    for n in d.curve.steps:
        model.steps = n  # type: ignore[assignment]
        outputs[n] = model(x).argmax(-1)
    assert d.curve.accuracy is not None
    assert d.curve.sample_accuracy is not None
    for k, n in enumerate(d.curve.steps):
        right, same = outputs[n] == y, outputs[n] == outputs[6]
        assert d.curve.accuracy[k].value == pytest.approx(float(right.double().mean()))
        assert d.curve.sample_accuracy[k].value == pytest.approx(
            float(right.all(1).double().mean())
        )
        assert d.curve.agreement[k].value == pytest.approx(float(same.double().mean()))
        for one in (d.curve.accuracy[k], d.curve.agreement[k]):
            assert 0 <= one.low <= one.value <= one.high <= 1
    assert [one.last_change > 6 for one in d.samples].count(True) > 50
    assert d.curve.steps == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)


@pytest.mark.parametrize(
    ("cell", "behavior"),
    [
        (lambda z, u: -0.5 * z + u, "converges"),
        (lambda z, u: 0.99 * z + u, "converges"),
        (lambda z, u: -0.98 * z + u, "converges"),
        (lambda z, u: 3.5 * (z + 0.3) * (0.7 - z) - 0.3 + 0 * u, "cycles"),
        (lambda z, u: 3.9 * (z + 0.3 + 0.01 * u) * (0.7 - z - 0.01 * u) - 0.3, "wanders"),
        (lambda z, u: z + u + 0.3, "drifts"),
        (lambda z, u: 1.5 * z + u + 0.1, "diverges"),
    ],
)
@pytest.mark.parametrize("steps", [8, None])
def test_maps_of_known_behavior(cell: object, behavior: str, steps: int | None) -> None:
    d = shoal.diagnose(loop(cell, steps))
    assert d.behavior == behavior
    assert d.loop_matters != "no"
    if steps is None and behavior not in ("converges", "cycles"):
        assert d.stop_at is None
        assert d.loop_matters == "unknown"


def test_a_cycle_has_its_period() -> None:
    d = shoal.diagnose(loop(lambda z, u: torch.cat([-z[:, 1:], z[:, :1]], 1) + 0 * u.sum(), 8,
                            torch.ones(4, 2)))  # fmt: skip
    assert d.behavior == "converges"  # from zero
    turned = shoal.Loop(lambda z: torch.cat([-z[:, 1:], z[:, :1]], 1), torch.ones(4, 2), steps=8)
    cycle = shoal.diagnose(turned)
    assert cycle.behavior == "cycles"
    assert {one.period for one in cycle.samples} == {4}


def test_a_loop_that_is_not_needed() -> None:
    model = foreign.Vectors()
    with torch.no_grad():
        model.cell.weight.mul_(1e-4)
    d = shoal.diagnose(model, foreign.vectors(40))
    assert (d.loop_matters, d.stop_at) == ("no", 1)
    assert "one iteration" in d.verdict


def test_targets_and_scores() -> None:
    target = 2 * U / 3
    cell = lambda z, u: -0.5 * z + u  # noqa: E731
    d = shoal.diagnose(loop(cell), y=target)
    assert d.curve.accuracy is not None
    z = torch.zeros_like(U)
    for n in (1, 2, 3, 4):
        z = cell(z, U)
        expected = 1 - ((z - target) ** 2).sum() / ((target - target.mean()) ** 2).sum()
        assert d.curve.accuracy[n - 1].value == pytest.approx(float(expected))
    assert d.curve.sample_accuracy is None
    scored = shoal.diagnose(loop(cell), score=lambda out: -(out[:, 0] - target[:, 0]).abs())
    assert scored.stop_at is not None
    assert scored.stop_at >= 4
    with pytest.raises(ValueError, match="must not both be given"):
        shoal.diagnose(loop(cell), y=target, score=lambda out: out[:, 0])
    with pytest.raises(ValueError, match="score must return one number per sample"):
        shoal.diagnose(loop(cell), score=lambda out: out.sum())


def test_signs_and_custom_decisions() -> None:
    labels = (U[:, 0] > 0).long()
    d = shoal.diagnose(loop(lambda z, u: 0.5 * z + u - 0.1 * (z > 1)), y=labels)
    assert d.curve.accuracy is not None
    assert d.curve.accuracy[0].value == 1.0
    custom = shoal.diagnose(loop(lambda z, u: 0.5 * z + u), decision=lambda out: out[:, 0] > 1.5)
    assert custom.stop_at == 4  # one step of the curve more than the last change
    assert [one.last_change for one in custom.samples] == [0, 0, 0, 0, 3]


# What models may do


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.full((5,), -100), "labels besides -100"),
        (torch.tensor([1, 2, 3, 1, 2]), "classes from 0 to 2, .* got 1 to 3"),
        (torch.tensor([0, 1, 2, -1, 0]), "classes from 0 to 2, .* got -1 to 2"),
        ([0, 1, 2, 1, 0], "y must be a .*Tensor"),
        (torch.eye(3)[[0, 1, 2, 1, 0]], r"one-hot rows; pass y.argmax\(-1\)"),
    ],
)
def test_labels_that_no_output_can_have_are_refused(y: Tensor, words: str) -> None:
    three = loop(lambda z, u: 0.5 * z + u, z0=U * torch.tensor([[1.0, 2.0, 3.0]]))
    with pytest.raises((TypeError, ValueError), match=words):
        shoal.diagnose(three, y=y)


def test_a_sample_of_nan_is_left_out() -> None:
    model, x = foreign.Vectors(), foreign.vectors(12)
    x[4, 2] = torch.nan
    d = shoal.diagnose(model, x)
    assert [one.status for one in d.samples].count("not finite") == 1
    assert d.samples[4].status == "not finite"
    assert d.behavior == "converges"
    assert any("1 of 12 samples are left out" in note for note in d.notes)
    with pytest.raises(ValueError, match="none after 1 step"):
        shoal.diagnose(model, x[4:5].expand(3, -1))


def test_dropout_is_off_and_modes_stay() -> None:
    class Dropped(foreign.Vectors):
        def turn(self, z: Tensor, x: Tensor, n: int) -> Tensor:
            return nn.functional.dropout(super().turn(z, x, n), 0.3, self.training)

    model, x = Dropped().train(), foreign.vectors(12)
    d = shoal.diagnose(model, x)
    assert model.training
    assert d.behavior == "converges"
    assert any("training mode" in note for note in d.notes)
    with pytest.raises(ValueError, match="random numbers"):
        shoal.diagnose(foreign.Noisy(), x)
    with pytest.raises(ValueError, match="random numbers"):
        shoal.diagnose(loop(lambda z, u: 0.5 * z + u + torch.randn_like(z)))


def test_a_batch_that_mixes_samples_is_noted() -> None:
    d = shoal.diagnose(foreign.BatchCentered(), foreign.vectors(12))
    assert any("depend on one another" in note for note in d.notes)
    centered = shoal.diagnose(loop(lambda z, u: 0.5 * (z - z.mean(0)) + u))
    assert any("depend on one another" in note for note in centered.notes)


@pytest.mark.parametrize(
    ("label", "words"),
    [(3, "classes from 0 to 2"), (0.5, "whole numbers"), (-100, "labels besides -100")],
)
def test_labels_that_are_no_classes_are_refused(label: float, words: str) -> None:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)
    loop = shoal.Loop(lambda z, u: z / 2 + u, torch.zeros_like(x), x, steps=4)
    for y in (torch.full((4,), label), torch.tensor(label).expand(4, 1)):
        with pytest.raises(ValueError, match=words):
            shoal.diagnose(loop, y=y)


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (foreign.Plain(), foreign.tokens(), "has no loop"),
        (foreign.UntilTolerance(), foreign.vectors(), "depends on its data"),
        (foreign.AllOutputs(), foreign.vectors(), "has no loop"),
    ],
)
def test_models_without_a_loop_are_refused(model: nn.Module, inputs: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shoal.diagnose(model, inputs)
    with pytest.raises(TypeError, match="model must be"):
        shoal.diagnose(lambda x: x, inputs)  # type: ignore[arg-type]


def test_the_longer_of_two_loops_is_diagnosed() -> None:
    d = shoal.diagnose(foreign.TwoLoops(), foreign.vectors(12))
    assert d.trained == 6
    assert any("another loop, of 3 steps" in note for note in d.notes)


def test_a_random_start_is_noted_and_seeded() -> None:
    model, x = foreign.RecurrentDepth().eval(), foreign.tokens(8)
    first, second = (shoal.diagnose(model, x, seed=3) for _ in range(2))
    assert [a.value for a in first.curve.agreement] == [a.value for a in second.curve.agreement]
    assert any("two starts agree" in note for note in first.notes)


def test_step_embeddings_end() -> None:
    d = shoal.diagnose(foreign.StepEmbedding().eval(), foreign.tokens(8))
    assert d.curve.steps[-1] == 6
    assert any("end at 6" in note for note in d.notes)


def test_results_are_plain_values_text_and_pictures() -> None:
    d = diagnosed("overthinking")
    document = json.loads(d.to_json())
    assert document["stop_at"] == 6
    assert document["curve"]["steps"] == list(d.curve.steps)
    assert len(document["samples"]) == SAMPLES
    assert d.verdict in str(d)
    assert "6 trained stop" in str(d)
    pytest.importorskip("matplotlib")
    assert len(d.plot().axes[0].lines) >= 3


# The equilibrium


def test_a_contraction_of_known_rate() -> None:
    contraction = loop(lambda z, u: 0.8 * z + u)
    assert shoal.diagnose(contraction).equilibrium is None
    d = shoal.diagnose(contraction, equilibrium=True)
    report = d.equilibrium
    assert report is not None
    assert report.spectrum is not None
    assert report.spectrum.radius == pytest.approx(0.8, abs=1e-9)
    assert report.spectrum.norm == pytest.approx(0.8, abs=1e-9)
    assert report.counts == (1,) * 5
    assert report.unique is None
    assert report.contraction == "unknown"
    torch.testing.assert_close(torch.cat(report.states), 5 * U, rtol=1e-6, atol=1e-9)
    errors = {cost.name: cost.relative for cost in report.gradients}
    for terms in (1, 5, 20):  # the rest of the geometric series
        assert errors[f"Neumann({terms})"] == pytest.approx(0.8 ** (terms + 1), rel=1e-4)
    assert errors["OneStep"] == pytest.approx(0.8, rel=1e-4)
    assert "equilibrium by Picard" in [one.name for one in d.tried]
    assert all(math.isfinite(t.seconds) for t in d.tried)


def test_several_equilibria_near_the_start() -> None:
    # z = tanh(2z): ±0.9575 attract, 0 repels
    start = torch.full((4, 1), 0.05, dtype=torch.float64)
    d = shoal.diagnose(shoal.Loop(lambda z: torch.tanh(2 * z), start, steps=8), equilibrium=True)
    assert d.equilibrium is not None
    assert d.equilibrium.unique is False
    exact = torch.tensor([-0.957504024, 0.0, 0.957504024], dtype=torch.float64)
    for states in d.equilibrium.states:
        assert float((states - exact).abs().amin(1).max()) < 1e-6


def test_an_equilibrium_is_sought_only_where_the_output_converges() -> None:
    d = shoal.diagnose(loop(lambda z, u: 1.5 * z + u + 0.1), equilibrium=True)
    assert d.equilibrium is None
    assert any("no equilibrium was looked for" in note for note in d.notes)


def test_a_wrong_gradient_is_told() -> None:
    turn = 0.9 * torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    push = torch.ones(6, 2, dtype=torch.float64)
    rotation = shoal.Loop(lambda z, s: z @ turn.T + s, torch.zeros_like(push), push, steps=50)
    d = shoal.diagnose(rotation, equilibrium=True)
    assert d.equilibrium is not None
    exact = torch.linalg.inv(torch.eye(2, dtype=torch.float64) - turn)
    one = {cost.name: cost for cost in d.equilibrium.gradients}["OneStep"]
    # (I - J)^-T g has the angle of I - J, and the length of its inverse, to g
    assert one.cosine == pytest.approx(1 / math.sqrt(1 + 0.81), rel=1e-6)
    assert one.relative == pytest.approx(
        float((torch.eye(2) - exact).norm() / exact.norm()), rel=1e-6
    )


def test_large_states_have_norms_by_products() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(150, 150, generator=generator, dtype=torch.float64) / 150**0.5 * 0.5
    x = torch.randn(3, 150, generator=generator, dtype=torch.float64)
    linear = shoal.Loop(lambda z, u: z @ matrix.T + u, torch.zeros_like(x), x, steps=30)
    d = shoal.diagnose(linear, equilibrium=True)
    assert d.equilibrium is not None
    spectrum = d.equilibrium.spectrum
    assert spectrum is not None
    assert not spectrum.exact
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    assert spectrum.norm == pytest.approx(norm, rel=1e-3)
    assert spectrum.norm <= norm * (1 + 1e-9)
    radius = float(torch.linalg.eigvals(matrix).abs().max())
    assert spectrum.radius == pytest.approx(radius, rel=0.05)


def test_models_that_solve_are_compared_with_their_own_output() -> None:
    deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
    net = shoal.build(deq, in_features=4, width=16, out_features=3, dtype=torch.float64)
    x = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    d = shoal.diagnose(net, x)
    assert d.behavior == "converges"
    assert d.equilibrium is not None
    assert d.equilibrium.contraction == "certified"
    assert d.equilibrium.unique is True
    assert d.curve.agreement[-1].value == 1.0
    assert d.equilibrium.spectrum is not None
    assert d.equilibrium.spectrum.norm < 1


def test_cells_with_parameters_and_trees_have_gradients() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3).double()

    def cell(z: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(linear(z[1]) / 3 + x), z[0] / 2

    x = torch.randn(4, 3, dtype=torch.float64)
    pair = shoal.Loop(cell, (x * 0, x * 0), x, head=lambda z: z[0], steps=20)
    d = shoal.diagnose(pair, equilibrium=True)
    assert d.equilibrium is not None
    assert d.equilibrium.solved == 4
    spectrum = d.equilibrium.spectrum
    assert spectrum is not None
    a = d.equilibrium.states[0][0]
    weight = linear.weight.detach() / 3 * (1 - a[:3] ** 2)[:, None]
    zero = torch.zeros(3, 3, dtype=torch.float64)
    jacobian = torch.cat(
        [torch.cat([zero, weight], 1), torch.cat([zero + torch.eye(3) / 2, zero], 1)]
    )
    assert spectrum.norms[0] == pytest.approx(
        float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-6
    )
    assert spectrum.radii[0] == pytest.approx(
        float(torch.linalg.eigvals(jacobian).abs().max()), rel=1e-6
    )
    assert d.equilibrium.gradients[-1].relative < 1e-4
