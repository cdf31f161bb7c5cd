"""The recorded events of all entities after a position, from the loom, in any process (0173)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cantrip_actors.loom import Loom
from cantrip_actors.runtime.events.follower import Follower
from cantrip_actors.runtime.events.loom_log import LoomLog
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.stream.events import EntityEvent
from cantrip_actors.stream.reading import EventId

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree


class LoomFeed(Follower[EntityEvent]):
    """The recorded events of all entities after a position, each once and in order. It ends when the runtime closes.

    If this process runs entities, their events announce new records; otherwise it polls twice a second. Iterating
    raises LoomError while the loom cannot be read: try again then.
    """

    def __init__(
        self, tree: Tree, loom: Loom, after: EventId, wanted: Callable[[EntityEvent], bool] | None = None
    ) -> None:
        super().__init__(tree.bus.subscribe())
        self._tree = tree
        self._log = LoomLog(loom, after)
        self._number = self._log.begin
        self._wanted = wanted
        self._has_more = False

    async def _read(self) -> Iterable[EntityEvent]:
        read, self._number, self._has_more = await self._tree.in_store(partial(self._log.read, self._number))
        events = self._tree.guard.redact_events([replace(found.event, id=str(found.position)) for found in read])
        return events if self._wanted is None else filter(self._wanted, events)

    async def _read_all(self) -> None:
        await super()._read_all()
        self._is_due = self._is_due or self._has_more

    def _choose_interval(self) -> float | None:
        return POLL_INTERVAL if self._tree.store.shared else None
