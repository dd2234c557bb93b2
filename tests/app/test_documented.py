"""What the documentation says that commands print is what they print."""

import doctest
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from blocks import Printed
from sklearn import datasets
from typer.testing import CliRunner

from shoal.app.cli import app

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "".join((DOCS / name).read_text() for name in ("cli.md", "tables.md"))
BLOCKS = re.findall(r"^```text\n\$ (shoal [^\n]*)\n(.*?)^```$", TEXT, re.M | re.S)


def plain(text: str) -> str:
    """Without progress, and without the blanks that end lines."""
    lines = [line.rstrip() for line in text.splitlines() if not re.search(r" \(\d+ s\)$", line)]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(*block, id=block[0], marks=[pytest.mark.thorough] * ("analyze" in block[0]))
        for block in BLOCKS
    ],
)
def test_commands_print_what_the_page_says(
    command: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    table = datasets.load_diabetes()
    rows = np.column_stack([table.data, table.target])
    header = ",".join([*table.feature_names, "target"])
    np.savetxt("diabetes.csv", rows, delimiter=",", header=header, comments="", fmt="%.10g")
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    example = doctest.Example(command, plain(expected))
    checker, found = Printed(), plain(result.output)
    if not checker.check_output(example.want, found, doctest.ELLIPSIS):
        pytest.fail(checker.output_difference(example, found, doctest.ELLIPSIS), pytrace=False)


def test_every_command_is_shown() -> None:
    shown = {command.split()[1] for command, _ in BLOCKS}
    assert shown >= {"analyze", "design", "certify"}
