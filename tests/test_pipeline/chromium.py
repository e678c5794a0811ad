"""Headless Chromium for tests, driven over a pipe by its DevTools protocol: no driver, no port, no network.

    def test_it(browser: Browser):                     # the fixture of tests/test_pipeline/conftest.py
        page = browser.open(path, width=360, dark=True)  # a file, or an address of a local server
        page.press("Tab", "Enter")                     # real key events, where the focus is
        assert page.value("document.title") == "…"

Files that use it say `pytestmark = pytest.mark.browser`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")
FLAGS += ("--disable-extensions", "--hide-scrollbars", "--mute-audio", "--remote-debugging-pipe")
TIMEOUT_S = 60.0
TALLEST = 16_000
"""Pixels of the tallest picture: Chromium draws none that is taller."""

_START = """
import os, sys
reads, writes = (os.dup(int(number)) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.set_inheritable(3, True)
os.set_inheritable(4, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and answers on 4, whatever they are called in this process."""

_KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), " ": (32, " "), "Backspace": (8, "")}
_KEYS |= {"ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""), "ArrowDown": (40, "")}
_KEYS |= {"PageUp": (33, ""), "PageDown": (34, ""), "End": (35, ""), "Home": (36, "")}


def find_chromium() -> str | None:
    """The program, or None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One Chromium; every page that it opens has cookies and storage of its own."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer, self._last = b"", 0
        self._events: list[dict[str, Any]] = []

    def open(
        self,
        what: Path | str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
        touch: bool = False,
    ) -> Page:
        """Load a file or an address and wait until it is loaded.

        Args:
            what: a file, or an address.
            width: of the window, CSS pixels.
            height: likewise.
            dark: whether the person prefers dark colours.
            scripts: whether pages may run any.
            touch: whether it is a phone: its viewport is that of a mobile device.
        """
        address = what if isinstance(what, str) else what.resolve().as_uri()
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.resize(width, height, touch=touch)
        page.media(dark=dark)
        page.go(address)
        return page

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """One command of the protocol; its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._events.append(answer)

    def events(self, session: str) -> list[dict[str, Any]]:
        """What has happened in a page so far, each told once."""
        own = [event for event in self._events if event.get("sessionId") == session]
        self._events = [event for event in self._events if event.get("sessionId") != session]
        return own

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium did not answer within {TIMEOUT_S:.0f} s")
            read = os.read(self._answers, 1 << 20)
            if not read:
                raise RuntimeError("Chromium ended")
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


class Page:
    """A page in a tab of its own."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser, self._session, self._context = browser, session, context
        self._seen: list[dict[str, Any]] = []
        self._width = 0

    def call(self, method: str, **params: Any) -> Any:
        """One command of the protocol to this page."""
        return self._browser.call(method, self._session, **params)

    def go(self, address: str) -> None:
        """Load an address and wait until it is loaded."""
        self._hear()
        self._seen = [event for event in self._seen if event["method"] != "Page.loadEventFired"]
        answer = self.call("Page.navigate", url=address)
        assert "errorText" not in answer, f"{address}: {answer}"
        until = time.monotonic() + TIMEOUT_S
        while not any(event["method"] == "Page.loadEventFired" for event in self._hear()):
            assert time.monotonic() < until, f"{address} was not loaded"
            self.call("Page.getFrameTree")  # any answer brings the events before it
            time.sleep(0.01)

    def value(self, script: str) -> Any:
        """What an expression gives in the page; a promise is awaited. The page's own CSP does not concern it."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        until = time.monotonic() + TIMEOUT_S
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(0.02)

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys where the focus is: their DOM names (Tab, Enter, ArrowDown, …) or single characters."""
        for key in keys:
            code, text = _KEYS.get(key, (ord(key.upper()[0]), key))
            event = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
            event |= {"code": {" ": "Space"}.get(key, key if key in _KEYS else f"Key{key.upper()}")}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **event)
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Enter a text where the focus is."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """A click with the mouse in the middle of the first element that fits."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.value(
            f"(() => {{ const b = {found}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }})()"
        )
        place = {"x": box[0] + box[2] / 2, "y": box[1] + box[3] / 2, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **place)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **place)

    def focused(self) -> str:
        """The element with the focus, its text in front: what a person would hear."""
        return str(self.value("(document.activeElement.innerText || '') + ' ' + document.activeElement.outerHTML"))

    def resize(self, width: int, height: int = 900, *, touch: bool = False) -> None:
        """Another window."""
        self._width = width
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def media(self, *, dark: bool = False, paper: bool = False) -> None:
        """What the person prefers, and whether the page is printed."""
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="print" if paper else "", features=colours)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """A PNG of the window, or of the whole page as far as it can be drawn."""
        clip = {}
        if whole:
            tall = min(TALLEST, self.value("Math.ceil(document.documentElement.scrollHeight)"))
            clip = {"clip": {"x": 0, "y": 0, "width": self._width, "height": tall, "scale": 1}}
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)
        file.write_bytes(base64.b64decode(told["data"]))

    def sideways(self) -> list[str]:
        """Elements that stick out of the page on the right and are in no box that scrolls by itself."""
        found: list[str] = self.value(_SIDEWAYS)
        return found

    def requests(self) -> list[str]:
        """Every address that the page has asked for, its own included."""
        asked = [event for event in self._hear() if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in asked]

    def complaints(self) -> list[str]:
        """What stands in the console: errors, warnings, and what the CSP refused."""
        self.value("1")
        texts = []
        for event in self._hear():
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                texts.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
            elif event["method"] == "Runtime.consoleAPICalled":
                texts.append(" ".join(str(item.get("value")) for item in params["args"]))
            elif event["method"] == "Log.entryAdded":
                texts.append(params["entry"]["text"])
        return texts

    def close(self) -> None:
        """Close the tab."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def _hear(self) -> list[dict[str, Any]]:
        self._seen += self._browser.events(self._session)
        return self._seen


_SIDEWAYS = """
(() => {
  const wide = document.documentElement.clientWidth + 0.5;
  const boxed = (item) => {
    for (let up = item.parentElement; up; up = up.parentElement) {
      const flow = getComputedStyle(up).overflowX;
      if (flow !== "visible" && up !== document.body && up !== document.documentElement
        && up.getBoundingClientRect().right <= wide) return true;
      if (up.namespaceURI.endsWith("svg")) return true;
    }
    return false;
  };
  return [...document.querySelectorAll("body *")]
    .filter((item) => item.getBoundingClientRect().right > wide && !boxed(item))
    .map((item) => `${item.tagName}.${item.className}: ${(item.textContent || "").trim().slice(0, 60)}`);
})()
"""


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A Chromium that ends with the block.

    Raises:
        FileNotFoundError: when there is none on this machine.
    """
    program = find_chromium()
    if program is None:
        raise FileNotFoundError("no Chromium on this machine: apt-get install -y chromium")
    reads, commands = os.pipe()
    answers, writes = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [sys.executable, "-S", "-E", "-c", _START, str(reads), str(writes), program, *FLAGS]
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=(reads, writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        browser = Browser(commands, answers)
        try:
            yield browser
        finally:
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                browser.call("Browser.close")
            os.close(commands)
            os.close(answers)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
