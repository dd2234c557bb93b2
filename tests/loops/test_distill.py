"""Replacements of loops: measured against outputs that are computed here, and refusals."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import shoal
from loops import foreign
from shoal.loops import Distillation


def by_name(t: Distillation) -> dict[str, shoal.loops.distillation.MeasuredModel]:
    return {one.name: one for one in t.candidates}


@pytest.fixture(scope="module")
def tokens() -> tuple[nn.Module, Tensor, Tensor, Distillation]:
    """A looped transformer with labels per token."""
    torch.manual_seed(0)
    model, x = foreign.LoopedTransformer().eval(), foreign.tokens(200)
    y = model(x).argmax(-1)
    y[:, 0] = -100
    return model, x, y, shoal.distill(model, x, y, depths=(1, 2), epochs=2)


def test_scores_are_those_of_the_outputs(tokens) -> None:
    model, x, y, t = tokens
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:50]
    held_out, labels = x[order], y[order]
    short = copy.deepcopy(model)
    short.steps = 2
    with torch.no_grad():
        whole, cut = model(held_out), short(held_out)
    scores = by_name(t)["cut to 2 iterations"].scores
    same = cut.argmax(-1) == whole.argmax(-1)
    assert scores.agreement == pytest.approx(float(same.double().mean()))
    assert scores.samples_agree == pytest.approx(float(same.all(1).double().mean()))
    labeled = labels != -100
    right = (cut.argmax(-1) == labels)[labeled]
    assert scores.accuracy == pytest.approx(float(right.double().mean()))
    apart, size = ((o - o.mean(-1, keepdim=True)).norm() for o in (cut - whole, whole))
    assert scores.output_error == pytest.approx(float(apart / size), rel=1e-4)
    assert t.original.scores.accuracy == 1.0
    assert (t.samples, t.trained_on) == (50, 150)


def test_the_verdict_was_tried(tokens) -> None:
    t = tokens[-1]
    assert t.skipped.keys() == {"plain layers", "stop rule"}
    assert "at least 428 samples" in t.skipped["stop rule"]
    best = t.best
    if best is None:
        assert t.verdict.startswith("Keep your model")
        assert t.module is tokens[0]
        assert t.fidelity == 1.0
    else:
        assert best in t.candidates
        assert best.loss <= t.tolerance
        assert t.latency == best.seconds < t.original.seconds
        assert best.name in t.verdict
    seconds = [one.seconds for one in t.frontier]
    losses = [one.loss for one in t.frontier]
    assert seconds == sorted(seconds)
    assert losses == sorted(losses, reverse=True)
    document = json.loads(t.to_json())
    assert document["candidates"][0]["scores"]["agreement"] <= 1
    assert all(one.name in str(t) for one in t.candidates)


def test_students_are_modules_of_their_own(tokens, tmp_path: Path) -> None:
    model, x, y, t = tokens
    before = copy.deepcopy(model.state_dict())
    again = shoal.distill(model, x, y, depths=(1, 2), epochs=2)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
    student = by_name(t)["trained copy, 2 iterations"].module
    assert torch.equal(student(x[:3]), by_name(again)["trained copy, 2 iterations"].module(x[:3]))
    path = t.export(tmp_path / "student.safetensors", "trained copy, 2 iterations")
    other = copy.deepcopy(student)
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    assert not torch.equal(other(x[:3]), student(x[:3]))
    other.load_state_dict(load_file(path))
    assert torch.equal(other(x[:3]), student(x[:3]))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_student_is_exported_as_a_program(tokens, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    _, x, _, t = tokens
    name = "trained copy, 2 iterations"
    path = t.export(tmp_path / "student.onnx", name)
    session = runtime.InferenceSession(path)
    (output,) = session.run(None, {session.get_inputs()[0].name: x[:7].numpy()})
    torch.testing.assert_close(
        torch.from_numpy(output), by_name(t)[name].module(x[:7]), rtol=1e-4, atol=1e-5
    )


class Slow(nn.Module):
    """Needs many iterations: each one mixes little of its input."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.readout = nn.Linear(7, 7), nn.Linear(7, outputs)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        for _ in range(12):
            z = z + (torch.tanh(self.cell(z) + x) - z) / 4
        return self.readout(z)


def test_a_trained_copy_is_better_than_a_cut_loop() -> None:
    x = torch.randn(800, 7, generator=torch.Generator().manual_seed(0))
    t = by_name(shoal.distill(Slow(), x, batch_size=32))
    for steps in ("1 iteration", "2 iterations", "3 iterations"):
        cut, trained = t[f"cut to {steps}"].scores, t[f"trained copy, {steps}"].scores
        assert trained.output_error < cut.output_error / 1.5
        assert trained.agreement > cut.agreement
    rule = t["stop rule"]
    assert rule.scores.samples_agree > 0.97
    assert rule.module.rule.steps == 12


def test_classes_in_another_axis_are_those_of_the_labels() -> None:
    class Channels(Slow):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).transpose(1, 2)  # classes before places

    x = torch.randn(700, 5, 7)
    model = Channels()
    y = model(x).argmax(1)
    t = shoal.distill(model, x, y, depths=(6,), epochs=1, tolerance=0.02)
    assert t.decision.startswith("the largest entry along axis 1")
    assert t.original.scores.accuracy == 1.0
    rule = by_name(t)["stop rule"]
    assert rule.module.rule.decisions.axis == 1
    assert rule.scores.samples_agree > 0.95


def test_real_targets_and_values() -> None:
    x = foreign.vectors(120)
    y = Slow(1)(x).detach()
    t = shoal.distill(Slow(1), x, y[:, 0], epochs=1, depths=(1, 11))
    assert t.original.scores.accuracy == pytest.approx(1)
    assert by_name(t)["cut to 11 iterations"].scores.accuracy > 0.99
    assert {"plain layer, on labels", "two plain layers, on outputs"} <= by_name(t).keys()
    free = shoal.distill(Slow(1), x, epochs=1, depths=(11,))
    assert free.accuracy is None
    assert free.original.scores.agreement == 1.0


class Signs(nn.Module):
    """One number per image of 3 x 3 pixels, after five iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.readout = nn.Linear(9, 9), nn.Linear(9, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = x = x.flatten(1)
        for _ in range(5):
            z = torch.tanh(self.cell(z) / 2 + x)
        return self.readout(z)


@pytest.mark.parametrize("low", [0, -1])
def test_plain_layers_learn_signs(low: int) -> None:
    torch.manual_seed(0)
    model, x = Signs().eval(), torch.randn(400, 1, 3, 3)
    y = torch.where(x.sum((1, 2, 3)) > 0, 1, low)
    y[::3] = -100  # which a squared error must not take for a number
    t = shoal.distill(model, x, y, depths=(1,), epochs=40, width=64)
    accuracy = by_name(t)["plain layer, on labels"].scores.accuracy
    assert accuracy is not None
    assert accuracy > 0.85


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_plain_layer_of_images_is_exported_for_images(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    x, name = torch.randn(40, 1, 3, 3), "plain layer, on outputs"
    t = shoal.distill(Signs().eval(), x, depths=(1,), epochs=1)
    session = runtime.InferenceSession(t.export(tmp_path / "layer.onnx", name))
    (output,) = session.run(None, {session.get_inputs()[0].name: x[:7].numpy()})
    torch.testing.assert_close(
        torch.from_numpy(output), by_name(t)[name].module(x[:7]), rtol=1e-4, atol=1e-5
    )


def test_plain_layers_learn_large_targets() -> None:
    torch.manual_seed(0)
    model, x = Signs().eval(), torch.randn(400, 1, 3, 3)
    t = shoal.distill(model, x, 1e5 * x.sum((1, 2, 3)), depths=(1,), epochs=40, width=64)
    accuracy = by_name(t)["plain layer, on labels"].scores.accuracy
    assert accuracy is not None
    assert accuracy > 0.8


def test_agreement_has_a_standard_error() -> None:
    model, x = Slow().eval(), foreign.vectors(40)
    t = shoal.distill(model, x, depths=(1,), epochs=1, tolerance=0.9)
    assert t.original.scores.uncertainty == pytest.approx(1 / 10)


def test_a_loop_and_several_arguments() -> None:
    loop = shoal.Loop(
        lambda z, x, u: torch.tanh(z.flip(1) / 2 + x + u), lambda x, u: x + u, steps=6
    )
    x, u = torch.randn(60, 4), torch.randn(60, 4)
    t = shoal.distill(loop, (x, u), depths=(5,), epochs=1)
    assert by_name(t)["cut to 5 iterations"].scores.agreement > 0.9
    assert torch.equal(t.original.module(x, u), loop.run(x, u))


@pytest.mark.thorough("Conv")
@pytest.mark.parametrize("kind", [shoal.DEQ, shoal.ConvDEQ])
def test_networks_of_shoal_have_designs_and_plain_layers(kind: type) -> None:
    images = kind is shoal.ConvDEQ
    deq = kind("tanh", recurrent_variance=0.2, input_variance=0.8)
    net = shoal.build(
        deq, in_features=2, width=8, out_features=3, pixels=(4, 4) if images else None
    )
    x = torch.randn((60, 2, 4, 4) if images else (60, 2))
    candidates = by_name(shoal.distill(net, x, epochs=1, depths=(1,)))
    assert ("design, on outputs" in candidates) is not images
    assert "plain layer, on outputs" in candidates


def test_the_frontier_is_drawn(tokens) -> None:
    pytest.importorskip("matplotlib")
    t = tokens[-1]
    (axes,) = t.plot().axes
    shown = {text.get_text().split("  ")[1] for text in axes.get_legend().get_texts()}
    assert shown == {"original", *by_name(t)}
    assert axes.get_ylabel() == "accuracy, %"


def nan(x: Tensor) -> Tensor:
    x[3] = torch.nan
    return x


@pytest.mark.parametrize(
    ("make", "words", "options"),
    [
        (lambda: (nn.Linear(7, 2), foreign.vectors(9)), "Linear has no loop", {}),
        (lambda: (foreign.BatchCentered(), foreign.vectors(9)), "depend on one another", {}),
        (lambda: (Slow(), nan(foreign.vectors(40))), "got NaN or infinity for 1 sample: 3", {}),
        (lambda: (Slow(), foreign.vectors(9), torch.zeros(8).long()), "y must have one entry", {}),
        (lambda: (Slow(), foreign.vectors(9), torch.arange(9)), "classes from 0 to 2", {}),
        (lambda: (Slow(), foreign.vectors(9), torch.full((9,), 0.5)), "whole numbers", {}),
        (lambda: (Signs(), torch.ones(9, 9), torch.full((9,), -100)), "labels besides", {}),
        (lambda: (Slow(), foreign.vectors(9), torch.full((9,), -100)), "labels besides -100", {}),
        (lambda: (Slow(), foreign.vectors(9), torch.full((9, 3), torch.inf)), "finite targets", {}),
        (lambda: (Slow(), foreign.vectors(9)), "depths must have numbers", {"depths": (12,)}),
        (lambda: (Slow(), foreign.vectors(9)), "depths must be >= 1", {"depths": (0,)}),
        (lambda: (Slow(), foreign.vectors(9)), "epochs must be", {"epochs": 0}),
        (lambda: (Slow(), foreign.vectors(9)), "held_out must be", {"held_out": 1.5}),
        (lambda: (Slow(), foreign.vectors(9)), "held_out must be", {"held_out": (1, 2, 3)}),
        (lambda: (Slow(), foreign.vectors(2)), "at least 2 samples to train on", {}),
        (
            lambda: (Slow(), foreign.vectors(9), torch.zeros(9).long()),
            "held_out must have labels",
            {"held_out": (foreign.vectors(3), None)},
        ),
        (
            lambda: (shoal.Loop(torch.tanh, foreign.vectors(9), steps=4), foreign.vectors(9)),
            "pass z0 as a function",
            {},
        ),
    ],
)
def test_refusals(make: Callable[[], tuple[object, ...]], words: str, options: dict) -> None:
    with pytest.raises(ValueError, match=words):
        shoal.distill(*make(), **options)


def test_refusals_of_kinds_and_files(tokens, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"held_out must be a share or \(x, y\)"):
        shoal.distill(Slow(), foreign.vectors(9), held_out=foreign.vectors(9))
    with pytest.raises(TypeError, match="model must be"):
        shoal.distill(3, foreign.vectors(9))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="x must be a tensor"):
        shoal.distill(Slow(), 3)
    with pytest.raises(TypeError, match="y must have labels as a tensor"):
        shoal.distill(Slow(), foreign.vectors(9), ["a"] * 9)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="depths must be a collection"):
        shoal.distill(Slow(), foreign.vectors(9), depths=3)  # type: ignore[arg-type]
    t = tokens[-1]
    with pytest.raises(ValueError, match="path must end in"):
        t.export(tmp_path / "a.pt", "cut to 1 iteration")
    with pytest.raises(ValueError, match="name must be one of"):
        t.export(tmp_path / "a.onnx", "nothing")
    rule = shoal.distill(Slow(), foreign.vectors(700), depths=(1,), epochs=1)
    with pytest.raises(TypeError, match="which ONNX cannot express"):
        rule.export(tmp_path / "a.onnx", "stop rule")
