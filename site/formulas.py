"""Formulas as MathML: a page needs no script for them, and nothing from elsewhere."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxTranslator

# Code stays as it is; a formula of its own paragraph; a formula within one.
FORMULA = re.compile(r"``.*?``|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$]+)\$", re.DOTALL)
# LaTeX that docutils misreads: \frac12 as 12 over the next symbol, accents as limits of a sum.
DIGITS = re.compile(r"\\(t?frac)(\d)(\d)")
ACCENT = re.compile(
    r"(\\(?:bar|check|dot|hat|tilde)\s*(?:\{[^{}]*\}|\\[a-zA-Z]+|\s?[a-zA-Z]))(?=[_^])"
)
FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]*)"')


def write_formula(translator: SphinxTranslator, node: nodes.math | nodes.math_block) -> None:
    """Write one formula, or say that there is no MathML for it."""
    text = node.astext().replace(r"\dots", r"\ldots")  # the one that docutils lacks
    text = ACCENT.sub(r"\1{}", DIGITS.sub(r"\\\1{\2}{\3}", text))
    try:
        formula = tex2mathml(text, as_block=isinstance(node, nodes.math_block))
    except MathError as error:
        raise ExtensionError(f"{node.source}: no MathML for ${text}$: {error}") from error
    translator.body.append(formula)
    raise nodes.SkipNode


def formulas_of_docstring(text: str) -> str:
    """The formulas of a docstring, between dollars there, in the notation of Sphinx."""

    def role(formula: re.Match[str]) -> str:
        if formula["block"]:
            return f"\n\n.. math:: {' '.join(formula['block'].split())}\n\n"
        return rf"\ :math:`{formula['inline']}`\ " if formula["inline"] else formula[0]

    return FORMULA.sub(role, text)


def read_docstring(*event: Any) -> None:
    """Rewrite the formulas of a docstring, whose lines come last."""
    event[-1][:] = formulas_of_docstring("\n".join(event[-1])).split("\n")


def refuse_fetching(app: Sphinx, _: Exception | None) -> None:
    """Refuse pages that would fetch something from elsewhere: the site works without a network."""
    for path in app.outdir.rglob("*.html"):
        if fetched := FETCHED.search(path.read_text(encoding="utf-8")):
            raise ExtensionError(f"{path} fetches {fetched[1]}")


def setup(app: Sphinx) -> None:
    """Let Sphinx write formulas in this way, and look at the pages in the end."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("build-finished", refuse_fetching)
