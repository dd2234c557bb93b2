"""The first time at which a falling curve is below a level."""

import math
from collections.abc import Callable

import scipy  # whose parts are imported where they are first used

_ACCURACY = 1e-12  # relative


def first_time(curve: Callable[[float], float], level: float, unit: float) -> float:
    """The time at which a falling curve, positive where it is above ``level``, meets it.

    Args:
        curve: A continuous function of time.
        level: Positive, and below ``curve(0)`` and above ``curve(inf)``, or an end is returned.
        unit: A time in which the curve changes.

    Example:
        >>> round(first_time(lambda t: math.exp(-t), 0.5, 1.0), 9)
        0.693147181
    """
    before, after = _bracket(curve, level, unit)
    if before == after:
        return after
    while before == 0.0:  # the logarithm of a time is what is searched for
        half = after / 2
        before, after = (half, after) if curve(half) > level else (0.0, half)

    def excess(logarithm: float) -> float:
        return math.log(max(curve(math.exp(logarithm)), 1e-320) / level)

    low, high = math.log(before), math.log(after)
    if excess(low) <= 0:
        return before
    if excess(high) >= 0:
        return after
    return math.exp(scipy.optimize.brentq(excess, low, high, xtol=_ACCURACY, rtol=_ACCURACY))


def first_step(curve: Callable[[float], float], level: float) -> float:
    """The smallest whole number at which a falling curve is at most ``level``, or infinity.

    Example:
        >>> first_step(lambda k: 0.5**k, 0.3)
        2.0
    """
    before, after = _bracket(curve, level, 1.0)
    while after - before > 1:
        middle = float((before + after) // 2)
        if middle in (before, after):  # beyond 2**53 there are no more numbers in between
            break
        before, after = (middle, after) if curve(middle) > level else (before, middle)
    return after


def _bracket(curve: Callable[[float], float], level: float, unit: float) -> tuple[float, float]:
    """A time before and one after the curve meets the level; twice an end if it never does."""
    if curve(0.0) <= level:
        return 0.0, 0.0
    if not curve(math.inf) < level:
        return math.inf, math.inf
    before, after = 0.0, unit
    while math.isfinite(after) and curve(after) > level:
        before, after = after, 2 * after
    return before, after
