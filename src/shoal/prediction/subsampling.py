r"""Errors at one size and ridge from residuals at another.

A ridge regression on $n$ samples with ridge $\lambda$ has, to leading order, the mean predictor of
one on $N$ samples with another ridge $\delta$: both have the same effective regularization
$\kappa$, which solves $n = \sum_i \lambda_i/(\lambda_i + \kappa) + \lambda/\kappa$ for the
eigenvalues of the kernel's operator (Simon et al. 2021). With $G = (K + \delta I)^{-1}$ of the $N$
samples at hand, $\kappa = 1/\operatorname{tr} G$, so
$$n(\delta) = N - (\delta - \lambda) \operatorname{tr} G,$$
which falls with $\delta$. Nothing of the operator itself need be known: the sum of squares
$\sum_i \lambda_i^2/(\lambda_i + \kappa)^2$, by which single training sets differ, is
$N - (\operatorname{tr} G)^2/\operatorname{tr} G^2$.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import scipy  # whose parts are imported where they are first used
import torch
from torch import Tensor

from shoal.regression.ridge_path import Decomposition

__all__ = ["Prediction", "Subsampling"]

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
    """

    parts: Decomposition
    ridge: float
    classes: bool

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
        return self._size(self.least)

    def _size(self, other: float) -> float:
        """How many samples correspond to another ridge on all."""
        inverse = 1 / (self.parts.values + other)
        return self.samples - (other - self.ridge) * float(inverse.sum())

    def other_ridge(self, size: int) -> float:
        """The ridge on all samples to which so many correspond."""
        if size == self.samples and self.ridge >= self.least:
            return self.ridge
        top = self.ridge + float(self.parts.values[-1]) * self.samples
        while self._size(top) > size:
            top *= 2
        found = scipy.optimize.brentq(
            lambda t: self._size(t) - size, self.least, top, xtol=1e-300, rtol=1e-12, maxiter=1000
        )
        return float(found)

    def predict(self, size: int, seed: int) -> Prediction:
        """Errors with so many samples, up to the limit."""
        parts = self.parts
        inverse = parts.inverse(self.other_ridge(size))
        relative = inverse / inverse.max()  # whose squares neither overflow nor underflow
        alpha = parts.vectors @ (inverse[:, None] * parts.coefficients)
        diagonal = parts.inverse_diagonal(inverse)[:, None]
        errors = alpha / diagonal  # leaving out each
        free = float(relative.sum() ** 2 / relative.square().sum())  # N less the sum of squares
        here, there = free / self.samples, 1 - (self.samples - free) / size  # as shares of N and n
        share = here / there
        squares = errors.square().mean(1)
        mean = float(squares.mean())
        spread = float((squares / mean).std()) if mean > 0 else 0.0
        fitted = (self.ridge * self.samples / size * alpha).square()
        excess = (self.samples - size) / size * share  # of fluctuation, over that of all
        return Prediction(
            share * mean,
            here * mean,
            share * float(fitted.mean()),
            share * mean * spread / math.sqrt(_independent(relative)),
            self._rate(inverse, diagonal, errors, excess, seed) if self.classes else math.nan,
        )

    def _rate(
        self, inverse: Tensor, diagonal: Tensor, errors: Tensor, excess: float, seed: int
    ) -> float:
        r"""How many are classified wrong, with as much more fluctuation as a smaller set has.

        A sample is predicted by $-\sum_{j \ne i} G_{ij} y_j/G_{ii}$ without it. Errors of random
        signs in the place of targets make the fluctuation, with weights and classes as they are.
        """
        if excess < -1e-9:  # larger sets fluctuate less, which cannot be added
            return math.nan
        targets, vectors = self.parts.targets, self.parts.vectors
        values, right = targets - errors, targets.argmax(1)
        generator = torch.Generator().manual_seed(seed)
        signs = 2 * torch.randint(0, 2, (_DRAWS, len(errors), 1), generator=generator) - 1
        rates = []
        for sign in signs.to(errors):
            random = sign * errors
            spread = vectors @ (inverse[:, None] * (vectors.T @ random)) / diagonal - random
            moved = values + math.sqrt(max(excess, 0.0)) * spread
            rates.append(float((moved.argmax(1) != right).double().mean()))
        return sum(rates) / _DRAWS


def _independent(relative: Tensor) -> float:
    r"""How many independent errors those of leaving out each sample are worth.

    They are $G y$ but for scales. If $y$ were noise, the sum of their squares would vary by
    $2 \operatorname{tr} G^4/(\operatorname{tr} G^2)^2$ relative to its square, instead of $2/N$.
    """
    squares = relative.square()
    return float(squares.sum() ** 2 / squares.square().sum())
