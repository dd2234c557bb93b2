"""The reference: a page for each public package, made of its docstrings."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import shoal

HIDDEN = {"app"}  # their interface is the command line
PACKAGES = sorted({module.name for module in iter_modules(shoal.__path__) if module.ispkg} - HIDDEN)

INDEX = """# Reference

Names without a package are those of `shoal` itself.

| package | holds | names |
|---|---|---|
"""


def read_reference(_: Sphinx, docname: str, source: list[str]) -> None:
    """Turn the source of a package into the page about it, and that of shoal into an index."""
    if docname.startswith("reference/"):
        name = docname.removeprefix("reference/")
        source[0] = index() if name == "index" else page_of(name)


def public_names(package: str) -> list[str]:
    """The public names of a package: functions first, then classes."""
    names = import_module(f"shoal.{package}").__all__
    return sorted(names, key=lambda name: (name[0].isupper(), name))


def is_hidden(thing: object, name: str) -> bool:
    """Whether something is of shoal, but not among the public names of its package."""
    origin = getattr(thing, "__module__", "").split(".")
    return origin[0] == "shoal" and name not in import_module(".".join(origin[:2])).__all__


def place(module: str, name: str) -> str:
    """Where a public name of a module is documented: in the package that defines it, if public."""
    thing = getattr(import_module(module), name)
    origin = getattr(thing, "__module__", module)
    return f"{module if is_hidden(thing, name) else '.'.join(origin.split('.')[:2])}.{name}"


def index() -> str:
    """The page of all packages and their names, in Markdown."""
    rows = []
    top = {name: place("shoal", name) for name in shoal.__all__}
    for package in PACKAGES:
        module = import_module(f"shoal.{package}")
        links = []
        for name in public_names(package):
            home = place(module.__name__, name)
            shown = name if top.get(name) == home else f"{package}.{name}"
            links.append(f"{{py:obj}}`{shown} <{home}>`")
        about = " ".join((module.__doc__ or "").split("\n\n")[0].split())
        rows.append(f"| [`{package}`]({package}.py) | {about} | {', '.join(links)} |\n")
    entries = "\n".join(f"{package} <{package}>" for package in PACKAGES)
    return f"{INDEX}{''.join(rows)}\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def page_of(package: str) -> str:
    """The page of one package, in Markdown."""
    module = import_module(root := f"shoal.{package}")
    blocks = [f"# {root}\n\n{anchor(root)}", directive("automodule", root)]
    for name in public_names(package):
        thing, path = getattr(module, name), f"{root}.{name}"
        if (home := place(root, name)) != path:
            anchors = "".join(anchor(f"{path}.{member}") for member in vars(thing))
            blocks.append(f"{anchor(path)}{anchors}`{path}` is {{py:obj}}`{home}`.")
            continue
        if getattr(thing, "__module__", None) == path:  # how a function of that module was linked
            blocks.append(anchor(f"{path}.{name}"))
        if isinstance(thing, type):  # with what it has from bases that have no entry of their own
            ends = [base.__name__ for base in thing.mro() if not is_hidden(base, base.__name__)]
            options = f"\n   :members:\n   :inherited-members: {','.join(ends)}"
            blocks.append(directive("autoclass", path, options))
        elif callable(thing):
            blocks.append(directive("autofunction", path))
        else:
            blocks.append(directive("py:data", name))  # of the module above
    return "\n\n".join(blocks) + "\n"


def anchor(name: str) -> str:
    """Where a link to a name leads."""
    return f'<span id="{name}"></span>'


def directive(kind: str, name: str, options: str = "") -> str:
    """A block that Sphinx fills with docstrings."""
    return f"```{{eval-rst}}\n.. {kind}:: {name}{options}\n```"


def find_at_top(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.Node | None:
    """Lead from ``shoal.NAME`` to the package that NAME is of."""
    name, _, member = node["reftarget"].removeprefix("shoal.").partition(".")
    if name not in shoal.__all__:
        return None
    target = ".".join(filter(None, [place("shoal", name), member]))
    python, document = env.domains["py"], node["refdoc"]
    return python.resolve_xref(env, document, app.builder, node["reftype"], target, node, shown)


def skip_named_tuple(*event: Any) -> bool | None:
    """Skip what Python says of the fields of a named tuple: its class documents them."""
    about = getattr(event[3], "__doc__", None) or ""
    return about.startswith(("Alias for field number", "Return a nicely formatted")) or None
