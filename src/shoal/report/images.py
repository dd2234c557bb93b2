"""The section on images: whether patches of pixels tell more than pixels as a vector."""

import math
from functools import partial
from typing import Any

import shoal
from shoal.pages.figures import COLORS, Axes, legend_below
from shoal.pages.findings import Findings, Row
from shoal.report.section import NothingToSayError, Section, Subject, learnable

_PAIRS = 10**7  # of equal pixels of images: a few seconds
_MOST, _LEAST = 400, 32
_NETWORK = shoal.ConvDEQ(shoal.ReLU(), recurrent_variance=1.0, input_variance=1.0)
_NAMES = ("pixels as a vector", "3×3 patches")


def _find(subject: Subject) -> Findings:
    shape = subject.data.image_shape
    if shape is None:
        raise NothingToSayError("the samples are no images")
    pixels = math.prod(shape[1:])
    count = min(_MOST, len(subject.x), math.isqrt(2 * _PAIRS // pixels))
    if count < _LEAST:
        raise NothingToSayError(
            f"needs {_LEAST} samples or more, of at most {_PAIRS} pairs of pixels"
        )
    values, words = learnable(subject.data)
    some = subject.data.drawn()[:count]
    x, y = subject.x[some].double(), values[some].double()
    if not bool(y.any()) or not bool(x.any()):
        raise NothingToSayError("the samples or their targets are constant")
    images = x.view(-1, *shape) * math.sqrt(pixels)  # pixels of mean square one
    paths = [
        shoal.ridge_path(subject.architecture, x, y),
        shoal.ridge_path(_NETWORK, images, y),
    ]
    return _findings(paths, count, words, classes=bool(subject.data.classes))


def _findings(paths: list[shoal.RidgePath], count: int, words: str, *, classes: bool) -> Findings:
    best = [path.ridges == path.best("loo") for path in paths]
    right, errors = (
        [float(values[place][0]) for values, place in zip(numbers, best, strict=True)]
        for numbers in ([path.accuracy for path in paths], [path.loo for path in paths])
    )
    head = f"kernel regression, each of {count} samples left out; {words}"
    meanings = ("the DEQ as it is", "a ReLU ConvDEQ, σ_a² = 1, readout of all pixels")
    rows = [Row("right classes" if classes else "mean squared error", "", head)]
    for name, accuracy, error, meaning in zip(_NAMES, right, errors, meanings, strict=True):
        rows.append(Row(name, f"{accuracy:.1%}" if classes else f"{error:.3g}", meaning))
    numbers: dict[str, Any] = {"samples": count, "patches": 3}
    for key, accuracy, error in zip(("dense", "convolutional"), right, errors, strict=True):
        numbers[key] = {"loo": error} | ({"accuracy": accuracy} if classes else {})
    return Findings(tuple(rows), numbers, partial(_panel, paths=paths))


def _panel(axes: Axes, paths: list[shoal.RidgePath]) -> None:
    """Errors of leaving out against the ridge."""
    for name, path, color in zip(_NAMES, paths, COLORS, strict=False):
        axes.plot(path.freedom, path.loo, color=color, label=name, linewidth=1.6)
    axes.set(
        xlabel="degrees of freedom of the fit", ylabel="mean squared error, left out", yscale="log"
    )
    legend_below(axes)


IMAGES = Section("images", "Images", _find)
