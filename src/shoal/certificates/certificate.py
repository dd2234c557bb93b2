"""What a certificate is made of."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from shoal.certificates.evidence.rounding import nearest
from shoal.core.checks import one_of
from shoal.core.files import finite
from shoal.training import Promises

Status = Literal["proved", "holds at the measured values", "not established"]
Dynamics = Literal["gradient flow", "gradient descent"]
Form = Literal["corrected", "printed", "sharper"]
Relation = Literal[">=", "<=", ">", "<"]

_ORDER: tuple[Status, ...] = ("not established", "holds at the measured values", "proved")


@dataclass(frozen=True)
class Condition:
    """An inequality that a theorem asks for.

    Attributes:
        name: A short name.
        words: The inequality in words.
        relation: What the value must be to the bound.
        bound: What is needed.
        value: What was found. Rounded against the condition, where it is rigorous.
        holds: Whether the inequality holds.
        rigorous: Whether value and bound include all errors of computing them.
        remedy: What would help if it does not hold.
    """

    name: str
    words: str
    relation: Relation
    bound: float
    value: float
    holds: bool
    rigorous: bool
    remedy: str

    @property
    def margin(self) -> float:
        """The factor by which the inequality holds; below one if it fails."""
        upwards = self.relation in (">=", ">")
        large, small = (self.value, self.bound) if upwards else (self.bound, self.value)
        if large <= 0 or math.isinf(small):
            return 0.0 if not self.holds else 1.0
        return math.inf if small <= 0 else large / small

    @property
    def needed(self) -> str:
        """The relation and the bound, for people: ``≤ 0.5``."""
        relation = self.relation.replace(">=", "≥").replace("<=", "≤")
        return f"{relation} {self.bound:.3g}"

    @property
    def status(self) -> Status:
        """How sure it is."""
        if not self.holds:
            return "not established"
        return "proved" if self.rigorous else "holds at the measured values"

    def __str__(self) -> str:
        mark = "holds" if self.holds else "FAILS"
        return (
            f"{self.name:<14} {self.value:>11.4g} {self.relation:<2} {self.bound:<11.4g} "
            f"margin {self.margin:<9.3g} {mark}: {self.words}"
        )


Number = Fraction | float


_COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def condition(
    name: str,
    value: Number,
    relation: Relation,
    bound: Number,
    words: str,
    remedy: str,
    *,
    rigorous: bool,
) -> Condition:
    """The condition that a value is in a relation to a bound, compared without rounding."""
    holds = _COMPARISONS[relation](value, bound)
    return Condition(name, words, relation, nearest(bound), nearest(value), holds, rigorous, remedy)


@dataclass(frozen=True)
class Conclusion:
    r"""What a theorem says of a network and its data.

    Attributes:
        theorem: Which theorem.
        form: ``"printed"`` as in the paper, ``"corrected"``, or ``"sharper"`` than the paper.
        dynamics: ``"gradient flow"`` or ``"gradient descent"``.
        conditions: All that it asks for, in the order of the proof.
        step_size: The step size of gradient descent that it is about; ``None`` for flow.
        rate: What it promises if it holds. For descent, the factor of the loss per step:
            $\Phi(k) \le \mathrm{rate}^k \Phi(0)$. For flow, the exponent:
            $\Phi(t) \le e^{-\mathrm{rate}\, t} \Phi(0)$.
        promises: Other numbers that hold throughout training.
        sound: Whether the theorem is true. A printed form may be false; then its conditions are
            reported, and nothing is concluded.
        note: What else there is to say.
    """

    theorem: str
    form: Form
    dynamics: Dynamics
    conditions: tuple[Condition, ...]
    step_size: float | None = None
    rate: float | None = None
    promises: Promises = field(default_factory=Promises)
    sound: bool = True
    note: str = ""

    @property
    def status(self) -> Status:
        """How sure the conclusion is: as sure as its least sure condition."""
        if not self.sound or not self.conditions:
            return "not established"
        return min((c.status for c in self.conditions), key=_ORDER.index)

    @property
    def holds(self) -> bool:
        """Whether the theorem is true and all its conditions hold."""
        return self.status != "not established"

    @property
    def margin(self) -> float:
        """The smallest margin of the conditions."""
        return min((c.margin for c in self.conditions), default=0.0)

    @property
    def first_failure(self) -> Condition | None:
        """The first condition that fails."""
        return next((c for c in self.conditions if not c.holds), None)

    def __str__(self) -> str:
        head = f"{self.dynamics}, {self.theorem} ({self.form}): {self.status}"
        if self.holds and self.rate is not None:
            if self.step_size is None:
                head += f"; the loss falls like exp(-{self.rate:.4g} t)"
            else:
                head += (
                    f"; step size {self.step_size:.4g}, the loss falls by {self.rate:.6g} a step"
                )
        lines = [head, *(f"  {c}" for c in self.conditions)]
        return "\n".join([*lines, f"  {self.note}"] if self.note else lines)


@dataclass(frozen=True)
class Certificate:
    """Whether gradient descent will train a network, and by which theorem.

    Attributes:
        conclusions: What each theorem says, for gradient flow and for gradient descent.
        measurements: Numbers of the network and the data, by name.
        fingerprint: What it is about: checksums of the weights and the data, the architecture,
            the groups that are trained and, for equilibria, their solver and gradient.
            ``train`` refuses a certificate of anything else.
    """

    conclusions: tuple[Conclusion, ...]
    measurements: Mapping[str, float] = field(default_factory=dict, hash=False)
    fingerprint: Mapping[str, str] = field(default_factory=dict, hash=False)

    def best(self, dynamics: Dynamics) -> Conclusion:
        """The surest conclusion for these dynamics; of several, the one of the best rate.

        If none holds, the one that is nearest to holding.
        """

        def merit(conclusion: Conclusion) -> tuple[int, float]:
            if not conclusion.holds:
                return 0, conclusion.margin
            rate = conclusion.rate or 0.0
            return _ORDER.index(conclusion.status), -rate if conclusion.step_size else rate

        one_of("dynamics", dynamics, ("gradient flow", "gradient descent"))
        mine = [c for c in self.conclusions if c.dynamics == dynamics and c.sound]
        return max(mine, key=merit)

    @property
    def gradient_flow(self) -> Conclusion:
        """The best conclusion for gradient flow."""
        return self.best("gradient flow")

    @property
    def gradient_descent(self) -> Conclusion:
        """The best conclusion for gradient descent."""
        return self.best("gradient descent")

    @property
    def holds(self) -> bool:
        """Whether gradient descent is certain to train the network to zero loss."""
        return self.gradient_descent.holds

    @property
    def status(self) -> Status:
        """How sure that is."""
        return self.gradient_descent.status

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of the best conclusion for gradient descent."""
        return self.gradient_descent.conditions

    @property
    def step_size(self) -> float | None:
        """The step size that is certified; ``None`` if none is."""
        return self.gradient_descent.step_size if self.holds else None

    @property
    def rate(self) -> float | None:
        """The factor by which the loss falls, at least, in each step; ``None`` if not certified."""
        return self.gradient_descent.rate if self.holds else None

    @property
    def first_failure(self) -> Condition | None:
        """The first condition that fails on the way that comes nearest."""
        return self.gradient_descent.first_failure

    @property
    def explanation(self) -> str:
        """The answer in a few sentences."""
        descent, flow = self.gradient_descent, self.gradient_flow
        if descent.holds:
            return (
                f"Gradient descent with step size {self.step_size:.4g} trains this network to zero "
                f"loss ({descent.status}, by {descent.theorem}). Each step multiplies the loss by "
                f"{self.rate:.6g} or less.{self._rounding}"
            )
        failure = descent.first_failure
        words = f"Gradient descent is not certified ({descent.theorem}"
        if failure is not None:
            words += f", {failure.name}: {failure.words}; found {failure.value:.4g}, needed "
            words += f"{failure.relation} {failure.bound:.4g}). What would help: {failure.remedy}."
        else:
            words += ")."
        if flow.holds:
            words += f" Gradient flow is ({flow.status}, by {flow.theorem})."
        return words

    @property
    def _rounding(self) -> str:
        """What the sentence about exact arithmetic needs beside it."""
        left = self.gradient_descent.promises.resolution
        if left is None:
            return ""
        error = self.measurements.get("initial error", math.inf)
        if not left < 0.5 * error * error:
            return " Rounding, in the dtype of the network, may hide that."
        return f" Rounding may leave a loss of {left:.1g}."

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values for JSON, which has no infinity: ``None`` instead."""
        document: dict[str, Any] = finite(
            {
                "holds": self.holds,
                "status": self.status,
                "step_size": self.step_size,
                "rate": self.rate,
                "explanation": self.explanation,
                "measurements": dict(self.measurements),
                "conclusions": [_as_dict(c) for c in self.conclusions],
                "fingerprint": dict(self.fingerprint),
            }
        )
        return document

    def __str__(self) -> str:
        width = max(map(len, self.measurements), default=0)
        measured = [f"{name:<{width}}  {value:.6g}" for name, value in self.measurements.items()]
        return "\n".join([self.explanation, "", *measured, "", *map(str, self.conclusions)])


def _as_dict(conclusion: Conclusion) -> dict[str, Any]:
    return {
        **vars(conclusion),
        "status": conclusion.status,
        "promises": conclusion.promises.to_dict(),
        "conditions": [
            {**vars(c), "margin": c.margin, "status": c.status} for c in conclusion.conditions
        ],
    }
