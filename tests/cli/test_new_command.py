"""A new command is one file: nothing else names it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import shoal.cli
from shoal.cli import command as registry
from shoal.cli.errors import Commands

FILE = '''
"""``shoal count``: how many letters a word has."""

import typer

from shoal.cli.command import Command, Example


@Command(
    "How long a word is.",
    place=9,
    writes="nothing",
    exits="2 bad input",
    examples=(Example("seven letters", "shoal count dolphin"),),
    panels={"Word": "twice"},
)
def count(word: str, /, twice: bool = False, n: int = 1) -> None:
    """Count the letters of a word.

    Options:
        word (WORD): What is counted,
            letter by letter.
        twice: Count again.
    """
    if not word.isalpha():
        raise ValueError(f"WORD must be letters, got {word!r}")
    typer.echo(len(word) * (1 + twice))
'''


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[typer.Typer]:
    """The command line with one more file in shoal/cli."""
    (tmp_path / "count.py").write_text(FILE)
    monkeypatch.setattr(shoal.cli, "__path__", [*shoal.cli.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_KNOWN", dict(registry._KNOWN))
    known = sys.modules.pop("shoal.cli.app", None)
    import shoal.cli.app as made

    yield made.app
    del sys.modules["shoal.cli.app"], sys.modules["shoal.cli.count"]
    if known is not None:
        sys.modules["shoal.cli.app"] = known


def test_it_is_listed_helped_run_and_refused(app: typer.Typer) -> None:
    run = CliRunner().invoke
    assert "count      How long a word is." in run(app, ["--help"]).output
    told = run(app, ["count", "--help"]).output
    for part in (
        "  WORD <str>  What is counted, letter by letter.",
        "\nWord:\n  --twice  Count again.\n",
        "-n, --n <int>",
        "\nOutput:\n  --json",
        "0 done; 2 bad input; 130 Ctrl-C",
        "shoal count dolphin",
    ):
        assert part in told
    assert run(app, ["count", "dolphin", "--twice"]).output == "14\n"
    bad = run(app, ["count", "7"])
    assert (bad.exit_code, bad.output) == (2, "Error: WORD must be letters, got '7'\n")
    assert isinstance(typer.main.get_command(app), Commands)
