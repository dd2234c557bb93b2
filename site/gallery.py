"""The gallery: a page for each notebook and script, with what it printed and drew."""

import ast
import json
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx


def read_gallery(app: Sphinx, docname: str, source: list[str]) -> None:
    """Turn a notebook or a script into Markdown, and let the gallery lead to these pages."""
    folder, _, name = docname.rpartition("/")
    if app.env.doc2path(docname).suffix == ".ipynb":
        source[0] = "\n\n".join(cells(json.loads(source[0]), f"{name}.ipynb"))
    elif folder == "gallery":
        source[0] = script(source[0], name)
    elif docname == "gallery":
        pages = "\n```{toctree}\n:hidden:\n:glob:\n\ngallery/*\n```\n"
        source[0] = source[0].replace("](../examples/", "](gallery/") + pages


def script(text: str, name: str) -> str:
    """The page of a script: what it says, its figure, its code."""
    title, _, about = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
    code = text.split('"""\n', 2)[-1].strip()
    figure = f"![A part of its figure](../images/gallery/{name}.png)"
    return f"# {title.rstrip('.')}\n{about}\n\n{figure}\n\n{fenced('python', code)}\n"


def cells(notebook: dict[str, Any], name: str) -> Iterator[str]:
    """The cells of a notebook, in Markdown, with what they printed and drew."""
    for index, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else fenced("python", source)
        if index == 0:
            yield f'<a href="{name}" download>The notebook itself</a> can be downloaded and run.'
        for output in cell.get("outputs", ()):
            data = output.get("data") or {"text/plain": output["text"]}
            if "image/png" in data:
                picture = "".join("".join(data["image/png"]).split())
                yield f"![Figure](data:image/png;base64,{picture})"
            else:
                yield fenced("text", "".join(data["text/plain"]).rstrip())


def fenced(language: str, text: str) -> str:
    """A block of code or output."""
    return f"```{language}\n{text}\n```"
