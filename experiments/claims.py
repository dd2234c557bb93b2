"""Claims of papers, their verdicts from the numbers of a run, and formats of numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Criterion(NamedTuple):
    """A number that must lie in a range for a claim to hold."""

    asked: str  # threshold included, such as "slope at most −0.5"
    value: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def holds(self) -> bool:
        """Whether the number is in its range; NaN is in none."""
        return self.least <= self.value <= self.most


@dataclass(frozen=True)
class Claim:
    """A claim of a paper beside the result of a run."""

    statement: str
    printed: str  # the paper's numbers, in words
    ours: str  # the numbers of the run, in words
    section: str  # of the page on reproductions, that has more
    criteria: tuple[Criterion, ...]
    corrected: bool = False  # whether a printed formula or reason had to be replaced
    remark: str = ""  # beside the verdict

    @property
    def verdict(self) -> str:
        """``reproduced`` if all criteria hold, ``in part`` if some do, else ``not reproduced``."""
        results = [criterion.holds for criterion in self.criteria]
        if all(results):
            return "reproduced with correction" if self.corrected else "reproduced"
        return "in part" if any(results) else "not reproduced"


def criteria_for(
    asked: str, values: Mapping[str, float], least: float = -math.inf, most: float = math.inf
) -> tuple[Criterion, ...]:
    """A criterion for each number; ``{}`` in ``asked`` stands for its name."""
    return tuple(Criterion(asked.format(name), v, least, most) for name, v in values.items())


def signed(value: float, decimals: int = 2) -> str:
    """A number with a true minus sign."""
    return f"{value:.{decimals}f}".replace("-", "−")


def short(value: float, digits: int = 2) -> str:
    """A number with so many digits, without an exponent where it is short enough.

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


def interval(summary: Mapping[str, float], key: str, decimals: int = 2) -> str:
    """A slope with the ends of its 95% interval."""
    middle, low, high = (signed(summary[key + end], decimals) for end in ("", "_low", "_high"))
    return f"{middle} [{low}, {high}]"
