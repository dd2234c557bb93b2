"""An experiment that takes no time, for the tests of the runner."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch

from shoal.lab import Arrays, Experiment, Point, Result


@dataclass(frozen=True)
class Small(Experiment):
    name: ClassVar[tuple[str, str]] = ("tests", "small")
    title: ClassVar[str] = "Sums of random numbers"

    count: int = 5
    scale: float = 1.0
    fail_at: int | None = None

    @classmethod
    def quick(cls) -> Self:
        return cls(count=2)

    def points(self) -> Sequence[Point]:
        return [{"k": k} for k in range(self.count)]

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        if self.fail_at == -1:  # as the system does when memory is short
            os.kill(os.getpid(), signal.SIGKILL)
        if point["k"] == self.fail_at:
            raise ValueError(f"k must not be {self.fail_at}")
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(300, 300, dtype=torch.float64, generator=generator).to(device)
        return {"spectrum": (self.scale * noise @ noise).sum(0).cpu().numpy()}

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        return {"mean": float(np.mean([r.arrays["spectrum"].mean() for r in results]))}

    def plot(self, results: Sequence[Result]):
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot([r.arrays["spectrum"].mean() for r in results])
        return figure
