"""The tables of mail, timers and submissions in both SQL stores."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from cantrip_actors.loom.stores.inbox import TakenMail, select_settled
from cantrip_actors.loom.stores.rules import NONE_WAITS, Waiting
from cantrip_actors.loom.stores.store import NextDue
from cantrip_actors.loom.tables.node_tables import NodeTables
from cantrip_actors.loom.tables.table_rows import MAIL_ROWS, MANY, Connection, decode_mail_row, decode_text, fetch_pages
from cantrip_actors.machine.project import get_time
from cantrip_actors.records.mail import MailRow, Pending
from cantrip_actors.records.submissions import (
    FIRST_SUBMISSION,
    HIGHEST,
    SubmissionPosition,
    SubmissionRow,
    decode_submission,
    encode_submission,
)
from cantrip_actors.records.timers import FIRST, Due, Timer

SCHEDULES, NOBODY = 0, -1
"""Two numbers that no entity has: schedules belong to the first, nothing to the second."""


class MailTables(NodeTables):
    """A store whose mail, timers and submissions are rows."""

    def pending(self, entity_id: str, limit: int = 100) -> list[Pending]:
        """Return the waiting mail of an entity, control lane first, then in order."""
        rows = self._fetch_rows(
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
        return [decode_text(id) for (id,) in self._fetch_rows(query, least)]

    def count_mail(self, entity_id: str) -> Waiting:
        """Return how much mail waits for an entity."""
        query = "select control, intents, loads from trees where no = (select no from entities where id = ?)"
        rows = self._fetch_rows(query, entity_id)
        return Waiting(*rows[0]) if rows else NONE_WAITS

    def _list_waiting_after(self, no: int, limit: int = sys.maxsize) -> list[MailRow]:
        rows = self._fetch_rows(f"{MAIL_ROWS} where mail.no > ? and taken is null order by mail.no limit ?", no, limit)
        return [decode_mail_row(row) for row in rows]

    def find_mail(self, entity_id: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key."""
        rows = self._fetch_rows(f"{MAIL_ROWS} where id = ? and key = ?", entity_id, key)
        return decode_mail_row(rows[0]) if rows else None

    def expire_mail(self, before: str) -> None:
        """Forget mail that was settled before that time."""
        query = (
            "select mail.no, id, lane, seq, body from mail join records on seq = taken "
            "join entities on entities.no = mail.entity where mail.no > ? order by mail.no limit ?"
        )
        old = [
            TakenMail(no, decode_text(id), lane, seq)
            for no, id, lane, seq, body in fetch_pages(self._fetch_rows, query)
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
        rows = self._fetch_timers(query, entity_id, NOBODY if entity_id else SCHEDULES, id)
        return rows[0] if rows else None

    def timers_due(self, until: float, *, after: Due = FIRST, limit: int = 100) -> list[Timer]:
        """Return the first timers that are due, in order."""
        query = (
            "select line from timers where due <= ? "
            "and (due, entity, id) > (?, coalesce((select no from entities where id = ?), ?), ?) "
            "order by due, entity, id limit ?"
        )
        return self._fetch_timers(query, until, after.due, after.entity_id, SCHEDULES, after.id, limit)

    def next_due(self, after: float) -> NextDue:
        """Return when the first timer after a time is due, and whether a submission without a queue waits."""
        ((due, waits),) = self._fetch_rows(_NEXT_DUE, after)
        return NextDue(math.inf if due is None else due, bool(waits))

    # ------------------------------------------------------------------------------------------------------ submissions

    def submissions(
        self, queue: str, *, after: SubmissionPosition = FIRST_SUBMISSION, limit: int = 100
    ) -> list[SubmissionRow]:
        """Return the first submissions that wait in a queue, in order."""
        query = (
            "select line from submissions where queue = ? and (rank, at, id) > (?, ?, ?) order by rank, at, id limit ?"
        )
        return self._decode_submissions(self._fetch_rows(query, queue, *after, limit))

    def list_submissions(self, after: str = "", limit: int = MANY) -> list[SubmissionRow]:
        """Return submissions of all queues, by their ids."""
        query = "select line from submissions where id > ? order by id limit ?"
        return self._decode_submissions(self._fetch_rows(query, after, limit))

    def find_submission(self, id: str) -> SubmissionRow | None:
        """Return the submission with that id."""
        rows = self._decode_submissions(self._fetch_rows("select line from submissions where id = ?", id))
        return rows[0] if rows else None

    def has_submissions(self, queue: str, count: int, priority: int = -HIGHEST) -> bool:
        """Return whether at least `count` submissions of at least that priority wait in a queue."""
        query = "select 1 from submissions where queue = ? and rank <= ? order by rank, at, id limit 1 offset ?"
        return bool(self._fetch_rows(query, queue, -priority, count - 1))

    def count_submissions(self, queue: str) -> int:
        """Return how many submissions wait in a queue."""
        ((count,),) = self._fetch_rows("select count(*) from submissions where queue = ?", queue)
        return int(count)

    def _add_submission(self, db: Connection, row: SubmissionRow) -> bool:
        values = row.id, row.queue, *row.position[:2], encode_submission(row).decode()
        return db.execute(_ADD_SUBMISSION, values).fetchone() is not None

    def _drop_submission(self, db: Connection, row: SubmissionRow) -> bool:
        query = "delete from submissions where id = ? and line = ? returning id"
        return db.execute(query, (row.id, encode_submission(row).decode())).fetchone() is not None

    def _decode_submissions(self, rows: Sequence[Any]) -> list[SubmissionRow]:
        return [decode_submission(decode_text(line).encode()) for (line,) in rows]

    def accounts(self, prefix: str) -> dict[str, str]:
        """Return the accounts whose names begin with `prefix`."""
        rows = self._fetch_rows("select name, state from accounts where name like ?", f"{prefix}%")
        return {decode_text(name): decode_text(state) for name, state in rows}

    def _fetch_timers(self, query: str, *values: Any) -> list[Timer]:
        rows = self._fetch_rows(query, *values)
        return [self._decode_timer(decode_text(line).encode()) for (line,) in rows]

    def _read_timer_lines(self, db: Connection, which: Sequence[tuple[str, str]]) -> list[bytes | None]:
        query = f"select line from timers where entity = ? and id = ? {self._row_locked}"  # noqa: S608  # our own words
        with self._pipeline(db):
            found = [
                db.execute(query, (self._known.places[entity_id].no if entity_id else SCHEDULES, id))
                for entity_id, id in which
            ]
        rows = (cursor.fetchone() for cursor in found)
        return [None if row is None else decode_text(row[0]).encode() for row in rows]


_NEXT_DUE = """
select (select due from timers where due > ? order by due limit 1),
  exists (select 1 from submissions where queue = '')
"""
_ADD_SUBMISSION = """
insert into submissions (id, queue, rank, at, line) values (?, ?, ?, ?, ?)
  on conflict (id) do nothing returning id
"""
