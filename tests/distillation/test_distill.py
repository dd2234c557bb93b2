"""Replacements of models: what is fitted, what is measured, and the honest answer."""

import importlib.util
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.adapters.torchdeq import get_deq
from shoal.distillation import Measured
from shoal.distillation.cut_loop import cut_loop

DTYPE = torch.float64


def inputs(count: int, size: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, dtype=DTYPE, generator=generator)


class Model(nn.Module):
    """An equilibrium of a cell that is linear or not, and a readout."""

    def __init__(self, function=torch.tanh, width: int = 6, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recurrent, self.input = nn.Linear(width, width), nn.Linear(3, width)
        self.readout, self.function = nn.Linear(width, outputs), function
        self.layer, self.width = shoal.Equilibrium(self.step), width
        self.double()

    def step(self, z: Tensor, x: Tensor) -> Tensor:
        return self.function(self.recurrent(z) / 2 + self.input(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.layer(x.new_zeros(len(x), self.width), x.flatten(1)))


class Broken(Model):
    """A model that says nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nan * super().forward(x)


def by_name(twin: shoal.distillation.Distillation) -> dict[str, object]:
    return {one.name: one for one in twin.candidates}


def test_the_correction_of_a_linear_loop_is_exact() -> None:
    # z = Az + Bx + c has z* = (I - A)^-1 z_1: one application and a linear map are all of it
    model = Model(function=lambda t: t)
    twin = shoal.distill(model, inputs(80), epochs=1, depths=(1,))
    cut = by_name(twin)["cut to 1 application"]
    assert cut.scores.output_error < 1e-5
    assert cut.scores.agreement == 1
    with torch.no_grad():
        recurrent = model.recurrent.weight / 2
        inverse = torch.linalg.inv(torch.eye(6, dtype=DTYPE) - recurrent)
        torch.testing.assert_close(
            cut.module.weight @ model.input.weight,
            inverse @ model.input.weight,
            atol=1e-4,
            rtol=1e-4,
        )


def test_deeper_cuts_are_nearer_and_the_model_stays_as_it_is() -> None:
    model, x = Model(), inputs(120)
    before, outputs = {k: v.clone() for k, v in model.state_dict().items()}, model(x).detach()
    twin = shoal.distill(model, x, epochs=1, depths=(1, 3, 8))
    errors = [one.scores.output_error for one in twin.candidates if "cut" in one.name]
    assert errors[0] > errors[1] > errors[2]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    torch.testing.assert_close(model(x).detach(), outputs, atol=0, rtol=0)
    assert twin.original.scores.output_error == 0
    assert (twin.samples, twin.trained_on) == (30, 90)
    assert set(twin.skipped) >= {"design", "plain layer, on labels"}
    assert "architecture=" in str(twin)


def test_scores_are_what_they_say() -> None:
    model, x, test = Model(), inputs(60), inputs(40, seed=1)
    y, y_test = x[:, 0].gt(0).long() + x[:, 1].gt(0).long(), test[:, 0].gt(0).long()
    twin = shoal.distill(model, x, y, held_out=(test, y_test), epochs=3, depths=(1,))
    one = by_name(twin)["plain layer, on labels"]
    with torch.no_grad():
        outputs, wanted = one.module(test), model(test)
    right, before = outputs.argmax(1) == y_test, wanted.argmax(1) == y_test
    assert one.scores.accuracy == pytest.approx(float(right.double().mean()))
    loss = float(before.double().mean() - right.double().mean())
    assert one.scores.accuracy_loss == pytest.approx(loss)
    scores, known = (o - o.mean(1, keepdim=True) for o in (outputs, wanted))
    error = float((scores - known).norm() / known.norm())
    assert one.scores.output_error == pytest.approx(error)
    confidence = outputs.softmax(1).amax(1)
    gaps = 0.0
    for low in range(15):
        chosen = (confidence >= low / 15) & (confidence < (low + 1) / 15)
        gaps += abs(float((confidence[chosen] - right[chosen].double()).sum()))
    assert one.scores.calibration_error == pytest.approx(gaps / 40)
    assert one.parameter_bytes == 8 * (6 * 3 + 3 * 6)
    assert one.seconds > 0


def test_what_is_too_far_is_not_chosen() -> None:
    model, x = Model(function=lambda t: torch.tanh(3 * t)), inputs(40)
    twin = shoal.distill(model, x, epochs=1, learning_rate=1e-6, depths=(), tolerance=0.0)
    assert twin.keep
    assert twin.module is model
    assert twin.verdict.startswith("Keep your model")
    with pytest.raises(ValueError, match="nothing to export"):
        twin.export("net.onnx")
    document = json.loads(twin.to_json())
    assert document["keep"]
    assert document["best"] is None


def network(width: int = 24) -> nn.Module:
    deq = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.1, input_variance=0.9)
    return shoal.build(deq, in_features=3, width=width, out_features=2, dtype=DTYPE)


@pytest.mark.filterwarnings("ignore")  # PyTorch's exporter warns of itself
def test_a_network_of_build_has_a_design_and_it_is_exported(tmp_path: Path) -> None:
    net = network()
    x = nn.functional.normalize(inputs(200))
    twin = shoal.distill(net, x, epochs=30, tolerance=1.0, depths=(1,))
    names = by_name(twin)
    assert {"design, on outputs", "plain layer, on outputs"} <= set(names)
    assert names["design, on outputs"].scores.output_error < 0.2
    fast = names["design, on outputs"]._replace(seconds=twin.original.seconds / 3)
    chosen = replace(twin, candidates=(fast,), tolerance=1.0)
    if importlib.util.find_spec("onnxscript"):
        assert chosen.export(tmp_path / "small.onnx") == tmp_path / "small.onnx"
        assert (tmp_path / "small.onnx").stat().st_size > 1000
    cut = names["cut to 1 application"]._replace(seconds=twin.original.seconds / 3)
    with pytest.raises(TypeError, match="made of the model's own cell"):
        replace(chosen, candidates=(cut,)).export(tmp_path / "cut.onnx")


def test_the_fastest_of_those_that_lose_little_is_chosen() -> None:
    twin = shoal.distill(Model(), inputs(40), epochs=1, depths=(1,))
    scores = twin.original.scores
    original = twin.original._replace(seconds=10.0)

    def one(name: str, seconds: float, agreement: float) -> Measured:
        kept = scores._replace(agreement=agreement)
        return original._replace(name=name, seconds=seconds, scores=kept)

    several = (one("far", 1, 0.9), one("near", 2, 0.995), one("nearer", 5, 1), one("slow", 11, 1))
    found = replace(twin, original=original, candidates=several, tolerance=0.01)
    assert found.best.name == "near"
    assert found.verdict == "Replace it by: near. 5 times as fast, agrees in 99.50%."
    assert replace(found, tolerance=0.001).best.name == "nearer"
    last = replace(found, candidates=several[::3], tolerance=0.01)
    assert last.keep
    assert "The nearest, slow: agrees in 100.00%, 0.909 times as fast" in last.verdict


def test_training_on_outputs_finds_the_model_of_the_same_kind() -> None:
    # a network without recurrence is a plain layer: it must be found nearly exactly
    deq = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.0, input_variance=1.0)
    net = shoal.build(deq, in_features=3, width=16, out_features=1, dtype=DTYPE)
    x = inputs(300)
    twin = shoal.distill(net, x, epochs=100, width=64, depths=(), batch_size=64)
    assert by_name(twin)["plain layer, on outputs"].scores.output_error < 0.08


def test_images_are_flattened_and_targets_may_be_real() -> None:
    model, x = Model(outputs=1), inputs(60).reshape(60, 1, 3, 1)
    with torch.no_grad():
        y = model(x)[:, 0] + 0.01 * inputs(60, 1)[:, 0]
    twin = shoal.distill(model, x, y, epochs=40, depths=(1, 6), tolerance=0.05)
    assert twin.original.scores.accuracy > 0.95
    assert twin.original.scores.agreement is None
    assert by_name(twin)["cut to 6 applications"].scores.accuracy_loss < 0.05
    flat = by_name(twin)["plain layer, on outputs"]
    assert flat.module(x).shape == (60, 1)
    assert flat.scores.calibration_error is None
    assert twin.lost(flat).endswith("of the variance of targets explained")


def test_a_model_whose_solver_fails_is_said_to(recwarn: pytest.WarningsRecorder) -> None:
    solving, failing = Model(), Model()
    failing.layer = shoal.Equilibrium(
        failing.step, solver=shoal.Picard(max_steps=2), on_failure="status"
    )
    twins = [shoal.distill(m, inputs(40), epochs=1, depths=(1,)) for m in (solving, failing)]
    assert [twin.unsolved for twin in twins] == [0, 10]
    assert "10 held-out samples (the model's solver failed for 10), 30 others" in str(twins[1])
    assert "failed" not in str(twins[0])
    assert not recwarn.list


def test_a_loop_that_settles_nowhere_is_cut_without_a_correction() -> None:
    failing = Model(lambda z: z + 100)
    with torch.no_grad():
        failing.recurrent.weight.copy_(2 * torch.eye(6))  # z = z + 100 + Ux has no solution
        failing.recurrent.bias.zero_()
    failing.layer = shoal.Equilibrium(failing.step, on_failure="status")
    assert cut_loop(failing, inputs(20), 1).weight is None


def test_models_of_the_torchdeq_adapter_are_cut() -> None:
    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.deq, self.inner = get_deq(f_solver="anderson", f_tol=1e-10), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            states, _ = self.deq(lambda z: torch.tanh(self.inner(z) / 2 + x), torch.zeros_like(x))
            return states[-1]

    twin = shoal.distill(Foreign().double(), inputs(60), epochs=1, depths=(1, 12))
    assert by_name(twin)["cut to 12 applications"].scores.output_error < 1e-3


def test_few_samples_prove_little_and_many_do() -> None:
    x = inputs(2000)
    y = Model()(x).argmax(1)
    options = {"epochs": 1, "depths": (12,), "tolerance": 0.02}
    few = shoal.distill(Model(), x[:20], y[:20], **options)
    many = shoal.distill(Model(), x[20:], y[20:], **options)
    twins = [replace(t, candidates=(by_name(t)["cut to 12 applications"],)) for t in (few, many)]
    faster = [replace(t, original=t.original._replace(seconds=1e9)) for t in twins]
    assert all(t.best is not None for t in faster)  # both have everything right
    assert "5 held-out samples cannot prove" in faster[0].verdict
    assert "prove" not in faster[1].verdict


@pytest.mark.parametrize(
    ("outputs", "labels", "words"),
    [
        (3, None, "agreement, %"),
        (1, None, "100 - error of the outputs, %"),
        (3, torch.arange(40) % 3, "accuracy, %"),
        (1, torch.arange(40, dtype=DTYPE), "explained variance, %"),
    ],
)
def test_the_frontier_says_what_it_shows(outputs: int, labels: Tensor | None, words: str) -> None:
    pytest.importorskip("matplotlib")
    twin = shoal.distill(Model(outputs=outputs), inputs(40), labels, epochs=1, depths=(1,))
    figure = twin.plot()
    (axes,) = figure.axes
    assert axes.get_ylabel() == words
    title = axes.get_title(loc="left")
    assert ("Star" in title) == (twin.best is not None)
    assert ("Bars" in title) == (twin.original.scores.uncertainty is not None)
    figure.draw_without_rendering()
    labels = [t for t in axes.get_xticklabels() if t.get_text()]
    spans = [t.get_window_extent() for t in labels]
    inside = sorted((s.x0, s.x1) for s in spans if axes.bbox.x0 <= s.x0 <= axes.bbox.x1)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(inside))


def test_the_frontier_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    twin = shoal.distill(Model(), inputs(40), epochs=1, depths=(1,))
    (axes,) = twin.plot().axes
    shown = {text.get_text().split("  ")[1] for text in axes.get_legend().get_texts()}
    assert shown == {
        "original",
        *(one.name for one in twin.candidates),
    }


@pytest.mark.parametrize(
    ("error", "words", "arguments", "options"),
    [
        (TypeError, "model must be", (3, inputs(9)), {}),
        (ValueError, "model must have an equilibrium", (nn.Linear(3, 2).double(), inputs(9)), {}),
        (ValueError, "y must have one entry", (Model(), inputs(9), torch.zeros(8).long()), {}),
        (TypeError, "y must have labels as a tensor", (Model(), inputs(9), ["a"] * 9), {}),
        (ValueError, "y must have classes as", (Model(), inputs(9), torch.ones(9, 1).long()), {}),
        (ValueError, "y must have classes from 0 to 2", (Model(), inputs(9), torch.arange(9)), {}),
        (ValueError, "y must have targets like", (Model(), inputs(9), torch.randn(9)), {}),
        (ValueError, "y must have finite", (Model(), inputs(9), torch.full((9, 3), torch.inf)), {}),
        (ValueError, "y must have held-out", (Model(), inputs(9), torch.ones(9, 3)), {"epochs": 1}),
        (ValueError, "one output", (Model(outputs=1), inputs(9), torch.arange(9)), {}),
        (ValueError, "model must return finite", (Broken(), inputs(9)), {}),
        (ValueError, "held_out must be", (Model(), inputs(9)), {"held_out": 1.5}),
        (ValueError, "held_out must be", (Model(), inputs(9)), {"held_out": (1, 2, 3)}),
        (
            ValueError,
            "held_out must have samples like x",
            (Model(), inputs(9)),
            {"held_out": (inputs(3, size=4), None)},
        ),
        (
            ValueError,
            "held_out must have one entry",
            (Model(), inputs(9), torch.zeros(9).long()),
            {"held_out": (inputs(3), torch.zeros(4).long())},
        ),
        (
            ValueError,
            "held_out must have labels like y",
            (Model(), inputs(9), torch.zeros(9).long()),
            {"held_out": (inputs(3), torch.zeros(3))},
        ),
        (
            ValueError,
            "held_out must have labels",
            (Model(), inputs(9)),
            {"held_out": (inputs(3), torch.zeros(3).long())},
        ),
        (ValueError, "epochs must be", (Model(), inputs(9)), {"epochs": 0}),
        (ValueError, "depths must be", (Model(), inputs(9)), {"depths": (-1,)}),
        (TypeError, "depths must be a collection", (Model(), inputs(9)), {"depths": 3}),
        (ValueError, "learning_rate must be", (Model(), inputs(9)), {"learning_rate": 0}),
    ],
)
def test_bad_input_is_named(
    error: type[Exception], words: str, arguments: tuple[object, ...], options: dict[str, object]
) -> None:
    with pytest.raises(error, match=words):
        shoal.distill(*arguments, **options)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_classes_may_be_any_integers(dtype: torch.dtype) -> None:
    x, y = inputs(40), (inputs(40)[:, 0] > 0).long()
    known, other = (
        shoal.distill(Model(), x, labels, epochs=1, depths=(1,)) for labels in (y, y.to(dtype))
    )
    for one, same in zip(known.candidates, other.candidates, strict=True):
        assert one.scores == same.scores


def test_what_was_cut_has_no_loop_left() -> None:
    twin = shoal.distill(Model(), inputs(40), epochs=1, depths=(2,))
    cut = by_name(twin)["cut to 2 applications"].module
    with pytest.raises(ValueError, match="model must use its equilibrium"):
        shoal.diagnose(cut, None, inputs(3))
    before = cut(inputs(3))
    torch.testing.assert_close(cut(inputs(3)), before)  # nothing of it was lost


@pytest.mark.thorough
@pytest.mark.parametrize("phi", [shoal.activations.Tanh(), shoal.activations.ReLU()], ids=repr)
def test_trained_models_of_digits(phi: shoal.Activation) -> None:
    pytest.importorskip("sklearn")
    digits = shoal.data.load("digits")
    x, y = digits.x.flatten(1).float(), digits.y
    x = (x - x.mean()) / x.std() / 8
    net = shoal.build(
        shoal.DEQ(phi, recurrent_variance=0.2, input_variance=0.8),
        in_features=64, width=64, out_features=10, readout_scale=0.0,
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    shoal.GainConstraint(net, max_gain=0.9).attach(optimizer)
    for step in range(120):
        rows = torch.arange(128) + 128 * step
        rows = rows % 1200
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    twin = shoal.distill(net, x[:1200], y[:1200], held_out=(x[1200:], y[1200:]), tolerance=0.02)
    assert twin.original.scores.accuracy > 0.9
    found = by_name(twin)
    assert all(one.scores.accuracy > 0.9 for one in found.values())
    cuts = [one.scores.output_error for name, one in found.items() if "cut" in name]
    assert cuts == sorted(cuts, reverse=True)
    assert cuts[-1] < 0.05
