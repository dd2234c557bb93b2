"""The books of a run: losses, monitors, and which promises were kept."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.training.bounds import LOWER, Bounds

__all__ = ["Ledger"]


@dataclass
class Ledger:
    """What is known of a run so far.

    Attributes:
        promises: What is to be kept.
        losses: The loss at each step.
        looks: The steps at which the monitors looked.
        records: What they saw.
        violations: The first step at which a promise was broken.
        bounds: The bounds, once they are known.
    """

    promises: frozenset[str]
    losses: list[float] = field(default_factory=list)
    looks: list[int] = field(default_factory=list)
    records: dict[str, list[float]] = field(default_factory=dict)
    violations: dict[str, int] = field(default_factory=dict)
    bounds: Bounds | None = None

    @property
    def step(self) -> int:
        """The step that is written about."""
        return len(self.losses) - 1

    @property
    def kept(self) -> dict[str, bool]:
        """For each promise that was looked at, whether it was kept at all steps."""
        seen = {*self.records, *self.violations}
        if self.losses:
            seen |= {"equilibrium"} if self.bounds is None else {"equilibrium", "loss"}
        return {name: name not in self.violations for name in sorted(self.promises & seen)}

    def look(self, measured: Mapping[str, float]) -> None:
        """Write down what the monitors saw at this step."""
        assert self.bounds is not None
        found = dict(measured)
        error = found.pop("feature_error")
        found["pl_ratio"] = self.bounds.pl_ratio(found.pop("square_gradient"), self.losses[-1])
        self.looks.append(self.step)
        for name, value in found.items():
            self.records.setdefault(name, []).append(value)
        # a singular value of the features is known as well as they are
        root = math.sqrt(found["least_eigenvalue"]) + error
        for name in sorted(self.promises & set(found)):
            value = root * root if name == "least_eigenvalue" else found[name]
            self._judge(name, self._holds(name, value))
        if "gain" in found:  # it must be certain that the layer contracts
            self._judge("gain", found["gain_upper"] < 1)

    def judge_loss(self, output_error: float, divisor: float) -> None:
        r"""See whether the loss kept its bound, within what is known of it.

        Args:
            output_error: A bound of the error of all outputs, as a vector.
            divisor: What the loss is divided by.
        """
        assert self.bounds is not None
        # of the loss's root: what its evaluation leaves open, or the rounding of all steps before
        resolution = math.sqrt(0.5 / divisor) * output_error
        resolution = max(resolution, math.sqrt(self.bounds.resolution))
        limit = math.sqrt(self.bounds.loss(self.step)) + resolution
        self._judge("loss", math.sqrt(self.losses[-1]) <= limit)

    def exceeds(self) -> bool:
        """Whether the loss is above its bound as it stands, for the first time it matters."""
        if self.bounds is None or "loss" not in self.promises or "loss" in self.violations:
            return False
        return not self.losses[-1] <= self.bounds.loss(self.step)

    def judge_equilibrium(self, *, converged: bool) -> None:
        """See whether all equilibria were found."""
        self._judge("equilibrium", converged)

    def lose_equilibrium(self) -> None:
        """There is no equilibrium at the step that comes next."""
        if "equilibrium" in self.promises:
            self.violations.setdefault("equilibrium", self.step + 1)

    def lose_loss(self) -> None:
        """The loss is not finite at the step that comes next, so it exceeds every bound."""
        if "loss" in self.promises and self.bounds is not None:
            self.violations.setdefault("loss", self.step + 1)

    def _holds(self, name: str, value: float) -> bool:
        assert self.bounds is not None
        bound = self.bounds.at(name, self.step)
        return value >= bound if name in LOWER else value <= bound

    def _judge(self, name: str, holds: bool) -> None:
        if name in self.promises and not holds:
            self.violations.setdefault(name, self.step)

    def state(self) -> dict[str, Tensor]:
        """All that is numbers."""
        state = {
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "looks": torch.tensor(self.looks, dtype=torch.int64),
        }
        for name, values in self.records.items():
            state[f"record.{name}"] = torch.tensor(values, dtype=torch.float64)
        return state

    def restore(self, state: Mapping[str, Tensor], violations: Mapping[str, int]) -> None:
        """Go on from a state."""
        self.losses, self.looks = state["losses"].tolist(), state["looks"].tolist()
        self.records = {n[7:]: v.tolist() for n, v in state.items() if n.startswith("record.")}
        self.violations = dict(violations)
