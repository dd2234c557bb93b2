"""How the command line fails: one line on stderr and an exit code; never a half-told story."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from shoal import AccuracyError
from shoal.cli.logs import state

__all__ = ["FAILED", "INTERRUPTED", "Commands", "fail", "note"]

FAILED, INTERRUPTED = 1, 130  # 128 + SIGINT, as shells count

_logger = logging.getLogger(__name__)

# What the library says to users; anything else is a bug, and is called one.
_EXPECTED = (ValueError, TypeError, RuntimeError, AccuracyError, OSError, ImportError)


class Commands(TyperGroup):
    """Commands whose errors are one line, unless ``--debug`` asks for the traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C where the command has nothing to say of it is one line too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            note("Interrupted; no file is half-written. Run the command again; it starts over.")
            raise typer.Exit(INTERRUPTED) from None

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run a command and exit."""
        state.reset()
        options["standalone_mode"] = False
        try:
            code = super().main(args, *rest, **options)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except typer.Abort:
            code = INTERRUPTED
        except Exception as error:
            code = fail(error)
        sys.exit(code if isinstance(code, int) else 0)


def fail(error: Exception) -> int:
    """Say what went wrong; the exit code."""
    if state.debug:
        _logger.error("the traceback", exc_info=error)
    usage = getattr(error, "format_message", None)  # of errors in the command line itself
    if usage is not None:
        note(f"Error: {_one_line(usage())}")
        context = getattr(error, "ctx", None)
        if context is not None:
            note(f"Try '{context.command_path} --help'.")
        return int(getattr(error, "exit_code", 2))
    expected = isinstance(error, _EXPECTED)
    what = _one_line(str(error)) if expected else f"a bug: {type(error).__name__}: {error}"
    hint = "" if expected or state.debug else " (--debug shows where)"
    note(f"Error: {what or type(error).__name__}{hint}")
    return FAILED


def note(text: str) -> None:
    """A line on stderr."""
    typer.echo(text, err=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())
