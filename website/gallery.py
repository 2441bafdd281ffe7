"""Takes the pictures of docs/gallery.md: runs its commands and looks at their pages in Chromium.

`make gallery` calls it after `make demo`. A run that exists is used as it is; remove runs/digits to train it again.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from code_blocks import blocks, commands

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from headless_browser import headless_chromium  # type: ignore[import-not-found]  # noqa: E402

PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "gallery"
BUILT = ROOT / "build" / "gallery"
WIDTH, HEIGHT = 1000, 720
BEGIN = {
    "report": ("table", 16),
    "directions": ("img", 120),
    "explore": ("h1", 16),
    "map": ("h1", 16),
    "tightness": ("h1", 16),
}
"""The element near the top of each picture, and how many pixels above it the picture begins."""
COLOURS = 128
"""Of the palette of a picture, which keeps it small."""


def main() -> None:
    """Run the commands of the page in order, and take a picture of each page that they make."""
    BUILT.mkdir(parents=True, exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    with headless_chromium() as browser:
        for block in blocks(PAGE):
            for _, name, *words in (call for call in commands(block) if call[0] == "isda"):
                if name == "train":
                    _isda(name, *words, "--resume")
                elif name == "explore":
                    with _served(words) as address:
                        _take(browser, name, address)
                else:
                    page = BUILT / f"{name}.html"
                    _isda(name, *words, "--out", str(page))
                    _take(browser, name, page.as_uri())


def _isda(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "isda", *words], check=True, cwd=ROOT)


@contextmanager
def _served(words: list[str]) -> Iterator[str]:
    """The address of an explorer that runs meanwhile."""
    command = [sys.executable, "-u", "-m", "isda", "explore", *words, "--no-open"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(
                word for line in process.stdout for word in line.replace(",", " ").split() if "http:" in word
            )
            yield address
        finally:
            process.terminate()


def _take(browser: Any, name: str, address: str) -> None:
    """Open a page, move the first slider if it has one, and keep a picture of the part that the gallery shows."""
    tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    tab.goto(address, wait_until="networkidle")
    slider = tab.locator("input[type=range]").locator("visible=true").first
    if name == "explore":
        slider.fill("2")
        tab.wait_for_load_state("networkidle")
    tab.evaluate(
        "([selector, above]) => scrollBy(0, document.querySelector(selector).getBoundingClientRect().top - above)",
        list(BEGIN[name]),
    )
    tab.wait_for_timeout(500)  # what is drawn after loading
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)
    tab.close()
    print(f"{(PICTURES / name).relative_to(ROOT)}.png: {(PICTURES / f'{name}.png').stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
