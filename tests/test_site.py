"""What the documentation site adds to Sphinx; `make docs` builds all of it, with strict links."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest

pytest.importorskip("sphinx", reason="the site needs the extra docs")

SITE = Path(__file__).parents[1] / "site"


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Builds a site of one page of Markdown, and returns its text."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    monkeypatch.setitem(sys.modules, "site_formulas", load("formulas"))

    def build(page: str) -> str:
        (tmp_path / "index.md").write_text(page, encoding="utf-8")
        settings = {
            "extensions": ["myst_parser", "site_formulas"],
            "html_math_renderer": "mathml",
            "myst_enable_extensions": ["dollarmath"],
        }
        folders = (tmp_path, None, tmp_path / "site", tmp_path / "trees")
        with patch_docutils(), docutils_namespace():
            Sphinx(*folders, "html", settings, None).build()
        return (tmp_path / "site" / "index.html").read_text(encoding="utf-8")

    return build


def test_formulas_become_mathml(built: Callable[[str], str]) -> None:
    found = built("# Page\n\na $x^2 < y$ b\n\n$$\\sum_i \\lambda_i, \\dots$$\n")
    inline, block = re.findall(r"<math.*?</math>", found, re.DOTALL)
    assert re.search(r"<msup>\s*<mi>x</mi>\s*<mn>2</mn>\s*</msup>\s*<mo>&lt;</mo>", inline)
    assert 'display="block"' in block
    assert "…" in block
    assert not re.search("<script[^>]*mathjax", found, re.IGNORECASE)


def test_formulas_that_are_unknown_are_refused(built: Callable[[str], str]) -> None:
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match=r"index\.md: no MathML for \$\\nosuchcommand\$"):
        built("# Page\n\n$$\\nosuchcommand$$\n")


@pytest.mark.parametrize(
    "tag",
    [
        '<script async src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<img alt="" src="http://example.org/a.png">',
    ],
)
def test_nothing_is_fetched_from_elsewhere(built: Callable[[str], str], tag: str) -> None:
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match=r"index\.html fetches .*example\.org"):
        built(f"# Page\n\n{tag}\n")


def test_links_to_elsewhere_are_not_fetched(built: Callable[[str], str]) -> None:
    assert "https://example.org" in built("# Page\n\n[there](https://example.org)\n")


def test_formulas_of_docstrings_become_roles() -> None:
    rewritten = load("formulas").formulas_of_docstring
    assert rewritten(r"Where $\|x\|$ is.") == r"Where \ :math:`\|x\|`\  is."
    assert rewritten("In ``$HOME`` or ``$x``.") == "In ``$HOME`` or ``$x``."
    assert rewritten("So\n\n$$a +\nb.$$\n") == "So\n\n\n\n.. math:: a + b.\n\n\n"


def test_notebooks_are_pages_with_their_outputs() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "Words."]},
        {
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": [
                {"output_type": "stream", "text": ["1\n"]},
                {"output_type": "display_data", "data": {"image/png": "aGk=\n"}},
                {"output_type": "execute_result", "data": {"text/plain": ["2"]}},
            ],
        },
    ]
    assert list(load("gallery").cells({"cells": cells}, "name.ipynb")) == [
        "# Title\n\nWords.",
        '<a href="name.ipynb" download>The notebook itself</a> can be downloaded and run.',
        "```python\nprint(1)\n```",
        "```text\n1\n```",
        "![Figure](data:image/png;base64,aGk=)",
        "```text\n2\n```",
    ]


def test_the_gallery_leads_to_pages() -> None:
    source = ["[a](../examples/tour.py) [b](gallery/tour.ipynb) [c](kernels.md)"]
    app = SimpleNamespace(env=SimpleNamespace(doc2path=lambda name: Path(f"{name}.md")))
    load("gallery").read_gallery(app, "gallery", source)
    assert source[0].startswith("[a](gallery/tour.py) [b](gallery/tour.ipynb) [c](kernels.md)")
    script = ['"""Title.\n\nWords.\n"""\n\nprint(1)\n']
    app = SimpleNamespace(env=SimpleNamespace(doc2path=lambda name: Path(f"{name}.py")))
    load("gallery").read_gallery(app, "gallery/tour", script)
    assert script[0].startswith("# Title\n\nWords.\n\n![A part")
    assert script[0].endswith("```python\nprint(1)\n```\n")


def test_every_page_is_in_the_navigation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    listed = re.findall(r"<(.+)>", load("conf").NAVIGATION)
    pages = {path.stem for path in (SITE.parent / "docs").glob("*.md")} | {"reference/index"}
    assert sorted(listed) == sorted(pages - {"index"})


def test_each_page_has_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "stale.md").write_text("# Gone\n", encoding="utf-8")
    load("conf").copy_sources(tmp_path / "pages")
    found = {path.relative_to(tmp_path / "pages").as_posix() for path in tmp_path.rglob("*.*")}
    assert {"index.md", "gallery/tour.py", "reference/kernels.py", "images/sphere.png"} <= found
    assert not {"stale.md", "result_tables/add.py", "reference/cli.py"} & found
    assert not [name for name in found if "/" not in name and name.endswith(".py")]


def test_all_pages_are_read_anew_when_public_names_come_or_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    conf, app = load("conf"), MagicMock()
    monkeypatch.setattr(conf, "copy_sources", lambda _: None)
    conf.setup(app)
    # "env": a change makes Sphinx read all again
    app.add_config_value.assert_called_once_with("public_names", {}, "env")
    assert "kernel" in conf.public_names["kernels"]


def test_the_reference_has_every_public_name() -> None:
    import shoal

    for extra in ("gpytorch", "sklearn", "typer"):
        pytest.importorskip(extra, reason="the reference documents what needs it")
    reference = load("api_reference")
    packages = {path.parent.name for path in Path(shoal.__file__).parent.glob("*/__init__.py")}
    assert {*reference.PACKAGES, "app"} == packages
    index = reference.index()
    assert "`load <shoal.networks.load>`" in index
    assert "`data.load <shoal.data.load>`" in index
    for package in reference.PACKAGES:
        page = reference.page_of(package)
        for name in reference.public_names(package):
            assert f"{name}>`" in index
            assert re.search(rf"(\.|:: ){name}\b", page), f"{package}.{name}"


def test_classes_have_the_methods_of_bases_that_are_not_public() -> None:
    page = load("api_reference").page_of("diagnosis")
    ends = re.search(r"diagnosis\.Diagnosis\n.*\n   :inherited-members: (.*)", page)
    assert ends is not None
    assert "object" in ends[1]
    assert "SavedResult" not in ends[1]


@pytest.mark.parametrize(
    ("module", "name", "documented"),
    [
        ("shoal", "load", "shoal.networks.load"),
        ("shoal", "kernel", "shoal.kernels.kernel"),
        ("shoal.data", "load", "shoal.data.load"),
        ("shoal.certificates", "Promises", "shoal.training.Promises"),
    ],
)
def test_a_name_is_documented_where_it_is_defined(module: str, name: str, documented: str) -> None:
    assert load("api_reference").place(module, name) == documented
