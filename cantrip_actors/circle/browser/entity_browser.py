"""The browser of one entity, as its gates use it: it is opened by the first call and closed with the entity."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from cantrip_actors.circle.browser.settings import BrowserSettings
from cantrip_actors.terms.resource import BoundResource

if TYPE_CHECKING:
    from cantrip_actors.circle.browser.session import BrowserSession


class EntityBrowser(BoundResource):
    """The browser of one entity."""

    def __init__(self, settings: BrowserSettings) -> None:
        self.settings = settings
        self._session: BrowserSession | None = None

    async def perform(
        self, work: Callable[[BrowserSession], Awaitable[Any]], secrets: Mapping[str, str] | None = None
    ) -> Any:
        """Return the result of `work`, which runs with the session in the driver's thread. Raises GateError."""
        from cantrip_actors.circle.browser.driver import run_in_driver  # a circle that has no browser imports none

        return await run_in_driver(self._perform, work, secrets or {})

    async def _perform(self, work: Callable[[BrowserSession], Awaitable[Any]], secrets: Mapping[str, str]) -> Any:
        from cantrip_actors.circle.browser.session import BrowserSession

        session = self._session
        if session is not None and session.is_lost:
            await session.close()
            session = self._session = None
        if session is None:
            session = self._session = await BrowserSession.open(self.settings)
        return await session.perform(work, secrets)

    async def close(self) -> None:
        """Close the tabs. The next call opens an empty browser."""
        session, self._session = self._session, None
        if session is not None:
            from cantrip_actors.circle.browser.driver import run_in_driver

            await run_in_driver(session.close)
