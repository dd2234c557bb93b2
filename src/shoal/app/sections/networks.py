"""Sections on finite networks: training as predicted, and accuracy against width."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import shoal
from shoal import Architecture
from shoal.app.figures import COLORS, GRAY, Axes, legend_below
from shoal.app.rivals import (
    TITLES,
    features,
    full_batch,
    make,
    ridge_readout,
    rival,
    wide_kernels,
)
from shoal.app.sections.base import (
    Findings,
    NothingToSayError,
    Section,
    Subject,
    of_each,
    on_sphere,
)
from shoal.diagnosis.words import Row
from shoal.learning import LinearTraining

_TRAINED = ("deq", "ntk-design", "ck-design", "naive")
_TRAIN_SAMPLES, _WIDTH = 128, 512  # of the trained networks
_FAR_LOSS = 0.25  # of the predicted loss: training was not as predicted
_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)

_SCORED = ("deq", "ck-design", "naive")
_WIDTHS = (32, 64, 128, 256, 512)
_DRAWS = 3
_SAMPLES, _LEAST = 1000, 16
_FAR = 0.1  # in the share of what is right, of finite and of infinite width
_RIDGE = 0.01  # at least, over the mean of the CK's diagonal


def _find_training(subject: Subject) -> Findings:
    deq = subject.deq
    x, targets = on_sphere(subject.data, _TRAIN_SAMPLES)
    flows = {
        name: LinearTraining(
            wide_kernels(name, deq, x), targets.values, initial="zero", reduction="mean"
        )
        for name in _TRAINED
    }
    step_size = 0.5 * min(flow.max_step_size for flow in flows.values())
    predicted = {
        name: flow.run(steps=list(_STEPS), step_size=step_size).loss.cpu()
        for name, flow in flows.items()
    }
    measured = {
        name: _measured(rival(name, deq), x, targets.values, step_size) for name in _TRAINED
    }
    told = dict(_untrained(predicted, measured))
    words = f"{len(x)} samples of norm one, {targets.words}; width {_WIDTH}"
    head = Row("training loss", f"after {_STEPS[-1]} steps", f"{words}, step size {step_size:.3g}")
    rows = [
        _row(name, predicted, measured)._replace(contradicted=name in told) for name in _TRAINED
    ]
    numbers: dict[str, Any] = {
        "samples": len(x), "width": _WIDTH, "step_size": step_size, "steps": list(_STEPS),
        "predicted": {name: losses.tolist() for name, losses in predicted.items()},
        "measured": {name: losses.tolist() for name, losses in measured.items()},
    }  # fmt: skip
    panel = partial(_draw_losses, predicted=predicted, measured=measured)
    return Findings((head, *rows), numbers, panel, warnings=tuple(told.values()))


def _untrained(
    predicted: dict[str, Tensor], measured: dict[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """Which networks were not trained as predicted, and what was measured."""
    for name in _TRAINED:
        own, other = float(measured[name][-1]), float(predicted[name][-1])
        if not abs(own - other) <= _FAR_LOSS * other:
            yield (
                name,
                f"{TITLES[name]}: a loss of {own:.3g} after {_STEPS[-1]} steps at width {_WIDTH}, "
                f"where {other:.3g} was predicted for infinite width.",
            )


def _measured(architecture: Architecture, x: Tensor, y: Tensor, step_size: float) -> Tensor:
    """The losses of a finite network, its initial function subtracted."""
    x, y = x.float(), y.float()
    network = make(architecture, x, width=_WIDTH, out_features=y.shape[1], seed=0, warm_start=True)
    outputs = full_batch(network, x, y, step_size=step_size, steps=_STEPS)
    return ((outputs.double() - y).square().sum((1, 2)) / (2 * len(y))).cpu()


def _row(name: str, predicted: dict[str, Tensor], measured: dict[str, Tensor]) -> Row:
    own, deq = float(predicted[name][-1]), float(predicted["deq"][-1])
    words = "" if name == "deq" else f"predicted {100 * (own / deq - 1):+.1f}% from the DEQ's"
    losses = {"predicted": f"{own:.4g}", "measured": f"{float(measured[name][-1]):.4g}"}
    return Row(TITLES[name], of_each(losses), words)


def _draw_losses(axes: Axes, predicted: dict[str, Tensor], measured: dict[str, Tensor]) -> None:
    """Losses against steps: lines are predicted, dots are measured."""
    styles = ((4.0, "-", 0.35), (1.4, "-", 1.0), (1.4, "--", 1.0), (1.4, ":", 1.0))
    for name, color, (width, line, alpha) in zip(_TRAINED, COLORS, styles, strict=False):
        axes.plot(_STEPS, predicted[name], line, color=color, linewidth=width, alpha=alpha,
                  label=TITLES[name])  # fmt: skip
        axes.plot(_STEPS, measured[name], ".", color=color, markersize=5)
    axes.plot([], [], ".", color=GRAY, label=f"measured, width {_WIDTH}")
    axes.set(yscale="log", xlabel="step of gradient descent", ylabel="training loss")
    legend_below(axes)


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


def _find_accuracy(subject: Subject) -> Findings:
    deq = subject.deq
    x, targets = on_sphere(subject.data, _SAMPLES, _LEAST)
    test = torch.arange(len(x), device=x.device) % 4 == 3
    classes = bool(subject.data.classes)
    problem = _Problem(x[~test], targets.values[~test], x[test], targets.values[test], classes)
    if not bool((problem.y_test != problem.y_test[:1]).any()):
        raise NothingToSayError("the targets of the test samples are constant")
    finite: dict[str, Tensor] = {}
    infinite: dict[str, float] = {}
    for name in _SCORED:
        architecture = rival(name, deq)
        infinite[name], ridge = _infinite(problem, architecture if name == "naive" else deq)
        finite[name] = torch.tensor(
            [[_finite(problem, architecture, m, s, ridge) for s in range(_DRAWS)] for m in _WIDTHS]
        )
    # what says the same of all samples: the most frequent class, or the mean
    constant = problem.score(problem.y.mean(0).expand_as(problem.y_test))
    what = "of the classes are right" if classes else "of the variance is explained"
    split = f"{len(problem.x)} samples of norm one learned, {len(problem.x_test)} tested"
    told = [*_unlearned(constant, finite, infinite)]
    wrong = {name for name, _ in told}
    rows = [Row("score, by width", f"% {what}", f"{split}; {targets.words}")]
    for name, scores in finite.items():
        means = scores.mean(1).tolist()
        shown = {str(_WIDTHS[0]): means[0], str(_WIDTHS[-1]): means[-1], "∞": infinite[name]}
        words = f"the readout alone is trained; mean of {_DRAWS} networks" if name == "deq" else ""
        value = of_each({width: f"{100 * score:.1f}" for width, score in shown.items()})
        rows.append(Row(TITLES[name], value, words, contradicted=name in wrong))
    numbers: dict[str, Any] = {
        "measure": "accuracy" if classes else "explained variance",
        "learned": len(problem.x), "tested": len(problem.x_test), "widths": list(_WIDTHS),
        "finite": {name: scores.tolist() for name, scores in finite.items()},
        "infinite": infinite, "constant": constant,
    }  # fmt: skip
    panel = partial(_draw_scores, what=what, finite=finite, infinite=infinite)
    return Findings(tuple(rows), numbers, panel, warnings=tuple(text for _, text in told))


def _unlearned(
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
    path = shoal.learning.ridge_path(architecture, problem.x, problem.y, which="ck")
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


def _draw_scores(
    axes: Axes, what: str, finite: dict[str, Tensor], infinite: dict[str, float]
) -> None:
    """Scores against the width, with the spread of networks; dashed at infinite width."""
    for name, color in zip(_SCORED, (COLORS[0], COLORS[2], COLORS[3]), strict=True):
        scores = 100 * finite[name]
        axes.errorbar(_WIDTHS, scores.mean(1), scores.std(1), fmt="o-", color=color, markersize=3,
                      linewidth=1.2, capsize=2, label=TITLES[name])  # fmt: skip
        if name != "ck-design":  # which has the DEQ's kernel
            axes.axhline(100 * infinite[name], color=color, linestyle="--", linewidth=1.2)
    axes.plot([], [], "k--", linewidth=1.2, label="infinite width")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="width", ylabel=f"% {what}")
    legend_below(axes)


TRAINING = Section("training", "Training", _find_training)
ACCURACY = Section("accuracy", "Accuracy against width", _find_accuracy)
