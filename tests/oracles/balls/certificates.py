"""Rigorous integrals in one dimension, and numbers that are certified by two of them."""

from functools import partial
from itertools import pairwise

from flint import acb, arb, ctx

DIGITS = 20
REL_BITS = 72  # 2^-72 = 2e-22: relative radius demanded of every ball
TINY = arb(10) ** -400


class UncertifiedError(Exception):
    pass


def integrate(f, splits, reach):
    """Rigorous integral over [-reach, reach] of f(middle, x, analytic), split at the floats.

    ``middle`` is the middle of the present interval, from which f finds its piece.
    """
    points = sorted({-reach, reach} | {x for x in splits if -reach < x < reach})
    total = arb(0)
    for lo, hi in pairwise(points):
        part = acb.integral(partial(f, (lo + hi) / 2), arb(lo), arb(hi),
                            rel_tol=arb(2) ** -(ctx.prec * 3 // 4),
                            abs_tol=arb(2) ** -(ctx.prec + 1500))  # fmt: skip
        if not part.is_finite():
            raise UncertifiedError
        total += part.real
    return total


def certified(compute, vanishes=False, start=192):
    """compute(variant, bits) -> ball; raise the precision until it is certified.

    Variants 0 and 1 are different computations of the same number; both balls must
    overlap.  Returns the decimal string.
    """
    bits = start
    while True:
        ctx.prec = bits
        value = compute(0, bits)
        if vanishes and not value.contains(0):
            raise UncertifiedError(f"{value} should vanish")
        if value.abs_upper() < (arb(10) ** -25 if vanishes else TINY):
            return "0"
        if not vanishes and value.rel_accuracy_bits() >= REL_BITS:
            break
        bits *= 2
        if bits > 4000:
            raise UncertifiedError(str(value))
    bits = bits * 3 // 2
    ctx.prec = bits
    again = compute(1, bits)
    if not (again.overlaps(value) and again.rel_accuracy_bits() >= REL_BITS):
        raise UncertifiedError(f"{value} {again}")
    return decimal(value.intersection(again))


def decimal(value):
    return value.mid().str(DIGITS, radius=False)
