"""The mail of a memory or JSONL loom, in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice, takewhile

from cantrip_actors.loom.erasure import make_blank_key
from cantrip_actors.loom.rules import Plan, Waiting
from cantrip_actors.records.mail import MailRow


class Inboxes:
    """All mail of a loom. Taking and counting is O(1)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], MailRow] = {}
        """The rows by entity and key."""
        self.last = 0
        """The highest number."""
        self._waiting: dict[int, MailRow] = {}
        self._lanes: dict[str, tuple[OrderedDict[int, bytes], OrderedDict[int, bytes]]] = {}
        """For each entity with waiting mail, and each lane: the lines by their numbers. (Not a dict: removing from the
        front of one makes it slow.)"""

    def find_mail_row(self, no: int) -> MailRow | None:
        """Return the mail with that number, if it waits."""
        return self._waiting.get(no)

    def list_pending(self, entity: str, limit: int) -> list[tuple[int, bytes]]:
        """Return numbers and lines of waiting mail, control lane first."""
        control, intents = self._lanes.get(entity, ((), ()))
        found = [(no, control[no]) for no in islice(control, limit)]
        return found + [(no, intents[no]) for no in islice(intents, limit - len(found))]

    def list_waiting_after(self, no: int) -> list[MailRow]:
        """Return the waiting mail with a higher number, in order."""
        newest = takewhile(lambda row: row.no > no, reversed(self._waiting.values()))
        return [*newest][::-1]

    def list_entities(self) -> list[str]:
        """Return the entities with waiting mail."""
        return list(self._lanes)

    def count(self, entity: str) -> Waiting:
        """Count an entity's waiting mail by going through all of it."""
        control, intents = self._lanes.get(entity, ((), ()))
        return Waiting(len(control), len(intents), sum(self._waiting[no].loads for no in (*control, *intents)))

    def read_lines(self) -> Iterator[tuple[MailRow, bytes]]:
        """Yield every mail by its number, and its line if it waits."""
        for row in sorted(self.rows.values()):
            yield row, b"" if row.taken is not None else self._lanes[row.entity_id][row.lane][row.no]

    def forget(self, row: MailRow) -> None:
        """Remove a taken mail."""
        del self.rows[row.entity_id, row.key]

    def forget_content(self, row: MailRow, number: int) -> None:
        """Reduce a mail to its number, marked as taken by the record with that number."""
        if row.taken is None:
            self.take(row, number)
        self.forget(row)
        self.add(row._replace(key=make_blank_key(row.no), digest=b"", taken=number), b"")

    def add(self, row: MailRow, line: bytes) -> None:
        """Add a mail, which waits unless its row says that it was taken."""
        self.rows[row.entity_id, row.key] = row
        self.last = max(self.last, row.no)
        if row.taken is None:
            self._waiting[row.no] = row
            self._lanes.setdefault(row.entity_id, (OrderedDict(), OrderedDict()))[row.lane][row.no] = line

    def take(self, row: MailRow, number: int) -> None:
        """Mark a mail as taken."""
        del self._waiting[row.no]
        lanes = self._lanes[row.entity_id]
        del lanes[row.lane][row.no]
        if not any(lanes):
            del self._lanes[row.entity_id]
        self.rows[row.entity_id, row.key] = row._replace(taken=number)

    def apply(self, made: Plan) -> None:
        """Add the written mail."""
        for row, line, _ in made.posted.values():
            self.add(row, line)
        for row, number in made.taken.values():
            self.take(row, number)
        for tree, number in made.emptied:
            for lane in self._lanes.get(tree.root, ()):
                for no in list(lane):
                    self.take(self._waiting[no], number)
