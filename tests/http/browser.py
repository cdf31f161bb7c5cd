"""Chromium, driven by playwright, and a service in a thread with entities worth looking at."""

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.from_thread

from tests.http.serving import Served, served


@dataclass
class Live:
    """A service in a thread of its own, with a portal into its event loop."""

    on: Served
    portal: anyio.from_thread.BlockingPortal

    def call(self, work: Any, *args: Any, **more: Any) -> Any:
        """Call an async function in the service's loop."""
        return self.portal.call(functools.partial(work, *args, **more))

    def do(self, work: Any) -> Any:
        """Call a plain function in the service's loop, so that it sees the service between two steps."""

        async def run() -> Any:
            return work()

        return self.portal.call(run)

    def link(self, token: str = "admin") -> str:
        return f"{self.on.url}/#token={token}-token"


@contextmanager
def live(cantrips: Any, url: str = "memory:", **more: Any) -> Iterator[Live]:
    """Serve in a thread until the block ends."""
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(served(cantrips, url, **more)) as on,
    ):
        yield Live(on, portal)


def chromium() -> str | None:
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


@contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium. It runs as root in containers, which it allows without its own sandbox only."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield started
        finally:
            started.close()
