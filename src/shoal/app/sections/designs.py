"""The section on the shallow networks inside: designs by moments and on the sphere."""

from functools import partial
from typing import Any

import torch

import shoal
from shoal.app.figures import COLORS, GRAY, Axes, legend_below
from shoal.app.rivals import designed
from shoal.app.sections.base import Findings, Section, Subject, of_each
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.designs.result import layer_activations
from shoal.diagnosis.words import Row

_KINDS = (("ntk", "moments"), ("ck", "moments"), ("ntk", "sphere"), ("ck", "sphere"))
_COMPARED = 64  # samples whose kernel matrices are compared
_FAR = 0.05  # of the kernel: a design that differs by more has another one on these data
_REACH = 3.0


def _find(subject: Subject) -> Findings:
    x = subject.x[subject.data.drawn(_COMPARED)].double()
    rows: list[Row] = []
    notes: list[str] = []
    far: dict[str, str] = {}
    numbers: dict[str, Any] = {}
    found: dict[str, shoal.designs.Design] = {}
    errors: list[ConvergenceError | AccuracyError] = []
    for which, method in _KINDS:
        title = f"{which.upper()}, {method}"
        try:
            design = designed(subject.architecture, which, method)
        except (ConvergenceError, AccuracyError) as error:
            errors.append(error)
            rows.append(Row(title, "none", " ".join(str(error).split()), holds=False))
            continue
        inputs = torch.nn.functional.normalize(x) if method == "sphere" else x
        gap = design.gap(inputs).relative
        found[title] = design
        near = gap <= _FAR
        rows.append(Row(title, f"{gap:.1e}", _words(design), holds=design.feasible and near))
        far |= {} if near else {title: f"{gap:.1%}"}
        notes.append(f"{title}: {design.explanation}")
        numbers[f"{which}_{method}"] = {
            "residual": design.residual,
            "feasible": design.feasible,
            "gap": gap,
            "layers": len(layer_activations(design.architecture)),
            "explanation": design.explanation,
        }
    if not found:
        raise errors[0]
    head = Row(
        "relative difference",
        "",
        f"of the kernel matrices of {len(x)} samples; for the sphere they are scaled to norm one",
    )
    return Findings(
        (head, *rows),
        numbers,
        partial(_panel, subject=subject, found=found),
        notes=tuple(notes),
        warnings=(
            f"On these data, the kernel of a design differs by {of_each(far)}: scale "
            "inputs to one norm and take a design for the sphere.",
        )
        if far
        else (),
    )


def _words(design: shoal.designs.Design) -> str:
    count = len(layer_activations(design.architecture))
    layers = "one hidden layer" if count == 1 else f"{count} hidden layers"
    state = "" if design.feasible else "NOT feasible, the nearest: "
    return f"{state}{layers}, residual {design.residual:.1e}"


def _panel(axes: Axes, subject: Subject, found: dict[str, shoal.designs.Design]) -> None:
    """The activations of the DEQ and of the designed networks."""
    x = torch.linspace(-_REACH, _REACH, 301, dtype=torch.float64)
    for name, sigma in layer_activations(subject.architecture):
        axes.plot(x, sigma(x), "--", color=GRAY, linewidth=1.6, label=name)
    colors = iter(COLORS * 2)
    for title, design in found.items():
        layers = layer_activations(design.architecture)
        for name, sigma in layers:
            label = title if len(layers) == 1 else f"{title}, {name}"
            axes.plot(x, sigma(x), color=next(colors), linewidth=1.3, label=label)
    axes.set(xlabel="preactivation", ylabel="activation")
    legend_below(axes)


DESIGN = Section("design", "Designed networks", _find)
