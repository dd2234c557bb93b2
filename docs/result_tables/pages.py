"""Where tables stand in pages."""

import re
from importlib import import_module
from pathlib import Path

from result_tables.results import TABLES

__all__ = ["PAGES", "rendered"]

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
for module in sorted(Path(__file__).parent.glob("[!_]*.py")):
    if module.stem != "add":  # which is run
        import_module(f"result_tables.{module.stem}")

MARKED = re.compile(r"(<!-- table: (?P<call>[^>]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def rendered(text: str) -> str:
    """A page with its tables written anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{_table(found['call'])}\n\n", text)


def _table(call: str) -> str:
    name, *arguments = call.split()
    head, *rows = TABLES[name.replace("-", "_")](*arguments)
    if isinstance(head, str):  # a list instead of a table
        return "\n".join((head, *rows))
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"a row of {name} must have {len(head)} cells, got {row}")
    first, *others = (f"| {' | '.join(row)} |" for row in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])
