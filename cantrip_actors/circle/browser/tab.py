"""One page of a session: the elements that the entity was shown last, and the events of the page in this call."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from playwright.async_api import Error, Page, Request

from cantrip_actors.circle.browser.page_text import ShownPage

SETTLE: Final = 3.0
"""Seconds that a page has to settle after an action: to load, and to get what its scripts request."""

MOMENT: Final = 0.04
"""Seconds in which a page that reacts to an action begins to."""

_ENDLESS: Final = frozenset({"eventsource", "websocket", "media", "ping", "manifest"})
"""Kinds of requests that no page waits for."""


class Tab:
    """One page. Used in the driver's loop alone."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.shown: ShownPage | None = None
        self.dialogs = 0
        """Dialogs in this call."""
        self.state: dict[str, Any] = {"url": "about:blank"}
        """Its address, its storage and the values of its form fields, after the last call."""
        self._requests: set[Request] = set()
        self._is_over = False
        page.on("request", self._note_request)
        page.on("requestfinished", self._note_end)
        page.on("requestfailed", self._note_end)

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return not (self._is_over or self.page.is_closed())

    async def close(self) -> None:
        """Close it; it cannot be used from now on."""
        self._is_over = True
        await self.page.close()

    async def settle(self, seconds: float) -> None:
        """Wait until the page has loaded and its requests have ended, but not for long."""
        await asyncio.sleep(MOMENT)
        try:
            async with asyncio.timeout(seconds):
                await self.page.wait_for_load_state("load")
                while self._requests and self.is_open:  # noqa: ASYNC110  # they may end and begin many times
                    await asyncio.sleep(MOMENT)
        except (TimeoutError, Error):  # it goes on loading, or is gone: its reader sees the part that has loaded
            self._requests.clear()

    async def answers(self) -> bool:
        """Return whether the page answers within a second."""
        try:
            async with asyncio.timeout(1):
                await self.page.locator("css=html").count()
        except (Error, TimeoutError):
            return False
        return True

    async def get_title(self) -> str:
        """Return the title; empty for a page that is just replaced by another one."""
        with suppress(Error):
            return await self.page.title()
        return ""

    def _note_request(self, request: Request) -> None:
        if request.resource_type not in _ENDLESS:
            self._requests.add(request)

    def _note_end(self, request: Request) -> None:
        self._requests.discard(request)
