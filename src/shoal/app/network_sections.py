"""Sections on finite networks and samples: training, accuracy, new samples and a certificate."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import shoal
from shoal import Architecture
from shoal.app.rivals import (
    TITLES,
    features,
    full_batch,
    make,
    ridge_readout,
    rival,
    wide_kernels,
)
from shoal.app.sections import (
    Findings,
    Section,
    SectionNotApplicable,
    Subject,
    by_name,
    draw_bars,
    learnable,
    legend_below,
    on_sphere,
)
from shoal.certificates import Condition
from shoal.core.figures import COLORS, GRAY, Axes
from shoal.diagnosis.words import Row
from shoal.learning import LinearTraining
from shoal.networks import Network

_FAR = 0.25  # share of a predicted loss or a measured error by which a prediction is off

_TRAINED = ("deq", "ntk-design", "ck-design", "naive")
_TRAIN_SAMPLES, _WIDTH = 128, 512  # of the trained networks
_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)


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
    words = f"{len(x)} samples of norm one, {targets.words}; width {_WIDTH}, step {step_size:.3g}"
    rows = [Row("training loss", f"after {_STEPS[-1]} steps", words)]
    told, deq_loss = [], float(predicted["deq"][-1])
    for name, title in TITLES.items():
        found, wide = float(measured[name][-1]), float(predicted[name][-1])
        far = not abs(found - wide) <= _FAR * wide
        if far:
            told.append(
                f"{title}: a loss of {found:.3g} after {_STEPS[-1]} steps at width {_WIDTH}, where "
                f"{wide:.3g} was predicted for infinite width."
            )
        share = f"predicted {100 * (wide / deq_loss - 1):+.1f}% from the DEQ's"
        value = by_name({"predicted": f"{wide:.4g}", "measured": f"{found:.4g}"})
        rows.append(Row(title, value, "" if name == "deq" else share, contradicted=far))
    numbers: dict[str, Any] = {
        "samples": len(x), "width": _WIDTH, "step_size": step_size, "steps": list(_STEPS),
        "predicted": {name: losses.tolist() for name, losses in predicted.items()},
        "measured": {name: losses.tolist() for name, losses in measured.items()},
    }  # fmt: skip
    panel = partial(_draw_losses, predicted=predicted, measured=measured)
    return Findings(tuple(rows), numbers, panel, warnings=tuple(told))


def _measured(architecture: Architecture, x: Tensor, y: Tensor, step_size: float) -> Tensor:
    """The losses of a finite network, its initial function subtracted."""
    x, y = x.float(), y.float()
    network = make(architecture, x, width=_WIDTH, out_features=y.shape[1], seed=0, warm_start=True)
    outputs = full_batch(network, x, y, step_size=step_size, steps=_STEPS)
    return ((outputs.double() - y).square().sum((1, 2)) / (2 * len(y))).cpu()


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


_SCORED = ("deq", "ck-design", "naive")
_WIDTHS, _DRAWS = (32, 64, 128, 256, 512), 3
_SAMPLES, _LEAST = 1000, 16
_FAR_SCORE = 0.1  # by which scores at the largest and at infinite width differ
_RIDGE = 0.01  # least ridge, over the mean of the CK's diagonal


class _Problem(NamedTuple):
    """Samples to learn, and samples to test; classes if the targets are."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: bool

    def score(self, outputs: Tensor) -> float:
        """The accuracy, or the explained share of the variance."""
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
        raise SectionNotApplicable("the targets of the test samples are constant")
    # the majority class, or the mean
    constant = problem.score(problem.y.mean(0).expand_as(problem.y_test))
    measure = "accuracy" if classes else "explained variance"
    split = f"{len(problem.x)} samples of norm one learned, {len(problem.x_test)} tested"
    rows = [Row("score, by width", f"{measure}, %", f"{split}; {targets.words}")]
    finite: dict[str, Tensor] = {}
    infinite: dict[str, float] = {}
    told: list[str] = []
    for name in _SCORED:
        architecture, title = rival(name, deq), TITLES[name]
        wide, ridge = _infinite(problem, architecture if name == "naive" else deq)
        scores = torch.tensor(
            [[_finite(problem, architecture, m, s, ridge) for s in range(_DRAWS)] for m in _WIDTHS]
        )
        finite[name], infinite[name], means = scores, wide, scores.mean(1).tolist()
        useless, far = not wide > constant, not abs(means[-1] - wide) <= _FAR_SCORE
        if useless:
            told.append(
                f"{title}: at infinite width it scores {wide:.1%}; the same answer for all samples "
                f"scores {constant:.1%}."
            )
        if far:
            told.append(f"{title}: {means[-1]:.1%} at width {_WIDTHS[-1]}, {wide:.1%} predicted.")
        shown = {str(_WIDTHS[0]): means[0], str(_WIDTHS[-1]): means[-1], "∞": wide}
        value = by_name({width: f"{100 * score:.1f}" for width, score in shown.items()})
        words = f"the readout alone is trained; mean of {_DRAWS} networks" if name == "deq" else ""
        rows.append(Row(title, value, words, contradicted=useless or far))
    numbers: dict[str, Any] = {
        "measure": measure, "learned": len(problem.x), "tested": len(problem.x_test),
        "widths": list(_WIDTHS), "finite": {name: s.tolist() for name, s in finite.items()},
        "infinite": infinite, "constant": constant,
    }  # fmt: skip
    panel = partial(_draw_scores, measure=measure, finite=finite, infinite=infinite)
    return Findings(tuple(rows), numbers, panel, warnings=tuple(told))


def _infinite(problem: _Problem, architecture: Architecture) -> tuple[float, float]:
    """The score of ridge regression with the CK, and the ridge of least leave-one-out error.

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
    axes: Axes, measure: str, finite: dict[str, Tensor], infinite: dict[str, float]
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
    axes.set(xlabel="width", ylabel=f"{measure}, %")
    legend_below(axes)


_FEWEST, _OCTAVES = 32, 7  # samples; sizes up to twice the data


def _find_prediction(subject: Subject) -> Findings:
    x, targets = on_sphere(subject.data, _SAMPLES, _FEWEST)
    path = shoal.learning.ridge_path(subject.architecture, x, targets.values)
    ridge, count = path.best("loo"), len(x)
    sizes = [max(1, 2 * count >> octaves) for octaves in reversed(range(_OCTAVES))]
    curve = shoal.learning_curve(subject.architecture, x, targets.values, sizes, ridge=ridge)
    more = curve
    if curve.limit < 2 * count:  # the larger a ridge that is as good, the further its curve goes
        good = path.loo <= path.score("loo") + float(curve.uncertainty[-2])
        largest = float(path.ridges[good].max())
        more = shoal.learning_curve(subject.architecture, x, targets.values, ridge=largest)
    least = ridge == float(path.ridges[0])
    why = "smallest value tried; no regularization needed" if least else "least leave-one-out error"
    accuracy = float(path.accuracy[path.ridges == ridge][0])
    told = tuple(
        f"With {check.size} samples the measured error is {check.measured:.3g}, where "
        f"{check.predicted:.3g} was predicted from {check.source}."
        for check in curve.checks
        if not abs(check.deviation) <= _FAR
    )
    rows = (
        Row("ridge", f"{ridge:.3g}", f"{why}; {count} samples of norm one, {targets.words}"),
        Row("mean squared error", _error(curve, -2), "on new samples of the same kind"),
        *([Row("accuracy", f"{accuracy:.1%}", "leave-one-out")] if subject.data.classes else ()),
        Row("with half the data", _error(curve, -3), f"predicted, from {count // 2}",
            contradicted=bool(told)),
        _more_data(more, count, ridge),
    )  # fmt: skip
    numbers: dict[str, Any] = {
        "samples": count, "ridge": ridge, "ridge_is_least": least, "limit": curve.limit,
        "sizes": curve.sizes.tolist(), "test_error": curve.test_error.tolist(),
        "uncertainty": curve.uncertainty.tolist(), "accuracy": accuracy,
        "classes": bool(subject.data.classes), "loo": float(path.score("loo")),
        "further": {"size": int(more.sizes[-1]), "ridge": more.ridge,
                    "test_error": float(more.test_error[-1]),
                    "uncertainty": float(more.uncertainty[-1])},
        "checks": [[c.size, c.source, c.predicted, c.measured] for c in curve.checks],
    }  # fmt: skip
    return Findings(rows, numbers, partial(_draw_curve, curve=curve), warnings=told)


def _error(curve: shoal.learning.LearningCurve, place: int) -> str:
    """An error with its deviation, if it is claimed."""
    error, deviation = float(curve.test_error[place]), float(curve.uncertainty[place])
    return f"{error:.3g} ± {deviation:.1g}" if math.isfinite(error) else "not claimed"


def _more_data(curve: shoal.learning.LearningCurve, count: int, ridge: float) -> Row:
    size = int(curve.sizes[-1])
    if size <= count:
        return Row("with more data", "not claimed", "the least eigenvalues are not known")
    meaning = f"predicted, for {size}"
    if curve.ridge != ridge:
        meaning += f" and a ridge of {curve.ridge:.2g}, as good within the deviation"
    times = "twice" if size == 2 * count else f"{size / count:.2g} times"
    return Row(f"with {times} the data", _error(curve, -1), meaning)


def _draw_curve(axes: Axes, curve: shoal.learning.LearningCurve) -> None:
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


_CERTIFIED_SAMPLES, _CERTIFIED_WIDTH = 8, 1000
_CERTIFIED_STEPS = 60
_ROUNDING = 1e-9  # of losses and their bound
_ROOM = 0.9  # share of the largest scale of targets that may be certified


def _find_certificate(subject: Subject) -> Findings:
    drawn, targets = subject.data.drawn(_CERTIFIED_SAMPLES), learnable(subject.data)
    x, y = (values[drawn].double().cpu() for values in (subject.x, targets.values))
    network = shoal.build(
        subject.deq,
        in_features=x.shape[1],
        width=_CERTIFIED_WIDTH,
        out_features=y.shape[1],
        readout_scale=0.0,
        dtype=torch.float64,
        device="cpu",
        seed=0,
    )
    found, scale = shoal.certify(network, x, y), 1.0
    margin = found.gradient_descent.margin
    if not found.holds and 0 < margin < 1:  # weights travel in proportion to the targets
        smaller = shoal.certify(network, x, _ROOM * margin * y)
        found, scale = (smaller, _ROOM * margin) if smaller.holds else (found, scale)
    seed = subject.data.seed
    words = f"the first {len(x)} samples" if seed is None else f"{len(x)} samples, seed {seed}"
    words += f", {targets.words}" + ("" if scale == 1 else "; much larger ones are not certified")
    rows = [
        Row("network", f"width {_CERTIFIED_WIDTH}", "seed 0, readout zero at the start"),
        Row("targets", "as they are" if scale == 1 else f"times {scale:.2g}", words),
    ]
    numbers: dict[str, Any] = {"target_scale": scale, "width": _CERTIFIED_WIDTH}
    one_class = bool(subject.data.classes) and bool((y == y[0]).all())
    told = [f"All {len(x)} samples are of one class."] if one_class else []
    if not found.holds:
        return replace(certificate_findings(found, tuple(rows), numbers), warnings=tuple(told))
    curves = _certified_curves(network, x, scale * y, found)
    wrong = list(_broken_promises(curves))
    last = {name: float(losses[-1]) for name, losses in curves.items()}
    words = (
        f"at most {last['bound']:.3g} by the certificate; {last['predicted']:.3g} predicted at "
        f"infinite width; {float(curves['bound'][0]):.3g} before"
    )
    title = f"loss after {_CERTIFIED_STEPS} steps"
    rows.append(Row(title, f"{last['measured']:.3g}", words, contradicted=bool(wrong)))
    numbers |= {"losses": {name: losses.tolist() for name, losses in curves.items()}}
    section = certificate_findings(found, tuple(rows), numbers)
    panel = partial(_draw_certified, curves=curves)
    return replace(section, panel=panel, warnings=(*told, *wrong))


def _certified_curves(
    network: Network[Any], x: Tensor, y: Tensor, found: shoal.certificates.Certificate
) -> dict[str, Tensor]:
    """Losses of the certified network, which is trained for it; their bound; their prediction."""
    assert found.step_size is not None
    assert found.rate is not None
    steps = list(range(_CERTIFIED_STEPS + 1))
    # a readout of zero hides all other weights from the gradient
    kernels = shoal.kernel(network.architecture, x, trainable={"readout"})
    flow = LinearTraining(kernels, y, initial="zero", reduction="sum")
    run = shoal.train(
        network, x, y, step_size=found.step_size, steps=_CERTIFIED_STEPS, monitor=False
    )
    return {
        "bound": run.losses[0] * found.rate ** torch.tensor(steps, dtype=torch.float64),
        "predicted": flow.run(steps=steps, step_size=found.step_size).loss,
        "measured": run.losses,
    }


def _broken_promises(curves: Mapping[str, Tensor]) -> Iterator[str]:
    """Warnings if the certified network did not train as promised or predicted."""
    bound, predicted, measured = curves.values()
    above = (~(measured <= bound * (1 + _ROUNDING))).nonzero()
    if len(above):
        step = int(above[0])
        yield (
            f"The loss after {step} steps is {float(measured[step]):.3g}, above the bound of the "
            f"certificate, {float(bound[step]):.3g}."
        )
    if not abs(float(measured[-1] - predicted[-1])) <= _FAR * float(predicted[-1]):
        yield (
            f"The loss after {_CERTIFIED_STEPS} steps is {float(measured[-1]):.3g} at width "
            f"{_CERTIFIED_WIDTH}, and {float(predicted[-1]):.3g} was predicted for infinite width."
        )


def _draw_certified(axes: Axes, curves: Mapping[str, Tensor]) -> None:
    """Losses against steps, below their bound."""
    labels = {
        "bound": ("--", GRAY, "bound by the certificate"),
        "predicted": ("-", COLORS[0], "predicted, infinite width"),
        "measured": (".", COLORS[1], f"measured, width {_CERTIFIED_WIDTH}"),
    }
    for name, (line, color, label) in labels.items():
        axes.plot(curves[name], line, color=color, label=label, markersize=4, linewidth=1.5)
    axes.set(yscale="log", xlabel="step of gradient descent", ylabel="training loss")
    legend_below(axes)


def certificate_findings(
    found: shoal.certificates.Certificate, rows: tuple[Row, ...], numbers: Mapping[str, Any]
) -> Findings:
    """A certificate as a section: the answer, and the conditions as a checklist.

    Args:
        found: The certificate.
        rows: More rows on the network and the data.
        numbers: More numbers for machines.
    """
    best = found.gradient_descent
    answer = [Row("trains to zero loss", best.status, best.theorem), *rows]
    if found.step_size is not None and found.rate is not None:
        answer += [
            Row("step size", f"{found.step_size:.4g}", "for the loss ½Σ‖f(x) − y‖²"),
            Row("rate", f"{found.rate:.6g}", "a step multiplies the loss by this or less"),
        ]
    for c in best.conditions:
        words = f"{c.words}; margin {c.margin:.3g}" + ("" if c.holds else f"; helps: {c.remedy}")
        value = f"{c.value:.3g} {'' if c.holds else 'not '}{c.needed}"
        answer.append(Row(c.name, value, words, holds=c.holds))
    panel = partial(_draw_margins, conditions=best.conditions)
    return Findings(
        tuple(answer), {**numbers, **found.to_dict()}, panel, notes=(found.explanation,)
    )


def _draw_margins(axes: Axes, conditions: tuple[Condition, ...]) -> None:
    """The margins of the conditions, up to a factor of three."""
    draw_bars(axes, {c.name: (c.margin, COLORS[2 if c.holds else 1]) for c in conditions}, 3.0)
    axes.axvline(1, color=GRAY, linewidth=1.2, zorder=0.5)
    axes.set_xlabel("margin; below 1 the condition fails")


TRAINING = Section("training", "Training", _find_training)
ACCURACY = Section("accuracy", "Accuracy against width", _find_accuracy)
PREDICTION = Section("prediction", "New samples", _find_prediction)
CERTIFICATE = Section("certificate", "Certificate", _find_certificate)
