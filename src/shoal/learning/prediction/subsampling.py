r"""Errors at one size and ridge from residuals at another.

A ridge regression on $n$ samples with ridge $\lambda$ has, to leading order, the mean predictor of
one on $N$ samples with another ridge $\delta$: both have the same effective regularization
$\kappa$, which solves $n = \sum_i \lambda_i/(\lambda_i + \kappa) + \lambda/\kappa$ for the
eigenvalues of the kernel's operator (Simon et al. 2021). With $G = (K + \delta I)^{-1}$ of the $N$
samples at hand, $\kappa = 1/\operatorname{tr} G$, so
$$n(\delta) = N - (\delta - \lambda) \operatorname{tr} G,$$
which falls with $\delta$. Nothing of the operator itself need be known: the sum of squares
$\sum_i \lambda_i^2/(\lambda_i + \kappa)^2$, by which single training sets differ, is
$N - (\operatorname{tr} G)^2/\operatorname{tr} G^2$. With $m$ random features in the place of the
kernel, $\delta$ solves the equation of :mod:`shoal.learning.prediction.deterministic_equivalent`
in these terms, and nothing else changes.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.learning.prediction.deterministic_equivalent import Learned, Regression, falling_root
from shoal.learning.regression.ridge_path import Decomposition

FEWEST = 32  # samples from which anything is predicted

_DRAWS = 8  # of the fluctuation of outputs


class Prediction(NamedTuple):
    """What is predicted for one size.

    Attributes:
        test: The error on new samples.
        bias: That of the mean predictor.
        train: That on the training samples.
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
    """Regressions with a ridge on any number of samples, seen from those at hand.

    Attributes:
        parts: The decomposed kernel matrix of the samples at hand.
        ridge: Of the regressions.
        classes: Whether the largest target of a sample is its class.
        width: How many random features there are in the place of the kernel, if any.
    """

    parts: Decomposition
    ridge: float
    classes: bool
    width: int | None = None

    @property
    def samples(self) -> int:
        """How many are at hand."""
        return len(self.parts.values)

    @property
    def least(self) -> float:
        """The least ridge on all samples from which anything can be read."""
        parts = self.parts
        return max(0.0, 10 * parts.rounding - float(parts.values[0]))

    @property
    def limit(self) -> float:
        """The largest size that a ridge on all samples corresponds to."""
        return self.size_up_to(self._kernel_size(self.least))

    def size_up_to(self, limit: float) -> float:
        """The largest size from which as much is learned as from so many without a width."""
        if self.width is None:
            return limit
        other = falling_root(lambda t: self._kernel_size(t) - limit, self.least)
        freedom, trace = self._learned(other)
        if freedom >= self.width:
            return math.inf
        return freedom + self.ridge * trace / (1 - freedom / self.width)

    def _learned(self, other: float) -> tuple[float, float]:
        """Degrees of freedom, and the inverse of the effective regularization."""
        trace = float((1 / (self.parts.values + other)).sum())
        return self.samples - other * trace, trace

    def _kernel_size(self, other: float) -> float:
        """How many samples correspond to another ridge on all, without a width."""
        freedom, trace = self._learned(other)
        return freedom + self.ridge * trace

    def other_ridge(self, size: int) -> float:
        """The ridge on all samples to which so many, up to the limit, correspond."""
        if size == self.samples and self.width is None and self.ridge >= self.least:
            return self.ridge
        return Regression(size, self.ridge, self.width).solve(self._learned, self.least)

    def predict(self, size: int, seed: int) -> Prediction:
        """Errors with so many samples, up to the limit."""
        parts, other = self.parts, self.other_ridge(size)
        inverse = parts.inverse(other)
        relative = inverse / inverse.max()  # whose squares neither overflow nor underflow
        alpha = parts.vectors @ (inverse[:, None] * parts.coefficients)
        diagonal = parts.inverse_diagonal(inverse)[:, None]
        errors = alpha / diagonal  # leaving out each
        squares = errors.square().mean(1)
        mean = float(squares.mean())
        here = float(relative.sum() ** 2 / relative.square().sum()) / self.samples
        freedom, trace = self._learned(other)
        bias = here * mean
        cross = max(0.0, float((parts.targets * errors).mean()) - bias)
        learned = Learned(freedom, self.samples * (1 - here), bias, cross)
        test = Regression(size, self.ridge, self.width).test_error(learned)
        share = test / mean if mean > 0 else 0.0
        residual = self.ridge if self.width is None else (size - freedom) / trace
        fitted = (residual * self.samples / size * alpha).square()
        own = mean * (1 - here)  # the variance with all samples
        extra = test - bias - own
        alone = Regression(size, self.ridge, None).test_error(learned) - bias - own
        of_samples = extra if self.width is None else min(max(alone, 0.0), extra)
        spread = float((squares / mean).std()) if mean > 0 else 0.0
        return Prediction(
            test,
            bias,
            share * float(fitted.mean()),
            test * spread / math.sqrt(_independent(relative)),
            self._rate(inverse, diagonal, errors, (of_samples, extra - of_samples), seed)
            if self.classes
            else math.nan,
        )

    def _rate(
        self,
        inverse: Tensor,
        diagonal: Tensor,
        errors: Tensor,
        extra: tuple[float, float],
        seed: int,
    ) -> float:
        """How many are classified wrong, with more variance from samples and from features."""
        free = float(inverse.sum() ** 2 / inverse.square().sum()) / self.samples
        mean = float(errors.square().mean())
        if sum(extra) < -1e-6 * mean:  # larger sets fluctuate less, which cannot be added
            return math.nan
        targets = self.parts.targets
        values, right = targets - errors, targets.argmax(1)
        generator = torch.Generator().manual_seed(seed)
        own = mean * (1 / free - 1)  # the variance of what signs make of errors
        scale = math.sqrt(max(extra[0], 0.0) / own) if own > 0 else 0.0
        rates = []
        for _ in range(_DRAWS):
            moved = values + scale * self._of_samples(inverse, diagonal, errors, generator)
            if extra[1] > 0:
                moved = moved + math.sqrt(extra[1]) * self._of_features(free, errors, generator)
            rates.append(float((moved.argmax(1) != right).double().mean()))
        return sum(rates) / _DRAWS

    def _of_samples(
        self, inverse: Tensor, diagonal: Tensor, errors: Tensor, generator: torch.Generator
    ) -> Tensor:
        r"""How outputs differ between training sets.

        A sample is predicted by $-\sum_{j \ne i} G_{ij} y_j/G_{ii}$ without it. Errors of random
        signs in the place of targets make the fluctuation, with weights and classes as they are.
        """
        sign = 2 * torch.randint(0, 2, (len(errors), 1), generator=generator) - 1
        random, vectors = sign.to(errors) * errors, self.parts.vectors
        return vectors @ (inverse[:, None] * (vectors.T @ random)) / diagonal - random

    def _of_features(self, free: float, errors: Tensor, generator: torch.Generator) -> Tensor:
        r"""How outputs differ between networks, with a mean variance of one.

        Their covariance is that of $\sum_i L_i (1 - L_i) v_i v_i^T$ between outputs.
        """
        moments = self.parts.targets.T @ errors - free * errors.T @ errors
        values, vectors = torch.linalg.eigh(moments + moments.T)
        values = values.clamp_min(0.0)
        root = vectors * (values / values.mean()).sqrt() if values[-1] > 0 else 0 * vectors
        normal = torch.randn(errors.shape, generator=generator, dtype=torch.float64)
        moves: Tensor = normal.to(errors) @ root.T
        return moves


def _independent(relative: Tensor) -> float:
    r"""How many independent errors those of leaving out each sample are worth.

    They are $G y$ but for scales. If $y$ were noise, the sum of their squares would vary by
    $2 \operatorname{tr} G^4/(\operatorname{tr} G^2)^2$ relative to its square, instead of $2/N$.
    """
    squares = relative.square()
    return float(squares.sum() ** 2 / squares.square().sum())
