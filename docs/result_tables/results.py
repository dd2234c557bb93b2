"""What was run, and what the words and numbers of it look like in a page."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "EXPERIMENTS_NOT_RUN",
    "RESULTS",
    "Row",
    "Tables",
    "committed",
    "interval",
    "record",
    "short",
    "signed",
    "summary",
]

Row = tuple[str, ...]
Tables = Mapping[str, Callable[..., Iterator[Row]]]  # by name; the first row is the head

RESULTS = Path(__file__).parents[1] / "results"

# Registered experiments without a file in docs/results, and why.
EXPERIMENTS_NOT_RUN: dict[tuple[str, str], str] = {}


def committed() -> dict[tuple[str, str], Path]:
    """The files of results, by the names of their experiments."""
    found = {}
    for file in sorted(RESULTS.glob("*.json")):
        paper, _, figure = file.stem.partition("-")
        found[paper, figure] = file
    return found


@cache
def record(name: str) -> dict[str, Any]:
    """The whole record of a run, by the name of its file."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def summary(name: str) -> dict[str, float]:
    """The numbers of a run."""
    found: dict[str, float] = record(name)["summary"]
    return found


def signed(value: float, decimals: int = 2) -> str:
    """A number with a true minus sign.

    >>> signed(-0.5)
    '−0.50'
    """
    return f"{value:.{decimals}f}".replace("-", "−")


def short(value: float, digits: int = 2) -> str:
    """A positive number with so many digits, and without an exponent where that is short.

    >>> short(0.0312), short(2.5e-5), short(4.0e11), short(287.6)
    ('0.031', '2.5e-5', '4.0e11', '288')
    """
    exponent = math.floor(math.log10(value)) if value else 0
    if -3 <= exponent < 6:
        return f"{value:,.{max(digits - 1 - exponent, 0)}f}" if value else "0"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(power)}"


def interval(found: dict[str, float], key: str, decimals: int = 2) -> str:
    """A slope with the ends of its 95% interval."""
    middle, low, high = (signed(found[key + end], decimals) for end in ("", "_low", "_high"))
    return f"{middle} [{low}, {high}]"
