"""The browser of one entity, as its gates use it: it is opened by the first call and closed with the entity."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from cantrip_actors.circle.browser.settings import BrowserSettings
from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.terms.resource import BoundResource

if TYPE_CHECKING:
    from cantrip_actors.circle.browser.session import BrowserSession


class EntityBrowser(BoundResource):
    """The browser of one entity, with the state of a snapshot."""

    def __init__(self, settings: BrowserSettings, snapshot: bytes | None) -> None:
        self.settings = settings
        self._session: BrowserSession | None = None
        self._state = self._dumped = snapshot

    async def describe(self, dependencies: Mapping[str, Any]) -> str:
        """Return a look at the page in front."""
        look: str = await self.perform(lambda session: session.see(part=1), dependencies.get("secrets"))
        return look

    def dump(self) -> bytes | None:
        """Return the state after the last call; None if it is the one that was returned last."""
        if self._state == self._dumped:
            return None
        self._dumped = self._state
        return self._state

    async def perform(
        self, work: Callable[[BrowserSession], Awaitable[Any]], secrets: Mapping[str, str] | None = None
    ) -> Any:
        """Return the result of `work`, which runs with the session in the driver's thread. Raises GateError."""
        from cantrip_actors.circle.browser.driver import run_in_driver  # a circle that has no browser imports none

        return await run_in_driver(self._perform, work, secrets or {})

    async def _perform(self, work: Callable[[BrowserSession], Awaitable[Any]], secrets: Mapping[str, str]) -> Any:
        try:
            from cantrip_actors.circle.browser.session import BrowserSession
        except ModuleNotFoundError as missing:
            from cantrip_actors.circle.browser.driver import MISSING

            raise GateError(MISSING) from missing
        session = self._session
        if session is not None and session.is_lost:
            await session.close()
            session = self._session = None
        if session is None:
            session = self._session = await BrowserSession.open(self.settings, self._state)
        try:
            return await session.perform(work, secrets)
        finally:
            self._state = await session.read_state() or self._state

    async def close(self) -> None:
        """Close the tabs. The next call opens them again."""
        session, self._session = self._session, None
        if session is not None:
            from cantrip_actors.circle.browser.driver import run_in_driver

            await run_in_driver(session.close)
