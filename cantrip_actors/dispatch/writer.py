"""The writer of a dispatch's log while its entity runs: under the entity's lease, each event once.

It knows who holds the lease and with which token; everything else is in the log (F-27). After a crash a gate call is
repeated with the same turn, and an event that this turn has written is not written twice.
"""

from __future__ import annotations

from collections.abc import Callable

from cantrip_actors import Here
from cantrip_actors.dispatch.errors import DispatchError
from cantrip_actors.dispatch.events import Event, Recovered, StatusChanged
from cantrip_actors.dispatch.log import Dispatches
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.status import Capacity

__all__ = ["DispatchWriter"]

RUNTIME = "runtime"


class DispatchWriter:
    """Writes the log of dispatch `dispatch_id` for the entity that runs it."""

    def __init__(self, log: Dispatches, dispatch_id: str) -> None:
        self.log = log
        self.dispatch_id = dispatch_id
        self.noted: Callable[[], None] = lambda: None
        """Called when a progress entry is durable."""
        self._entity_id = ""
        self._token: int | None = None

    async def read(self) -> Record:
        """Return the record. Raises TamperedRecord."""
        return await self.log.read_soon(self.dispatch_id)

    async def begin(self, here: Here) -> Record:
        """Make the dispatch active or, if it was active when its entity crashed, recover it.

        The loom's lease is the entity's; the token that refuses late writers of this log is the log's own, one higher
        with each start (F-33). A dispatch that has ended stays as it is: its entity has only to finish.

        Raises DispatchError where another entity runs it, EventRefused where it may not start.
        """
        record = await self.read()
        was_active = record.status == "active"
        if was_active and record.entries[record.started - 1].author != here.entity_id:
            other = record.entries[record.started - 1].author
            raise DispatchError(f"{record.id} is run by entity {other}: {here.entity_id} may not run it as well (F-14)")
        self._entity_id = here.entity_id
        if record.status not in ("queued", "active"):
            if not here.restored:
                raise DispatchError(f"{record.id} is {record.status}: it cannot be run")
            self._token = record.token
            return record
        self._token = record.next_token
        if was_active:
            await self.write(Recovered("its entity was restarted from its log"), by="supervisor")
        return await self.write(StatusChanged("active"))

    async def write(self, *events: Event, by: Capacity = "worker", turn_id: str | None = None) -> Record:
        """Append the events that this turn has not written yet, and return the record.

        Raises EventRefused, TamperedRecord, DispatchError.
        """
        return await self.log.append_soon(
            self.dispatch_id,
            *events,
            by=by,
            author=self._entity_id if by == "worker" else RUNTIME,
            turn_id=turn_id,
            token=self._token,
            once=turn_id is not None,
        )
