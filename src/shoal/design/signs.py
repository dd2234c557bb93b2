r"""Signs of Hermite coefficients that make a usable activation.

A kernel determines the squares of the coefficients only. All signs positive make a function that
grows like a high power; those of $|x|$ and $x \log|x|$, or of an activation that is known to be
usable, make one that does not. What counts is the mean square slope between the ends, *without* the
Gaussian weight, under which all signs are alike.
"""

from dataclasses import dataclass

import numpy as np

from shoal.design.profile import Profile, Quadrature

__all__ = ["Choice", "choose"]

_GAIN = 0.01  # a change of one sign must lower the mean square slope by so much
_MOST_FLIPS = 64


@dataclass(frozen=True, eq=False)
class Choice:
    """Signed coefficients, and the function that they belong to.

    Attributes:
        target: What the function's Hermite coefficients are to be, signs included.
        profile: The function.
    """

    target: np.ndarray
    profile: Profile


def choose(
    sizes: np.ndarray,
    natural: np.ndarray,
    amounts: tuple[float, float],
    rule: Quadrature,
) -> Choice:
    """Choose the signs, and write the function with its carriers.

    Args:
        sizes: The sizes of the coefficients.
        natural: Hermite coefficients of an activation that is known to be usable.
        amounts: How much of each carrier there is, both positive.
        rule: Where functions are evaluated.
    """
    inside = rule.inside
    lengths = rule.lengths[inside]
    slopes = rule.slopes[:, inside]
    gram = (slopes * lengths) @ slopes.T
    signed, amounts_of = np.zeros_like(sizes), [0.0, 0.0]
    for parity in (0, 1):
        mine = slice(parity, None, 2)
        carried = rule.rows @ (rule.weights * rule.carriers[parity, 0])
        carried[1 - parity :: 2] = 0.0
        drift = slopes @ (lengths * rule.carriers[parity, 1, inside])
        extra = float(lengths @ rule.carriers[parity, 1, inside] ** 2)
        found = []
        for pattern in (natural, carried):
            for flip in (1.0, -1.0):
                signs = np.where(pattern < 0, -flip, flip)
                signs[parity] = 1.0  # as good as any: the other signs are relative to it
                amount = flip * amounts[parity]
                part = np.zeros_like(sizes)
                part[mine] = (signs * sizes)[mine]
                problem = _Slopes(gram, drift, extra, amount, amount * carried)
                found.append((*_improved(problem, part, parity), amount))
        _, signed[mine], amounts_of[parity] = min(
            ((cost, part[mine], amount) for cost, part, amount in found), key=lambda one: one[0]
        )
    first, second = amounts_of
    carried = rule.rows @ (rule.weights * (np.array([first, second]) @ rule.carriers[:, 0]))
    return Choice(signed, Profile(signed - carried, (first, second)))


@dataclass(frozen=True, eq=False)
class _Slopes:
    """The mean square slope of one parity, a quadratic function of its coefficients.

    Attributes:
        gram: Of the slopes of the polynomials.
        drift: Their products with the slope of the carrier.
        extra: The square of that.
        amount: How much of the carrier there is.
        carried: The coefficients that it carries.
    """

    gram: np.ndarray
    drift: np.ndarray
    extra: float
    amount: float
    carried: np.ndarray

    def cost(self, part: np.ndarray) -> float:
        """The integral of the squared slope."""
        rest = part - self.carried
        linear = 2 * self.amount * (self.drift @ rest)
        return float(rest @ self.gram @ rest + linear + self.amount**2 * self.extra)

    def changes(self, part: np.ndarray) -> np.ndarray:
        """What each change of one sign adds to it."""
        pull = self.gram @ (part - self.carried) + self.amount * self.drift
        changes: np.ndarray = 4 * part * (part * np.diag(self.gram) - pull)
        return changes


def _improved(problem: _Slopes, part: np.ndarray, parity: int) -> tuple[float, np.ndarray]:
    """Change single signs as long as that helps."""
    cost = problem.cost(part)
    for _ in range(_MOST_FLIPS):
        changes = problem.changes(part)
        changes[: parity + 1] = 0.0  # the first sign stays
        best = int(changes.argmin())
        if changes[best] > -_GAIN * cost:
            break
        part = part.copy()
        part[best] = -part[best]
        cost = problem.cost(part)
    return cost, part
