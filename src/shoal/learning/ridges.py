"""Choosing a ridge, or a network, from one eigendecomposition of each kernel matrix."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.core.checks import items, one_of, real
from shoal.core.exceptions import AccuracyError
from shoal.core.figures import Figure, empty_figure
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction
from shoal.learning.decomposition import EPS, Decomposition, decompose
from shoal.learning.problem import RegressionProblem, Which

Criterion = Literal["gcv", "loo", "likelihood"]

_PER_DECADE = 8
_LEAST = 1e-8  # smallest ridge that is tried, in units of the mean diagonal
_NUMBERS = 2**22  # of coefficients for several ridges at once
_COLORS = {"loo": "#0072B2", "gcv": "#E69F00", "likelihood": "#009E73"}
_NAMES = {"loo": "leave-one-out", "gcv": "generalized cross-validation"}


@dataclass(frozen=True, eq=False)
class RidgePath:
    r"""Scores of a kernel regression for each of several ridges.

    Attributes:
        ridges: $\lambda$, ascending. shape: (r,), like all that follows
        loo: Mean squared leave-one-out errors.
        gcv: Generalized cross-validation.
        log_likelihood: $\log N(y; 0, s^2(K + \lambda I))$ at the scale $s^2$ where it is largest,
            summed over the columns of $y$; see ``KernelRegression.log_marginal_likelihood``.
        scale: The scale $s^2$, one for all columns.
        freedom: Degrees of freedom of the fit, $\operatorname{tr} K(K + \lambda I)^{-1}$; a fitted
            constant is one more.
        accuracy: Leave-one-out accuracy; ``None`` for real targets.
    """

    ridges: Tensor
    loo: Tensor
    gcv: Tensor
    log_likelihood: Tensor
    scale: Tensor
    freedom: Tensor
    accuracy: Tensor | None

    def best(self, criterion: Criterion) -> float:
        """The ridge that a criterion prefers; of equals the largest.

        If it is the first or last of all, a better one may be beyond. A first one of the default
        ridges means that the data need no regularization.
        """
        return float(self.ridges[self._place(criterion)])

    def score(self, criterion: Criterion) -> float:
        """The value of a criterion at the ridge that it prefers: an error, or a likelihood."""
        return float(self._values(criterion)[self._place(criterion)])

    def plot(self) -> Figure:
        """Errors, likelihood and degrees of freedom against the ridge, with the best ridges."""
        figure = empty_figure(12.6, 3.2)
        errors, likelihood, freedom = figure.subplots(1, 3)
        for name, values in (("loo", self.loo), ("gcv", self.gcv)):
            errors.plot(self.ridges, values, color=_COLORS[name], label=_NAMES[name])
            errors.axvline(self.best(name), color=_COLORS[name], linestyle=":")  # type: ignore[arg-type]
        if bool((self.loo > 0).any()):
            errors.set_yscale("log")
        errors.set_title("mean squared error")
        errors.legend(framealpha=0.7, edgecolor="none")
        likelihood.plot(self.ridges, self.log_likelihood, color=_COLORS["likelihood"])
        likelihood.axvline(self.best("likelihood"), color=_COLORS["likelihood"], linestyle=":")
        likelihood.set_title("log marginal likelihood, best scale")
        freedom.plot(self.ridges, self.freedom, color="#000000")
        freedom.set_title("degrees of freedom")
        for axes in (errors, likelihood, freedom):
            axes.set_xscale("log")
            axes.set_xlabel("ridge λ")
            axes.grid(color="#e4e4e4", linewidth=0.6)
        return figure

    def _values(self, criterion: Criterion) -> Tensor:
        checked_criterion("criterion", criterion)
        return {"gcv": self.gcv, "loo": self.loo, "likelihood": self.log_likelihood}[criterion]

    def _place(self, criterion: Criterion) -> int:
        values = self._values(criterion).flip(0)
        from_end = values.argmax() if criterion == "likelihood" else values.argmin()
        return len(values) - 1 - int(from_end)


def checked_criterion(name: str, value: object) -> Criterion:
    """A criterion, or an error that lists them."""
    criterion: Any = one_of(name, value, ("gcv", "loo", "likelihood"))
    return criterion  # type: ignore[no-any-return]


@in_standard_settings
def ridge_path(
    architecture: Architecture | KernelFunction,
    x: Any,
    y: Any,
    *,
    ridges: Iterable[float] | None = None,
    center: bool = True,
    which: Which = "ntk",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    memory: int | str | None = None,
) -> RidgePath:
    r"""Judge many ridges of one kernel regression, from one eigendecomposition of its matrix.

    With $K = U \Lambda U^T$ every $(K + \lambda I)^{-1}$ is known: leaving out each sample costs
    $n^2$ operations for a ridge, generalized cross-validation and the likelihood $n$.

    Args:
        architecture: The network, or its kernel function.
        x: Inputs of shape (n, p), a tensor or a NumPy array.
        y: Targets, or classes; see :func:`shoal.kernel_regression`.
        ridges: The ridges to try; by default eight in each decade, from $10^{-8}$ of the mean
            diagonal (or where rounding matters) up to ten times the trace.
        center: Whether to fit a constant beside the kernel.
        which: Kernel: ``"ck"`` or ``"ntk"``.
        trainable: Groups of parameters that contribute to the NTK; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        memory: Memory limit; see :func:`shoal.kernel_regression`.

    Raises:
        ValueError: If an argument does not fit, or the matrix does not fit into the memory.
        AccuracyError: If the matrix is singular within rounding, and a ridge smaller than that.

    Example:
        >>> import torch, shoal
        >>> x = torch.nn.functional.normalize(torch.randn(60, 3, generator=torch.manual_seed(0)))
        >>> noise = 0.1 * torch.randn(60, generator=torch.manual_seed(1))
        >>> deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
        >>> path = shoal.learning.ridge_path(deq, x, x[:, 0] ** 2 + noise, ridges=[1e-4, 1e-2, 1.0])
        >>> path.best("loo"), round(path.score("loo") ** 0.5, 3)
        (0.01, 0.124)
    """
    options: dict[str, Any] = {"center": center, "trainable": trainable, "width": width}
    problem = RegressionProblem.from_data(architecture, x, y, 0.0, which, memory, **options)
    tried = None
    if ridges is not None:
        tried = [real("ridges", r, at_least=0.0) for r in items("ridges", ridges)]
        if not tried:
            raise ValueError("ridges must have at least one number, got none")
    return evaluate_path(decompose(problem)[1], problem.y, tried, accuracy=problem.accuracy)


def evaluate_path(
    parts: Decomposition,
    targets: Tensor,
    ridges: list[float] | None = None,
    *,
    accuracy: Callable[[Tensor], float | None] = lambda _: None,
) -> RidgePath:
    """The path of some ridges, or of the default ones, for targets of shape (n, q).

    With a free direction, targets are orthogonal to it. An accuracy is one of targets less
    predictions.
    """
    tried = _default_ridges(parts) if ridges is None else sorted(ridges)
    inverses = torch.stack([parts.inverse(ridge) for ridge in tried], 1)  # shape: (m, r)
    coefficients, together = parts.project(targets), max(1, _NUMBERS // targets.numel())
    rows, right = [], []
    for some in inverses.split(together, 1):
        scores, errors = _scores(parts, targets, coefficients, some)
        rows.append(scores)
        right += [accuracy(errors[:, i]) for i in range(errors.shape[1])]
    rates = None if None in right else torch.tensor(right, dtype=torch.float64)
    loo, gcv, likelihood, scale, freedom = torch.cat(rows, 1).cpu()
    values = torch.tensor(tried, dtype=torch.float64)
    return RidgePath(values, loo, gcv, likelihood, scale, freedom, rates)


def _default_ridges(parts: Decomposition) -> list[float]:
    mean, size = float(parts.values.mean()), len(parts.vectors)
    if not float(parts.values[-1]) > parts.rounding:  # one kernel for all: any gives the mean
        return [parts.rounding / EPS or 1.0]
    low, high = max(_LEAST * mean, 10 * parts.rounding), 10 * size * mean
    count = math.ceil(_PER_DECADE * math.log10(high / low)) + 1
    return [float(ridge) for ridge in np.geomspace(low, high, count)]


def _scores(
    parts: Decomposition, targets: Tensor, coefficients: Tensor, inverses: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores of some ridges in the order of a path's attributes, and leave-one-out errors.

    Their shapes are (5, r) and (n, r, q).
    """
    (size, columns), (free, count) = targets.shape, inverses.shape
    weights = (inverses[:, :, None] * coefficients[:, None]).flatten(1)
    alpha = (parts.vectors @ weights).view(size, count, columns)
    errors = alpha / parts.inverse_diagonal(inverses)[:, :, None]
    scale = (inverses.T @ coefficients.square()).sum(1) / (free * columns)
    if not bool(scale.isfinite().all()):
        raise AccuracyError("the squares of these targets overflow: scale y down")
    logarithm = (2 * math.pi * scale).log()  # -inf for targets of zero
    likelihood = -0.5 * columns * (free * (1 + logarithm) - inverses.log().sum(0))
    gcv = (alpha * (size / inverses.sum(0))[:, None]).square().mean((0, 2))
    freedom = parts.values @ inverses + (size - free)
    loo = errors.square().mean((0, 2))
    return torch.stack([loo, gcv, likelihood, scale, freedom]), errors


@dataclass(frozen=True, eq=False)
class Selection:
    """The best of several networks, each with its best ridge.

    Attributes:
        architecture: The best network, as it was given.
        ridge: Its best ridge.
        criterion: The criterion.
        scores: The value of the criterion for each network, at its best ridge: mean squared
            errors, the smaller the better, or log likelihoods, the larger the better.
        architectures: The networks, in the order in which they came.
        paths: The ridge path of each network.
    """

    architecture: Architecture | KernelFunction
    ridge: float
    criterion: Criterion
    scores: tuple[float, ...]
    architectures: tuple[Architecture | KernelFunction, ...] = field(repr=False)
    paths: tuple[RidgePath, ...] = field(repr=False)


def select(
    architectures: Iterable[Architecture | KernelFunction],
    x: Any,
    y: Any,
    *,
    criterion: Criterion = "loo",
    ridges: Iterable[float] | None = None,
    center: bool = True,
    which: Which = "ntk",
    memory: int | str | None = None,
) -> Selection:
    r"""Choose a network, and its ridge, by kernel regression: one eigendecomposition for each.

    It compares variances of weights, depths, or activations. A network whose kernel is a multiple
    of another's is as good: each comes with its best ridge, and the likelihood with its best
    output scale too. So $\sigma_a^2$ is judged by the shape of the kernel, not by its size.

    Args:
        architectures: The networks, or their kernel functions.
        x: Inputs of shape (n, p), a tensor or a NumPy array.
        y: Targets, or classes; see :func:`shoal.kernel_regression`.
        criterion: ``"loo"``, ``"gcv"`` or ``"likelihood"``.
        ridges: Ridges to try; see :func:`shoal.learning.ridge_path`.
        center: Whether to fit a constant beside the kernel.
        which: Kernel: ``"ck"`` or ``"ntk"``.
        memory: Memory limit; see :func:`shoal.kernel_regression`.

    Example:
        >>> import torch, shoal
        >>> x = torch.nn.functional.normalize(torch.randn(60, 3, generator=torch.manual_seed(0)))
        >>> depths = [shoal.FullyConnected(("relu",) * depth) for depth in (1, 2, 3)]
        >>> best = shoal.learning.select(depths, x, torch.sin(3 * x[:, 0]) * x[:, 1])
        >>> len(best.architecture.activations), round(best.scores[0] / best.scores[1], 2)
        (1, 0.24)
    """
    checked_criterion("criterion", criterion)
    tried = items("architectures", architectures, "a collection of architectures")
    if not tried:
        raise ValueError("architectures must have at least one, got none")
    values = None if ridges is None else items("ridges", ridges)  # an iterator serves them all
    options: dict[str, Any] = {"ridges": values, "center": center, "which": which}
    paths = tuple(ridge_path(network, x, y, memory=memory, **options) for network in tried)
    scores = tuple(path.score(criterion) for path in paths)
    best = scores.index(max(scores) if criterion == "likelihood" else min(scores))
    return Selection(tried[best], paths[best].best(criterion), criterion, scores, tried, paths)
