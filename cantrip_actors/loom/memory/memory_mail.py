"""The mail of a loom in memory: the mail that waits in each inbox, and the keys of the mail that was taken."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from cantrip_actors.loom.stores.rules import Plan, Waiting
from cantrip_actors.records.mail import MailRow

_Lanes = tuple[OrderedDict[int, bytes], OrderedDict[int, bytes]]
_NO_LANES: _Lanes = (OrderedDict(), OrderedDict())


class MailIndex:
    """All mail of a loom. Taking and counting is O(1).

    Reading copies in one step what another thread may change meanwhile: keys or values, but no pairs, because another
    thread may run whenever Python makes one.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], MailRow] = {}
        """The rows by entity and key."""
        self.last = 0
        """The highest number."""
        self._waiting: dict[int, MailRow] = {}
        self._lanes: dict[str, _Lanes] = {}
        """For each entity with waiting mail, and each lane: the lines by their numbers. (Not a dict: removing from the
        front of one makes it slow.)"""

    def find_waiting(self, no: int) -> MailRow | None:
        """Return the mail with that number, if it waits."""
        return self._waiting.get(no)

    def list_pending(self, entity: str, limit: int) -> list[tuple[int, bytes]]:
        """Return numbers and lines of waiting mail, control lane first."""
        pending: list[tuple[int, bytes]] = []
        for lane in self._lanes.get(entity, _NO_LANES):
            numbers = [*islice(lane, limit - len(pending))]
            pending += [(no, line) for no in numbers if (line := lane.get(no)) is not None]
        return pending

    def list_waiting_after(self, no: int) -> list[MailRow]:
        """Return the waiting mail with a higher number, in order."""
        return [row for row in [*self._waiting.values()] if row.no > no] if no < self.last else []

    def list_entities(self) -> list[str]:
        """Return the entities with waiting mail."""
        return list(self._lanes)

    def count(self, entity: str) -> Waiting:
        """Count an entity's waiting mail by going through all of it."""
        control, intents = self._lanes.get(entity, _NO_LANES)
        return Waiting(len(control), len(intents), sum(self._waiting[no].loads for no in (*control, *intents)))

    def read_lines(self) -> Iterator[tuple[MailRow, bytes]]:
        """Yield every mail by its number, and its line if it waits."""
        for row in sorted(self.rows.values()):
            yield row, self.get_line(row)

    def get_line(self, row: MailRow) -> bytes:
        """Return the line of a mail, if it waits."""
        return self._lanes.get(row.entity_id, _NO_LANES)[row.lane].get(row.no, b"")

    def replace(self, row: MailRow, taken: MailRow) -> None:
        """Put a row of taken mail in the place of another one."""
        self.remove(row.entity_id, row.key)
        self.add(taken, b"")

    def remove(self, entity: str, key: str) -> None:
        """Remove a mail, if it exists."""
        row = self.rows.pop((entity, key), None)
        if row is not None and row.taken is None:
            self._dequeue(row)

    def add(self, row: MailRow, line: bytes) -> None:
        """Add a mail, which waits unless its row says that it was taken."""
        self.rows[row.entity_id, row.key] = row
        self.last = max(self.last, row.no)
        if row.taken is None:
            self._waiting[row.no] = row
            self._lanes.setdefault(row.entity_id, (OrderedDict(), OrderedDict()))[row.lane][row.no] = line

    def take(self, row: MailRow, number: int) -> None:
        """Mark a mail as taken by the record with that number."""
        self._dequeue(row)
        self.rows[row.entity_id, row.key] = row._replace(taken=number)

    def take_all(self, entity: str, number: int) -> None:
        """Mark all waiting mail of an entity as taken by the record with that number."""
        for lane in self._lanes.get(entity, _NO_LANES):
            for no in list(lane):
                self.take(self._waiting[no], number)

    def _dequeue(self, row: MailRow) -> None:
        del self._waiting[row.no]
        lanes = self._lanes[row.entity_id]
        del lanes[row.lane][row.no]
        if not any(lanes):
            del self._lanes[row.entity_id]

    def apply(self, plan: Plan) -> None:
        """Add the written mail."""
        for row, line, _ in plan.posted.values():
            self.add(row, line)
        for row, number in plan.taken.values():
            self.take(row, number)
        for tree, number in plan.emptied:
            self.take_all(tree.root, number)
