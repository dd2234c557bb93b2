"""Regressions that are done, to check those that are predicted."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from shoal.learning.prediction.result import Check
from shoal.learning.prediction.subsampling import Prediction, Subsampling


class Source(Protocol):
    """What predicts errors, from so many samples."""

    @property
    def samples(self) -> int:
        """How many."""
        ...

    def predict(self, size: int, seed: int) -> Prediction:
        """Errors of regressions on some number of samples."""
        ...


@dataclass(frozen=True, eq=False)
class Measurement:
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

    def check(self, source: Source, size: int) -> Check:
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
