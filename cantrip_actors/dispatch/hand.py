"""The hand that writes a dispatch's log while its entity runs: under its lease, each thing once.

One for each dispatch that runs here. It knows who holds the lease and with which token, and nothing else that the log
does not say (F-27). A gate call that a crash cut short is called again, with the same turn: what that turn has written
already is not written twice.
"""

from __future__ import annotations

from collections.abc import Callable

from cantrip_actors import Here
from cantrip_actors.dispatch.errors import DispatchError
from cantrip_actors.dispatch.events import Event, Recovered, StatusChanged
from cantrip_actors.dispatch.log import Dispatches
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.status import Capacity

__all__ = ["Hand"]

RUNTIME = "runtime"


class Hand:
    """Writes the log of dispatch `dispatch_id` for the entity that runs it."""

    def __init__(self, log: Dispatches, dispatch_id: str) -> None:
        self.log = log
        self.dispatch_id = dispatch_id
        self.noted: Callable[[], None] = lambda: None
        """Called when an entry of progress is durable."""
        self._entity_id = ""
        self._token: int | None = None

    async def read(self) -> Record:
        """The record as the log has it. Raises TamperedRecord."""
        return await self.log.read_soon(self.dispatch_id)

    async def begin(self, here: Here) -> Record:
        """Take the dispatch: make it active or, where it was under way when its entity crashed, recover it.

        The entity holds the loom's lease on itself; the token that fences off late writers of this log is the log's
        own, one higher with each start (F-33). One that has ended is left as it is: its entity has only to finish.

        Raises DispatchError where another entity runs it, EventRefused where it may not start.
        """
        record = await self.read()
        taken = record.status == "active"
        if taken and record.entries[record.started - 1].author != here.entity_id:
            other = record.entries[record.started - 1].author
            raise DispatchError(f"{record.id} is run by entity {other}: {here.entity_id} may not run it as well (F-14)")
        self._entity_id = here.entity_id
        if record.status not in ("queued", "active"):
            if not here.restored:
                raise DispatchError(f"{record.id} is {record.status}: nothing of it is to be run")
            self._token = record.token
            return record
        self._token = record.next_token
        if taken:
            await self.write(Recovered("its entity was restarted from its log"), by="supervisor")
        return await self.write(StatusChanged("active"))

    async def write(self, *events: Event, by: Capacity = "worker", turn_id: str | None = None) -> Record:
        """Append events, those that this turn has not written yet; the record with them.

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
