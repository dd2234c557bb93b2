"""Mathematics as MathML: a page needs no script for it, and nothing from elsewhere."""

import html
import re

import latex2mathml.converter
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>',
    re.DOTALL,
)
FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]*)"')


def on_page_content(content: str, page: Page, **_: object) -> str:
    """Turn the formulas of a page into MathML, so that readers need no script and no network."""

    def mathml(formula: re.Match[str]) -> str:
        text = html.unescape(formula[2]).strip()
        display = "block" if formula[1] == "div" else "inline"
        found = latex2mathml.converter.convert(text, display=display)
        if "\\" in html.unescape(found):  # unknown commands come back as they are
            raise PluginError(f"{page.file.src_uri}: no MathML for ${text}$")
        return found

    return FORMULA.sub(mathml, content)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Refuse a page that would fetch something from elsewhere: the site works without a network."""
    if fetched := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} fetches {fetched[1]}")
    return output
