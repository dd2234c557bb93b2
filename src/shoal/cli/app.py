"""The commands and what they have in common."""

from typing import Annotated

import typer

from shoal import __version__
from shoal.cli.analyze import analyze
from shoal.cli.bench import bench
from shoal.cli.certify import certify
from shoal.cli.design import design
from shoal.cli.errors import Commands
from shoal.cli.options import Debug, Verbose
from shoal.cli.reproduce import reproduce

__all__ = ["app"]

app = typer.Typer(
    name="shoal",
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
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
    verbose: Verbose = 0,  # noqa: ARG001
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """The theory of deep equilibrium models, at work."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(analyze)
app.command()(design)
app.command()(certify)
app.command()(reproduce)
app.command()(bench)
