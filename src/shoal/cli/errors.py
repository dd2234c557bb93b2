"""How the command line fails: one line on stderr and an exit code; never a half-told story."""

import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from shoal import AccuracyError
from shoal.cli.logs import state
from shoal.core.files import printable
from shoal.core.interrupts import loaded
from shoal.core.processes import first_launched, launched, told

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # 128 + SIGINT, as shells count

_logger = logging.getLogger(__name__)

# What the library says to users; anything else is a bug, and is called one.
_INPUT = (ValueError, TypeError)
_EXPECTED = (*_INPUT, RuntimeError, AccuracyError, OSError, ImportError, MemoryError)
_PATIENCE = 2.0  # seconds in which the first of several processes says what all have to say
_NO_MEMORY = re.compile("can't allocate memory|out of memory|Unable to allocate", re.IGNORECASE)


class Commands(TyperGroup):
    """Commands whose errors are one line, unless ``--debug`` asks for the traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C where the command has nothing to say of it is one line too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            note("Interrupted; no file is half-written. Run the command again; it starts over.")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            state.options = _options(self.get_command(ctx, ctx.invoked_subcommand or ""))

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run a command and exit."""
        state.reset()
        options["standalone_mode"] = False
        try:
            loaded(once=launched())
            _check_text(sys.argv[1:] if args is None else args)
            code = super().main(args, *rest, **options)
            sys.stdout.flush()  # now, while a full disk can still be told of
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except BrokenPipeError:  # who reads has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = FAILED
        except Exception as error:
            code = fail(error)
        sys.exit(code if isinstance(code, int) else 0)


def _check_text(words: Sequence[str]) -> None:
    """Check that what was typed can be shown and written; bytes that are no text cannot."""
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise ValueError(f"all arguments must be text, got {word!r}")


def _options(command: Any) -> dict[str, str]:
    """What a command calls the arguments of the library that it has options for."""
    found: dict[str, str] = {}
    for parameter in getattr(command, "params", ()):
        shown = parameter.metavar if not parameter.opts[0].startswith("-") else None
        shown = shown or next(o for o in parameter.opts if o.startswith("--"))
        found |= {name: shown for name in (parameter.name, parameter.metavar) if name}
    return found


def fail(error: Exception) -> int:
    """Say what went wrong; the exit code."""
    if state.debug:
        _logger.error("the traceback", exc_info=error)
    usage = getattr(error, "format_message", None)  # of errors in the command line itself
    if usage is not None:
        context = getattr(error, "ctx", None)
        hint = "" if context is None else f"\nTry '{context.command_path} --help'."
        _say(f"Error: {_one_line(usage())}{_came(error)}{hint}", error)
        return int(getattr(error, "exit_code", 2))
    expected = isinstance(error, _EXPECTED)
    what = _in_words(error) if expected else f"a bug: {type(error).__name__}: {error}"
    hint = "" if expected or state.debug else " (--debug shows where)"
    where = re.search(r"in process [1-9]\d* of \d+", told(error))
    other = f" ({where[0]})" if where else ""
    _say(f"Error: {what or type(error).__name__}{other}{hint}", error)
    return BAD_INPUT if isinstance(error, _INPUT) else FAILED


def _say(text: str, error: Exception) -> None:
    """Write of an error, in the first process that has it.

    Who launched them ends all as soon as one has ended, so that the others wait for the first one.
    """
    if first_launched():
        note(text)
        return
    time.sleep(_PATIENCE)
    if not told(error):
        typer.echo(printable(f"Process {os.environ['RANK']}: {text}"), err=True)


def _in_words(error: Exception) -> str:
    """What an error says, in the words of the command line."""
    text = _one_line(str(error))
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        size = re.search(r"allocate ([\d.]+ ?\w+)", text)
        return (
            f"not enough memory for {size[1] if size else 'this'}; take fewer samples or less width"
        )
    if isinstance(error, OSError) and error.strerror is not None:
        return ": ".join(str(word) for word in (error.filename, error.strerror) if word)
    name, _, rest = text.partition(" ")
    return f"{state.options.get(name, name)} {rest}" if isinstance(error, _INPUT) else text


def _came(error: Exception) -> str:
    """What was given for an option, where the message of an error does not show it."""
    details = getattr(error.__cause__, "errors", None)
    value = details()[0].get("input") if callable(details) else None
    return "" if value is None or repr(value) in str(error) else f", got {value!r}"


def note(text: str) -> None:
    """A line on stderr, of which several processes have one to say."""
    if first_launched():
        typer.echo(printable(text), err=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())
