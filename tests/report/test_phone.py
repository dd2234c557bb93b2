"""The report on a narrow screen, in a real browser."""

import shutil
from pathlib import Path

import pytest

import shoal.pages

pytestmark = pytest.mark.thorough

ROW = (
    "<tr><th>the same activation, one layer</th>"
    "<td class='value'>0.03636 (predicted), 0.03717 (measured)</td><td class='meaning'></td></tr>"
)


def test_names_of_rows_are_not_broken_within_words(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser: install Chromium")
    style = Path(shoal.pages.__file__).with_name("templates") / "page.css"
    file = tmp_path / "page.html"
    file.write_text(
        f"<style>{style.read_text(encoding='utf-8')}</style><section><table>{ROW}</table></section>",
        encoding="utf-8",
    )
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 375, "height": 740})
        page.goto(file.as_uri())
        heights = page.evaluate(
            "[...document.querySelectorAll('th, tr')].map((e) => e.clientHeight)"
        )
        wide = page.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert max(heights) < 110  # four lines at most
    assert wide <= 375
