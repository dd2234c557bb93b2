"""The section on new samples: the ridge, and errors against the number of samples."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

import shoal
from shoal.app.figures import COLORS, GRAY, Axes, legend_below
from shoal.app.sections.base import Findings, Section, Subject, on_sphere
from shoal.diagnosis.words import Row

_SAMPLES, _LEAST = 1000, 32
_OCTAVES = 7  # up to twice the data
_FAR = 0.25  # of a measured error: it was not predicted


def _find(subject: Subject) -> Findings:
    x, targets = on_sphere(subject.data, _SAMPLES, _LEAST)
    path = shoal.learning.ridge_path(subject.architecture, x, targets.values)
    ridge, count = path.best("loo"), len(x)
    sizes = [max(1, 2 * count >> octaves) for octaves in reversed(range(_OCTAVES))]
    curve = shoal.learning_curve(subject.architecture, x, targets.values, sizes, ridge=ridge)
    first = ridge == float(path.ridges[0])
    why = "the least that was tried: the data want none" if first else "least leave-one-out error"
    accuracy = float(path.accuracy[path.ridges == ridge][0])
    more = _further(subject, x, targets.values, path, curve)
    told = tuple(_contradicted(curve))
    rows = (
        Row("ridge", f"{ridge:.3g}", f"{why}; {count} samples of norm one, {targets.words}"),
        Row("mean squared error", _error(curve, -2), "on new samples of the same kind"),
        *([Row("right classes", f"{accuracy:.1%}", "of them")] if subject.data.classes else ()),
        Row("with half the data", _error(curve, -3), f"predicted, from {count // 2}",
            contradicted=bool(told)),
        _more(more, count, ridge),
    )  # fmt: skip
    numbers: dict[str, Any] = {
        "samples": count, "ridge": ridge, "ridge_is_least": first, "limit": curve.limit,
        "sizes": curve.sizes.tolist(), "test_error": curve.test_error.tolist(),
        "uncertainty": curve.uncertainty.tolist(), "accuracy": accuracy,
        "classes": bool(subject.data.classes), "loo": float(path.score("loo")),
        "further": {"size": int(more.sizes[-1]), "ridge": more.ridge,
                    "test_error": float(more.test_error[-1]),
                    "uncertainty": float(more.uncertainty[-1])},
        "checks": [[c.size, c.source, c.predicted, c.measured] for c in curve.checks],
    }  # fmt: skip
    return Findings(rows, numbers, partial(_panel, curve=curve), warnings=told)


def _error(curve: shoal.learning.LearningCurve, place: int) -> str:
    """An error with its deviation, if it is claimed."""
    error, deviation = float(curve.test_error[place]), float(curve.uncertainty[place])
    return f"{error:.3g} ± {deviation:.1g}" if math.isfinite(error) else "not claimed"


def _further(
    subject: Subject,
    x: Tensor,
    y: Tensor,
    path: shoal.learning.RidgePath,
    curve: shoal.learning.LearningCurve,
) -> shoal.learning.LearningCurve:
    """A curve up to twice the data; the larger a ridge that is as good, the further it goes."""
    if curve.limit >= 2 * len(x):
        return curve
    good = path.loo <= path.score("loo") + float(curve.uncertainty[-2])
    return shoal.learning_curve(subject.architecture, x, y, ridge=float(path.ridges[good].max()))


def _more(curve: shoal.learning.LearningCurve, count: int, ridge: float) -> Row:
    size = int(curve.sizes[-1])
    if size <= count:
        return Row("with more data", "not claimed", "the least eigenvalues are not known")
    meaning = f"predicted, for {size}"
    if curve.ridge != ridge:
        meaning += f" and a ridge of {curve.ridge:.2g}, as good within the deviation"
    times = "twice" if size == 2 * count else f"{size / count:.2g} times"
    return Row(f"with {times} the data", _error(curve, -1), meaning)


def _contradicted(curve: shoal.learning.LearningCurve) -> Iterator[str]:
    """Which measured errors were not predicted."""
    for check in curve.checks:
        if not abs(check.deviation) <= _FAR:
            yield (
                f"With {check.size} samples an error of {check.measured:.3g} was measured, where "
                f"{check.predicted:.3g} was predicted from {check.source}."
            )


def _panel(axes: Axes, curve: shoal.learning.LearningCurve) -> None:
    """The predicted errors, and those that were measured on parts of the data."""
    low, high = (curve.test_error + sign * curve.uncertainty for sign in (-1, 1))
    axes.fill_between(curve.sizes, low.clamp_min(0), high, color=COLORS[5], alpha=0.4, linewidth=0)
    axes.plot(curve.sizes, curve.test_error, color=COLORS[1], label="predicted")
    sizes, values = zip(*((c.size, c.measured) for c in curve.checks), strict=True)
    axes.plot(sizes, values, "o", color=GRAY, markersize=4, label="measured")
    axes.set_xscale("log")
    axes.set_xticks(curve.sizes.tolist(), [str(size) for size in curve.sizes.tolist()])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="training samples", ylabel="mean squared error")
    legend_below(axes)


PREDICTION = Section("prediction", "New samples", _find)
