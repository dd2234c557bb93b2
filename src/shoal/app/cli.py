"""The commands, and how they fail: one line on stderr and an exit code."""

import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shoal import AccuracyError, __version__
from shoal.app.analyze import analyze
from shoal.app.certify import certify
from shoal.app.design import design
from shoal.app.diagnose import diagnose
from shoal.app.explore import explore

BAD_INPUT, INTERRUPTED = 2, 130  # 128 + SIGINT, as shells count

# errors that the library raises on purpose; anything else is a bug, with its traceback
_EXPECTED = (
    *(ValueError, TypeError, OSError, ImportError, MemoryError, RuntimeError, AccuracyError),
)


class Commands(TyperGroup):
    """Commands whose errors are one line."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command and exit."""
        shown, warnings.formatwarning = warnings.formatwarning, _warning_line
        try:
            code = super().main(*args, **options | {"standalone_mode": False})
            sys.stdout.flush()  # now, so that a full disk is an error
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except BrokenPipeError:  # the reader has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        except Exception as error:
            usage = getattr(error, "format_message", None)  # of errors in the command line itself
            if usage is None and not isinstance(error, _EXPECTED):
                raise
            if _debug:
                traceback.print_exception(error)
            text = _in_words(error) if usage is None else usage()
            typer.echo(" ".join(f"Error: {text}".split()), err=True)
            code = BAD_INPUT
        finally:
            warnings.formatwarning = shown
        if code == INTERRUPTED:
            typer.echo("Interrupted; no file is half-written.", err=True)
        sys.exit(code if isinstance(code, int) else 0)


def _warning_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning of the library as one line."""
    return " ".join(f"Warning: {message}".split()) + "\n"


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror is not None:
        return ": ".join(str(word) for word in (error.filename, error.strerror) if word)
    return str(error) or type(error).__name__


_debug: list[str] = []  # not empty if tracebacks are wanted

app = typer.Typer(
    name="shoal",
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def shoal(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """The theory of deep equilibrium models (DEQs), at work.

    Each command has a --help of its own, with examples.
    """
    _debug[:] = ["--debug"] if debug else []
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _command in (analyze, explore, design, diagnose, certify):
    app.command()(_command)
