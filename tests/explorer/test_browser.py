"""The page in a real browser: no errors, keyboard and touch, light and dark, phone and desktop."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.data import load_data
from shoal.explorer import explorer_page, population_of, two_classes
from shoal.explorer.tables import ACTIVATIONS

pytestmark = pytest.mark.thorough

QUIET = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
SIZES = {"desktop": (1400, 900), "tablet": (820, 1100), "phone": (375, 740)}

# WCAG 2.1: the contrast of every text with what is behind it
CONTRASTS = """() => {
  const parsed = (color) => {
    const numbers = color.match(/[\\d.]+/g).map(Number);
    const scale = color.startsWith("color(") ? 255 : 1;
    return [...numbers.slice(0, 3).map((n) => n * scale), numbers[3] ?? 1];
  };
  const luminance = (color) => {
    const [r, g, b] = color.map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = parsed(getComputedStyle(at).backgroundColor);
      if (color[3] > 0.99) return color.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const result = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    const silent = ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName);
    if (!own || silent || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const color = parsed(node instanceof SVGElement ? style.fill : style.color).slice(0, 3);
    const [a, b] = [luminance(color), luminance(behind(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    result.push([contrast, node.tagName, node.textContent.slice(0, 40)]);
  }
  return result;
}"""
OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg.plot")) {
    const texts = [...svg.querySelectorAll("text")];
    const boxes = texts.map((text) => [text.getBoundingClientRect(), text.textContent]);
    const frame = svg.getBoundingClientRect();
    boxes.forEach(([a, one], i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1) found.push(`${one} is cut`);
      for (const [b, other] of boxes.slice(i + 1)) {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 3) found.push(`${one} over ${other}`);
      }
    });
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser: install Chromium")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=path, args=QUIET.split())
        yield made
        made.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import torch

    folder = tmp_path_factory.mktemp("pages")
    digits = load_data("digits", dtype=torch.float64, device=torch.device("cpu"))
    made = {"model": two_classes(), "digits": population_of(digits)}
    files = {name: folder / f"{name}.html" for name in made}
    for name, population in made.items():
        files[name].write_text(explorer_page(population), encoding="utf-8")
    return files


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Open a page; at the end nothing may have been complained of or fetched."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def open_page(
        which: str = "model", size: str = "desktop", scheme: str = "light", fragment: str = ""
    ) -> Any:
        width, height = SIZES[size]
        view = {"width": width, "height": height}
        context = browser.new_context(
            viewport=view, color_scheme=scheme, has_touch=size == "phone", offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:"))
                else complaints.append(request.url)
            ),
        )
        page.goto(f"{pages[which].as_uri()}{fragment}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", ["model", "digits"])
def test_it_is_readable(opened: Callable[..., Any], which: str, size: str, scheme: str) -> None:
    page = opened(which, size, scheme)
    assert page.locator("svg.plot").count() == 7
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    low = [one for one in page.evaluate(CONTRASTS) if one[0] < 4.5]
    assert low == []
    assert page.evaluate(OVERLAPS) == []


def test_every_activation_draws_everything(opened: Callable[..., Any]) -> None:
    page = opened()
    for name in ACTIVATIONS:
        page.select_option("#set-activation", name)
        for most in (0.0, 0.4, 1.0):
            page.evaluate(
                """(share) => { const slider = document.getElementById("set-recurrent");
                slider.value = 1000 * share; slider.dispatchEvent(new Event("input")); }""",
                most,
            )
            page.wait_for_timeout(60)
            assert "NaN" not in page.inner_html("main"), (name, most)


def test_the_keyboard_moves_everything(opened: Callable[..., Any]) -> None:
    page = opened()
    names = ("kernel", "spectrum", "training", "learning")
    drawn = {name: page.inner_html(f"#{name} svg") for name in names}
    page.focus("#set-recurrent")
    before = page.inner_text("#value-recurrent")
    for _ in range(40):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(150)
    assert float(page.inner_text("#value-recurrent")) > float(before)
    assert all(page.inner_html(f"#{name} svg") != drawn[name] for name in names)
    page.focus("#phase")
    moved = page.inner_text("#value-input")
    page.keyboard.press("ArrowUp")
    page.wait_for_timeout(100)
    assert float(page.inner_text("#value-input")) > float(moved)
    order = []
    page.focus("#set-activation")
    for _ in range(12):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id"))
    assert order[0] == "set-trained"
    assert {"copy-python", "reset", "phase"} <= set(order)


def test_touch_and_mouse_drag_the_point(opened: Callable[..., Any]) -> None:
    page = opened(size="phone")
    page.locator("#phase").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('.controls').open = false")
    box = page.locator("#phase svg").bounding_box()
    page.touchscreen.tap(box["x"] + 0.5 * box["width"], box["y"] + 0.4 * box["height"])
    page.wait_for_timeout(100)
    tapped = float(page.text_content("#value-recurrent"))
    assert 0.6 < tapped < 1.7
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.4 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.4 * box["height"], steps=4)
    page.mouse.up()
    page.wait_for_timeout(100)
    assert float(page.text_content("#value-recurrent")) > tapped + 0.2


def test_a_link_carries_the_state(opened: Callable[..., Any]) -> None:
    page = opened(fragment="#activation=gelu&recurrent=0.61&norm=1.7&trained=ck&shape=3")
    assert page.input_value("#set-activation") == "gelu"
    assert page.inner_text("#value-recurrent") == "0.61"
    page.focus("#set-norm")
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(100)
    address = page.evaluate("location.hash")
    again = opened(fragment=address)
    assert again.evaluate("link(state)") == address
    broken = opened(fragment="#activation=nonsense&recurrent=many&norm=1e9&shape=")
    assert broken.input_value("#set-activation") == "tanh"
    assert broken.inner_text("#value-norm") == "3"


def test_what_is_copied_is_python(opened: Callable[..., Any]) -> None:
    page = opened(fragment="#activation=relu&recurrent=0.5&bias=0.1&norm=1.3&trained=ck&shape=2")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy-python")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == page.inner_text("#python").strip()
    values: dict[str, Any] = {}
    exec(copied, values)  # the point of the page
    shown = page.evaluate("(() => { const r = computed(state); return r.functions.at(0).ck; })()")
    assert float(values["kernels"].ck[0, 0]) == pytest.approx(shown, rel=1e-6)
    assert values["design"].feasible


def test_where_there_is_no_kernel_it_says_so(opened: Callable[..., Any]) -> None:
    page = opened(fragment="#activation=relu&recurrent=2.4")
    assert page.inner_text("#verdict-exists .value") == "does not exist"
    assert page.locator("#kernel svg").count() == 0
    page.click("#reset")
    page.wait_for_timeout(100)
    assert page.inner_text("#verdict-exists .value") == "exists"
    assert page.locator("#kernel svg").count() == 1
