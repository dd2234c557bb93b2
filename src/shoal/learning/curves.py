r"""Errors of kernel regression against the number of samples, predicted from those at hand.

For eigenvalues $\lambda_i$ of the kernel's operator, a ridge regression on $n$ samples learns a
share $L_i = \lambda_i/(\lambda_i + \kappa)$ of each component, with one effective regularization
$\kappa$, where $\lambda = \kappa\,(n - \sum_i L_i)$ (Simon et al. 2021).

Nothing of the operator need be known. With $G = (K + \delta I)^{-1}$ of the $N$ samples at hand,
$\kappa = 1/\operatorname{tr} G$ and $\sum_i L_i = N - \delta \operatorname{tr} G$ belong to some
ridge $\delta$, which is found from the equation above. The sum of squares $\sum_i L_i^2$, by which
single training sets differ, is $N - (\operatorname{tr} G)^2/\operatorname{tr} G^2$, and the error
at $(N, \delta)$ is that of leaving out each sample.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import scipy  # whose parts are imported where they are first used
import torch
from torch import Tensor
from torch.nn.functional import pad

from shoal.architectures import Architecture
from shoal.core.checks import integer, items, seeded
from shoal.core.exceptions import AccuracyError
from shoal.core.figures import Axes, Figure, empty_figure
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction
from shoal.learning.decomposition import EPS, Decomposition, decompose
from shoal.learning.problem import RegressionProblem, Which
from shoal.learning.ridges import Criterion, checked_criterion, evaluate_path

_FEWEST = 32  # samples from which anything is predicted
_MOST = 16  # times the samples, for default sizes
_SHARES = (8, 4, 2)  # of the samples, on which predictions are checked
_DRAWS = 8  # of the fluctuation of outputs
_BLUE, _ORANGE, _GREEN, _GRAY = "#0072B2", "#E69F00", "#009E73", "#444444"


@in_standard_settings
def learning_curve(
    architecture: Architecture | KernelFunction,
    x: Any,
    y: Any,
    sizes: Iterable[int] | None = None,
    *,
    ridge: float | Criterion = "loo",
    center: bool = True,
    which: Which = "ntk",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    memory: int | str | None = None,
    repeats: int = 5,
    seed: int = 0,
) -> "LearningCurve":
    r"""Predict training and test errors of kernel ridge regression against the number of samples.

    One eigendecomposition of their kernel matrix predicts all sizes, smaller ones and, with a
    ridge, larger ones too: a regression on $n$ samples with ridge $\lambda$ has the same effective
    regularization as one on all $N$ samples with another ridge, whose leave-one-out errors are
    known. The predictions are checked on the data themselves, on an eighth, a quarter and a half of
    the samples, and from one half of the samples for a larger size; the deviations of these checks
    go into the uncertainty, and their reach limits the sizes that are predicted.

    Args:
        architecture: The network, or its kernel function.
        x: Inputs of shape (N, p).
        y: Targets of shape (N,) or (N, q); or classes, integers or strings of shape (N,), which are
            regressed as indicators and give error rates too.
        sizes: Numbers of training samples; by default from 16 to the limit of the prediction.
        ridge: $\lambda \ge 0$, of $(K + \lambda I)\alpha = y$, the same for all sizes; or
            ``"loo"``, ``"gcv"`` or ``"likelihood"``, which choose it for all samples.
        center: Whether to fit a constant beside the kernel, in all regressions of every size; it is
            a component whose eigenvalue is infinite.
        which: Kernel: ``"ck"`` or ``"ntk"``.
        trainable: Groups of parameters that contribute to the NTK; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        memory: Memory limit; see :func:`shoal.kernel_regression`.
        repeats: Number of random subsets that each check averages over.
        seed: Seed of the random subsets.

    Raises:
        ValueError: If an argument does not fit, or the matrix does not fit into the memory.
        AccuracyError: If the matrix is zero or singular, or squares of targets overflow.

    Example:
        >>> import torch, shoal
        >>> x = torch.nn.functional.normalize(torch.randn(200, 5, generator=torch.manual_seed(0)))
        >>> deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
        >>> y = x[:, 0] * x[:, 1] + 0.1 * torch.randn(200, generator=torch.manual_seed(1))
        >>> curve = shoal.learning_curve(deq, x, y, sizes=[50, 100, 200, 5000], ridge=0.1)
        >>> curve.test_error
        tensor([0.0177, 0.0136, 0.0121,    nan], dtype=torch.float64)
    """
    criterion = checked_criterion("ridge", ridge) if isinstance(ridge, str) else None
    options: dict[str, Any] = {"trainable": trainable, "width": width, "center": center}
    first = 0.0 if isinstance(ridge, str) else ridge
    problem = RegressionProblem.from_data(architecture, x, y, first, which, memory, **options)
    integer("repeats", repeats, at_least=1)
    seeded("seed", seed)
    if problem.size < _FEWEST:
        raise ValueError(f"x must have at least {_FEWEST} samples, got {problem.size}")
    asked = None
    if sizes is not None:
        asked = [integer("sizes", n, at_least=1 + center) for n in items("sizes", sizes)]
    if asked == []:
        raise ValueError("sizes must have at least one number, got none")
    matrix, parts = decompose(problem)
    if not float(parts.values[-1]) > parts.rounding:
        raise AccuracyError("the kernel matrix is zero or constant, so nothing can be learned")
    chosen = evaluate_path(parts, problem.y).best(criterion) if criterion else problem.ridge
    classes = problem.classes is not None and problem.y.shape[1] > 1
    wide = Subsampling(parts, problem.y, problem.mean, chosen, classes)
    return _curve(wide, _half(wide, matrix, seed), matrix, asked, repeats, seed)


def _half(wide: "Subsampling", matrix: Tensor, seed: int) -> "Subsampling":
    """Regressions seen from a random half of the samples."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(wide.samples, generator=generator)
    some = order[: wide.samples // 2].to(matrix.device)
    free = torch.full_like(matrix[some, 0], len(some) ** -0.5) if wide.constants else None
    mean = wide.targets[some].mean(0) * wide.constants
    half = Subsampling(
        Decomposition.from_matrix(matrix[some][:, some], free),
        wide.targets[some] - mean,
        wide.mean + mean,
        wide.ridge,
        wide.classes,
    )
    if min(wide.limit, half.limit) < 1 + wide.constants:
        raise AccuracyError(
            f"the kernel matrix is singular within rounding: with a ridge of {wide.ridge:g} no "
            f"prediction is possible, even for {1 + wide.constants} samples; choose a larger ridge"
        )
    return half


def _curve(
    wide: "Subsampling",
    half: "Subsampling",
    matrix: Tensor,
    asked: list[int] | None,
    repeats: int,
    seed: int,
) -> "LearningCurve":
    """The predictions from all samples, and their checks on half of them and on fewer."""
    least = 1 + wide.constants
    samples = math.floor(min(wide.samples, wide.limit))
    largest = math.floor(min(wide.samples, half.limit))
    checks = [_check(matrix, wide, wide, max(least, samples // s), repeats, seed) for s in _SHARES]
    reach = [_check(matrix, wide, half, largest, repeats, seed)] if largest > half.samples else []
    limit = min(wide.limit, wide.samples * largest / half.samples)
    if asked is None:
        asked = _default_sizes(min(limit, _MOST * wide.samples), least)
    within = math.sqrt(sum(c.deviation**2 for c in checks) / len(checks))
    beyond = max([within, *(abs(c.deviation) for c in reach)])
    nothing = Prediction(*(math.nan,) * 5)
    rows = [wide.predict(size, seed) if size <= limit else nothing for size in asked]
    test, bias, train, deviation, rate = torch.tensor(rows, dtype=torch.float64).unbind(1)
    sizes = torch.tensor(asked)
    misfit = torch.where(sizes <= wide.samples, within, beyond) * test
    return LearningCurve(
        sizes,
        wide.ridge,
        test,
        bias,
        test - bias,
        train,
        rate if wide.classes else None,
        torch.hypot(deviation, misfit),
        limit,
        wide.samples,
        (*checks, *reach),
    )


def _default_sizes(limit: float, least: int) -> list[int]:
    """Four in each octave, from 16 to the limit, or all up to that if it is smaller."""
    top = math.floor(limit)
    if top <= 16:
        return list(range(least, top + 1))
    steps = math.ceil(4 * math.log2(top / 16))
    return sorted({*(round(16 * (top / 16) ** (k / steps)) for k in range(steps + 1)), top})


class Prediction(NamedTuple):
    """Predicted errors for one size.

    Attributes:
        test: The error on new samples.
        bias: The error of the mean predictor.
        train: The error on the training samples.
        deviation: The standard error of ``test``, from the spread over the samples at hand.
        rate: The share of new samples that are classified wrong, or NaN.
    """

    test: float
    bias: float
    train: float
    deviation: float
    rate: float


@dataclass(frozen=True, eq=False)
class Subsampling:
    """Regressions with a ridge on any number of samples, predicted from the samples at hand.

    Attributes:
        parts: The decomposed kernel matrix of the samples at hand.
        targets: Their targets, less their mean if a constant is fitted. shape: (N, q)
        mean: Subtracted mean, or zeros. shape: (q,)
        ridge: Ridge of the regressions.
        classes: Whether the largest target of a sample is its class.
    """

    parts: Decomposition
    targets: Tensor
    mean: Tensor
    ridge: float
    classes: bool

    @property
    def samples(self) -> int:
        """Number of samples at hand."""
        return len(self.parts.vectors)

    @property
    def constants(self) -> int:
        """One if a constant is fitted."""
        return self.samples - len(self.parts.values)

    @cached_property
    def _coefficients(self) -> Tensor:
        return self.parts.project(self.targets)

    @property
    def least(self) -> float:
        """The least ridge on all samples from which anything can be read."""
        return max(0.0, 10 * self.parts.rounding - float(self.parts.values[0]))

    @property
    def limit(self) -> float:
        """The largest size that a ridge on all samples corresponds to."""
        return self._size(self.least)

    def _size(self, ridge: float) -> float:
        r"""The number of samples, $N + (\lambda - \delta)\operatorname{tr} G$, for a ridge."""
        return self.samples + (self.ridge - ridge) * float((1 / (self.parts.values + ridge)).sum())

    def matching_ridge(self, size: int) -> float:
        """The ridge on all samples that corresponds to a number of samples, up to the limit."""
        if size == self.samples and self.ridge >= self.least:
            return self.ridge

        def excess(ridge: float) -> float:
            return self._size(ridge) - size

        low = self.least
        if excess(low) <= 0:
            return low
        top = 2 * low or 1.0
        while excess(top) > 0:
            top *= 16
        root = scipy.optimize.brentq(excess, low, top, xtol=1e-300, rtol=1e-12, maxiter=1000)
        return float(root)

    def predict(self, size: int, seed: int) -> Prediction:
        """Errors with a number of samples, up to the limit."""
        parts = self.parts
        inverse = parts.inverse(self.matching_ridge(size))
        relative = inverse / inverse.max()  # whose squares neither overflow nor underflow
        alpha = parts.vectors @ (inverse[:, None] * self._coefficients)
        diagonal = parts.inverse_diagonal(inverse)[:, None]
        errors = alpha / diagonal  # leaving out each
        squares = errors.square().mean(1)
        mean = float(squares.mean())
        here = float(relative.sum() ** 2 / relative.square().sum()) / self.samples
        bias = here * mean
        test = bias / max(1 - self.samples * (1 - here) / size, EPS)
        fitted = float((self.ridge * self.samples / size * alpha).square().mean())
        spread = float((squares / mean).std()) if mean > 0 else 0.0
        deviation = test * spread / math.sqrt(_independent(relative))
        rate = math.nan
        if self.classes:
            extra = test - mean  # in variance, beyond that of training sets of all samples
            rate = self._rate(inverse, diagonal, errors, here, extra, seed)
        train = test / mean * fitted if mean > 0 else 0.0
        return Prediction(test, bias, train, deviation, rate)

    def _rate(
        self,
        inverse: Tensor,
        diagonal: Tensor,
        errors: Tensor,
        here: float,
        extra: float,
        seed: int,
    ) -> float:
        r"""The share that is classified wrong, with more variance between training sets.

        A sample is predicted by $-\sum_{j \ne i} G_{ij} y_j/G_{ii}$ without it. Errors of random
        signs in the place of targets make the fluctuation between training sets, with weights and
        classes as they are.
        """
        mean = float(errors.square().mean())
        if extra < -1e-6 * mean:  # larger sets fluctuate less, which cannot be added
            return math.nan
        values, right = self.targets + self.mean - errors, (self.targets + self.mean).argmax(1)
        generator = torch.Generator().manual_seed(seed)
        sign_variance = mean * (1 / here - 1)  # the variance of the errors of random signs
        scale = math.sqrt(max(extra, 0.0) / sign_variance) if sign_variance > 0 else 0.0
        rates = []
        for _ in range(_DRAWS):
            sign = 2 * torch.randint(0, 2, (len(errors), 1), generator=generator) - 1
            random, vectors = sign.to(errors) * errors, self.parts.vectors
            moved = vectors @ (inverse[:, None] * (vectors.T @ random)) / diagonal - random
            rates.append(float(((values + scale * moved).argmax(1) != right).double().mean()))
        return sum(rates) / _DRAWS


def _independent(relative: Tensor) -> float:
    r"""The number of independent errors that leave-one-out errors are worth.

    They are $G y$ but for scales. If $y$ were noise, the sum of their squares would vary by
    $2 \operatorname{tr} G^4/(\operatorname{tr} G^2)^2$ relative to its square, instead of $2/N$.
    """
    squares = relative.square()
    return float(squares.sum() ** 2 / squares.square().sum())


@dataclass(frozen=True)
class Check:
    """A regression on some of the samples, measured on others, beside its prediction.

    Attributes:
        size: Number of samples of the regression.
        source: Number of samples that the prediction is from: all, or half of them.
        predicted: The predicted test error.
        measured: The mean squared error on the other samples, a mean over repetitions.
        measured_rate: The share of these that are classified wrong, where there are classes.
    """

    size: int
    source: int
    predicted: float
    measured: float
    measured_rate: float | None

    @property
    def deviation(self) -> float:
        """Predicted over measured, less one."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else math.inf
        return self.predicted / self.measured - 1


def _check(
    matrix: Tensor, whole: Subsampling, source: Subsampling, size: int, repeats: int, seed: int
) -> Check:
    """Measure regressions on some of all samples, or leave-one-out, beside a prediction."""
    predicted, targets = source.predict(size, seed).test, whole.targets
    errors, rates = [], []
    generator = torch.Generator().manual_seed(seed)
    if size == whole.samples:
        left_out = whole.predict(size, seed)
        errors, rates, repeats = [left_out.test], [left_out.rate], 0
    for _ in range(repeats):
        order = torch.randperm(whole.samples, generator=generator).to(targets.device)
        train, test = order[:size], order[size:]
        border = whole.constants  # a row and a column for the fitted constant, if there is one
        columns = pad(matrix[:, train], (0, border), value=1.0)
        system = pad(columns[train], (0, 0, 0, border), value=1.0)
        system[size:, size:] = 0.0
        system[:size].diagonal().add_(whole.ridge + whole.least)
        values = columns[test] @ torch.linalg.solve(system, pad(targets[train], (0, 0, 0, border)))
        errors.append(float((values - targets[test]).square().mean()))
        outputs, right = values + whole.mean, targets[test] + whole.mean
        rates.append(float((outputs.argmax(1) != right.argmax(1)).double().mean()))
    rate = sum(rates) / len(rates) if whole.classes else None
    return Check(size, source.samples, predicted, sum(errors) / len(errors), rate)


@dataclass(frozen=True, eq=False)
class LearningCurve:
    r"""Predicted errors of kernel ridge regression against the number of samples.

    All errors are mean squares over samples and outputs, and expectations over training sets. They
    are NaN for sizes beyond the limit.

    Attributes:
        sizes: Numbers of training samples. shape: (s,), like all tensors here
        ridge: $\lambda$.
        test_error: On new samples of the same kind, noise included: ``bias + variance``.
        bias: The error of the mean predictor over training sets: the noise, and the unlearned part
            of the target.
        variance: The additional error of single training sets.
        train_error: On the training samples themselves.
        error_rate: The share of new samples that are classified wrong by the largest output; for
            targets that are classes, up to ``samples``.
        uncertainty: One standard deviation of ``test_error``: sampling errors, and the deviations
            of the checks.
        limit: The largest size that is predicted.
        samples: Number of samples that it was predicted from.
        checks: Measured errors, beside those predicted.
    """

    sizes: Tensor
    ridge: float
    test_error: Tensor
    bias: Tensor
    variance: Tensor
    train_error: Tensor
    error_rate: Tensor | None
    uncertainty: Tensor
    limit: float
    samples: int
    checks: tuple[Check, ...] = field(default=(), repr=False)

    def plot(self) -> Figure:
        """Errors against the number of samples, with the checks, and error rates of classes."""
        count = 1 if self.error_rate is None else 2
        figure = empty_figure(5.2 * count, 3.6)
        panels: list[Axes] = list(figure.subplots(1, count, squeeze=False).flat)
        errors = panels[0]
        low, high = (self.test_error + sign * self.uncertainty for sign in (-1, 1))
        errors.fill_between(self.sizes, low.clamp_min(0), high, color=_BLUE, alpha=0.2, linewidth=0)
        errors.plot(self.sizes, self.test_error, color=_BLUE, label="new samples")
        errors.plot(self.sizes, self.bias, "--", color=_BLUE, label="of these, bias")
        errors.plot(self.sizes, self.train_error, color=_ORANGE, label="training samples")
        errors.set_title(f"mean squared error, λ = {self.ridge:g}")
        sizes = [check.size for check in self.checks]
        measured = [[check.measured for check in self.checks]]
        if self.error_rate is not None:
            panels[1].plot(self.sizes, self.error_rate, color=_GREEN, label="new samples")
            panels[1].set_title("share of wrong classes")
            measured.append([check.measured_rate or 0.0 for check in self.checks])
        for axes, values in zip(panels, measured, strict=True):
            axes.plot(sizes, values, "o", color=_GRAY, label="measured")
            axes.set_xscale("log")
            if axes is not errors or bool((self.train_error > 0).any()):
                axes.set_yscale("log", nonpositive="mask")
            axes.set_xlabel("training samples")
            axes.grid(color="#e4e4e4", linewidth=0.6)
            axes.legend(framealpha=0.7, edgecolor="none")
        return figure
