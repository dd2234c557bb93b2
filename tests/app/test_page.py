"""The report: a page that is well-formed, complete, and refers to nothing outside of itself."""

import base64
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from shoal.app.report import SECTIONS, Analysis, document, find, render, verdict
from shoal.app.sections import Findings, Section, Subject
from shoal.diagnosis.words import Row

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
    check(text, len(SECTIONS))
    for section in SECTIONS:
        assert f'<section id="{section.name}">' in text
        assert f"<h2>{section.title}</h2>" in text
    assert "<code>shoal analyze -n 60</code>" in text
    assert text.count('class="holds"') > 5  # the checklist


def test_a_small_analysis_is_one_page(digits: Subject) -> None:
    found = {NAMED[name]: find(NAMED[name], digits) for name in ("well_posedness", "kernels")}
    check(render(digits, found, "shoal analyze"), 2)


def test_everything_is_escaped(digits: Subject) -> None:
    evil = Subject(digits.architecture, replace(digits.data, name=EVIL))
    section = Section("evil", EVIL, lambda _: Findings())
    findings = Findings(
        (Row(EVIL, EVIL, EVIL), Row(EVIL, EVIL, EVIL, holds=False)),
        panel=lambda axes: axes.set_title(EVIL),
        error=EVIL,
        notes=(EVIL,),
        warnings=(EVIL,),
    )
    text = render(evil, {section: findings}, EVIL)
    check(text, 1)
    assert EVIL not in text
    assert 'class="fails"' in text


def found(**numbers: dict[str, Any]) -> Analysis:
    return {NAMED[name]: Findings(numbers=values) for name, values in numbers.items()}


def settled(gain: float) -> dict[str, Any]:
    return {"contraction": gain < 1, "kernel_guaranteed": gain < 2}


def accuracy(deq: float, naive: float, tested: int) -> dict[str, Any]:
    return {"infinite": {"deq": deq, "naive": naive}, "tested": tested, "measure": "accuracy"}


NEW = {"accuracy": 0.992, "classes": True, "loo": 0.007}
SPHERE = {"ntk_sphere": {"gap": 2e-12, "feasible": True}}


def test_the_answer_is_two_sentences_at_the_top(digits: Subject) -> None:
    numbers = found(
        well_posedness=settled(0.886), prediction=NEW, accuracy=accuracy(0.988, 0.988, 250)
    )
    first, second = verdict(numbers)
    assert first == (
        "The network converges to one equilibrium for every input, and classifies 99.2% of new "
        "samples correctly."
    )
    assert second.startswith("No evidence that the loop helps on this data")
    page = render(digits, numbers, "")
    assert page.index(first) < page.index(second) < page.index("<section")
    assert document(digits, numbers)["verdict"] == [first, second]
    assert verdict({}) == ()


@pytest.mark.parametrize(
    ("naive", "tested", "words"),
    [
        (0.90, 40, "No evidence"),  # eight points of 40 samples are chance
        (0.90, 4000, "The loop can be replaced: one hidden layer"),
        (0.99, 4000, "No evidence"),
    ],
)
def test_a_loop_is_worth_what_chance_does_not_explain(
    naive: float, tested: int, words: str
) -> None:
    numbers = found(accuracy=accuracy(0.98, naive, tested), design=SPHERE)
    assert verdict(numbers)[-1].startswith(words)


@pytest.mark.parametrize(
    ("gain", "words"),
    [(1.5, "no guarantee that it converges"), (2.5, "nor that its kernel exists")],
)
def test_missing_guarantees_are_said(gain: float, words: str) -> None:
    assert words in verdict(found(well_posedness=settled(gain)))[0]


def test_a_section_that_fails_is_named(digits: Subject) -> None:
    def fail(_: Subject) -> Findings:
        raise ZeroDivisionError("division by zero")

    section = Section("a", "A", fail)
    assert find(section, digits).error == "ZeroDivisionError: division by zero"
    assert "division by zero" in render(digits, {section: find(section, digits)}, "")
