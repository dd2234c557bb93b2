"""The command line, ``shoal``: analyze, design, diagnose, certify, reproduce, bench."""

import io
import sys
from importlib.util import find_spec

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say what it needs."""
    missing = [package for package in ("typer", "rich") if find_spec(package) is None]
    if missing:
        needs = " and ".join(missing)
        sys.exit(f"Error: the command line needs {needs}, not installed: pip install 'shoal[cli]'")
    try:
        from shoal.cli.app import app
    except KeyboardInterrupt:  # while the rest is imported
        sys.stderr.write("Interrupted\n")
        sys.exit(130)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without σ shows ?, not an error
            stream.reconfigure(errors="replace")
    app(prog_name="shoal")
