"""What a distillation says."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import Module

from shoal.core.checks import as_path
from shoal.core.figures import Figure
from shoal.core.files import finite, json_text
from shoal.core.words import counted
from shoal.distillation.measures import Measured
from shoal.networks import Network, export


@dataclass(frozen=True, eq=False, repr=False)
class Distillation:
    """Replacements of a trained model, measured beside it on the same machine.

    Attributes:
        original: The model itself.
        candidates: What was tried.
        skipped: What was not, and why.
        samples: How many held-out samples all scores are of.
        trained_on: On how many others candidates were trained.
        tolerance: How much may be lost: of accuracy, or without labels of agreement.
        device: Where times were taken.
        unsolved: Of how many held-out samples the model's own solver found no equilibrium.
    """

    original: Measured
    candidates: tuple[Measured, ...]
    skipped: Mapping[str, str] = field(hash=False)
    samples: int
    trained_on: int
    tolerance: float
    device: str
    unsolved: int = 0

    @property
    def best(self) -> Measured | None:
        """The fastest that loses no more than the tolerance; ``None``: keep the original."""
        near = [
            one
            for one in self.candidates
            if one.loss <= self.tolerance and one.seconds < self.original.seconds
        ]
        return min(near, key=lambda one: one.seconds, default=None)

    @property
    def keep(self) -> bool:
        """Whether nothing that was tried comes near: keep your model."""
        return self.best is None

    @property
    def module(self) -> Module:
        """What to use: the best replacement, or the original."""
        return self.original.module if self.best is None else self.best.module

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        best = self.best
        if best is not None:
            return (
                f"Replace it by: {best.name}. {self._faster(best)} times as "
                f"fast, {self.lost(best)}.{self._doubt(best)}"
            )
        if not self.candidates:
            return "Keep your model: nothing was tried."
        near = min(self.candidates, key=lambda one: one.loss)
        return (
            f"Keep your model: nothing that was tried is faster and loses at most "
            f"{self.tolerance:.2%}. The nearest, {near.name}: {self.lost(near)}, "
            f"{self._faster(near)} times as fast."
        )

    def _faster(self, one: Measured) -> str:
        ratio = self.original.seconds / one.seconds
        return f"{ratio:.3g}" if ratio < 100 else f"{ratio:,.0f}"

    def _doubt(self, one: Measured) -> str:
        """What is to be said if the samples are too few for the verdict."""
        error = one.scores.uncertainty
        if error is None or one.loss + 2 * error <= self.tolerance:
            return ""
        return (
            f" {counted(self.samples, 'held-out sample')} cannot prove that it loses at most "
            f"{self.tolerance:.2%}."
        )

    def lost(self, one: Measured) -> str:
        """What is lost with a candidate, in words."""
        scores = one.scores
        if scores.accuracy is not None and self.original.scores.accuracy is not None:
            lost = f"{scores.accuracy:.2%} instead of {self.original.scores.accuracy:.2%}"
            if scores.uncertainty is None:
                return f"{lost} of the variance of targets explained"
            return f"{lost} (± {scores.uncertainty:.2%})"
        if scores.agreement is not None:
            return f"agrees in {scores.agreement:.2%}"
        return f"outputs off by {scores.output_error:.2%}"

    def __repr__(self) -> str:
        return f"Distillation({self.verdict})"

    def __str__(self) -> str:
        """The answer, and a table."""
        titles = ("score", "agrees", "off by", "ECE", "ms", "MiB", "peak")
        widths = (8, 8, 8, 7, 9, 7, 7)
        head = " ".join(f"{t:>{w}}" for t, w in zip(titles, widths, strict=True))
        rows = [_row(one) for one in (self.original, *self.candidates)]
        missing = [f"{name}: not tried, {reason}" for name, reason in self.skipped.items()]
        where = (
            f"{self._counts}; times for {counted(self.original.batch, 'sample')}, {self.device}; "
            "MiB of parameters, and at the peak besides"
        )
        return "\n".join([self.verdict, where, f"{'':28} {head}", *rows, *missing])

    def document(self) -> dict[str, Any]:
        """All of it as plain values."""
        found: dict[str, Any] = finite(self._values())
        return found

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json_text(self.document())

    def _values(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "keep": self.keep,
            "best": None if self.best is None else self.best.name,
            "samples": self.samples,
            "trained_on": self.trained_on,
            "unsolved": self.unsolved,
            "tolerance": self.tolerance,
            "device": self.device,
            "original": _plain(self.original),
            "candidates": [_plain(one) for one in self.candidates],
            "skipped": dict(self.skipped),
        }

    def plot(self) -> Figure:
        """The frontier: what is lost against the time it takes.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from shoal.distillation.page import plot_frontier

        return plot_frontier(self)

    @property
    def _counts(self) -> str:
        failed = f" (the model's solver failed for {self.unsolved})" if self.unsolved else ""
        held = counted(self.samples, "held-out sample")
        return f"{held}{failed}, {self.trained_on} others trained on"

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Export the best replacement as a program that needs no shoal, as ``shoal.export`` does.

        Args:
            path: The file, which ends in ``.onnx``. Images are flattened before.

        Raises:
            ValueError: If nothing replaces the model.
            TypeError: If it is the model itself, its loop cut: that needs the model's own code.
        """
        if self.best is None:
            raise ValueError(
                "nothing replaces the model, so that there is nothing to export; shoal.export "
                "takes the module of one of the candidates, whatever it loses"
            )
        module = self.best.module
        inner = module[1] if isinstance(module, nn.Sequential) else module
        if not isinstance(inner, Network):
            raise TypeError(
                f"the best replacement, {self.best.name}, is made of the model's own cell: save "
                "its state dictionary, or give shoal.export the module of another candidate"
            )
        export(inner, path)
        return as_path("path", path)


def _plain(one: Measured) -> dict[str, Any]:
    values = one._asdict()
    del values["module"]
    return {**values, "scores": one.scores._asdict(), "loss": one.loss}


def _row(one: Measured) -> str:
    scores = one.scores
    shown = [
        "" if value is None else f"{value:.2%}"
        for value in (scores.accuracy, scores.agreement, scores.output_error)
    ]
    error = "" if scores.calibration_error is None else f"{scores.calibration_error:.3f}"
    return (
        f"{one.name:28} {shown[0]:>8} {shown[1]:>8} {shown[2]:>8} {error:>7} "
        f"{1e3 * one.seconds:9.3g} {one.parameter_bytes / 2**20:7.3g} "
        f"{one.peak_bytes / 2**20:7.3g}"
    )
