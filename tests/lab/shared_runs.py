"""Runs that several processes share, for the tests."""

from dataclasses import dataclass
from pathlib import Path

import torch

import shoal
from lab.small import Small
from shoal.lab import Run, execute


@dataclass(frozen=True)
class Failing(Small):
    """One of its points fails."""

    def compute(self, point, *, seed, device):
        """An error at the last."""
        if point["k"] == 4:
            raise ArithmeticError("the last one fails")
        found = super().compute(point, seed=seed, device=device)
        # a point is its process's own: what processes would share elsewhere is not shared
        x = torch.full((3 + point["k"], 2), 1.0 + point["k"], dtype=torch.float64)
        shoal.kernel_operator(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), x).ntk @ x
        return found


def experiment(rank: int, folder: str) -> tuple[list[int], str]:  # noqa: ARG001
    """A run that is whole, and one that fails; the first is where points are kept."""
    found = execute(Run(Small(), Path(folder), "cpu"))
    try:
        execute(Run(Failing(), Path(folder) / "failing", "cpu"))
    except ArithmeticError as error:
        return [result.point["k"] for result in found], str(error)
    return [], ""
