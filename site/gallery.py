"""The gallery: notebooks with their outputs, and scripts, as pages."""

import ast
import base64
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

EXAMPLES = Path(__file__).parents[1] / "examples"
LINK = re.compile(r"\]\((?:\.\./)?((?:examples|gallery)/\w+)\.(?:py|ipynb)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook of the documentation and for each script in examples/."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        place = PurePosixPath(file.src_uri)
        pictures: dict[str, bytes] = {}
        text = notebook(json.loads(file.content_string), place.stem, pictures)
        pages = {str(place.with_suffix(".md")): text}
        pages |= {str(place.with_name(name)): content for name, content in pictures.items()}
        for uri, content in pages.items():
            files.append(File.generated(config, uri, content=content))
    for path in sorted(EXAMPLES.glob("*.py")):
        uri = f"examples/{path.stem}.md"
        files.append(File.generated(config, uri, content=script(path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Let links to notebooks and scripts lead to their pages."""
    return LINK.sub(r"](\1.md)", markdown)


def script(path: Path) -> str:
    """The page of a script, in Markdown."""
    code = path.read_text(encoding="utf-8")
    title = (ast.get_docstring(ast.parse(code)) or path.stem).split("\n")[0].rstrip(".")
    return f"# {title}\n\n```sh\npython examples/{path.name}\n```\n\n```python\n{code}```\n"


def notebook(content: dict[str, Any], stem: str, pictures: dict[str, bytes]) -> str:
    """The page of a notebook, in Markdown; its pictures are put into ``pictures`` by name."""
    blocks = []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"{stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                blocks.append(f"![What the block above draws]({name})")
            else:
                text = "".join(data["text/plain"]).rstrip("\n")
                blocks.append(f"```text\n{text}\n```")
    blocks.insert(1, f"[The notebook itself]({stem}.ipynb)")
    return "\n\n".join(blocks) + "\n"
