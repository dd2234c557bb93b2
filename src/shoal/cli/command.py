"""What makes a function a command: a decorator beside it, with all that ``--help`` says.

The signature says what is typed: what comes before ``/`` are arguments, all else are options. The
docstring says what ``--help`` says of each, below ``Options:``, as in ``model (FILE): The model.``;
of options that commands share, `SHARED` says it.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from inspect import Parameter
from pkgutil import iter_modules
from typing import Annotated, Any, NamedTuple, TypeVar, get_origin

import typer
from typer.core import TyperCommand

from shoal.cli.logs import state
from shoal.cli.options import SHARED, Debug, Json, Verbose, flag
from shoal.core.processes import alone, first_launched

_PACKAGE = "shoal.cli"
_DATA = """\
  digits                 scikit-learn's handwritten digits, 1797 × 64
  mnist, fashion-mnist, cifar-10, svhn
                         their official files, below the folder that the
                         environment variable SHOAL_DATA names
  FILE.npy               a matrix (n, p) of numbers, or images;
                         --label FILE.npy for labels
  FILE.npz               the array X (or x, features), and y (or labels)
  FILE.csv, FILE.csv.gz  numbers, a row for each sample, perhaps a header;
                         --label COLUMN for labels
  Labels that are integers, names or truth values are classes, real numbers
  are targets."""

# Under which heading of --help the options stand that commands share; others are "Options".
_PANELS = {
    "Computing": "dtype device threads jobs",
    "Output": "output json verbose debug help",
}

F = TypeVar("F", bound=Callable[..., None])


class Example(NamedTuple):
    """A command, and what it is for."""

    words: str
    command: str


@dataclass(eq=False)
class Command:
    """A command, a decorator of what runs: in whatever file of ``shoal.cli`` that stands.

    Attributes:
        words: What it does, in the list of commands.
        place: Where it stands in that list.
        writes: The files in the folder of ``--output``.
        exits: Exit codes besides 0 and 130, with their meanings.
        examples: Commands that run.
        takes_data: Whether it takes data of the user's.
        panels: Options by the headings under which they stand in ``--help``, as in
            ``{"Network": "activation width"}``.
        shared: Whether processes that were launched together share the work; otherwise the first
            does it alone, and the others end.
        run: The function; its name is that of the command, its docstring the text of ``--help``.
    """

    words: str
    _: KW_ONLY
    place: int
    writes: str
    examples: tuple[Example, ...]
    exits: str = "1 failed; 2 bad input"
    takes_data: bool = False
    panels: Mapping[str, str] = field(default_factory=dict)
    shared: bool = False
    run: Callable[..., None] = field(init=False)

    def __call__(self, run: F) -> F:
        """Make a function this command."""
        self.run = _typed(run)
        _KNOWN[run.__name__] = self
        return run

    @property
    def epilog(self) -> str:
        """The end of ``--help``: files, exit codes and examples."""
        parts = [f"Data:\n{_DATA}"] if self.takes_data else []
        parts.append(f"Into the folder of --output go:\n{_filled(self.writes)}")
        parts.append(f"Exit codes:\n{_filled(f'0 done; {self.exits}; 130 Ctrl-C')}")
        examples = "\n".join(f"  {one.command}\n      {one.words}" for one in self.examples)
        parts.append(f"Examples:\n{examples}")
        return "\n\n".join(f"\b\n{part}" for part in parts)  # \b: as it stands

    def panel(self, parameter: str) -> str:
        """The heading under which an option stands."""
        for heading, names in (*self.panels.items(), *_PANELS.items()):
            if parameter in names.split():
                return heading
        return "Options"


def _filled(text: str) -> str:
    """Text in lines for 80 columns, two of which ``--help`` indents."""
    return textwrap.fill(
        text, 76, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


_KNOWN: dict[str, Command] = {}
_ENTRY = re.compile(r"^    (\w+)(?: \((.*?)\))?: (.*(?:\n        .*)*)", re.MULTILINE)


def _typed(run: Callable[..., None]) -> Callable[..., None]:
    """A function for typer, with what ``--help`` says of its parameters, and of all commands."""
    text, _, entries = (inspect.getdoc(run) or "").partition("\n\nOptions:\n")
    told = {name: (metavar, words) for name, metavar, words in _ENTRY.findall(entries)}
    signature = inspect.signature(run)
    given = [_told(one, *told.get(one.name, ("", ""))) for one in signature.parameters.values()]
    common = (("json", False, Json), ("verbose", 0, Verbose), ("debug", False, Debug))
    for name, default, kind in common:
        given.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))

    def typed(**values: Any) -> None:
        state.json = values["json"]
        bound = signature.bind_partial()
        bound.arguments |= {name: values[name] for name in signature.parameters}
        run(*bound.args, **bound.kwargs)

    typed.__name__, typed.__doc__ = run.__name__, text
    typed.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    typed.__annotations__ = {one.name: one.annotation for one in given}
    return typed


def _told(parameter: Parameter, metavar: str, words: str) -> Parameter:
    """A parameter with what typer is told of it, unless it says so itself."""
    name, kind = parameter.name, parameter.annotation
    if get_origin(kind) is Annotated:
        return parameter.replace(kind=Parameter.KEYWORD_ONLY)
    options = dict(SHARED.get(name, {}))
    options |= {"metavar": metavar} if metavar else {}
    options |= {"help": " ".join(words.split())} if words else {}
    flags = ["--n", "-n"] if name == "n" else []
    flags += [flag(name)] if parameter.default is False else []  # without a --no-...
    positional = parameter.kind is Parameter.POSITIONAL_ONLY
    info = typer.Argument(**options) if positional else typer.Option(*flags, **options)
    return parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info])


def commands() -> dict[str, Command]:
    """All commands by name, in the order in which they are listed."""
    for module in iter_modules(import_module(_PACKAGE).__path__, f"{_PACKAGE}."):
        if module.name != f"{_PACKAGE}.app":  # which asks
            import_module(module.name)
    return dict(sorted(_KNOWN.items(), key=lambda item: (item[1].place, item[0])))


class PanelCommand(TyperCommand):
    """A command whose options stand under headings in ``--help``."""

    def invoke(self, ctx: Any) -> Any:
        """Run it, of several processes in all or in the first."""
        state.typed = {
            name: value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name).name == "COMMANDLINE"
        }
        if _KNOWN[str(self.name)].shared:
            return super().invoke(ctx)
        if not first_launched():
            return None
        with alone():
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options heading by heading; what is for the output comes last."""
        found: dict[str, list[tuple[str, str]]] = {}
        told = _KNOWN[str(self.name)]
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            argument = parameter.param_type_name == "argument"
            heading = "Arguments" if argument else told.panel(str(parameter.name))
            found.setdefault(heading, []).append(row)
        order = ["Arguments", *told.panels, "Options", *_PANELS]
        for heading in order:
            if heading in found:
                with formatter.section(heading):
                    formatter.write_dl(found[heading])
