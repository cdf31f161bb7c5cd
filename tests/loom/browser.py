"""A headless Chromium for tests, driven by its own driver: plain WebDriver over HTTP, in a profile that is thrown away.

`missing()` says what there is not, by name.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,900",
]
ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def missing() -> str | None:
    """What a browser test needs and is not here."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    packages = {"chromium": "chromium", "chromedriver": "chromium-driver"}
    return (
        None if not lacking else f"no {', no '.join(lacking)} (Debian: {', '.join(packages[one] for one in lacking)})"
    )


class Browser:
    """One page at a time."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._session = session

    def _do(self, method: str, path: str, **body: Any) -> Any:
        url = f"/session/{self._session}{path}"
        answer = self._client.request(method, url, json=body if method == "POST" else None).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{method} {path} {body}: {answer['error']}: {answer['message'][:500]}")
        return answer

    def open(self, url: str) -> None:
        """Open a page, and wait until it says that it is ready."""
        self._do("POST", "/url", url=url)
        self.until("return document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str, *args: Any) -> Any:
        """What a piece of JavaScript returns."""
        return self._do("POST", "/execute/sync", script=script, args=list(args))

    def until(self, script: str, *args: Any) -> None:
        """Wait until it returns something true."""
        wait = (
            "const [done, args] = [arguments[arguments.length - 1], [...arguments]]; const look = () => { const said ="
        )
        wait += f" (function () {{ {script} }})(...args); said ? done(said) : setTimeout(look, 20); }}; look();"
        self._do("POST", "/execute/async", script=wait, args=list(args))

    def find(self, selector: str) -> str:
        """An element."""
        return str(self._do("POST", "/element", using="css selector", value=selector)[ELEMENT])

    def click(self, selector: str) -> None:
        """Click on an element, as a hand would: one that is covered or not there cannot be clicked."""
        self._do("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector: str, keys: str) -> None:
        """Type into an element."""
        self._do("POST", f"/element/{self.find(selector)}/value", text=keys)

    def text(self, selector: str) -> str:
        """What a person reads in an element."""
        return str(self._do("GET", f"/element/{self.find(selector)}/text"))

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._do("POST", "/actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def back(self) -> None:
        """Go back in history."""
        self._do("POST", "/back")

    def complaints(self) -> list[str]:
        """What the console holds since the last time."""
        return [str(line["message"]) for line in self._do("POST", "/se/log", type="browser")]

    def picture(self, path: Path) -> None:
        """The screen as a PNG."""
        path.write_bytes(base64.b64decode(self._do("GET", "/screenshot")))

    def printed(self) -> bytes:
        """The page as it prints, a PDF."""
        return base64.b64decode(self._do("POST", "/print"))


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser of its own, and its end."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as driver,
    ):
        try:
            assert driver.stdout is not None
            port = next(found[1] for line in driver.stdout if (found := re.search(r"on port (\d+)\.$", line.strip())))
            wanted = {
                "goog:chromeOptions": {
                    "binary": shutil.which("chromium"),
                    "args": [*FLAGS, f"--user-data-dir={profile}"],
                },
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
                made = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
                assert "sessionId" in made, made
                try:
                    yield Browser(client, made["sessionId"])
                finally:
                    client.delete(f"/session/{made['sessionId']}")
        finally:
            driver.terminate()
