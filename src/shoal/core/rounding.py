"""Floats that are not below, or not above, the numbers that they stand for."""

import math
from fractions import Fraction

UNIT = 2.0**-53  # u of float64
ROUND_UP = 1 + 64 * UNIT  # more than a few operations with positive numbers lose


def nearest(number: Fraction | float) -> float:
    """The number as a float, infinite beyond the range of floats."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def up(number: Fraction | float) -> float:
    """The number as a float that is not smaller; zero stays zero."""
    return math.nextafter(nearest(number), math.inf) if number else 0.0


def down(number: Fraction | float) -> float:
    """The number as a float that is not larger."""
    return math.nextafter(nearest(number), -math.inf)
