"""Numbers as they stand in tables and pages."""

import math
from collections.abc import Mapping


def signed(value: float, decimals: int = 2) -> str:
    """A number with a true minus sign.

    >>> signed(-0.5)
    '−0.50'
    """
    return f"{value:.{decimals}f}".replace("-", "−")


def short(value: float, digits: int = 2) -> str:
    """A number with so many digits, and without an exponent where that is short.

    >>> short(0.0312), short(2.5e-5), short(4.0e11), short(287.6), short(-0.5)
    ('0.031', '2.5e-5', '4.0e11', '288', '−0.50')
    """
    if not math.isfinite(value):
        return str(value).replace("-", "−")
    exponent = math.floor(math.log10(abs(value))) if value else 0
    if -3 <= exponent < 6:
        text = f"{value:,.{max(digits - 1 - exponent, 0)}f}" if value else "0"
        return text.replace("-", "−")
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa.replace('-', '−')}e{int(power)}"


def interval(found: Mapping[str, float], key: str, decimals: int = 2) -> str:
    """A slope with the ends of its 95% interval."""
    middle, low, high = (signed(found[key + end], decimals) for end in ("", "_low", "_high"))
    return f"{middle} [{low}, {high}]"
