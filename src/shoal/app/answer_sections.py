"""Sections that answer: which method predicts best, where it errs, which columns matter."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.app.comparison import (
    CONSTANT,
    FOLDS,
    LAYER,
    LINEAR,
    LOOP,
    RBF,
    Contest,
    Score,
    decided,
    predict,
)
from shoal.app.sections import (
    FAR,
    Findings,
    ReportSection,
    SectionNotApplicable,
    Subject,
    draw_bars,
    legend_below,
)
from shoal.core.figures import COLORS, GRAY, Axes
from shoal.core.words import Row

_ORDER = (LOOP, LAYER, RBF, LINEAR, CONSTANT)
_ABOUT = {
    LOOP: "kernel of an infinitely wide deep equilibrium model",
    LAYER: "the same without recurrent weights: one plain layer",
    RBF: "Gaussian kernel",
    LINEAR: "linear in the columns",
    CONSTANT: "the same answer for every sample",
}


def _find_comparison(subject: Subject) -> Findings:
    contest = subject.contest
    titles, measure = contest.titles(), "accuracy" if contest.classes else "R²"
    scores = {name: contest.score(name) for name in _ORDER}
    rows = [
        Row(titles[name], shown(score, contest), f"{_ABOUT[name]}{_choice(contest, name)}")
        for name, score in scores.items()
    ]
    note = (
        f"{measure} on {len(subject.data)} samples, each predicted by {FOLDS}-fold "
        "cross-validation from folds without it; ± is one standard error over samples. Kernels and "
        "ridges are chosen by leave-one-out within the training folds."
    )
    if not contest.classes:
        note += " R² is the explained share of the variance: 1 is perfect, 0 is the mean."
    numbers = {
        "measure": measure, "samples": len(subject.data), "folds": FOLDS,
        "scores": {name: score._asdict() for name, score in scores.items()},
        "loop_gain": contest.difference(LOOP, LAYER)._asdict(),
        "best_kernel": contest.kernel, "chosen": str(subject.deq),
    }  # fmt: skip
    panel = partial(_draw_scores, scores=scores, titles=titles, measure=measure)
    return Findings(tuple(rows), numbers, panel, notes=(note,))


def shown(score: Score, contest: Contest) -> str:
    """A score with its standard error."""
    if contest.classes:
        return f"{100 * score.mean:.1f} ± {100 * score.error:.1f}%"
    digits = 3
    if 0 < score.error < 0.002:  # two digits of it
        digits = min(6, 1 - math.floor(math.log10(score.error)))
    return f"{score.mean:z.{digits}f} ± {score.error:.{digits}f}"


def _choice(contest: Contest, name: str) -> str:
    fits = contest.fits.get(name, [])
    deq = fits[-1].candidate.architecture if fits else None
    if deq is None:
        return ""
    words = f"{type(deq.activation).__name__}, σ_b² = {deq.input_variance:g}"
    return f"; {words}" + (f", σ_a² = {deq.recurrent_variance:g}" if name == LOOP else "")


def _draw_scores(
    axes: Axes, scores: dict[str, Score], titles: dict[str, str], measure: str
) -> None:
    """Scores with two standard errors, within the possible range."""
    for place, (name, score) in enumerate(scores.items()):
        color = GRAY if name == CONSTANT else COLORS[place]
        low = max(score.mean - 2 * score.error, 0.0 if measure == "accuracy" else -math.inf)
        high = min(score.mean + 2 * score.error, 1.0)
        axes.plot([low, high], [place, place], color=color, linewidth=2)
        axes.plot(score.mean, place, "o", color=color)
    axes.set_yticks(range(len(scores)), [titles[name] for name in scores])
    axes.invert_yaxis()
    axes.set_xlabel(f"{measure}, ± two standard errors")


def _find_errors(subject: Subject) -> Findings:
    contest = subject.contest
    outputs, y = contest.predictions[contest.kernel], contest.targets
    title = f"predictions of the kernel with {contest.titles()[contest.kernel]}"
    if contest.kernel == LAYER:
        title = "predictions of the plain layer"
    if contest.classes:
        return _confusions(subject, decided(outputs), decided(y), title)
    scale = outputs.shape[1]
    errors = (outputs - y).norm(dim=1) / scale**0.5
    rows = (
        Row(
            "typical error",
            f"{float(errors.square().mean().sqrt()):.3g}",
            f"root mean square; {title}",
        ),
        Row("median error", f"{float(errors.median()):.3g}", "half of the samples are nearer"),
        Row("spread of the target", f"{float(y.std(0).mean()):.3g}", "its standard deviation"),
        Row("largest error", f"{float(errors.max()):.3g}", f"sample {int(errors.argmax())}"),
    )
    numbers = {"rmse": float(errors.square().mean().sqrt()), "median": float(errors.median())}
    panel = partial(_draw_residuals, y=y.flatten().cpu(), predicted=outputs.flatten().cpu())
    return Findings(rows, numbers, panel)


def _draw_residuals(axes: Axes, y: Tensor, predicted: Tensor) -> None:
    """Predicted against true targets."""
    ends = [float(min(y.min(), predicted.min())), float(max(y.max(), predicted.max()))]
    axes.plot(ends, ends, color=GRAY, linewidth=1, label="no error")
    axes.plot(y, predicted, ".", color=COLORS[0], markersize=4, alpha=0.5, label="held-out samples")
    axes.set(xlabel="target", ylabel="predicted")
    legend_below(axes)


_SHOWN = 8  # confusions, and columns


def _confusions(subject: Subject, predicted: Tensor, true: Tensor, title: str) -> Findings:
    names = subject.data.classes
    table = torch.bincount(true * len(names) + predicted, minlength=len(names) ** 2)
    table = table.view(len(names), len(names)).cpu()
    wrong = table.clone()
    wrong.fill_diagonal_(0)
    rows = [Row("wrong", f"{int(wrong.sum())} of {len(true)}", title)]
    for place in wrong.flatten().argsort(descending=True, stable=True)[:_SHOWN].tolist():
        row, column = divmod(place, len(names))
        if count := int(wrong[row, column]):
            words = f"{count} of {int(table[row].sum())}"
            rows.append(Row(f"{names[row]} taken for {names[column]}", words))
    panel = partial(_draw_confusions, table=table, names=names)
    return Findings(tuple(rows), {"classes": names, "confusion": table.tolist()}, panel)


def _draw_confusions(axes: Axes, table: Tensor, names: tuple[str, ...]) -> None:
    """The confusion matrix, colored by shares of each true class."""
    shares = table / table.sum(1, keepdim=True).clamp_min(1)
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(*table.shape):
        if count := int(table[row, column]):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)
    short = [name if len(name) <= 10 else f"{name[:9]}…" for name in names]
    turned = 90 if max(map(len, short)) > 3 else 0
    axes.set_xticks(range(len(names)), short, rotation=turned)
    axes.set_yticks(range(len(names)), short)
    axes.grid(visible=False)
    axes.set(xlabel="predicted", ylabel="true")


def _find_columns(subject: Subject) -> Findings:
    contest, data = subject.contest, subject.data
    names = list(dict.fromkeys(data.columns))
    if not names:
        raise SectionNotApplicable("pixels are not columns")
    if not 2 <= len(names) <= 100:
        raise SectionNotApplicable("needs 2 to 100 columns")
    x, generator = data.x.double(), torch.Generator().manual_seed(0)
    losses = torch.zeros(len(names), len(x), dtype=torch.float64, device=x.device)
    for fold, fit in enumerate(contest.fits[contest.kernel][:-1]):
        test = (contest.folds == fold).nonzero()[:, 0]
        copies = x[test].repeat(len(names), 1, 1)
        for place, name in enumerate(names):
            part = torch.tensor([column == name for column in data.columns], device=x.device)
            order = torch.randperm(len(test), generator=generator).to(x.device)
            copies[place][:, part] = x[test][order][:, part]
        outputs = predict(fit, x[contest.folds != fold], copies.flatten(0, 1))
        before = contest.gain(contest.predictions[contest.kernel][test], test)
        for place, one in enumerate(outputs.split(len(test))):
            losses[place, test] = before - contest.gain(one, test)
    drops = {name: Score.from_values(loss) for name, loss in zip(names, losses, strict=True)}
    ranked = dict(sorted(drops.items(), key=lambda item: -item[1].mean))
    first = {name: ranked[name] for name in list(ranked)[:_SHOWN]}
    measure = "accuracy" if contest.classes else "R²"
    rows = [
        Row(
            name if not name.isdecimal() else f"column {name}",
            f"{shown(score, contest)}",
            f"lost {measure} when shuffled" if score.is_clear() else "within chance",
        )
        for name, score in first.items()
    ]
    note = (
        "Each column is shuffled among the held-out samples, all else unchanged. Of columns that "
        "say the same, each can look useless because the others remain."
    )
    numbers = {"lost": {name: score._asdict() for name, score in ranked.items()}}
    bars = {
        name: (score.mean, COLORS[0 if score.is_clear() else 5]) for name, score in first.items()
    }
    panel = partial(_draw_columns, bars=bars, measure=measure)
    return Findings(tuple(rows), numbers, panel, notes=(note,))


def _draw_columns(axes: Axes, bars: dict[str, tuple[float, str]], measure: str) -> None:
    """The lost score of each column."""
    kept = {name: (max(value, 0.0), color) for name, (value, color) in bars.items()}
    draw_bars(axes, kept, max(1e-9, *(value for value, _ in kept.values())))
    axes.set_xlabel(f"lost {measure}; pale: within chance")


def _find_more_data(subject: Subject) -> Findings:
    contest = subject.contest
    x, count = subject.x.double(), len(subject.x)
    if count < 32:
        raise SectionNotApplicable("needs 32 samples or more")
    fit = contest.fits[contest.kernel][-1]
    deq = fit.candidate.architecture
    assert deq is not None
    y = contest.targets - contest.targets.mean(0)
    y = y / y.square().sum(1).mean().sqrt()  # errors are shares of the variance
    sizes = [max(2, 2 * count >> octaves) for octaves in (5, 4, 3, 2, 1, 0)]
    curve = shoal.learning_curve(deq, x, y, sizes, ridge=fit.ridge)
    scale = y.shape[1]  # errors are means over outputs
    off = [abs(one.deviation) for one in curve.checks]
    parts = ", ".join(
        f"{scale * one.measured:.3g} with {one.size} samples, {scale * one.predicted:.3g} predicted"
        for one in curve.checks
    )
    check = (
        f"Predictions for parts of the data must be within {FAR:.0%} of the measured errors: "
        f"{parts}."
    )
    rows = [
        Row(words, _error(curve, place, scale), f"unexplained variance with {sizes[place]} samples")
        for place, words in ((-3, "half the data"), (-2, "the data"), (-1, "twice the data"))
    ]
    numbers: dict[str, Any] = {
        "ridge": fit.ridge, "limit": curve.limit, "sizes": curve.sizes.tolist(),
        "unexplained": (scale * curve.test_error).tolist(),
        "uncertainty": (scale * curve.uncertainty).tolist(),
        "checks": [[c.size, scale * c.predicted, scale * c.measured] for c in curve.checks],
    }  # fmt: skip
    panel = partial(_draw_curve, curve=curve, scale=scale)
    holds = bool(off) and max(off) <= FAR
    return Findings(tuple(rows), numbers, panel, check=check, holds=holds)


def _error(curve: shoal.learning.LearningCurve, place: int, scale: int) -> str:
    """An error with its deviation, if it is claimed."""
    error, deviation = (scale * float(v[place]) for v in (curve.test_error, curve.uncertainty))
    return f"{error:.1%} ± {deviation:.1%}" if math.isfinite(error) else "not known"


def _draw_curve(axes: Axes, curve: shoal.learning.LearningCurve, scale: int) -> None:
    """The predicted errors, and those that were measured on parts of the data."""
    low, high = (scale * (curve.test_error + s * curve.uncertainty) for s in (-1, 1))
    axes.fill_between(curve.sizes, low.clamp_min(0), high, color=COLORS[5], alpha=0.4, linewidth=0)
    axes.plot(curve.sizes, scale * curve.test_error, color=COLORS[1], label="predicted")
    if curve.checks:
        sizes, values = zip(*((c.size, scale * c.measured) for c in curve.checks), strict=True)
        axes.plot(sizes, values, "o", color=GRAY, markersize=4, label="measured")
    axes.set_xscale("log")
    axes.set_xticks(curve.sizes.tolist(), [str(size) for size in curve.sizes.tolist()])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="training samples", ylabel="unexplained variance")
    legend_below(axes)


def verdict(contest: Contest) -> str:
    """All scores, and conclusions on the loop and on the kernels."""
    titles = contest.titles()
    kernel, rivals = contest.kernel, (RBF, LINEAR)

    def in_words(name: str) -> str:
        full = shown(contest.score(name), contest)
        short = full.partition(" ±")[0] + "%" * contest.classes
        return f"{titles[name]} {full if name in (LOOP, LAYER) else short}"

    scores = ", ".join(map(in_words, _ORDER))
    lead = f"{'Accuracy' if contest.classes else 'R²'} on {len(contest.data)} samples: {scores}."
    gain = contest.difference(LOOP, LAYER)
    if not contest.difference(kernel, CONSTANT).is_clear():
        return f"{lead} Neither kernel clearly beats the {titles[CONSTANT]}: nothing was learned."
    if gain.is_clear():
        lead += f" The loop helps on this data, by {shown(gain, contest)}."
    elif contest.difference(LAYER, LOOP).is_clear():
        lead += (
            f" The loop hurts on this data, by {shown(contest.difference(LAYER, LOOP), contest)}."
        )
    else:
        lead += " No evidence that the loop helps on this data."
    ahead = {name: contest.difference(name, kernel) for name in rivals}
    best = max(rivals, key=lambda name: ahead[name].mean)
    if ahead[best].is_clear():
        name = titles[best][0].upper() + titles[best][1:]
        return f"{lead} {name} is better by {shown(ahead[best], contest)}: use that."
    if not contest.difference(kernel, LINEAR).is_clear():
        return f"{lead} {titles[LINEAR].capitalize()} does as well, and is simpler."
    return lead


COMPARISON = ReportSection("comparison", "Comparison", _find_comparison)
ERRORS = ReportSection("errors", "Where it errs", _find_errors)
COLUMNS = ReportSection("columns", "Which columns matter", _find_columns)
MORE_DATA = ReportSection("more_data", "With more data", _find_more_data)
