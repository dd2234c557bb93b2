"""What the documentation says that commands print is what they print."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from blocks import Printed
from typer.testing import CliRunner

from shoal.app.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BLOCKS = re.findall(r"^```text\n\$ (shoal [^\n]*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def plain(text: str) -> str:
    """Without the blanks that end lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(*block, id=block[0], marks=[pytest.mark.thorough] * ("spectrum" in block[0]))
        for block in BLOCKS
    ],
)
def test_commands_print_what_the_page_says(
    command: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    example = doctest.Example(command, plain(expected))
    checker, found = Printed(), plain(result.output)
    if not checker.check_output(example.want, found, doctest.ELLIPSIS):
        pytest.fail(checker.output_difference(example, found, doctest.ELLIPSIS), pytrace=False)


def test_every_command_is_shown() -> None:
    shown = {command.split()[1] for command, _ in BLOCKS}
    assert shown >= {"analyze", "design", "certify"}
