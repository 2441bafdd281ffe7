"""A headless Chromium over its debugging pipe: open a page at some width and colour scheme, measure it, look at it."""

from __future__ import annotations

import base64
import io
import json
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 60.0


class Browser:
    """The browser process; messages are JSON objects that end with a zero byte, on its descriptors 3 and 4."""

    def __init__(self, executable: str) -> None:
        self.profile = tempfile.mkdtemp(prefix="report-browser-")
        # The shell makes our two pipes the descriptors that Chromium expects.
        script = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null'
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", executable, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        self.buffer, self.sent = b"", 0
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.session = None
        try:
            self.send("Browser.close")
        except (OSError, EOFError, TimeoutError):
            self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdin.close()
        self.process.stdout.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give one command and wait for its answer; events that come before it are kept."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"chromium did not answer within {PATIENCE:.0f} s")
            received = self.process.stdout.read(1 << 20)
            if not received:
                raise EOFError("chromium has ended")
            self.buffer += received
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, page: Path, width: int = 1200, scheme: str = "light", script: bool = True) -> None:
        """Load a page; afterwards `events` holds what the browser reported while loading."""
        height = 900
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        self.events = []
        self.send("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, selector: str | None = None) -> Image.Image:
        """The whole page, or the first element that the selector finds and that is shown."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        if selector:
            clip |= self.evaluate(
                f"(() => {{ const box = [...document.querySelectorAll({json.dumps(selector)})].map(e => "
                "e.getBoundingClientRect()).find(b => b.width > 0); "
                "return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height} })()"
            )
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
