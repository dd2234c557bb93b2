r"""All ridges from one eigendecomposition of the kernel matrix."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
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
from shoal.kernels.images.function import chosen_kernels
from shoal.learning.regression.problem import (
    Problem,
    byte_limit,
    check_decomposition,
    checked_problem,
    data_bytes,
)

Criterion = Literal["gcv", "loo", "likelihood"]
_PER_DECADE = 8
_SMALL = 1e-150  # targets, whose squares and their sums are numbers still
_COLORS = {"loo": "#0072B2", "gcv": "#E69F00", "likelihood": "#009E73"}
_NAMES = {"loo": "leave-one-out", "gcv": "generalized cross-validation"}
_LEAST = 1e-8  # of the ridges that are tried, in units of the mean diagonal


@dataclass(frozen=True, eq=False)
class RidgePath:
    r"""What a regression would be with each of several ridges.

    Attributes:
        ridges: $\lambda$, ascending. shape: (r,), like all that follows
        loo: Mean squared errors of leaving out each sample.
        gcv: Generalized cross-validation.
        log_likelihood: $\log N(y; 0, s^2(K + \lambda I))$ at the scale $s^2$ where it is largest,
            summed over the columns of $y$.
        scale: That $s^2$, one for all columns.
        freedom: $\operatorname{tr} K(K + \lambda I)^{-1}$, the degrees of freedom of the fit.
        accuracy: Of leaving out each sample; see ``LeaveOneOut``.
    """

    ridges: Tensor
    loo: Tensor
    gcv: Tensor
    log_likelihood: Tensor
    scale: Tensor
    freedom: Tensor
    accuracy: Tensor

    def best(self, criterion: Criterion) -> float:
        """The ridge that a criterion prefers; of equals the largest.

        If it is the first or last of all, a better one may be beyond. A first one of the default
        ridges means that the data want none.
        """
        return float(self.ridges[self._place(criterion)])

    def score(self, criterion: Criterion) -> float:
        """The value of a criterion at the ridge that it prefers: an error, or a likelihood."""
        return float(self._values(criterion)[self._place(criterion)])

    def plot(self) -> Figure:
        """Errors, likelihood and degrees of freedom against the ridge, with what is best."""
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
        values = {"gcv": self.gcv, "loo": self.loo, "likelihood": self.log_likelihood}
        return values[criterion]

    def _place(self, criterion: Criterion) -> int:
        values = self._values(criterion).flip(0)
        from_end = values.argmax() if criterion == "likelihood" else values.argmin()
        return len(values) - 1 - int(from_end)


def checked_criterion(name: str, value: object) -> Criterion:
    """A criterion, or a list of those that there are."""
    found: Any = one_of(name, value, ("gcv", "loo", "likelihood"))
    criterion: Criterion = found
    return criterion


@in_standard_settings
def ridge_path(
    architecture: Architecture | KernelFunction,
    x: Any,
    y: Any,
    *,
    ridges: Iterable[float] | None = None,
    which: Literal["ck", "ntk"] = "ntk",
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
        y: Targets of shape (n,) or (n, q).
        ridges: Which; by default eight in each decade, from $10^{-8}$ of the mean diagonal (or
            where rounding matters) up to ten times the trace.
        which: The kernel.
        trainable: Groups of parameters that the NTK counts; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        memory: Most bytes to use; see :func:`shoal.kernel_regression`.

    Raises:
        ValueError: If an argument does not fit; for one, the matrix into the memory.
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
    kernels = chosen_kernels(architecture, trainable=trainable, width=width)
    problem = checked_problem(kernels, x, y, 0.0, which)
    tried = None
    if ridges is not None:
        tried = [real("ridges", r, at_least=0.0) for r in items("ridges", ridges)]
        if not tried:
            raise ValueError("ridges must have at least one number, got none")
    return path_of(decomposed(problem, byte_limit(problem, memory)), tried)


@dataclass(frozen=True, eq=False)
class Decomposition:
    r"""$K = U \Lambda U^T$ with targets.

    Attributes:
        values: $\Lambda$, ascending, not below zero. shape: (n,)
        vectors: $U$. shape: (n, n)
        targets: $Y$. shape: (n, q)
        coefficients: $U^T Y$. shape: (n, q)
    """

    values: Tensor
    vectors: Tensor
    targets: Tensor
    coefficients: Tensor

    @property
    def rounding(self) -> float:
        """How far eigenvalues may be wrong."""
        values = self.values
        return len(values) * torch.finfo(values.dtype).eps * float(values[-1])

    def inverse(self, ridge: float) -> Tensor:
        r"""$1/(\Lambda + \lambda)$, or a refusal where that is nothing but rounding."""
        least = float(self.values[0]) + ridge
        if not least > self.rounding:
            raise AccuracyError(
                f"the kernel matrix plus a ridge of {ridge:.3g} is singular within rounding, which "
                f"is {self.rounding:.1e}: take a larger ridge, or leave out equal samples"
            )
        return 1 / (self.values + ridge)

    def inverse_diagonal(self, inverse: Tensor) -> Tensor:
        r"""The diagonal of $U \operatorname{diag}(v) U^T$, by blocks of rows."""
        parts = [rows.square() @ inverse for rows in self.vectors.split(1024)]
        return torch.cat(parts)


def decomposed(problem: Problem, limit: int) -> Decomposition:
    """The matrix of a problem, decomposed, if it fits into so many bytes.

    Raises:
        ValueError: If it does not.
        AccuracyError: If it is zero, or if squares of targets overflow or underflow.
    """
    largest = float(problem.y.abs().max())
    if not (largest == 0 or _SMALL <= largest <= 1 / _SMALL):
        side, way = ("over", "down") if largest > 1 else ("under", "up")
        raise AccuracyError(f"the squares of these targets {side}flow: scale y {way}")
    check_decomposition(problem, limit)
    left = limit - data_bytes(problem) - 8 * problem.size**2
    dense = torch.empty(problem.size, problem.size, dtype=torch.float64, device=problem.x.device)
    problem.operator(left).write(dense)  # above the diagonal
    values, vectors = torch.linalg.eigh(dense, UPLO="U")
    if not float(values[-1]) > 0:
        raise AccuracyError("the kernel matrix is zero: there is nothing to learn from it")
    return Decomposition(values.clamp_min(0.0), vectors, problem.y, vectors.T @ problem.y)


def path_of(parts: Decomposition, ridges: list[float] | None) -> RidgePath:
    """The path of these ridges, or of those by default."""
    tried = _default_ridges(parts) if ridges is None else sorted(ridges)
    rows = torch.tensor([_judged(parts, ridge) for ridge in tried], dtype=torch.float64)
    return RidgePath(torch.tensor(tried, dtype=torch.float64), *rows.unbind(1))


def _default_ridges(parts: Decomposition) -> list[float]:
    mean, size = float(parts.values.mean()), len(parts.values)
    low, high = max(_LEAST * mean, 10 * parts.rounding), 10 * size * mean
    count = math.ceil(_PER_DECADE * math.log10(high / low)) + 1
    return [float(ridge) for ridge in np.geomspace(low, high, count)]


def _judged(parts: Decomposition, ridge: float) -> tuple[float, ...]:
    """All that a path says of a ridge."""
    inverse, (size, columns) = parts.inverse(ridge), parts.targets.shape
    alpha = parts.vectors @ (inverse[:, None] * parts.coefficients)
    errors = alpha / parts.inverse_diagonal(inverse)[:, None]
    scale = float((inverse[:, None] * parts.coefficients.square()).sum()) / (size * columns)
    if not math.isfinite(scale):
        raise AccuracyError("the squares of these targets overflow: scale y down")
    logarithm = math.log(2 * math.pi * scale) if scale > 0 else -math.inf  # targets of zero
    per_column = size * (1 + logarithm) - float(inverse.log().sum())
    return (
        float(errors.square().mean()),
        float((alpha / inverse.mean()).square().mean()),
        -0.5 * columns * per_column,
        scale,
        float((parts.values * inverse).sum()),
        agreement(parts.targets - errors, parts.targets),
    )


def agreement(predictions: Tensor, targets: Tensor) -> float:
    """The share of rows in which the largest entry, or the sign of the only one, is the same."""
    if targets.shape[1] == 1:
        same = (predictions > 0) == (targets > 0)
    else:
        same = predictions.argmax(1) == targets.argmax(1)
    return float(same.double().mean())
