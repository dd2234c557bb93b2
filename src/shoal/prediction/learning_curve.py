"""How well an infinitely wide network will predict, before it is trained."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.core.checks import integer, items, seeded
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction
from shoal.kernels.arguments import as_tensor
from shoal.kernels.image_function import ImageKernels, chosen_kernels
from shoal.mixtures import GaussianMixture
from shoal.mixtures.labels import class_indices, classes_of
from shoal.prediction.mixture import mixture_curve
from shoal.prediction.result import Check, LearningCurve
from shoal.prediction.subsampling import Prediction, Subsampling
from shoal.regression.memory import byte_limit
from shoal.regression.problem import Problem, checked_problem
from shoal.regression.ridge_path import decomposed

__all__ = ["curve_of", "learning_curve"]

_FEWEST = 32  # samples from which anything is predicted
_SHARES = (8, 4, 2)  # of the samples, on which predictions are checked


@in_standard_settings
def learning_curve(
    architecture: Architecture | KernelFunction,
    x: Any,
    y: Any = None,
    sizes: Iterable[int] | None = None,
    *,
    ridge: float,
    n: int | Iterable[int] | None = None,
    which: Literal["ck", "ntk"] = "ntk",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    memory: int | str | None = None,
    repeats: int = 5,
    seed: int = 0,
) -> LearningCurve:
    r"""Predict training and test errors of kernel ridge regression against the number of samples.

    From samples, one eigendecomposition of their kernel matrix predicts all sizes, smaller ones
    and, with a ridge, larger ones too: a regression on $n$ samples with ridge $\lambda$ has the
    same effective regularization as one on all $N$ samples with another ridge, whose leave-one-out
    errors are known. The predictions are checked on the data themselves, on an eighth, a quarter
    and a half of the samples, and from one half of the samples for a larger size; how far these are
    off goes into the uncertainty, and how far they reach limits what is claimed.

    From a :class:`~shoal.GaussianMixture`, nothing is drawn: errors are those of the
    high-dimensional equivalent of the centered network, for regression on indicators of classes.

    Args:
        architecture: The network, or its kernel function.
        x: Inputs of shape (N, p), or a mixture.
        y: Targets of shape (N,) or (N, q); or classes, integers or strings of shape (N,), which are
            regressed as indicators and give error rates too. ``None`` for a mixture.
        sizes: Numbers of training samples; by default from 16 to the limit of what is claimed.
        ridge: $\lambda \ge 0$, of $(K + \lambda I)\alpha = y$, the same for all sizes.
        n: ``sizes``, for a mixture: one or several numbers of samples.
        which: The kernel.
        trainable: Groups of parameters that the NTK counts; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        memory: Most bytes to use; see :func:`shoal.kernel_regression`.
        repeats: How many random choices of samples each check is a mean over.
        seed: Of these.

    Raises:
        ValueError: If an argument does not fit; for one, the matrix into the memory.
        AccuracyError: If the matrix is zero or singular, or squares of targets overflow.

    Example:
        >>> import torch, shoal
        >>> x = torch.nn.functional.normalize(torch.randn(200, 5, generator=torch.manual_seed(0)))
        >>> deq = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
        >>> y = x[:, 0] * x[:, 1] + 0.1 * torch.randn(200, generator=torch.manual_seed(1))
        >>> curve = shoal.learning_curve(deq, x, y, sizes=[50, 100, 200, 5000], ridge=0.1)
        >>> curve.test_error
        tensor([0.0177, 0.0136, 0.0121,    nan], dtype=torch.float64)
    """
    kernels = chosen_kernels(architecture, trainable=trainable, width=width)
    if isinstance(x, GaussianMixture):
        if isinstance(kernels, ImageKernels):
            raise TypeError(f"a GaussianMixture has no images, got {kernels.architecture!r}")
        if y is not None or sizes is not None or n is None:
            raise ValueError("a mixture has its own classes: give n, and neither y nor sizes")
        several = n if isinstance(n, Iterable) else (n,)
        return mixture_curve(kernels, x, _sizes("n", several), ridge=ridge, which=which)
    if n is not None:
        raise ValueError("n is for a GaussianMixture: give sizes")
    targets, classes = _targets(y)
    problem = checked_problem(kernels, x, targets, ridge, which)
    integer("repeats", repeats, at_least=1)
    seeded("seed", seed)
    if problem.size < _FEWEST:
        raise ValueError(f"x must have at least {_FEWEST} samples, got {problem.size}")
    asked = None if sizes is None else _sizes("sizes", sizes)
    limit = byte_limit(problem, memory)
    whole = Subsampling(decomposed(problem, limit), problem.ridge, classes)
    half = Subsampling(decomposed(_half(problem, seed), limit), problem.ridge, classes)
    if min(whole.limit, half.limit) < 1:
        raise AccuracyError(
            f"the kernel matrix is singular within rounding: with a ridge of {ridge:g} not even "
            "one sample can be predicted from; take a larger ridge"
        )
    return curve_of(whole, half, asked, repeats=repeats, seed=seed)


def _half(problem: Problem, seed: int) -> Problem:
    """A random half of the samples."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(problem.size, generator=generator)[: problem.size // 2]
    chosen = chosen.to(problem.x.device)
    return replace(problem, x=problem.x[chosen], y=problem.y[chosen])


def curve_of(
    whole: Subsampling,
    half: Subsampling,
    sizes: list[int] | None,
    *,
    repeats: int,
    seed: int,
) -> LearningCurve:
    """The curve, from all samples and from half of them."""
    measure = _Measurement(whole, repeats, seed)
    known = math.floor(min(whole.samples, whole.limit))
    checks = [measure.check(whole, max(1, known // share)) for share in _SHARES]
    largest = math.floor(min(whole.samples, half.limit))
    reach = [measure.check(half, largest)] if largest > half.samples else []
    limit = min(whole.limit, whole.samples * largest / half.samples)
    asked = _default_sizes(limit) if sizes is None else sizes
    within = math.sqrt(sum(c.deviation**2 for c in checks) / len(checks))
    beyond = max([within, *(abs(c.deviation) for c in reach)])
    found = [
        whole.predict(size, seed) if size <= limit else Prediction(*(math.nan,) * 5)
        for size in asked
    ]
    table = torch.tensor(found, dtype=torch.float64)
    test, bias, train, deviation, rate = table.unbind(1)
    count = torch.tensor(asked, dtype=torch.float64)
    misfit = torch.where(count <= whole.samples, within, beyond) * test
    return LearningCurve(
        torch.tensor(asked),
        whole.ridge,
        test,
        bias,
        test - bias,
        train,
        rate if whole.classes else None,
        torch.hypot(deviation, misfit),
        limit,
        whole.samples,
        (*checks, *reach),
    )


@dataclass(frozen=True, eq=False)
class _Measurement:
    """Regressions on some of the samples, measured on the others.

    Attributes:
        whole: All samples, decomposed.
        repeats: How many random choices.
        seed: Of these.
    """

    whole: Subsampling
    repeats: int
    seed: int

    @cached_property
    def _matrix(self) -> Tensor:
        """The kernel matrix, which the decomposition was made in the place of."""
        parts = self.whole.parts
        return (parts.vectors * parts.values) @ parts.vectors.T

    def check(self, source: Subsampling, size: int) -> Check:
        """Measure, and compare with what is predicted."""
        predicted = source.predict(size, self.seed).test
        errors, rate = self._left_out() if size == self.whole.samples else self._split(size)
        return Check(size, source.samples, predicted, errors, rate)

    def _left_out(self) -> tuple[float, float | None]:
        """Each sample is the only one that is not given."""
        found = self.whole.predict(self.whole.samples, self.seed)
        return found.test, found.rate if self.whole.classes else None

    def _split(self, size: int) -> tuple[float, float | None]:
        targets = self.whole.parts.targets
        generator = torch.Generator().manual_seed(self.seed)
        errors, rates = [], []
        for _ in range(self.repeats):
            order = torch.randperm(self.whole.samples, generator=generator).to(targets.device)
            given, new = order[:size], order[size:]
            columns = self._matrix[:, given]
            inner = columns[given]
            inner.diagonal().add_(self.whole.ridge + self.whole.least)
            alpha = torch.linalg.solve(inner, targets[given])
            values = columns[new] @ alpha
            errors.append(float((values - targets[new]).square().mean()))
            wrong = values.argmax(1) != targets[new].argmax(1)
            rates.append(float(wrong.double().mean()))
        mean = sum(errors) / self.repeats
        return mean, sum(rates) / self.repeats if self.whole.classes else None


def _default_sizes(limit: float) -> list[int]:
    """Four in each octave, from 16 to the limit, or all up to that if it is smaller."""
    top = math.floor(limit)
    if top <= 16:
        return list(range(1, top + 1))
    steps = math.ceil(4 * math.log2(top / 16))
    return sorted({*(round(16 * (top / 16) ** (k / steps)) for k in range(steps + 1)), top})


def _sizes(name: str, sizes: object) -> list[int]:
    found = [integer(name, size, at_least=1) for size in items(name, sizes)]
    if not found:
        raise ValueError(f"{name} must have at least one number, got none")
    return found


def _targets(y: Any) -> tuple[Tensor, bool]:
    """Targets as they are, or indicators of classes."""
    if y is None:
        raise ValueError("y must be given with samples; only a GaussianMixture knows its own")
    kind = getattr(y, "dtype", None)
    if isinstance(kind, torch.dtype) and (kind.is_floating_point or kind.is_complex):
        return y, False
    if isinstance(kind, np.dtype) and kind.kind in "fc":
        return as_tensor(y, "y"), False
    labels = y + 0 if kind in (torch.bool, np.dtype(bool)) else y
    classes = classes_of(labels, "y")
    if len(classes) < 2:
        raise ValueError(f"y must have at least two classes, got one class, {classes[0]!r}")
    places = class_indices(labels, classes)
    return torch.nn.functional.one_hot(places, len(classes)).double(), True
