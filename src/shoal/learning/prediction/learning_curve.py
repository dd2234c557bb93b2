"""How well an infinitely wide network will predict, before it is trained."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import torch

from shoal.architectures import Architecture
from shoal.core.checks import integer, items, seeded
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction
from shoal.kernels.images.function import ImageKernels, chosen_kernels
from shoal.learning.prediction.checks import Measurement
from shoal.learning.prediction.result import LearningCurve
from shoal.learning.prediction.subsampling import FEWEST, Prediction, Subsampling
from shoal.learning.prediction.targets import checked_targets
from shoal.learning.prediction.width import check_width
from shoal.learning.regression.problem import Problem, byte_limit, checked_problem
from shoal.learning.regression.ridge_path import Criterion, checked_criterion, decomposed, path_of

_MOST = 16  # times the samples, of sizes that are not asked for
_SHARES = (8, 4, 2)  # of the samples, on which predictions are checked


@in_standard_settings
def learning_curve(
    architecture: Architecture | KernelFunction,
    x: Any,
    y: Any,
    sizes: Iterable[int] | None = None,
    *,
    ridge: float | Criterion = "loo",
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

    Args:
        architecture: The network, or its kernel function.
        x: Inputs of shape (N, p).
        y: Targets of shape (N,) or (N, q); or classes, integers or strings of shape (N,), which are
            regressed as indicators and give error rates too.
        sizes: Numbers of training samples; by default from 16 to the limit of what is claimed.
        ridge: $\lambda \ge 0$, of $(K + \lambda I)\alpha = y$, the same for all sizes; or
            ``"loo"``, ``"gcv"`` or ``"likelihood"``, which choose it for all samples.
        which: The kernel.
        trainable: Groups of parameters that the NTK counts; all by default.
        width: For the CK, that of a network of which the readout alone is trained, with one hidden
            layer or an equilibrium; errors are then means over networks too. Infinite by default.
            For the NTK, see :func:`~shoal.kernels.kernel_function`.
        memory: Most bytes to use; see :func:`shoal.kernel_regression`.
        repeats: How many random choices of samples each check is a mean over.
        seed: Of these.

    Raises:
        ValueError: If an argument does not fit; for one, the matrix into the memory.
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
    finite = width if which == "ck" else None
    kernels = chosen_kernels(
        architecture, trainable=trainable, width=width if finite is None else None
    )
    if finite is not None:
        if isinstance(kernels, ImageKernels):
            raise ValueError(
                "width is for vectors: features of images are of channels and pixels, and not "
                f"drawn independently, got {kernels.architecture!r}"
            )
        check_width(kernels.architecture, finite)
    targets, classes = checked_targets(y)
    criterion = checked_criterion("ridge", ridge) if isinstance(ridge, str) else None
    given = 0.0 if isinstance(ridge, str) else ridge
    problem = checked_problem(kernels, x, targets, given, which)
    integer("repeats", repeats, at_least=1)
    seeded("seed", seed)
    if problem.size < FEWEST:
        raise ValueError(f"x must have at least {FEWEST} samples, got {problem.size}")
    asked = None if sizes is None else _sizes("sizes", sizes)
    limit = byte_limit(problem, memory)
    parts = decomposed(problem, limit)
    chosen = path_of(parts, None).best(criterion) if criterion else problem.ridge
    whole = Subsampling(parts, chosen, classes, finite)
    half = Subsampling(decomposed(_half(problem, seed), limit), chosen, classes)
    if min(replace(whole, width=None).limit, half.limit) < 1:
        raise AccuracyError(
            f"the kernel matrix is singular within rounding: with a ridge of {chosen:g} not even "
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
    """The curve, from all samples and from half of them; a width is that of the first."""
    wide = replace(whole, width=None)
    measure = Measurement(wide, repeats, seed)
    known = math.floor(min(whole.samples, wide.limit))
    checks = [measure.check(wide, max(1, known // share)) for share in _SHARES]
    largest = math.floor(min(whole.samples, half.limit))
    reach = [measure.check(half, largest)] if largest > half.samples else []
    limit = whole.size_up_to(min(wide.limit, whole.samples * largest / half.samples))
    asked = _default_sizes(min(limit, _MOST * whole.samples)) if sizes is None else sizes
    within = math.sqrt(sum(c.deviation**2 for c in checks) / len(checks))
    beyond = max([within, *(abs(c.deviation) for c in reach)])
    found = [
        whole.predict(size, seed) if size <= limit else Prediction(*(math.nan,) * 5)
        for size in asked
    ]
    table = torch.tensor(found, dtype=torch.float64)
    test, bias, train, deviation, rate = table.unbind(1)
    count = torch.tensor(asked, dtype=torch.float64)
    misfit = torch.where(count <= whole.size_up_to(whole.samples), within, beyond) * test
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
