"""A headless Chromium, driven by Playwright: open a page at some width and colour scheme, measure it, look at it."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request


class OpenPage:
    """One page, and what the browser reported while it was loading: requests, and errors of any kind."""

    def __init__(
        self, browser: Browser, file: Path, width: int = 1200, scheme: str = "light", script: bool = True
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            is_mobile=width < 600,
            color_scheme=scheme,
            java_script_enabled=script,
        )
        self.page: Page = self.context.new_page()
        self.requested: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", self._request)
        self.page.on("pageerror", self._error)
        self.page.on("console", self._console)
        self.page.goto(file.resolve().as_uri())

    def _request(self, request: Request) -> None:
        self.requested.append(request.url)

    def _error(self, error: Error) -> None:
        self.errors.append(str(error))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def screenshot(self, selector: str) -> Image.Image:
        """The first element that the selector finds and that is shown."""
        picture = self.page.locator(selector).locator("visible=true").first.screenshot()
        return Image.open(io.BytesIO(picture)).convert("RGB")
