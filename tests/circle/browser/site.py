"""A site on loopback for browser tests: pages by path, a log of what was requested, and names that lead to it."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.circle.browser.driver import find_browser
from cantrip_actors.gates import browser
from cantrip_actors.wards import max_turns

needs_browser = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium (Debian: chromium-headless-shell), and no browser test without it"
)

ENDLESS = b"\0"
"""A body that never ends: a byte every tenth of a second."""

Page = str | tuple[int, Mapping[str, str], str | bytes]


class Got(NamedTuple):
    """A request that the site received."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: str


class Site(ThreadingHTTPServer):
    """A server of pages that a test sets."""

    daemon_threads = True

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.pages: dict[str, Page] = {}
        self.got: list[Got] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.port}"

    @property
    def place(self) -> str:
        """The site as a host that a browser may reach."""
        return f"{self.server_address[0]}:{self.port}"

    def paths(self) -> list[str]:
        return [got.path for got in self.got]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        site: Any = self.server
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        site.got.append(Got(self.command, self.path, dict(self.headers), body))
        page: Page = site.pages.get(self.path.partition("?")[0], (404, {}, "no such page"))
        status, headers, text = page if isinstance(page, tuple) else (200, {}, page)
        data = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        for name, value in {
            "content-type": "text/html; charset=utf-8",
            "content-length": "" if data is ENDLESS else str(len(data)),
            **headers,
        }.items():
            if value:
                self.send_header(name, value)
        self.close_connection = data is ENDLESS or headers.get("content-length") == ""
        self.end_headers()
        with suppress(OSError):  # the browser has closed the connection
            self.wfile.write(data)
            while data is ENDLESS:
                time.sleep(0.1)
                self.wfile.write(data)

    do_POST = do_GET  # noqa: N815  # its name in the standard library

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[Site]:
    """Serve in a thread until the block ends."""
    with Site(host) as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()


Calls = list[tuple[str, dict[str, Any]]]


def browsing(calls: Calls, allow: list[str], gates: list[Any] = [], **options: Any) -> Cantrip:  # noqa: B006
    """A cantrip that makes these calls, and then is done."""
    script = [{"tool_calls": [{"gate": name, "args": args}]} for name, args in calls]
    script.append({"tool_calls": [{"gate": "done", "args": {"answer": "done"}}]})
    circle = Circle(gates=["done", *browser(allow, **options), *gates], wards=[max_turns(len(script) + 1)])
    return Cantrip(crystal=scripted(script), circle=circle)


async def browse(calls: Calls, allow: list[str], **options: Any) -> list[str]:
    """What an entity observes that makes these calls."""
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(browsing(calls, allow, **options), "Browse.")
    return [turn.observation for turn in episode.thread[:-1]]
