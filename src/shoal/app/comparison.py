"""Which method predicts best: loops, plain layers and common rivals, on the same folds."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import shoal
from shoal import DEQ
from shoal.app.inputs import PreparedData
from shoal.learning.decomposition import Decomposition
from shoal.learning.ridges import evaluate_path

FOLDS = 5
LOOP, LAYER, RBF, LINEAR, CONSTANT = "loop", "no loop", "RBF", "linear", "constant"
CLEAR = 2.0
"""Standard errors of a paired difference above which it counts."""
_INPUTS = (("relu", 0.8), ("tanh", 0.2), ("tanh", 2.0))  # activation and input variance


class Score(NamedTuple):
    """A mean over samples with its standard error."""

    mean: float
    error: float

    @classmethod
    def from_values(cls, values: Tensor) -> "Score":
        """The score for one value per sample."""
        return cls(float(values.mean()), float(values.std()) / math.sqrt(len(values)))

    def is_clear(self) -> bool:
        """Whether it is above zero by more than two standard errors."""
        return self.mean > CLEAR * self.error


class Candidate(NamedTuple):
    """A kernel that may be chosen, and the family that it stands for."""

    family: str
    architecture: DEQ | None
    matrix: Callable[[Tensor, Tensor], Tensor]


class Fit(NamedTuple):
    """Kernel ridge regression on some samples, its ridge chosen by leave-one-out."""

    candidate: Candidate
    ridge: float
    loo: float
    alpha: Tensor
    mean: Tensor


@dataclass
class Contest:
    """Predictions of all methods for each sample, from the folds without it.

    Attributes:
        data: Samples with a target.
        folds: The fold of each sample.
        predictions: Outputs for each sample, by method.
        fits: The chosen regressions of each family: one for each fold, the last for all samples.
    """

    data: PreparedData
    folds: Tensor
    predictions: dict[str, Tensor] = field(default_factory=dict)
    fits: dict[str, list[Fit]] = field(default_factory=dict)

    @property
    def classes(self) -> bool:
        """Whether the target is classes."""
        return bool(self.data.classes)

    @property
    def targets(self) -> Tensor:
        """The targets of shape (n, outputs), in float64."""
        return self.data.targets().double()

    def gain(self, outputs: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """The contribution of each sample to the accuracy or R², their mean."""
        y = self.targets
        if self.classes:
            return (decided(outputs) == decided(y[rows])).double()
        variance = (y - y.mean(0)).square().sum(1).mean()
        return 1 - (outputs - y[rows]).square().sum(1) / variance

    def score(self, name: str) -> Score:
        """The accuracy or R² of a method."""
        return Score.from_values(self.gain(self.predictions[name]))

    def difference(self, better: str, worse: str) -> Score:
        """The lead of one method over another, on the same samples."""
        gains = (self.gain(self.predictions[name]) for name in (better, worse))
        return Score.from_values(next(gains) - next(gains))

    @property
    def kernel(self) -> str:
        """The better of the loop and the plain layer; the layer, unless the loop clearly helps."""
        return LOOP if self.difference(LOOP, LAYER).is_clear() else LAYER

    def titles(self) -> dict[str, str]:
        """The methods in words."""
        linear, constant = "logistic regression", "majority class"
        if not self.classes:
            linear, constant = "ridge regression", "mean"
        return {LOOP: "loop", LAYER: "no loop", RBF: "RBF", LINEAR: linear, CONSTANT: constant}


def decided(outputs: Tensor) -> Tensor:
    """The class of each row: the largest output, or the sign of a single output."""
    return (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)


def compare(data: PreparedData, architecture: DEQ | None = None) -> Contest:
    """Score all methods on the same folds.

    Every kernel is chosen within the training folds, by leave-one-out over a small grid and all
    ridges, so that the choice is paid for.

    Args:
        data: Samples with a target.
        architecture: The only loop to try; by default a grid of them.
    """
    contest = Contest(data, data.folds(FOLDS))
    y, outputs = contest.targets, data.targets().shape[1]
    parts = [(contest.folds != fold).nonzero()[:, 0] for fold in range(FOLDS)]
    parts.append(torch.arange(len(y), device=y.device))
    x = data.x.double()
    for candidate in candidates(architecture, classes=contest.classes):
        matrix = candidate.matrix(x, x)
        fits = [_fit(candidate, matrix[rows][:, rows], y[rows]) for rows in parts]
        best = contest.fits.setdefault(candidate.family, fits)
        contest.fits[candidate.family] = [
            old if old.loo <= new.loo else new for old, new in zip(best, fits, strict=True)
        ]
    for family, fits in contest.fits.items():
        predictions = contest.predictions[family] = torch.empty(len(y), outputs).to(y)
        for fold, fit in enumerate(fits[:-1]):
            test = contest.folds == fold
            predictions[test] = predict(fit, x[parts[fold]], x[test])
    if contest.classes:
        linear = contest.predictions[LINEAR] = torch.empty_like(y)
        for fold, rows in enumerate(parts[:-1]):
            test = contest.folds == fold
            linear[test] = _logistic(x[rows], decided(y[rows]), x[test], outputs).to(y)
    contest.predictions[CONSTANT] = y.mean(0).expand_as(y)
    return contest


def candidates(architecture: DEQ | None, *, classes: bool) -> Iterator[Candidate]:
    """The kernels of the grid; a plain layer is a loop without recurrent weights."""
    loops = [DEQ(phi, r, v) for phi, v in _INPUTS for r in (0.2, 0.6)]
    layers = [DEQ(phi, 0.0, v) for phi, v in _INPUTS]
    if architecture is not None:
        loops = [architecture]
        layers = [DEQ(architecture.activation, 0.0, architecture.input_variance)]
    for family, networks in ((LOOP, loops), (LAYER, layers)):
        for network in networks:
            yield Candidate(family, network, partial(_ntk, network))
    for rate in (0.05, 0.2, 0.8, 3.2):  # squared distances have a mean of 2
        yield Candidate(RBF, None, partial(_gaussian, rate))
    if not classes:
        yield Candidate(LINEAR, None, lambda a, b: a @ b.T)


def _ntk(architecture: DEQ, a: Tensor, b: Tensor) -> Tensor:
    return shoal.kernel(architecture, a, None if a is b else b).ntk


def _gaussian(rate: float, a: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-rate * torch.cdist(a, b).square())


def predict(fit: Fit, x: Tensor, new: Tensor) -> Tensor:
    """The outputs of a regression on samples for new ones."""
    return fit.candidate.matrix(new, x) @ fit.alpha + fit.mean


def _fit(candidate: Candidate, matrix: Tensor, y: Tensor) -> Fit:
    mean, parts = y.mean(0), Decomposition.from_matrix(matrix)
    path = evaluate_path(parts, y - mean)
    ridge = path.best("loo")
    alpha = parts.shifted(ridge).solve(y - mean)
    return Fit(candidate, ridge, path.score("loo"), alpha, mean)


def _logistic(x: Tensor, labels: Tensor, new: Tensor, outputs: int) -> Tensor:
    """Decisions of logistic regression as one-hot rows or signs; its penalty is cross-validated."""
    import warnings

    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegressionCV

    scale = x.shape[1] ** 0.5  # standard deviations near one, as its penalty expects
    model = LogisticRegressionCV(Cs=(0.1, 1.0, 10.0), cv=3, max_iter=300)
    if labels.bincount(minlength=2).sort().values[-2] < 2:  # some fold would have one class
        model = DummyClassifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few samples of a class, and steps left to go
        model.fit((x * scale).cpu(), labels.cpu())
    classes = torch.as_tensor(model.predict((new * scale).cpu()))
    if outputs == 1:
        return 2.0 * classes[:, None] - 1
    return torch.nn.functional.one_hot(classes, outputs).double()
