"""The records of runs, and the tables that are made from them."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from experiments.claims import interval, short, signed

__all__ = [
    "EXPERIMENTS_NOT_RUN",
    "RESULTS",
    "TABLES",
    "Row",
    "committed",
    "interval",
    "record",
    "short",
    "signed",
    "summary",
    "table",
]

Row = tuple[str, ...]
Table = Callable[..., Iterator[Row] | Iterator[str]]  # rows after their head, or lines of a list
TABLES: dict[str, Table] = {}

RESULTS = Path(__file__).parents[1] / "results"

# Registered experiments without a file in docs/results, and why.
EXPERIMENTS_NOT_RUN: dict[tuple[str, str], str] = {}


def table(rows: Table) -> Table:
    """Register a table by the name of its function; a decorator."""
    TABLES[rows.__name__] = rows
    return rows


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
