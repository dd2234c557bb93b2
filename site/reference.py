"""The reference: a page for each public package, made of its docstrings."""

import ast
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[1] / "src" / "shoal"

INDEX = """# Reference

Names without a package are those of `shoal` itself.

| package | holds | names |
|---|---|---|
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add reference/PACKAGE.md for each public package, and reference/index.md with all names."""
    top = imports(SOURCE / "__init__.py")
    rows = []
    for path in sorted(SOURCE.glob("*/__init__.py")):
        package = path.parent.name
        if package in ("cli", "reproductions"):  # their interface is the command line
            continue
        objects = {name: documented(path.parent, name) for name in public_names(path)}
        files.append(
            File.generated(config, f"reference/{package}.md", content=page_of(package, objects))
        )
        links = ", ".join(
            f"[`{name if (package, name) in top else f'{package}.{name}'}`][{identifier}]"
            for name, identifier in objects.items()
        )
        rows.append(f"| [`{package}`]({package}.md) | {summary(path)} | {links} |\n")
    files.append(File.generated(config, "reference/index.md", content=INDEX + "".join(rows)))
    return files


def public_names(path: Path) -> list[str]:
    """``__all__`` of a package, read without importing it: functions first, then classes."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value), key=lambda name: (name[0].isupper(), name))
    raise PluginError(f"{path} has no __all__")


def imports(path: Path) -> set[tuple[str, str]]:
    """The names that a package imports from packages of shoal, each with its origin."""
    return {
        ((node.module or "").removeprefix("shoal.").partition(".")[0], alias.name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def documented(package: Path, name: str) -> str:
    """Where the docstring of a public name is found; a module of the same name would hide it."""
    module = f".{name}" if (package / f"{name}.py").exists() else ""
    return f"shoal.{package.name}{module}.{name}"


def page_of(package: str, objects: dict[str, str]) -> str:
    """The page of one package, in Markdown."""
    blocks = [f"# shoal.{package}", f"::: shoal.{package}\n    options:\n      members: false"]
    blocks += [
        f"::: {identifier}\n    options:\n      show_root_heading: true"
        for identifier in objects.values()
    ]
    return "\n\n".join(blocks) + "\n"


def summary(path: Path) -> str:
    """The first sentence of a package's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")
