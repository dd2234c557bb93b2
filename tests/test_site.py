"""What the documentation site adds to Sphinx; `make docs` builds all of it, with strict links."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

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


def test_short_fractions_and_accents_are_read_as_latex_reads_them(
    built: Callable[[str], str],
) -> None:
    found = re.sub(
        r"\s", "", built("# Page\n\na $\\frac12x$ b $\\tilde\\alpha_{k}$ c $\\dot G_k$\n")
    )
    assert "<mfrac><mn>1</mn><mn>2</mn></mfrac><mi>x</mi>" in found
    assert found.count("</mover><msub>") == 2
    assert "<munderover>" not in found


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


def test_every_page_is_in_the_navigation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    listed = re.findall(r"<(.+)>", load("conf").NAVIGATION)
    pages = {path.stem for path in (SITE.parent / "docs").glob("*.md")} | {"reference/index"}
    assert sorted(listed) == sorted(pages - {"index"})


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
