"""Wakes the calls of clients that wait for an episode, when its entity, or one below it, comes to wait itself.

One subscription serves all calls of a service: most episodes wait for no person, and a subscription for each of them
would be woken by the events of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import anyio

from cantrip_actors import CantripError, Entity, EntityEvent, RequestedEvent, Runtime
from cantrip_actors.runtime.events.events import Subscription

LOOK: Final = 0.5
"""Seconds between two reads of the requests of an entity, which another process may run."""


class RequestNews:
    """Whether an entity, or one below it, may have come to wait since the last `reset`."""

    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self._event = anyio.Event()

    def reset(self) -> None:
        """Begin to wait for news; call it before looking at the loom, so that none is missed."""
        self._event = anyio.Event()

    def wake(self) -> None:
        """Let `wait` return."""
        self._event.set()

    async def wait(self) -> None:
        """Wait for news since the last `reset`."""
        await self._event.wait()


class RequestWatch:
    """The calls that wait for episodes. Its task runs while there are any."""

    def __init__(self, runtime: Runtime, start_soon: Callable[..., Any]) -> None:
        self._runtime = runtime
        self._start_soon = start_soon
        self._followers: list[RequestNews] = []
        self._is_running = False

    @contextmanager
    def follow(self, entity: Entity) -> Iterator[RequestNews]:
        """Yield news about the requests of an entity, and of those below it, while the block runs."""
        news = RequestNews(entity)
        self._followers.append(news)
        if not self._is_running:
            self._is_running = True
            self._start_soon(self._run, self._runtime.events(lambda event: isinstance(event, RequestedEvent)))
        try:
            yield news
        finally:
            self._followers.remove(news)

    async def _run(self, requests: Subscription) -> None:
        with closing(requests):
            while self._followers and not requests.is_over:
                event: EntityEvent | None = None
                with anyio.move_on_after(LOOK):
                    event = await anext(requests, None)
                if isinstance(event, RequestedEvent):
                    self._wake(await self._find_concerned(event.entity_id))
                elif event is not None:  # some were missed
                    self._wake(news.entity.id for news in self._followers)
                else:  # changes by other processes come without an event
                    self._wake(news.entity.id for news in self._followers if not news.entity.loaded)
        self._is_running = False

    async def _find_concerned(self, entity_id: str) -> list[str]:
        """Return the entities that wait when one does: it, and those above it.

        If the loom cannot be read now, these are all: the error is that of each call, and not of the service.
        """
        try:
            return await self._runtime.read(lambda: [*self._runtime.loom.ancestry(entity_id)])
        except CantripError:
            return [news.entity.id for news in self._followers]

    def _wake(self, entity_ids: Iterable[str]) -> None:
        ids = frozenset(entity_ids)
        for news in self._followers:
            if news.entity.id in ids:
                news.wake()
