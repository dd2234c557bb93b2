"""Run the suites that others wrote, and write the table of docs/peers.md anew.

``python tests/peers`` needs an interpreter that has all of the packages: see ``make peers``.
"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "peers.md"
TABLE = re.compile(r"(<!-- peers -->\n).*?(<!-- end of peers -->)", re.DOTALL)


class Results:
    """What came of the tests of each suite, a plugin of pytest."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.excuses: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a result once, and its excuse if it has one."""
        noted = dict(report.user_properties)
        if "suite" not in noted or (report.when != "call" and not report.failed):
            return
        suite, reason = noted["suite"], getattr(report, "wasxfail", None) or noted.get("excused")
        outcome = "excused" if reason and not report.failed else report.outcome
        self.counts[suite][outcome] += 1
        if outcome == "excused":
            self.excuses[suite][str(reason)] += 1

    def table(self) -> str:
        """In Markdown; skipped is what a suite itself leaves out."""
        lines = ["| suite | version | run | passed | excused | why |", "|---|---|--:|--:|--:|---|"]
        for suite, count in sorted(self.counts.items()):
            run = count["passed"] + count["excused"] + count["failed"]
            why = "<br>".join(f"{n}: {text}" for text, n in self.excuses[suite].most_common())
            lines.append(f"| {suite} | {run} | {count['passed']} | {count['excused']} | {why} |")
        return "\n".join(lines) + "\n"


def main(options: list[str]) -> int:
    """Run the tests, print the table, and save it if all is well."""
    results = Results()
    folder = str(Path(__file__).parent)
    code = pytest.main(["-q", "-m", "", folder, *options], plugins=[results])
    sys.stdout.write("\n" + results.table())
    if code == 0:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(TABLE.sub(rf"\g<1>{results.table()}\g<2>", page), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
