"""The report: a page that is well-formed, complete, and refers to nothing outside of itself."""

import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from shutil import which
from xml.etree import ElementTree

import pytest
import torch

import shoal
from shoal.lab import find
from shoal.lab.records import read_json
from shoal.lab.runner import Run, execute
from shoal.report import (
    SECTIONS,
    Findings,
    Measurement,
    Row,
    Section,
    Subject,
    render,
)
from shoal.report.benchmarks import bench_page
from shoal.report.design_page import design_page
from shoal.report.reproduction import Finished, paper_page, run_page

EVIL = '<script>alert("x")</script>&'
VOID = {"meta", "link", "br", "hr", "img"}


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

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text(digits: Subject, analysis: Mapping[Section, Findings]) -> str:
    return render(digits, analysis, command="shoal analyze -n 60")


@pytest.fixture(scope="module")
def pages(text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A page of every kind."""
    design = shoal.design(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), tau0=1.0, match="ck")
    measured = [
        (name, Measurement(f"{name}, {case}", ratio * 0.01, "x @ x.T", 0.01))
        for name in ("kernel", "dual")
        for case, ratio in (("ReLU", 2.0), ("Tanh", 30.0))
    ]
    (kind,) = find("shoal", "width")
    one = Run(kind.quick(), tmp_path_factory.mktemp("runs"), "cpu")
    results = execute(one)
    done = Finished(one, read_json(one.folder / "run.json"), one.experiment.plot(results))
    return {
        "analysis": text,
        "design": design_page(design, design.plot(), command="shoal design"),
        "bench": bench_page(measured, device=torch.device("cpu"), command="shoal bench"),
        "run": run_page(done, command="shoal reproduce shoal width"),
        "paper": paper_page("shoal", [done], command="shoal reproduce shoal"),
    }


PLOTS = {"analysis": len(SECTIONS), "design": 1, "bench": 2, "run": 1, "paper": 1}


def test_pages_say_what_they_are_about(pages: dict[str, str]) -> None:
    design = shoal.design(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), tau0=1.0, match="ck")
    assert f"wanted {design.target['gamma2']:.8g}" in pages["design"]
    assert 'class="holds"' in pages["design"]
    assert "20 ms; x @ x.T: 10 ms" in pages["bench"]
    for name in ("run", "paper"):
        for words in ("ck slope", "widths", "torch", "Monte Carlo error of a finite DEQ"):
            assert words in pages[name]


def test_it_is_well_formed_and_complete(text: str) -> None:
    page = Page(text)
    assert page.tags["section"] == page.tags["svg"] == len(SECTIONS)
    for section in SECTIONS:
        assert f'<section id="{section.name}">' in text
        assert f"<h2>{section.title}</h2>" in text
    assert "<code>shoal analyze -n 60</code>" in text
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    assert text.count('class="holds"') > 5  # the checklist


@pytest.mark.parametrize("name", PLOTS)
def test_plots_are_xml_whose_ids_are_unique(pages: dict[str, str], name: str) -> None:
    text = pages[name]
    assert Page(text).tags["svg"] == PLOTS[name]
    assert "<code>shoal" in text
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    for plot in plots:
        ElementTree.fromstring(plot)
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids)) > 50
    used = re.findall(r'(?:href="#|url\(#)([^")]*)', text)
    assert set(used) <= set(ids)


@pytest.mark.parametrize("name", PLOTS)
def test_nothing_is_loaded_from_elsewhere(pages: dict[str, str], name: str) -> None:
    text = pages[name]
    assert not re.search(r"https?:|//[a-z]|@import|<script|<iframe|<img", text)
    page = Page(text)
    links = [v for k, v in page.attributes if k in ("href", "src", "xlink:href")]
    assert all(link is not None and link.startswith(("#", "data:,")) for link in links)
    assert not any(key.startswith("on") for key, _ in page.attributes)


@pytest.mark.parametrize("name", PLOTS)
def test_colors_of_plots_follow_the_page(pages: dict[str, str], name: str) -> None:
    text = pages[name]
    plots = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert set(re.findall(r"#[0-9a-fA-F]{6}\b", plots)) == set()
    style = text[: text.index("</style>")]
    light, dark = style.split("prefers-color-scheme: dark")
    for name in set(re.findall(r"var\((--[\w-]+)\)", text)):
        assert f"{name}:" in light, name
        assert f"{name}:" in dark, name


def test_everything_is_escaped(digits: Subject) -> None:
    evil = Subject(digits.architecture, replace(digits.data, name=EVIL))
    section = Section("evil", EVIL, lambda _: Findings())
    findings = Findings(
        (Row(EVIL, EVIL, EVIL), Row(EVIL, EVIL, EVIL, holds=False)),
        panel=lambda axes: axes.set_title(EVIL),
        error=EVIL,
        notes=(EVIL,),
    )
    text = render(evil, {section: findings}, command=EVIL)
    assert Page(text).tags["script"] == 0
    assert EVIL not in text
    assert text.count("&lt;script&gt;") >= 12
    assert 'class="fails"' in text


def test_a_part_is_marked(digits: Subject) -> None:
    text = render(digits, {}, complete=False)
    assert "Interrupted" in text
    assert "To reproduce" not in text


@pytest.mark.slow
@pytest.mark.skipif(which("chromium") is None, reason="there is no chromium to render it")
@pytest.mark.parametrize("size", ["1200,900", "500,900"])
@pytest.mark.parametrize("mode", [[], ["--force-dark-mode"]], ids=["light", "dark"])
@pytest.mark.parametrize("name", PLOTS)
def test_a_browser_renders_it_without_complaint(
    pages: dict[str, str], name: str, tmp_path: Path, size: str, mode: list[str]
) -> None:
    text = pages[name]
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    probe = (
        "<script>addEventListener('load', () => console.log('PROBE',"
        " document.documentElement.scrollWidth <= innerWidth,"
        " document.querySelectorAll('svg.plot').length,"
        " getComputedStyle(document.body).backgroundColor))</script>"
    )
    page.write_text(text.replace("</body>", f"{probe}</body>"), encoding="utf-8")
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}",
            f"--window-size={size}", *mode, page.as_uri(),
        ],
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    (line,) = console  # that of the probe, and no error
    background = "rgb(20, 23, 26)" if mode else "rgb(250, 250, 248)"
    assert f"PROBE true {PLOTS[name]} {background}" in line
    assert picture.stat().st_size > 10_000
