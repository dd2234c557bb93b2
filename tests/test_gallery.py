"""The gallery: every script and notebook runs, prints what it says, and is shown on the page."""

import ast
import importlib.util
import itertools
import json
import re
import runpy
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from blocks import Printed, notebook_blocks, run_blocks

mpl = pytest.importorskip("matplotlib", reason="the gallery draws")
pytest.importorskip("sklearn", reason="the gallery uses scikit-learn's digits")

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gallery.md"
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "docs" / "gallery").glob("*.ipynb"))
SLOW = {
    "bayesian_optimization",
    "gaussian_process",
    "large_regression",
    "learned_variance",
    "replace_deq",
    "sphere",
}
NEEDS = {
    "bayesian_optimization": "botorch",
    "gaussian_processes": "gpytorch",
    "learned_variance": "gpytorch",
}


def cases(paths: list[Path]) -> list[object]:
    """A case for each file, marked if it takes long or needs what is not everywhere."""
    found = []
    for path in paths:
        marks = [pytest.mark.thorough] if path.stem in SLOW else []
        package = NEEDS.get(path.stem)
        if package and importlib.util.find_spec(package) is None:
            marks.append(pytest.mark.skip(reason=f"it needs {package}"))
        found.append(pytest.param(path, id=path.stem, marks=marks))
    return found


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Draw into memory, and leave no setting behind."""
    plt = pytest.importorskip("matplotlib.pyplot")
    with mpl.rc_context():
        plt.switch_backend("agg")
        monkeypatch.setattr(plt, "show", lambda: None)
        yield
        plt.close("all")


def promised(docstring: str) -> str:
    """The indented block at the end of a script's docstring: what the script prints."""
    block = docstring.partition("\nIt prints:\n\n")[2]
    return re.sub(r"(?m)^    ", "", block).rstrip() + "\n"


@pytest.mark.thorough("certified", "predicted", "digits", "own", "mixture", "tour")
@pytest.mark.usefixtures("drawing")
@pytest.mark.parametrize("path", cases(SCRIPTS))
def test_scripts_print_what_they_say_and_draw(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figure = tmp_path / "figure.png"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "--output", str(figure)])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    wanted = promised(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    assert matches(wanted, printed), f"promised\n{wanted}\nprinted\n{printed}"
    assert list(tmp_path.iterdir()) == [figure]
    assert figure.read_bytes().startswith(b"\x89PNG")


def matches(wanted: str, printed: str) -> bool:
    """Whether words and numbers are as promised; ``...`` is a word that the machine decides."""
    pairs = list(itertools.zip_longest(wanted.split(), printed.split(), fillvalue=""))
    kept = [pair for pair in pairs if pair[0] != "..."]
    return Printed().check_output(*(" ".join(words) for words in zip(*kept, strict=True)), 0)


@pytest.mark.thorough
@pytest.mark.usefixtures("drawing")
@pytest.mark.parametrize("path", cases(NOTEBOOKS))
def test_notebooks_print_what_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    run_blocks(notebook_blocks(path), path, module.__dict__)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small_and_complete(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert len(text) < 300_000
    assert notebook["nbformat"] == 4
    assert notebook["cells"][0]["source"][0].startswith("# ")
    outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", ())]
    assert not any(o["output_type"] == "error" or o.get("name") == "stderr" for o in outputs)
    assert any("image/png" in o.get("data", ()) for o in outputs)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_short_and_say_how_long_they_take(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree) or ""
    assert len(text.splitlines()) - tree.body[0].end_lineno < 80
    assert re.search(r"Takes\s+about\s+\w+\s+seconds", docstring)
    assert f"python examples/{path.name}" in docstring


@pytest.mark.parametrize("path", SCRIPTS + NOTEBOOKS, ids=lambda path: path.stem)
def test_the_page_shows_each(path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    link = f"../examples/{path.name}" if path.suffix == ".py" else f"gallery/{path.name}"
    assert f"]({link})" in page
    thumbnail = PAGE.parent / "images" / "gallery" / f"{path.stem}.png"
    assert f"(images/gallery/{path.stem}.png)" in page
    data = thumbnail.read_bytes()
    assert len(data) < 60_000
    width, height = struct.unpack(">II", data[16:24])
    assert width == 400
    assert height <= 330
