r"""Signs of Hermite coefficients that make a usable activation.

A kernel determines the squares of the coefficients only. All signs positive make a function that
grows like a high power; those of $|x|$ and $x \log|x|$, or of an activation that is known to be
usable, make one that does not. Of these patterns, the one whose mean square slope between the ends
is least is chosen, *without* the Gaussian weight, under which all signs are alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shoal.designs.profile import Profile, Quadrature

__all__ = ["Choice", "choose"]

_ROUNDING = 1e-12  # a natural coefficient that is relatively smaller has no sign


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
    sizes: np.ndarray, natural: np.ndarray, amounts: tuple[float, float], rule: Quadrature
) -> Choice:
    """Choose the signs, and write the function with its carriers.

    Even and odd functions have orthogonal slopes, so that each parity is chosen by itself.

    Args:
        sizes: The sizes of the coefficients.
        natural: Hermite coefficients of an activation that is known to be usable.
        amounts: How much of each carrier there is, in size.
        rule: Where functions are evaluated.
    """
    target, coefficients = np.zeros_like(sizes), np.zeros_like(sizes)
    signed = [0.0, 0.0]
    for parity, amount in enumerate(amounts):
        mine = slice(parity, None, 2)
        carried = rule.rows[mine] @ (rule.weights * rule.carriers[parity, 0])
        least = np.inf
        for signs, direction in _patterns(natural[mine], carried):
            wanted = signs * sizes[mine]
            rest = wanted - direction * amount * carried
            slope = rest @ rule.slopes[mine] + direction * amount * rule.carriers[parity, 1]
            cost = float((slope**2 * rule.lengths)[rule.inside].sum())
            if cost < least:
                least, target[mine], coefficients[mine] = cost, wanted, rest
                signed[parity] = direction * amount
    return Choice(target, Profile(coefficients, (signed[0], signed[1])))


def _patterns(natural: np.ndarray, carried: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """Signs, and that of the carrier; the first is positive, as good as any."""
    known = np.abs(natural) > _ROUNDING * np.abs(natural).max()
    for pattern in (np.where(known, natural, carried), carried):
        for direction in (1.0, -1.0):
            signs = np.where(pattern < 0, -direction, direction)
            signs[0] = 1.0
            yield signs, direction
