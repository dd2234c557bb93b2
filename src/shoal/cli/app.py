"""The commands and what they have in common."""

from collections.abc import Callable
from typing import Annotated

import typer

from shoal import __version__
from shoal.cli.analyze import analyze
from shoal.cli.bench import bench
from shoal.cli.certify import certify
from shoal.cli.design import design
from shoal.cli.diagnose import diagnose
from shoal.cli.errors import Commands
from shoal.cli.examples import epilog
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
    """The theory of deep equilibrium models (DEQs), at work.

    Each command has a --help of its own, with the files it reads and writes, and examples.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_COMMANDS: dict[Callable[..., None], str] = {
    analyze: "A DEQ on data: kernels, spectrum, designs, training, certificate.",
    design: "The shallow network that has the kernel of a DEQ.",
    diagnose: "Does this trained model settle, and do I need its loop?",
    certify: "Does gradient descent train this network, and how fast?",
    reproduce: "List and run the papers' figures, tables and theorems.",
    bench: "How long shoal takes, as ratios to what cannot be avoided.",
}
for _command, _words in _COMMANDS.items():
    app.command(short_help=_words, epilog=epilog(_command.__name__))(_command)
