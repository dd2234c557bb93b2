"""The commands and what they have in common."""

from typing import Annotated

import typer

from shoal import __version__
from shoal.cli.command import PanelCommand, commands
from shoal.cli.errors import Commands
from shoal.cli.options import Debug, Verbose

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
    """The theory of deep equilibrium models (DEQs), at work.

    Each command has a --help of its own, with the files it reads and writes, and examples.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _command in commands().values():
    app.command(cls=PanelCommand, short_help=_command.words, epilog=_command.epilog)(_command.run)
