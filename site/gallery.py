"""The gallery on the site: a page for each notebook and script, made when the site is built."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?:\.\./examples/(\w+)\.py|gallery/(\w+)\.ipynb)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add gallery/NAME.md for each script and each notebook."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"gallery/{path.stem}.md", content=script(path)))
    for path in sorted((ROOT / "docs" / "gallery").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        content = "\n\n".join(cells(notebook, path.name))
        files.append(File.generated(config, f"gallery/{path.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let the gallery lead to these pages, and not to the files in the repository."""
    if page.file.src_uri != "gallery.md":
        return markdown
    return LINK.sub(lambda link: f"](gallery/{link[1] or link[2]}.md)", markdown)


def script(path: Path) -> str:
    """The page of a script: what it says, its figure, its code."""
    text = path.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text)) or ""
    title, _, about = docstring.partition("\n")
    code = text.split('"""\n', 2)[-1].strip()
    figure = f"![A part of its figure](../images/gallery/{path.stem}.png)"
    return f"# {title.rstrip('.')}\n{about}\n\n{figure}\n\n{fenced('python', code)}\n"


def cells(notebook: dict[str, Any], name: str) -> Iterator[str]:
    """The cells of a notebook, in Markdown, with what they printed and drew."""
    for index, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else fenced("python", source)
        if index == 0:
            yield f"[The notebook itself]({name}) can be downloaded and run."
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
