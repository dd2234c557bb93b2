"""Learning curves from a spectrum that is known, or taken to be."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.kernels import KernelFunction
from shoal.learning.prediction.checks import Measurement
from shoal.learning.prediction.deterministic_equivalent import Learned, Regression
from shoal.learning.prediction.hermite_law import HermiteLaw
from shoal.learning.prediction.hermite_spectrum import HermiteSpectrum
from shoal.learning.prediction.result import Check, LearningCurve
from shoal.learning.prediction.subsampling import Prediction, Subsampling
from shoal.learning.regression.problem import byte_limit, checked_problem
from shoal.learning.regression.ridge_path import decomposed

_CHECKED = 800  # samples on which predictions are checked
_SHARES = (8, 4, 2)  # of these
_NOTHING = 1e-12  # of a spectrum: what is left of it is rounding
_APART = 4  # times the eigenvalues that are counted together, of a regularization
_FAR = 0.25  # of a measured error: the ansatz does not hold


@dataclass(frozen=True, eq=False)
class _KnownSpectrum:
    """Regressions for a spectrum and a target that are known.

    Attributes:
        spectrum: The eigenvalues.
        squares: Those of the target's first coefficients.
        left: The mean square of what is left of it.
        ridge: Of the regressions.
        width: How many random features there are in the place of the kernel, if any.
        samples: How many samples the target was estimated from, if from any.
    """

    spectrum: HermiteSpectrum
    squares: Tensor
    left: float
    ridge: float
    width: int | None
    samples: int

    def _learned(self, kappa: float) -> tuple[float, float]:
        return self.spectrum.freedom(kappa), 1 / kappa

    @property
    def _least(self) -> float:
        """The smallest regularization: below, what is not known of target or spectrum counts."""
        values, known = self.spectrum.values, len(self.squares)
        whole = self.spectrum.rest <= _NOTHING * float(values.sum())
        return max(
            float(values[known - 1]) if known < len(values) else 0.0,
            _NOTHING * float(values[0]) if whole else _APART * float(values[-1]),
        )

    @property
    def limit(self) -> float:
        """The size from which components are learned of which nothing is known."""
        freedom, inverse = self._learned(self._least)
        share = 1.0 if self.width is None else 1 - freedom / self.width
        return freedom + self.ridge * inverse / share if share > 0 else math.inf

    def predict(self, size: int, seed: int) -> Prediction:  # noqa: ARG002 - nothing is random
        """Errors with so many samples, up to the limit."""
        regression = Regression(size, self.ridge, self.width)
        kappa = regression.solve(self._learned, self._least)
        shares = self.spectrum.values / (self.spectrum.values + kappa)
        known = shares[: len(self.squares)]
        learned = Learned(
            self.spectrum.freedom(kappa),
            float(shares.square().sum()),
            float(((1 - known) ** 2 * self.squares).sum()) + self.left,
            max(0.0, float((known * (1 - known) * self.squares).sum())),
        )
        test = regression.test_error(learned)
        fitted = (1 - learned.freedom / size) ** 2 * test
        return Prediction(test, learned.bias, fitted, 0.0, math.nan)


def law_curve(
    function: KernelFunction,
    law: HermiteLaw,
    sizes: list[int],
    *,
    ridge: float,
    which: Literal["ck", "ntk"],
    width: int | None,
) -> LearningCurve:
    """Errors of regression on a target of inputs of some covariance.

    Raises:
        AccuracyError: If the law has samples, and these contradict it.
    """
    spectrum = law.spectrum(function, which=which)
    moments = law.moments(spectrum.indices)
    count = 0 if law.samples is None else len(law.samples[0])
    known = _KnownSpectrum(spectrum, moments.squares, moments.rest, ridge, width, count)
    whole = _checked_samples(function, law, ridge, which)
    checks = [] if whole is None else _checks(whole, known)
    worst = max(checks, key=lambda c: abs(c.deviation), default=None)
    if worst is not None and not abs(worst.deviation) <= _FAR:
        raise AccuracyError(
            f"the Hermite ansatz does not hold here: with {worst.size} samples it predicts an "
            f"error of {worst.predicted:.3g}, and {worst.measured:.3g} is measured; inputs must be "
            "centered and nearly Gaussian, of a large effective dimension "
            f"(theirs is {spectrum.effective_dimension:.3g})"
        )
    limit = known.limit
    nothing = Prediction(*(math.nan,) * 5)
    found = [known.predict(size, 0) if size <= limit else nothing for size in sizes]
    test, bias, train, _, _ = torch.tensor(found, dtype=torch.float64).unbind(1)
    off = math.sqrt(sum(c.deviation**2 for c in checks) / len(checks)) if checks else 0.0
    drawn = torch.tensor([_sampling(whole, size, count) for size in sizes], dtype=torch.float64)
    spread = torch.hypot(drawn, torch.full_like(drawn, off)) * test
    number = None if law.samples is None else count
    return LearningCurve(
        torch.tensor(sizes), ridge, test, bias, test - bias, train, None, spread, limit, number,
        tuple(checks),
    )  # fmt: skip


def _checked_samples(
    function: KernelFunction, law: HermiteLaw, ridge: float, which: str
) -> Subsampling | None:
    """Some of the samples that a law was fitted to, if it was."""
    if law.samples is None:
        return None
    x, y = (part[:_CHECKED] for part in law.samples)
    problem = checked_problem(function, x, y, ridge, which)
    return Subsampling(decomposed(problem, byte_limit(problem, None)), ridge, classes=False)


def _checks(whole: Subsampling, known: _KnownSpectrum) -> list[Check]:
    """Predictions for some of the law's own samples beside regressions on these."""
    measure, wide = Measurement(whole, 5, 0), replace(known, width=None)
    sizes = [whole.samples // share for share in _SHARES]
    return [measure.check(wide, size) for size in sizes if 1 <= size <= wide.limit]


def _sampling(whole: Subsampling | None, size: int, count: int) -> float:
    """The relative spread of errors over the choice of samples to fit to.

    Checks cannot tell: they are on the same samples. Single errors can, by their spread.
    """
    if whole is None:
        return 0.0
    found = whole.predict(max(1, math.floor(min(size, whole.limit))), 0)
    relative = found.deviation / found.test if found.test > 0 else 0.0
    return relative * math.sqrt(whole.samples / count)
