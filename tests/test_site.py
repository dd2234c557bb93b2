"""What the documentation site adds to MkDocs; `make docs` builds all of it, with strict links."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra docs")

SITE = Path(__file__).parents[1] / "site"
PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_formulas_become_mathml() -> None:
    content = r'a <span class="arithmatex">\(x^2 &lt; y\)</span> b'
    found = load("formulas").on_page_content(content, page=PAGE)
    assert found.startswith("a <math")
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in found
    assert "arithmatex" not in found


def test_formulas_that_are_unknown_are_refused() -> None:
    from mkdocs.exceptions import PluginError

    content = r'<div class="arithmatex">\[\nosuchcommand\]</div>'
    with pytest.raises(PluginError, match=r"page\.md: no MathML for \$\\nosuchcommand\$"):
        load("formulas").on_page_content(content, page=PAGE)


@pytest.mark.parametrize(
    "tag",
    [
        '<script async src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<img alt="" src="http://example.org/a.png">',
    ],
)
def test_nothing_is_fetched_from_elsewhere(tag: str) -> None:
    from mkdocs.exceptions import PluginError

    formulas = load("formulas")
    with pytest.raises(PluginError, match=r"page\.md fetches .*example\.org"):
        formulas.on_post_page(tag, page=PAGE)
    links = '<a href="https://example.org">there</a><img src="images/a.png">'
    assert formulas.on_post_page(links, page=PAGE) == links


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
        "[The notebook itself](name.ipynb) can be downloaded and run.",
        "```python\nprint(1)\n```",
        "```text\n1\n```",
        "![Figure](data:image/png;base64,aGk=)",
        "```text\n2\n```",
    ]


def test_the_gallery_leads_to_pages() -> None:
    text = "[a](../examples/tour.py) [b](gallery/tour.ipynb) [c](kernels.md)"
    page = SimpleNamespace(file=SimpleNamespace(src_uri="gallery.md"))
    found = load("gallery").on_page_markdown(text, page)
    assert found == "[a](gallery/tour.md) [b](gallery/tour.md) [c](kernels.md)"


def test_roles_of_docstrings_become_links() -> None:
    docstrings = load("docstrings")
    found = docstrings.ROLE.sub(docstrings.reference, "See :func:`~shoal.kernels.kernel`.")
    link = '<autoref identifier="shoal.kernels.kernel" optional><code>kernel</code></autoref>'
    assert found == f"See {link}."


def test_every_public_package_has_a_page_in_the_navigation() -> None:
    import shoal

    reference = load("reference")
    source = Path(shoal.__file__).parent
    packages = {path.parent.name for path in source.glob("*/__init__.py")} - {
        "cli",
        "reproductions",
    }
    navigation = (SITE.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for package in packages:
        assert f"reference/{package}.md" in navigation, package
        assert reference.public_names(source / package / "__init__.py")
    top = reference.imports(source / "__init__.py")
    assert {("kernels", "kernel"), ("networks", "load")} <= top
    assert ("data", "load") not in top
