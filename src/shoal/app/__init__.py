"""The command line, ``shoal``: analyze, diagnose, design, certify, explore."""

import sys
from importlib.util import find_spec

__all__ = ["main"]


def main() -> None:
    """Run the command line, or name the packages that it needs."""
    missing = [package for package in ("typer", "rich") if find_spec(package) is None]
    if missing:
        needs = " and ".join(missing)
        sys.exit(
            f"Error: the command line needs {needs}, not installed: pip install 'shoal-deq[cli]'"
        )
    from shoal.app.cli import app

    app(prog_name="shoal")
