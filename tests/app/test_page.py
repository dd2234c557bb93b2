"""The report: a page that is well-formed, complete, and refers to nothing outside of itself."""

import base64
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

from shoal.app.report import SECTIONS, Analysis, document, find, render, verdict
from shoal.app.sections import Findings, ReportSection, Subject
from shoal.core.words import Row

EVIL = '<script>alert("x")</script>&'
VOID = {"meta", "link", "br", "hr", "img"}
NAMED = {section.name: section for section in SECTIONS}


class Page(HTMLParser):
    """The elements of a page, which must be nested as they should."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(text: str, images: int) -> None:
    """A page is whole, and all that it shows is in it."""
    page = Page(text)
    assert page.tags["img"] == images
    assert page.tags["script"] == 0
    links = [value or "" for name, value in page.attributes if name in ("href", "src")]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"@import|url\(", text)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for link in links:
        if link.startswith("data:image"):
            ElementTree.fromstring(base64.b64decode(link.partition(",")[2]))
    style = text[: text.index("</style>")]
    light, dark = style.split("prefers-color-scheme: dark")
    for name in set(re.findall(r"var\((--[\w-]+)\)", style)):
        assert f"{name}:" in light
        assert f"{name}:" in dark


def test_an_analysis_is_one_page(digits: Subject, analysis: Analysis) -> None:
    text = render(digits, analysis, "shoal analyze -n 60")
    check(text, sum(found.panel is not None for found in analysis.values()))
    for section in SECTIONS:
        assert f'<section id="{section.name}">' in text
        assert f"<h2>{section.title}" in text  # and a mark
    assert "<code>shoal analyze -n 60</code>" in text


def test_a_small_analysis_is_one_page(digits: Subject) -> None:
    found = {NAMED[name]: find(NAMED[name], digits) for name in ("well_posedness", "kernels")}
    check(render(digits, found, "shoal analyze"), 1)


def test_everything_is_escaped(digits: Subject) -> None:
    evil = Subject(replace(digits.data, name=EVIL, notes=(EVIL,)), digits.architecture)
    section = ReportSection("evil", EVIL, lambda _: Findings())
    findings = Findings(
        (Row(EVIL, EVIL, EVIL), Row(EVIL, EVIL, EVIL, holds=False)),
        panel=lambda axes: axes.set_title(EVIL),
        error=EVIL,
        notes=(EVIL,),
        check=EVIL,
        holds=True,
    )
    text = render(evil, {section: findings}, EVIL)
    check(text, 1)
    assert EVIL not in text
    assert 'class="fails"' in text


def test_the_answer_stands_at_the_top_and_theory_below(digits: Subject) -> None:
    subject = Subject(digits.data, digits.architecture)
    found = {NAMED[name]: find(NAMED[name], subject) for name in ("comparison", "kernels")}
    answer = verdict(subject, found)
    assert answer.startswith("Accuracy on 60 samples: loop ")
    assert document(subject, found)["verdict"] == answer
    page = render(subject, found, "")
    places = [page.index(text) for text in (answer, "<nav", 'id="comparison"', "Theory of the")]
    assert places == sorted(places)
    assert page.index("Theory of the") < page.index('id="kernels"')
    assert verdict(digits, {}) == ""


def test_a_failed_check_leaves_one_status_and_no_numbers(digits: Subject) -> None:
    def doubt(_: Subject) -> Findings:
        return Findings((Row("number", "42"),), {"number": 42}, check="It must be 41.", holds=False)

    section = ReportSection("a", "A", doubt)
    found = {section: find(section, digits)}
    page = render(digits, found, "")
    assert "42" not in page[page.index('<section id="a"') : page.index("<footer>")]
    assert "Nothing to rely on: the check of this section failed. It must be 41." in page
    assert document(digits, found)["sections"]["a"]["holds"] is False


def test_a_section_that_fails_is_named(digits: Subject) -> None:
    def fail(_: Subject) -> Findings:
        raise ZeroDivisionError("division by zero")

    section = ReportSection("a", "A", fail)
    assert find(section, digits).error == "ZeroDivisionError: division by zero"
    assert "division by zero" in render(digits, {section: find(section, digits)}, "")
