"""Certificates, and the conclusions and conditions that they are made of."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, cast

from shoal.core.files import finite
from shoal.core.rounding import nearest
from shoal.training import Promises

Status = Literal["proved", "holds at the measured values", "not established"]
Dynamics = Literal["gradient flow", "gradient descent"]
Relation = Literal[">=", "<=", ">", "<"]

_ORDER: tuple[Status, ...] = ("not established", "holds at the measured values", "proved")


@dataclass(frozen=True)
class Condition:
    """An inequality that a theorem asks for.

    Attributes:
        name: A short name.
        words: The inequality in words.
        relation: The relation of the value to the bound.
        bound: The bound.
        value: The value; rounded against the condition if it is rigorous.
        holds: Whether the inequality holds.
        rigorous: Whether value and bound include all errors of computing them.
        remedy: A change that helps if it does not hold.
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
        """The strength of the evidence."""
        if not self.holds:
            return "not established"
        return "proved" if self.rigorous else "holds at the measured values"

    def __str__(self) -> str:
        mark = "holds" if self.holds else "FAILS"
        return (
            f"{self.name:<14} {self.value:>11.4g} {self.relation:<2} {self.bound:<11.4g} "
            f"margin {self.margin:<9.3g} {mark}: {self.words}"
        )


_COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def condition(
    name: str,
    value: Fraction | float,
    relation: Relation,
    bound: Fraction | float,
    words: str,
    remedy: str,
    *,
    rigorous: bool = True,
) -> Condition:
    """The condition that a value is in a relation to a bound, compared without rounding."""
    holds = _COMPARISONS[relation](value, bound)
    return Condition(name, words, relation, nearest(bound), nearest(value), holds, rigorous, remedy)


@dataclass(frozen=True)
class Conclusion:
    r"""A theorem's conclusion about a network and its data.

    Attributes:
        theorem: The name of the theorem.
        dynamics: ``"gradient flow"`` or ``"gradient descent"``.
        conditions: Its conditions, in the order of the proof.
        step_size: The step size of gradient descent; ``None`` for flow.
        rate: The promised rate if it holds. For descent, the factor of the loss per step:
            $\Phi(k) \le \mathrm{rate}^k \Phi(0)$. For flow, the exponent:
            $\Phi(t) \le e^{-\mathrm{rate}\, t} \Phi(0)$.
        promises: Other numbers that hold throughout training.
    """

    theorem: str
    dynamics: Dynamics
    conditions: tuple[Condition, ...]
    step_size: float | None = None
    rate: float | None = None
    promises: Promises = field(default_factory=Promises)

    @property
    def status(self) -> Status:
        """The strength of the weakest condition."""
        return min((c.status for c in self.conditions), key=_ORDER.index, default=_ORDER[0])

    @property
    def holds(self) -> bool:
        """Whether all conditions hold."""
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
        head = f"{self.dynamics}, {self.theorem}: {self.status}"
        if self.holds and self.rate is not None:
            if self.step_size is None:
                head += f"; the loss falls like exp(-{self.rate:.4g} t)"
            else:
                head += (
                    f"; step size {self.step_size:.4g}, the loss falls by {self.rate:.6g} a step"
                )
        return "\n".join([head, *(f"  {c}" for c in self.conditions)])


@dataclass(frozen=True)
class Certificate:
    """Whether gradient descent will train a network, with all conditions of the proof.

    Attributes:
        gradient_flow: The conclusion for gradient flow.
        gradient_descent: The conclusion for gradient descent.
        measurements: Numbers of the network and the data, by name.
        fingerprint: Checksums of the weights and the data, the architecture, the groups that are
            trained and, for equilibria, their solver and gradient. ``train`` refuses a certificate
            of anything else.
    """

    gradient_flow: Conclusion
    gradient_descent: Conclusion
    measurements: Mapping[str, float] = field(default_factory=dict, hash=False)
    fingerprint: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def conclusions(self) -> tuple[Conclusion, Conclusion]:
        """Both conclusions, that for gradient flow first."""
        return self.gradient_flow, self.gradient_descent

    @property
    def holds(self) -> bool:
        """Whether gradient descent is certain to train the network to zero loss."""
        return self.gradient_descent.holds

    @property
    def status(self) -> Status:
        """The strength of the evidence for that."""
        return self.gradient_descent.status

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions for gradient descent."""
        return self.gradient_descent.conditions

    @property
    def step_size(self) -> float | None:
        """The certified step size; ``None`` without one."""
        return self.gradient_descent.step_size if self.holds else None

    @property
    def rate(self) -> float | None:
        """The factor by which the loss falls, at least, in each step; ``None`` if not certified."""
        return self.gradient_descent.rate if self.holds else None

    @property
    def first_failure(self) -> Condition | None:
        """The first condition for gradient descent that fails."""
        return self.gradient_descent.first_failure

    @property
    def explanation(self) -> str:
        """The answer in a few sentences."""
        descent, flow, failure = self.gradient_descent, self.gradient_flow, self.first_failure
        if failure is None:
            return (
                f"Gradient descent with step size {self.step_size:.4g} trains this network to zero "
                f"loss ({descent.status}, by {descent.theorem}). Each step multiplies the loss by "
                f"{self.rate:.6g} or less.{self._rounding}"
            )
        words = (
            f"Gradient descent is not certified ({descent.theorem}, {failure.name}: "
            f"{failure.words}; found {failure.value:.4g}, needed {failure.relation} "
            f"{failure.bound:.4g}). What would help: {failure.remedy}."
        )
        if flow.holds:
            words += f" Gradient flow is ({flow.status}, by {flow.theorem})."
        return words

    @property
    def _rounding(self) -> str:
        """The sentence about the loss that rounding leaves."""
        resolution = self.gradient_descent.promises.resolution
        if resolution is None:
            return ""
        error = self.measurements.get("initial error", math.inf)
        if not resolution < 0.5 * error * error:
            return " Rounding, in the dtype of the network, may hide that."
        return f" Rounding may leave a loss of {resolution:.1g}."

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values for JSON, which has no infinity: ``None`` instead."""
        names = ("holds", "status", "step_size", "rate", "explanation", "measurements")
        document: dict[str, Any] = {name: getattr(self, name) for name in names}
        document |= {"conclusions": [_as_dict(c) for c in self.conclusions]}
        document |= {"fingerprint": dict(self.fingerprint)}
        return cast("dict[str, Any]", finite(document))

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
