"""The result of a distillation: the original, its candidates, and the verdict."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import Module

from shoal.core.checks import as_path, one_of
from shoal.core.figures import COLORS, GRAY, Figure, empty_figure
from shoal.core.files import finite, json_text, write_whole
from shoal.core.words import counted
from shoal.loops.curve import Quality
from shoal.loops.decisions import Decisions, tensor_of
from shoal.loops.loop import LoopModule
from shoal.loops.trace import batch_of, rows_of_inputs
from shoal.networks import Network, export
from shoal.networks.modules import evaluating


class Scores(NamedTuple):
    """Fidelity and accuracy on held-out samples.

    Attributes:
        agreement: Share of the decisions that equal the original's; for values, share of the
            samples whose output is within 1% of the outputs' spread.
        samples_agree: Share of samples with all decisions equal to the original's.
        output_error: Distance of the outputs from the original's, relative to their norm. Scores
            of classes count up to a constant for each decision.
        accuracy: Share of correct decisions, or explained share of the variance of real targets;
            ``None`` without labels.
        accuracy_loss: Accuracy of the original minus this one.
        uncertainty: Standard error of the loss; ``None`` for real targets.
    """

    agreement: float
    samples_agree: float
    output_error: float
    accuracy: float | None
    accuracy_loss: float | None
    uncertainty: float | None

    @property
    def loss(self) -> float:
        """The loss of accuracy, or without labels the share of decisions that differ."""
        if not math.isfinite(self.output_error):
            return math.inf
        return 1 - self.agreement if self.accuracy_loss is None else self.accuracy_loss


class MeasuredModel(NamedTuple):
    """A model with its measurements.

    Attributes:
        name: Name of the model.
        module: The model.
        scores: Fidelity and accuracy on held-out samples.
        seconds: Time for a batch of ``batch`` held-out samples, the shortest of several.
        batch: Number of samples in that batch.
        parameter_bytes: Bytes of the parameters and buffers.
        peak_bytes: Peak memory of the batch in bytes, besides parameters and inputs.
        training_seconds: Time of its construction and training.
    """

    name: str
    module: Module
    scores: Scores
    seconds: float
    batch: int
    parameter_bytes: int
    peak_bytes: int
    training_seconds: float

    @property
    def loss(self) -> float:
        """The loss of accuracy, or without labels the share of decisions that differ."""
        return self.scores.loss


@dataclass(frozen=True, eq=False, repr=False)
class Distillation:
    """Replacements of a model with a loop, measured beside it on the same machine.

    Attributes:
        original: The model as it runs.
        candidates: The candidates that were tried.
        skipped: Names of candidates that were not tried, with the reason.
        samples: Number of held-out samples for all scores.
        trained_on: Number of other samples, from which candidates were constructed.
        tolerance: Largest loss of a replacement.
        decision: The decision, in words.
        device: Device on which times were measured.
        inputs: The batch that was timed.
    """

    original: MeasuredModel
    candidates: tuple[MeasuredModel, ...]
    skipped: Mapping[str, str] = field(hash=False)
    samples: int
    trained_on: int
    tolerance: float
    decision: str
    device: str
    inputs: tuple[Any, ...] = field(hash=False)

    @property
    def best(self) -> MeasuredModel | None:
        """The fastest candidate within the tolerance; ``None`` to keep the original.

        If the original draws random numbers, the loss is relative to a second run of it.
        """
        before = self.original
        near = [
            one
            for one in self.candidates
            if one.loss - before.loss <= self.tolerance and one.seconds < before.seconds
        ]
        return min(near, key=lambda one: one.seconds, default=None)

    @property
    def keep(self) -> bool:
        """Whether no candidate is both faster and within the tolerance."""
        return self.best is None

    @property
    def module(self) -> Module:
        """The module to use: the best replacement, or the original."""
        return (self.best or self.original).module

    @property
    def fidelity(self) -> float:
        """The share of held-out decisions in which ``module`` agrees with the original."""
        return (self.best or self.original).scores.agreement

    @property
    def accuracy(self) -> float | None:
        """The accuracy of ``module`` on held-out samples; ``None`` without labels."""
        return (self.best or self.original).scores.accuracy

    @property
    def latency(self) -> float:
        """The seconds that ``module`` takes for the batch that was timed."""
        return (self.best or self.original).seconds

    @property
    def frontier(self) -> tuple[MeasuredModel, ...]:
        """The models that no other one beats in both time and loss, the fastest first."""
        models: list[MeasuredModel] = []
        for one in sorted((self.original, *self.candidates), key=lambda m: (m.seconds, m.loss)):
            if not models or one.loss < models[-1].loss:
                models.append(one)
        return tuple(models)

    @property
    def verdict(self) -> str:
        """The answer in one or two sentences."""
        best = self.best
        if best is not None:
            return (
                f"Replace it by: {best.name}. {self._ratio(best)} times as fast, "
                f"{self.lost(best)}.{self._doubt(best)}"
            )
        if not self.candidates:
            return "Keep your model: nothing was tried."
        near = min(self.candidates, key=lambda one: one.loss)
        return (
            f"Keep your model: no candidate is faster and loses at most {self.tolerance:.2%}. The "
            f"nearest, {near.name}: {self.lost(near)}, {self._ratio(near)} times as fast."
        )

    def _ratio(self, one: MeasuredModel) -> str:
        return f"{self.original.seconds / one.seconds:.3g}"

    def _doubt(self, one: MeasuredModel) -> str:
        """A caveat if the samples are too few for the verdict."""
        error = one.scores.uncertainty
        if error is None or one.loss + 2 * error <= self.tolerance:
            return ""
        return (
            f" {counted(self.samples, 'held-out sample')} cannot prove that it loses at most "
            f"{self.tolerance:.2%}."
        )

    def lost(self, one: MeasuredModel) -> str:
        """The loss with a candidate, in words."""
        scores, before = one.scores, self.original.scores
        if scores.accuracy is None or before.accuracy is None:
            return f"agrees in {scores.agreement:.2%} of the decisions"
        lost = f"{scores.accuracy:.2%} instead of {before.accuracy:.2%}"
        if scores.uncertainty is None:
            return f"{lost} of the variance of targets explained"
        return f"{lost} (± {scores.uncertainty:.2%})"

    def __repr__(self) -> str:
        return f"Distillation({self.verdict})"

    def __str__(self) -> str:
        """The answer, and a table."""
        titles = ("score", "agrees", "samples", "off by", "ms", "MiB", "peak")
        head = " ".join(f"{t:>8}" for t in titles)
        rows = [_row(one) for one in (self.original, *self.candidates)]
        missing = [f"{name}: not tried, {reason}" for name, reason in self.skipped.items()]
        where = (
            f"{counted(self.samples, 'held-out sample')}, {self.trained_on} others trained on; "
            f"decided: {self.decision}; times for {counted(self.original.batch, 'sample')}, "
            f"{self.device}; MiB of parameters, and at the peak besides"
        )
        return "\n".join([self.verdict, where, f"{'':28} {head}", *rows, *missing])

    def document(self) -> dict[str, Any]:
        """Return verdict, options and measurements as plain values."""
        values: dict[str, Any] = finite(
            {
                "verdict": self.verdict,
                "keep": self.keep,
                "best": None if self.best is None else self.best.name,
                "samples": self.samples,
                "trained_on": self.trained_on,
                "tolerance": self.tolerance,
                "decision": self.decision,
                "device": self.device,
                "original": _plain(self.original),
                "candidates": [_plain(one) for one in self.candidates],
                "skipped": dict(self.skipped),
            }
        )
        return values

    def to_json(self) -> str:
        """Return the document as JSON text."""
        return json_text(self.document())

    def export(self, path: str | os.PathLike[str], name: str | None = None) -> Path:
        """Export the best replacement, or a named candidate.

        Args:
            path: The file. ``.onnx`` is a program that needs no shoal, for any number of samples;
                ``.safetensors`` are the weights, by their names in the module, for
                ``module.load_state_dict(safetensors.torch.load_file(path))``. In a new process they
                load into the model's class without the prefix ``"parts.0."``; then
                ``find_loop(model, x).run(x, steps=k)`` is the output of a loop.
            name: Name of a candidate; the best one if ``None``.

        Raises:
            ValueError: If no candidate replaces the model, or the path has another ending.
            TypeError: If ONNX cannot express the module, such as a stop rule.
        """
        target = as_path("path", path)
        if name is not None:
            by_name = {one.name: one for one in self.candidates}
            chosen = by_name[one_of("name", name, by_name)]
        elif self.best is None:
            raise ValueError(
                "no candidate replaces the model; pass the name of a candidate to export it"
            )
        else:
            chosen = self.best
        if target.suffix == ".safetensors":
            state = chosen.module.state_dict().items()
            tensors = {key: t.clone(memory_format=torch.contiguous_format) for key, t in state}
            write_whole(target, lambda file: save_file(tensors, file))
        elif target.suffix == ".onnx":
            _export_program(chosen, self.inputs, target)
        else:
            raise ValueError(f"path must end in .onnx or .safetensors, got {str(target)!r}")
        return target

    def plot(self) -> Figure:
        """Draw the frontier: the score against the time.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        figure = empty_figure(8.6, 4.4)
        axes, best = figure.subplots(), self.best
        ordered = sorted((self.original, *self.candidates), key=lambda one: one.seconds)
        for number, one in enumerate(ordered, 1):
            at = (1e3 * one.seconds, 100 * self._score(one))
            color = COLORS[1] if one is self.original else COLORS[0]
            style: dict[str, Any] = {
                "marker": "*" if one is best else "o",
                "markersize": 12 if one is best else 6,
            }
            axes.plot(*at, color=color, linestyle="", label=f"{number}  {one.name}", **style)
            axes.annotate(str(number), at, xytext=(6, 4), textcoords="offset points", fontsize=9)
        steps = [(1e3 * m.seconds, 100 * self._score(m)) for m in self.frontier]
        axes.plot(*zip(*steps, strict=True), color=COLORS[0], linewidth=0.8)
        allowed = 100 * (self._score(self.original) - self.tolerance)
        axes.axhline(allowed, color=GRAY, linewidth=0.8, linestyle="--")
        axes.set_xscale("log")
        score = "agreement" if self.original.scores.accuracy is None else "accuracy"
        axes.set(xlabel=f"ms for {counted(self.original.batch, 'sample')}", ylabel=f"{score}, %")
        star = " Star: the replacement." if best is not None else ""
        axes.set_title(f"Dashed: the lowest score allowed.{star}", loc="left", fontsize=10)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
        return figure

    def _score(self, one: MeasuredModel) -> float:
        score = one.scores.agreement if one.scores.accuracy is None else one.scores.accuracy
        return score if math.isfinite(one.scores.output_error) else 0.0


def _plain(one: MeasuredModel) -> dict[str, Any]:
    values = one._asdict()
    del values["module"]
    return {**values, "scores": one.scores._asdict(), "loss": one.loss}


def _row(one: MeasuredModel) -> str:
    scores = one.scores
    shares = scores.accuracy, scores.agreement, scores.samples_agree, scores.output_error
    shown = ["" if value is None else f"{value:.2%}" for value in shares]
    sizes = 1e3 * one.seconds, one.parameter_bytes / 2**20, one.peak_bytes / 2**20
    return " ".join(
        [f"{one.name:28}", *(f"{v:>8}" for v in (*shown, *(f"{s:.3g}" for s in sizes)))]
    )


def _export_program(one: MeasuredModel, inputs: tuple[Any, ...], target: Path) -> None:
    module = one.module
    if isinstance(module, Network):
        export(module, target)
        return
    if isinstance(module, LoopModule) and module.rule is not None:
        raise TypeError(f"{one.name} stops samples one by one, which ONNX cannot express")
    missing = [package for package in ("onnx", "onnxscript") if find_spec(package) is None]
    if missing:
        raise ImportError(
            f"export to ONNX needs {' and '.join(missing)}: pip install 'shoal-deq[onnx]'"
        )
    samples = torch.export.Dim("samples")
    few = tuple(t[:3] if isinstance(t, Tensor) else t for t in inputs)
    each = tuple({0: samples} if isinstance(t, Tensor) else None for t in few)
    shapes: Any = {"inputs": each} if isinstance(module, LoopModule) else each
    try:
        with evaluating(module), torch.no_grad():
            program = torch.onnx.export(
                module, few, dynamic_shapes=shapes, dynamo=True, verbose=False
            )
    except Exception as error:  # the exporter and the model's own code can fail in any way
        line = next(iter(str(error.__cause__ or error).strip().splitlines()), "")[:200]
        raise TypeError(
            f"{one.name} cannot be exported as ONNX ({type(error).__name__}: {line}); export it "
            "as .safetensors"
        ) from error
    assert program is not None
    write_whole(target, program.save)


class Outputs(NamedTuple):
    """The outputs of a model for all samples."""

    scores: Tensor  # numbers behind the decisions, (samples, decisions, numbers)
    decided: Tensor


@torch.no_grad()
def outputs_of(module: Module, inputs: tuple[Any, ...], decisions: Decisions) -> Outputs:
    """Run a module in evaluation mode."""
    scores, decided = [], []
    with evaluating(module):
        for rows in torch.arange(batch_of(inputs)).split(1024):
            output = module(*rows_of_inputs(inputs, rows))
            plain = decisions.kind == "label"
            scores.append(
                tensor_of(output).flatten(1)[:, None] if plain else decisions.scores(output)
            )
            decided.append(decisions(output))
    return Outputs(torch.cat(scores), torch.cat(decided))


def scores_of(
    outputs: Outputs, original: Outputs, decisions: Decisions, labels: Tensor | None
) -> Scores:
    """Compare outputs with the original's and with labels of the shape of the decisions."""
    alike = decisions.same(outputs.decided, original.decided)
    scores, target = outputs.scores.double(), original.scores.double()
    if decisions.kind == "class":
        scores, target = (one - one.mean(-1, keepdim=True) for one in (scores, target))
    error = float((scores - target).norm()) / (float(target.norm()) or 1.0)
    accuracy = loss = None
    lost: Tensor | None = (~alike).double().mean(1)
    if labels is not None:
        quality = Quality(decisions, labels, None, outputs.decided)
        (right, weights), (before, _) = (quality(None, one.decided) for one in (outputs, original))
        accuracy = float((right * weights).sum() / weights.sum())
        lost = (before - right) * weights * (len(weights) / weights.sum())
        loss = float(lost.mean())
        if decisions.kind == "value":
            lost = None
            if not bool((labels != labels[0]).any()):
                raise ValueError("y must have at least two distinct held-out targets, got one")
    uncertainty = None
    if lost is not None:
        spread = float(lost.std()) / len(lost) ** 0.5 if len(lost) > 1 else 1.0
        uncertainty = max(spread, 1 / len(lost))  # one sample more or less, at least
    return Scores(
        *(float(alike.double().mean()), float(alike.all(1).double().mean()), error),
        *(accuracy, loss, uncertainty),
    )
