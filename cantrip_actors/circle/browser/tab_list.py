"""The tabs of a session, and the reactions to pages that open tabs or dialogs, want files, download or crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from playwright.async_api import BrowserContext, Dialog, Error, FileChooser, Page

from cantrip_actors.circle.browser.downloads import Downloads
from cantrip_actors.circle.browser.notices import Notices
from cantrip_actors.circle.browser.page_text import quote_text, shorten_text
from cantrip_actors.circle.browser.tab import Tab
from cantrip_actors.circle.gate_call import GateError

DIALOGS: Final = 10
"""Dialogs of one page in one call. A page with more is closed."""

EXCESS: Final = 10
"""Tabs beyond the limit that pages may try to open in one call. If they try more, all tabs are closed."""


class TabList:
    """The tabs of a session, in the order of their opening, and which of them is in front.

    Args:
        most: how many may be open at once.
        notices: receives the events that pages cause without a gate call.
        replace: closes all tabs at once, of which each opens more.
    """

    def __init__(self, most: int, notices: Notices, replace: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.current = 0
        """The index of the tab in front."""
        self.downloads = Downloads(notices.note)
        self._most = most
        self._notices = notices
        self._replace = replace
        self._context: BrowserContext | None = None
        self._tabs: list[Tab] = []
        self._refused = 0
        self._reactions: set[asyncio.Task[Any]] = set()

    def begin(self, context: BrowserContext) -> None:
        """Take the pages of a context that has none yet."""
        self._tabs, self._context = [], context
        context.on("page", self._add)

    def begin_call(self) -> None:
        """Begin to count what pages do in a call."""
        self._refused = 0
        for tab in self._tabs:
            tab.dialogs = 0

    async def end_reactions(self) -> None:
        """End the reactions to events of pages."""
        for task in self._reactions:
            task.cancel()
        await asyncio.gather(*self._reactions, return_exceptions=True)

    def list_open(self) -> list[Tab]:
        """Return the open tabs, and forget the others."""
        self._tabs = [tab for tab in self._tabs if tab.is_open]
        return self._tabs

    def find_front(self) -> Tab | None:
        """Return the tab in front, which may be closed; None if there is none."""
        return self._tabs[self.current] if self.current < len(self._tabs) else None

    async def get_front(self) -> Tab:
        """Return the tab in front; a new one if there is none."""
        if not self.list_open():
            assert self._context is not None
            await self._context.new_page()  # `_add` adds it
        self.current = min(self.current, len(self._tabs) - 1)
        return self._tabs[self.current]

    async def show(self, number: int) -> None:
        """Bring a tab to the front, counted from 1."""
        await self.get_front()
        if not 1 <= number <= len(self._tabs):
            raise GateError(f"there is no tab {number}: there are {len(self._tabs)}")
        self.current = number - 1
        await self._tabs[self.current].page.bring_to_front()

    async def close(self, number: int) -> None:
        """Close a tab, counted from 1."""
        await self.show(number)
        await self._tabs[number - 1].close()
        await self.get_front()

    async def render(self) -> str:
        """Return a line for each tab."""
        await self.get_front()
        hide, lines = self._notices.hide, []
        for number, tab in enumerate(self._tabs, start=1):
            front = " (in front)" if number - 1 == self.current else ""
            title = quote_text(hide(await tab.get_title()))
            lines.append(f"tab {number}{front}: {title} {shorten_text(hide(tab.page.url))}")
        return "\n".join([*self._notices.take(), *lines])

    def _add(self, page: Page) -> None:
        """Take a new page into the tabs, or close it if there are too many."""
        note = self._notices.note
        if len([tab for tab in self._tabs if tab.is_open]) >= self._most:
            self._refused += 1
            if self._refused == 1:
                note(f"a page tried to open a tab: {self._most} are open, which is the limit")
            if self._refused == EXCESS:
                note("pages tried to open too many tabs: all were closed")
                self._react(self._replace())
            elif self._refused < EXCESS:
                self._react(page.close())
            return
        tab = Tab(page)
        self._tabs.append(tab)
        if len(self._tabs) > 1:
            note(f"tab {len(self._tabs)} was opened: tabs(show={len(self._tabs)}) brings it to the front")
        page.on("dialog", lambda dialog: self._react(self._dismiss(tab, dialog)))
        page.on("download", lambda download: self._react(self.downloads.take(download)))
        page.on("filechooser", self._refuse_file)
        page.on("crash", lambda _: self._react(self._close_crashed(tab)))

    async def _dismiss(self, tab: Tab, dialog: Dialog) -> None:
        tab.dialogs += 1
        if dialog.type == "beforeunload":  # a page cannot hold its reader
            await dialog.accept()
            return
        if tab.dialogs <= DIALOGS:
            self._notices.note(f"a dialog ({dialog.type}) was dismissed: {quote_text(dialog.message)}")
        if tab.dialogs == DIALOGS:
            self._notices.note("the page opened too many dialogs and was closed")
            await tab.close()
        else:
            await dialog.dismiss()

    def _refuse_file(self, chooser: FileChooser) -> None:  # noqa: ARG002  # nothing is chosen
        self._notices.note("the page wants a file: uploads are off")

    async def _close_crashed(self, tab: Tab) -> None:
        self._notices.note("the page crashed, most likely out of memory, and was closed")
        await tab.close()

    def _react(self, work: Awaitable[None]) -> None:
        """Start to react to an event of a page. The page may be gone meanwhile, which is no error."""

        async def react() -> None:
            with suppress(Error):
                await work

        task = asyncio.get_running_loop().create_task(react())
        self._reactions.add(task)
        task.add_done_callback(self._reactions.discard)
