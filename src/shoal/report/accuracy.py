"""The section on width: how well finite networks with trained readouts do, and infinite ones."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import shoal
from shoal import Architecture
from shoal.lab.descent import features, make, ridge_readout
from shoal.lab.rivals import TITLES, rival
from shoal.pages.figures import COLORS, Axes, legend_below
from shoal.pages.findings import Findings, Row
from shoal.report.section import NothingToSayError, Section, Subject, of_each, on_sphere

_NETWORKS = ("deq", "ck-design", "naive")
_WIDTHS = (32, 64, 128, 256, 512)
_DRAWS = 3
_SAMPLES, _LEAST = 1000, 16
_FAR = 0.1  # in the share of what is right, of finite and of infinite width
_RIDGE = 0.01  # at least, over the mean of the CK's diagonal


class _Problem(NamedTuple):
    """Samples to learn, and samples to test; classes if the targets say them."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: bool

    def score(self, outputs: Tensor) -> float:
        """The share of right classes, or of the variance that is explained."""
        if not self.classes:
            centered = self.y_test - self.y_test.mean(0)
            return float(1 - (outputs - self.y_test).square().sum() / centered.square().sum())
        if self.y.shape[1] == 1:
            return float(((outputs > 0) == (self.y_test > 0)).double().mean())
        return float((outputs.argmax(1) == self.y_test.argmax(1)).double().mean())


def _find(subject: Subject) -> Findings:
    deq = subject.deq
    x, targets = on_sphere(subject.data, _SAMPLES, _LEAST)
    test = torch.arange(len(x), device=x.device) % 4 == 3
    classes = bool(subject.data.classes)
    problem = _Problem(x[~test], targets.values[~test], x[test], targets.values[test], classes)
    if not bool((problem.y_test != problem.y_test[:1]).any()):
        raise NothingToSayError("the targets of the test samples are constant")
    finite: dict[str, Tensor] = {}
    infinite: dict[str, float] = {}
    for name in _NETWORKS:
        architecture = rival(name, deq)
        infinite[name], ridge = _infinite(problem, architecture if name == "naive" else deq)
        finite[name] = torch.tensor(
            [[_finite(problem, architecture, m, s, ridge) for s in range(_DRAWS)] for m in _WIDTHS]
        )
    return _findings(problem, targets.words, finite, infinite)


def _findings(
    problem: _Problem, words: str, finite: dict[str, Tensor], infinite: dict[str, float]
) -> Findings:
    # what says the same of all samples: the most frequent class, or the mean
    constant = problem.score(problem.y.mean(0).expand_as(problem.y_test))
    what = "of the classes are right" if problem.classes else "of the variance is explained"
    split = f"{len(problem.x)} samples of norm one learned, {len(problem.x_test)} tested; {words}"
    told = [*_contradicted(constant, finite, infinite)]
    wrong = {name for name, _ in told}
    head = Row("score, by width", f"% {what}", split)
    rows = [
        Row(
            TITLES[name],
            of_each(
                {
                    str(width): f"{100 * score:.1f}"
                    for width, score in (
                        *zip(_WIDTHS[::4], means[::4].tolist(), strict=True),
                        ("∞", infinite[name]),
                    )
                }
            ),
            f"the readout alone is trained; mean of {_DRAWS} networks" if name == "deq" else "",
            contradicted=name in wrong,
        )
        for name, means in ((name, scores.mean(1)) for name, scores in finite.items())
    ]
    numbers: dict[str, Any] = {
        "measure": "accuracy" if problem.classes else "explained variance",
        "learned": len(problem.x), "tested": len(problem.x_test), "widths": list(_WIDTHS),
        "finite": {name: scores.tolist() for name, scores in finite.items()},
        "infinite": infinite, "constant": constant,
    }  # fmt: skip
    return Findings(
        (head, *rows),
        numbers,
        partial(_panel, what=what, finite=finite, infinite=infinite),
        warnings=tuple(text for _, text in told),
        fine=() if told else (_fine(finite, infinite),),
        remedy="Take wider networks; where infinite ones fail too, another φ or other variances.",
    )


def _fine(finite: dict[str, Tensor], infinite: dict[str, float]) -> str:
    gaps = [abs(float(scores[-1].mean()) - infinite[name]) for name, scores in finite.items()]
    return (
        f"Networks of width {_WIDTHS[-1]} are within {100 * max(gaps):.1f} points of their limit."
    )


def _contradicted(
    constant: float, finite: dict[str, Tensor], infinite: dict[str, float]
) -> Iterator[tuple[str, str]]:
    """Which networks have learned nothing, or have not the accuracy of infinite width."""
    for name, score in infinite.items():
        own = float(finite[name][-1].mean())
        if not score > constant:
            yield (
                name,
                f"{TITLES[name]}: infinitely wide, it scores {score:.1%}; the same answer for all "
                f"samples scores {constant:.1%}.",
            )
        if not abs(own - score) <= _FAR:
            yield name, f"{TITLES[name]}: {own:.1%} at width {_WIDTHS[-1]} are not {score:.1%}."


def _infinite(problem: _Problem, architecture: Architecture) -> tuple[float, float]:
    """The score of ridge regression with the CK, and the ridge: that of least error by leaving out.

    It is not too small for finite networks, which have as few directions as they are wide.
    """
    path = shoal.ridge_path(architecture, problem.x, problem.y, which="ck")
    least = _RIDGE * float(shoal.kernel(architecture, problem.x, diag=True).ck.mean())
    ridge = max(least, path.best("loo"))
    fit = shoal.kernel_regression(architecture, problem.x, problem.y, ridge=ridge, which="ck")
    return problem.score(fit.predict(problem.x_test)), ridge


def _finite(
    problem: _Problem, architecture: Architecture, width: int, seed: int, ridge: float
) -> float:
    """The score of a network whose readout is trained, with as much ridge."""
    x, x_test = problem.x.float(), problem.x_test.float()
    network = make(architecture, x, width=width, seed=seed)
    readout = ridge_readout(network, x, problem.y, ridge)
    return problem.score(features(network, x_test).double() @ readout)


def _panel(axes: Axes, what: str, finite: dict[str, Tensor], infinite: dict[str, float]) -> None:
    """Scores against the width, with the spread of networks; dashed at infinite width."""
    for name, color in zip(_NETWORKS, (COLORS[0], COLORS[2], COLORS[3]), strict=True):
        scores = 100 * finite[name]
        axes.errorbar(_WIDTHS, scores.mean(1), scores.std(1), fmt="o-", color=color, markersize=3,
                      linewidth=1.2, capsize=2, label=TITLES[name])  # fmt: skip
        if name != "ck-design":  # which has the DEQ's kernel
            axes.axhline(100 * infinite[name], color=color, linestyle="--", linewidth=1.2)
    axes.plot([], [], "k--", linewidth=1.2, label="infinite width")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="width", ylabel=f"% {what}")
    legend_below(axes)


ACCURACY = Section("accuracy", "Accuracy against width", _find)
