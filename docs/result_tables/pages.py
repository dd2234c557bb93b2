"""Where tables stand in pages."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from result_tables import convergence, ling2024, own, runs

__all__ = ["PAGES", "rendered"]

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))

Rows = Iterable[Sequence[str]]  # the first one is the head
TABLES: dict[str, Callable[..., Rows]] = (
    ling2024.TABLES | convergence.TABLES | own.TABLES | runs.TABLES
)

MARKED = re.compile(r"(<!-- table: (?P<call>[^>]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def rendered(text: str) -> str:
    """A page with its tables written anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{_table(found['call'])}\n\n", text)


def _table(call: str) -> str:
    name, *arguments = call.split()
    head, *rows = TABLES[name](*arguments)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(_line(cells, len(head)) for cells in lines)


def _line(cells: Sequence[str], columns: int) -> str:
    if len(cells) != columns:
        raise ValueError(f"a row must have {columns} cells, got {cells}")
    if all(cell == "---" for cell in cells):
        return "|" + "|".join(cells) + "|"
    return "| " + " | ".join(cells) + " |"
