r"""Theorem 1 of Ling 2023, as printed and corrected.

With $\bar\rho_w = \|W(0)\| + \delta < 1$ and so on, $c_w = \bar\rho_u\bar\rho_a/(1-\bar\rho_w)^2$,
$c_u = \bar\rho_a/(1-\bar\rho_w)$, $c_a = \bar\rho_u/(1-\bar\rho_w)$,
$C_1 = (c_w^2 + c_u^2 + c_a^2)\|X\|_F^2$ and $C_2 = (c_w^2 + c_u^2)\|X\|_F^2$, the proof shows
$\Phi(\tau+1) \le (1 - \eta(\lambda_0 - \eta C_1^2 - 2C_2)) \Phi(\tau)$. So the rate
$1 - \eta\lambda_0/2$ needs $\lambda_0 \ge 4C_2 + 2\eta C_1^2$. Eq. (9), printed as
$\lambda_0 \ge 4C_2$, is not enough for it. Gradient flow needs no such condition, and half of Eqs.
(7) and (8), since its errors add up to $2e_0/\lambda_0$ instead of $4e_0/\lambda_0$.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial

import torch

from shoal.activations import Activation, Affine, Softplus
from shoal.certificates.certificate import Conclusion, Condition, Relation, condition
from shoal.certificates.evidence.activations import smoothness
from shoal.certificates.evidence.rounding import down, exact, up
from shoal.certificates.growth import RANK_REMEDY
from shoal.training import Promises

_THEOREM = "Ling 2023, Theorem 1"
_DELTAS = tuple(Fraction(up(10 ** (-k / 10))) for k in range(1, 61))  # shares of 1 - ‖W(0)‖
_SMALLEST_STEP = Fraction(math.ulp(0.0))
_ROOT_2 = Fraction(141421356238, 10**11)  # rounded up
_READOUT = "a smaller readout at initialization (readout_scale), smaller labels, more width"


@dataclass(frozen=True)
class DEQBounds:
    r"""What the theorem asks of a network and its data.

    Attributes:
        weight_norm: $\|W\|_2$, at most.
        input_weight_norm: $\|U\|_2$, at most.
        readout_norm: $\|a\|_2$, at most.
        input_frobenius: $\|X\|_F$, at most.
        singular_value: The least singular value of the features, at least.
        error: $\|\hat y - y\|$, at most.
        rigorous: Whether the bounds include the errors of computing them.
    """

    weight_norm: float
    input_weight_norm: float
    readout_norm: float
    input_frobenius: float
    singular_value: float
    error: float
    rigorous: bool


@dataclass(frozen=True)
class _Constants:
    r"""The constants of Condition 1 for a certain $\delta$."""

    bounds: DEQBounds
    delta: Fraction

    @cached_property
    def root(self) -> Fraction:
        r"""The root of $\lambda_0$."""
        return exact(self.bounds.singular_value)

    @cached_property
    def least(self) -> Fraction:
        r"""$\lambda_0$."""
        return self.root**2

    @cached_property
    def error(self) -> Fraction:
        """$e_0$."""
        return exact(self.bounds.error)

    @cached_property
    def readout(self) -> Fraction:
        r"""$\bar\rho_a$."""
        return exact(self.bounds.readout_norm) + self.delta

    @cached_property
    def c(self) -> tuple[Fraction, Fraction, Fraction]:
        """$c_w$, $c_u$ and $c_a$."""
        gap = 1 - exact(self.bounds.weight_norm) - self.delta
        inputs = exact(self.bounds.input_weight_norm) + self.delta
        return inputs * self.readout / gap**2, self.readout / gap, inputs / gap

    @cached_property
    def size(self) -> Fraction:
        r"""$\|X\|_F$."""
        return exact(self.bounds.input_frobenius)

    @cached_property
    def c1(self) -> Fraction:
        """$C_1$."""
        return sum((c**2 for c in self.c), Fraction(0)) * self.size**2

    @cached_property
    def c2(self) -> Fraction:
        """$C_2$."""
        return sum((c**2 for c in self.c[:2]), Fraction(0)) * self.size**2

    def seven(self, factor: int) -> Condition:
        """Eq. (7), with the given factor instead of 4."""
        bound = factor * max(self.c) * self.size * self.error / self.delta
        # of zero inputs, or without an error, lambda_0 must be positive still
        relation: Relation = ">" if bound == 0 else ">="
        remedy = _READOUT if self.least else RANK_REMEDY
        words = "the weights stay within delta"
        return self._condition("(7)", self.least, relation, bound, words, remedy)

    def eight(self, factor: int) -> Condition:
        r"""Eq. (8), with the given factor instead of 4."""
        bound = factor * (2 + _ROOT_2) * self.c2 * self.error / self.readout
        words = "the least singular value of the features keeps 1/sqrt(2) of its size"
        return self._condition("(8)", self.root**3, ">=", bound, words, RANK_REMEDY)

    def nine(self) -> Condition:
        """Eq. (9) as printed."""
        words = "lambda_0 >= 4 C_2 (no width helps against a readout of norm one)"
        return self._condition("(9)", self.least, ">=", 4 * self.c2, words, _READOUT)

    def nine_corrected(self, step: Fraction) -> Condition:
        """What Eq. (9) should be."""
        bound = 4 * self.c2 + 2 * step * self.c1**2
        words = "lambda_0 >= 4 C_2 + 2 eta C_1^2: what W and U do is less than what a gains"
        return self._condition("(9), corrected", self.least, ">=", bound, words, _READOUT)

    def ten(self, step: Fraction, *, printed: bool = False) -> Condition:
        """Eq. (10) as printed, or the part of it that is left."""
        bound, words = 2 / self.least if self.least else Fraction(0), "2/lambda_0"
        if printed and self.c1:
            bound, words = min(bound, 2 * self.c2 / self.c1**2), "2/lambda_0 and 2 C_2/C_1^2"
        words = f"the step size is below {words}"
        return self._condition("(10)", step, "<", bound, words, "a smaller step size")

    @property
    def _condition(self) -> Callable[..., Condition]:
        return partial(condition, rigorous=self.bounds.rigorous)

    def step(self) -> Fraction:
        """A step size for which the corrected Eq. (9) holds, if there is one."""
        if self.least == 0:
            return Fraction(1)
        largest = 1 / self.least
        printed = 2 * self.c2 / self.c1**2
        left = (self.least - 4 * self.c2) / (2 * self.c1**2)
        best = min(printed, left * Fraction(9, 10)) if left > 0 else printed
        return max(Fraction(down(min(largest, best))), _SMALLEST_STEP)


def covers(activation: Activation) -> bool:
    """Whether the proof holds for an activation: it has slopes up to one, and is zero at zero."""
    return smoothness(activation).lipschitz <= 1 and _at_zero(activation) == 0


def _at_zero(phi: Activation) -> Fraction | float:
    r"""$\varphi(0)$ without rounding; NaN for softplus: minus a float, $\log 2$ is never zero."""
    if type(phi) is Affine:
        return Fraction(phi.scale) * _at_zero(phi.activation) + Fraction(phi.shift)
    value = float(phi(torch.zeros(1, dtype=torch.float64)))
    return math.nan if type(phi) is Softplus or not math.isfinite(value) else Fraction(value)


def theorem_1(bounds: DEQBounds, *, step_size: float | None = None) -> tuple[Conclusion, ...]:
    """What the theorem says of a network: for flow, for descent, and as it is printed.

    Args:
        bounds: The network and its data.
        step_size: The step size to certify; by default one that the theorem allows.
    """
    flows, descents, printed = [], [], []
    for c in _choices(bounds):
        flow = Conclusion(_THEOREM, "corrected", "gradient flow", (c.seven(2), c.eight(2)))
        flows.append(replace(flow, rate=down(c.least), promises=_promises(c)))
        step = c.step() if step_size is None else exact(step_size)
        descents.append(_descent(c, step, (c.nine_corrected(step), c.ten(step))))
        printed.append(_descent(c, step, (c.nine(), c.ten(step, printed=True)), printed=True))
    return _best(flows), _best(descents), _best(printed)


def _choices(bounds: DEQBounds) -> list[_Constants]:
    room = 1 - exact(bounds.weight_norm)
    return [_Constants(bounds, Fraction(down(share * room))) for share in _DELTAS]


def _descent(
    c: _Constants, step: Fraction, others: tuple[Condition, ...], *, printed: bool = False
) -> Conclusion:
    return Conclusion(
        _THEOREM,
        "printed" if printed else "corrected",
        "gradient descent",
        (c.seven(4), c.eight(4), *others),
        step_size=float(step),
        rate=min(1.0, up(1 - step * c.least / 2)),
        promises=_promises(c),
        sound=not printed,
        note="Eq. (9) as printed does not imply the rate: the proof needs 8 C_2."
        if printed
        else "",
    )


def _promises(c: _Constants) -> Promises:
    return Promises(
        travel=dict.fromkeys(("recurrent", "input", "readout"), up(c.delta)),
        gain=up(exact(c.bounds.weight_norm) + c.delta),
        singular_value=down(c.root * Fraction(7071067811, 10**10)),
    )


def _best(conclusions: list[Conclusion]) -> Conclusion:
    r"""The choice of $\delta$ with the largest margin."""
    return max(conclusions, key=lambda conclusion: conclusion.margin)
