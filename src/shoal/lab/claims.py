"""What a paper claims, and what the numbers of a run say to it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Criterion(NamedTuple):
    """A number that must lie in a range for a claim to hold.

    Attributes:
        asked: What is asked, threshold included, such as ``"slope at most −0.5"``.
        value: The number that was measured.
        least: The least value that will do.
        most: The largest value that will do.
    """

    asked: str
    value: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def holds(self) -> bool:
        """Whether the number is in its range; NaN is in none."""
        return self.least <= self.value <= self.most


@dataclass(frozen=True)
class Claim:
    """A claim of a paper beside what a run of it gave.

    Attributes:
        statement: What is claimed.
        printed: What the paper prints, in words.
        ours: What was found, in words.
        section: The section of the page on reproductions that has more.
        criteria: What must hold.
        corrected: Whether a printed formula or reason had to be replaced.
        remark: What the verdict leaves unsaid.
    """

    statement: str
    printed: str
    ours: str
    section: str
    criteria: tuple[Criterion, ...]
    corrected: bool = False
    remark: str = ""

    @property
    def verdict(self) -> str:
        """``reproduced`` if all criteria hold, ``in part`` if some do, else ``not reproduced``.

        What is reproduced with another formula, or for another reason, than the printed one is
        ``reproduced with correction``.

        Example:
            >>> asked = (Criterion("at most 1", 0.7, most=1), Criterion("at least 2", 0.7, least=2))
            >>> Claim("", "", "", "", asked).verdict, Claim("", "", "", "", asked[:1]).verdict
            ('in part', 'reproduced')
        """
        held = [criterion.holds for criterion in self.criteria]
        if all(held):
            return "reproduced with correction" if self.corrected else "reproduced"
        return "in part" if any(held) else "not reproduced"


def each(
    asked: str, values: Mapping[str, float], least: float = -math.inf, most: float = math.inf
) -> tuple[Criterion, ...]:
    """A criterion for each of several numbers, whose name stands for ``{}`` in ``asked``."""
    return tuple(
        Criterion(asked.format(name), value, least, most) for name, value in values.items()
    )


def near_printed(found: Mapping[str, float], printed: Mapping[str, float]) -> tuple[Criterion, ...]:
    """Two criteria for each value: it is the paper's within 10%, and within a factor of two."""
    ranges = {"10%": (0.9, 1.1), "a factor of 2": (0.5, 2.0)}
    return tuple(
        Criterion(f"{name} within {words} of {value:g}", found[name], low * value, high * value)
        for name, value in printed.items()
        for words, (low, high) in ranges.items()
    )
