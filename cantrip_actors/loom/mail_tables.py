"""The tables of mail and timers in both SQL stores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from cantrip_actors.loom.inbox import TakenMail, select_settled
from cantrip_actors.loom.node_tables import NodeTables
from cantrip_actors.loom.rules import NONE_WAITS, Waiting
from cantrip_actors.loom.schema import QUEUES_SINCE, TIMERS_SINCE
from cantrip_actors.loom.table_rows import MAIL_ROWS, MANY, Connection, decode_mail_row, decode_text
from cantrip_actors.machine.project import get_time
from cantrip_actors.records.mail import MailRow, Pending
from cantrip_actors.records.timers import FIRST, Due, Timer

SCHEDULES, NOBODY = 0, -1
"""Two numbers that no entity has: schedules belong to the first, nothing to the second."""


class MailTables(NodeTables):
    """A store whose mail and timers are rows."""

    def pending(self, entity_id: str, limit: int = 100) -> list[Pending]:
        """Return the waiting mail of an entity, control lane first, then in order."""
        rows = self._fetch_new_rows(
            "select no, line from mail where entity = (select no from entities where id = ?) and taken is null "
            "order by lane, no limit ?",
            entity_id,
            limit,
        )
        return [self._decode_pending(no, decode_text(line).encode()) for no, line in rows]

    def waiting(self, *, loads: bool = True) -> list[str]:
        """Return the entities that have waiting mail for which they are loaded."""
        least = 1 if loads else 0
        query = "select id from trees join entities using (no) where control + intents > 0 and loads >= ? order by no"
        return [decode_text(id) for (id,) in self._fetch_new_rows(query, least)]

    def count_mail(self, entity_id: str) -> Waiting:
        """Return how much mail waits for an entity."""
        query = "select control, intents, loads from trees where no = (select no from entities where id = ?)"
        rows = self._fetch_new_rows(query, entity_id)
        return Waiting(*rows[0]) if rows else NONE_WAITS

    def _list_waiting_after(self, no: int, limit: int = sys.maxsize) -> list[MailRow]:
        rows = self._fetch_new_rows(
            f"{MAIL_ROWS} where mail.no > ? and taken is null order by mail.no limit ?", no, limit
        )
        return [decode_mail_row(row) for row in rows]

    def find_mail(self, entity_id: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key."""
        rows = self._fetch_new_rows(f"{MAIL_ROWS} where id = ? and key = ?", entity_id, key)
        return decode_mail_row(rows[0]) if rows else None

    def expire_mail(self, before: str) -> None:
        """Forget mail that was settled before that time."""
        at, old = 0, []
        query = (
            "select mail.no, id, lane, seq, body from mail join records on seq = taken "
            "join entities on entities.no = mail.entity where mail.no > ? order by mail.no limit ?"
        )
        while rows := self._fetch_new_rows(query, at, MANY):
            at = rows[-1][0]
            old += [
                TakenMail(no, decode_text(id), lane, seq)
                for no, id, lane, seq, body in rows
                if get_time(self._decode(seq, body)) < before
            ]
        expired = select_settled(old, before, self.records)
        for first in range(0, len(expired), MANY):
            numbers = [(one.no,) for one in expired[first : first + MANY]]
            self._transact(partial(self._forget, numbers))

    def _forget(self, numbers: Sequence[tuple[int]], db: Connection) -> None:
        db.executemany("delete from mail where no = ? and no < (select max(no) from mail)", numbers)

    # ----------------------------------------------------------------------------------------------------------- timers

    def timers(self, entity_id: str = "") -> list[Timer]:
        """Return the timers of an entity, or the schedules."""
        query = "select line from timers where entity = coalesce((select no from entities where id = ?), ?) order by id"
        return self._fetch_timers(query, entity_id, NOBODY if entity_id else SCHEDULES)

    def find_timer(self, entity_id: str, id: str) -> Timer | None:
        """Return the timer with that id."""
        query = "select line from timers where entity = coalesce((select no from entities where id = ?), ?) and id = ?"
        found = self._fetch_timers(query, entity_id, NOBODY if entity_id else SCHEDULES, id)
        return found[0] if found else None

    def timers_due(self, until: float, *, after: Due = FIRST, limit: int = 100, queue: str = "") -> list[Timer]:
        """Return the first timers that are due, in order."""
        if queue:
            query = (
                "select line from timers where queue = ? and place <= ? and (place, entity, id) > (?, ?, ?) "
                "order by place, entity, id limit ?"
            )
            rows = self._fetch_queue_rows(query, queue, until, after.due, SCHEDULES, after.id, limit)
            return [self._decode_timer(decode_text(line)) for (line,) in rows]
        query = (
            "select line from timers where due <= ? "
            "and (due, entity, id) > (?, coalesce((select no from entities where id = ?), ?), ?) "
            "order by due, entity, id limit ?"
        )
        return self._fetch_timers(query, until, after.due, after.entity_id, SCHEDULES, after.id, limit)

    def has_due(self, until: float, count: int, queue: str = "") -> bool:
        """Return whether at least `count` timers are due."""
        if queue:
            query = "select 1 from timers where queue = ? and place <= ? order by place, entity, id limit 1 offset ?"
            return bool(self._fetch_queue_rows(query, queue, until, count - 1))
        query = "select 1 from timers where due <= ? order by due, entity, id limit 1 offset ?"
        return self._version >= TIMERS_SINCE and bool(self._fetch_rows(query, until, count - 1))

    def count_queued(self, queue: str) -> int:
        """Return how many timers wait in a queue."""
        rows = self._fetch_queue_rows("select count(*) from timers where queue = ?", queue)
        return int(rows[0][0]) if rows else 0

    def accounts(self, prefix: str) -> dict[str, str]:
        """Return the accounts whose names begin with `prefix`."""
        found = self._fetch_queue_rows("select name, state from accounts where name like ?", f"{prefix}%")
        return {decode_text(name): decode_text(state) for name, state in found}

    def _fetch_queue_rows(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query about queues: none in tables of an earlier version, which have none."""
        return self._fetch_rows(query, *values) if self._version >= QUEUES_SINCE else []

    def _fetch_timers(self, query: str, *values: Any) -> list[Timer]:
        rows = self._fetch_rows(query, *values) if self._version >= TIMERS_SINCE else []
        return [self._decode_timer(decode_text(line)) for (line,) in rows]

    def _read_timer_lines(self, db: Connection, which: Sequence[tuple[str, str]]) -> list[bytes | None]:
        query = f"select line from timers where entity = ? and id = ? {self._row_locked}"  # noqa: S608  # our own words
        with self._pipeline(db):
            found = [
                db.execute(query, (self._known.places[entity_id].no if entity_id else SCHEDULES, id))
                for entity_id, id in which
            ]
        rows = (cursor.fetchone() for cursor in found)
        return [None if row is None else decode_text(row[0]).encode() for row in rows]
