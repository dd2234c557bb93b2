"""Take the pictures of docs/cli.md#explore; needs Chromium and Playwright."""

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from shoal.app.explorer import explorer_page, summarize, two_classes
from shoal.app.inputs import load_inputs

IMAGES = Path(__file__).parent / "images"
# name: (page, width, height, colors, scale, scrolled to, state)
PICTURES = {
    "explorer_desktop": ("model", 1400, 1310, "light", 1, 0, "activation=tanh&recurrent=0.6"),
    "explorer_dark": (
        "digits",
        1400,
        1310,
        "dark",
        1,
        720,
        "activation=relu&recurrent=0.5&shape=0.3",
    ),
    "explorer_phone": ("model", 390, 844, "light", 2, 420, "activation=gelu&recurrent=0.7"),
}


def main() -> None:
    """Write the pictures."""
    populations = {"model": two_classes(), "digits": summarize(load_inputs("digits"))}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (which, width, height, scheme, scale, top, state) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                device_scale_factor=scale,
            )
            file = Path(folder, f"{which}.html")
            file.write_text(explorer_page(populations[which]), encoding="utf-8")
            page.goto(f"{file.as_uri()}#{state}")
            page.evaluate("(top) => window.scrollTo({ top, behavior: 'instant' })", top)
            page.wait_for_timeout(200)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
