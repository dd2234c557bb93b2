"""The documentation site, by Sphinx: `make docs` builds it."""

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"  # the sources, in one folder as Sphinx wants them
sys.path.insert(0, str(ROOT / "site"))

import api_reference  # noqa: E402  (these three lie beside this file)
import formulas  # noqa: E402

import gallery  # noqa: E402

project = html_title = "shoal"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
public_names = {name: api_reference.public_names(name) for name in api_reference.PACKAGES}
source_suffix = dict.fromkeys([".md", ".ipynb", ".py"], "markdown")  # which it is once it is read
nitpicky = True  # what is named must be documented, unless it is not shoal's, or not public
nitpick_ignore_regex = [("py:.*", r"(?!shoal\b).*"), ("py:.*", r"shoal\.\w+\.\w+\..+")]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_heading_slug_func = "github"
myst_heading_anchors_html_ids = True

add_module_names = False
autodoc_default_options = {
    "exclude-members": "set_fit_request,set_predict_request,set_score_request",  # scikit-learn's
    "special-members": "__call__,__eq__,__getstate__,__hash__,__init_subclass__,__matmul__,"
    "__post_init__,__repr__,__str__",
}
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
default_role = "code"
maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

BRAND = ["color-api-name", "color-brand-content", "color-brand-primary", "color-brand-visited"]
html_theme = "furo"
html_theme_options = {
    "light_css_variables": dict.fromkeys(BRAND, "#0b6585"),
    "dark_css_variables": dict.fromkeys(BRAND, "#63c3df"),
}
html_static_path = ["static"]
html_css_files = ["shoal.css"]
html_favicon = html_logo = "static/fish.svg"
html_copy_source = html_show_sphinx = html_show_copyright = False
html_use_index = html_domain_indices = False  # search finds names, and the reference lists them
html_math_renderer = "mathml"
pygments_dark_style = "github-dark"
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"

NAVIGATION = """
Start
Install <install>
Tour <tour>
Gallery <gallery>
Questions <faq>

Guide
Equilibria <equilibria>
Staying well-posed <staying-well-posed>
Iterations, and when to stop <diagnosing>
Replacing a loop <distilling>
Networks <networks>
Kernels <kernels>
Images <images>
Regression <regression>
Command line <cli>
Several processes <several-processes>
Extending shoal <extending>

Theory
Designs <design>
Equivalents and spectra <equivalents>
Training <training>
How well will it predict? <prediction>
Certificates <certificates>

Coming from
torchdeq <coming-from-torchdeq>
GPyTorch and BoTorch <coming-from-gpytorch>
neural-tangents <coming-from-neural-tangents>
scikit-learn, tables <tables>

Evidence
When depth pays <when-depth-pays>
Accuracy <accuracy>
Performance <performance>
Tested by others <peers>
Reproductions <reproductions>
Errata <errata>
Known limits <limits>

Reference
Packages <reference/index>
Papers and symbols <references>
"""


def copy_sources(pages: Path) -> None:
    """Copy the pages, the scripts of the gallery and the packages of the reference."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("result_tables", "*.py"))
    for path in (ROOT / "examples").glob("*.py"):
        shutil.copy2(path, pages / "gallery")
    (pages / "reference").mkdir()
    for name in ("", *api_reference.PACKAGES):
        source = ROOT / "src" / "shoal" / name / "__init__.py"
        shutil.copy2(source, pages / "reference" / f"{name or 'index'}.py")


def copy_files(app: Sphinx, exception: Exception | None) -> None:
    """Copy pictures, notebooks and results to where they lie beside the pages."""
    if exception is None:
        pages = shutil.ignore_patterns("*.md", "*.py")
        shutil.copytree(app.srcdir, app.outdir, ignore=pages, dirs_exist_ok=True)


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the navigation to the first page, whose text on GitHub does not show it."""
    if docname == app.config.root_doc:
        for group in NAVIGATION.strip().split("\n\n"):
            caption, _, entries = group.partition("\n")
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def setup(app: Sphinx) -> None:
    """Connect what is ours with Sphinx."""
    copy_sources(PAGES)
    # pages link to names of packages other than their own: when names come or go, all are read anew
    app.add_config_value("public_names", {}, "env")
    for read in (add_navigation, gallery.read_gallery, api_reference.read_reference):
        app.connect("source-read", read)
    app.connect("autodoc-skip-member", api_reference.skip_named_tuple)
    app.connect("autodoc-process-docstring", formulas.read_docstring)
    app.connect("missing-reference", api_reference.find_at_top)
    app.connect("build-finished", copy_files)
    formulas.setup(app)
