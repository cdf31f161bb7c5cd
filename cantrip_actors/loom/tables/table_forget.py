"""How an SQL store forgets entities: in short transactions, so that no other writer waits for long.

First everything is read, outside of a transaction: the lines with their tombstones, and where else their blobs are
used. Then a transaction replaces at most `MOST` lines, or `LARGE` bytes, at a time. The last one of a group of entities
also records that they are forgotten, and deletes their mail, names, checkpoints, schedules and blobs.

If the process is killed before that one, a mark in the loom says which entities are half forgotten. Forgetting them
again ends the same, because a tombstone is its own tombstone.
"""

from __future__ import annotations

import hmac
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, NamedTuple

from cantrip_actors.loom.stores.erasure import (
    ErasedLog,
    Erasure,
    check_ended,
    find_blobs_in_line,
    find_blobs_in_mail,
    find_blobs_in_timer,
    is_schedule_for,
    make_blank_key,
)
from cantrip_actors.loom.stores.lease import NO_LEASES
from cantrip_actors.loom.stores.rules import Place, Waiting, check_lease
from cantrip_actors.loom.tables.mail_tables import SCHEDULES, MailTables
from cantrip_actors.loom.tables.table_rows import MANY, Connection, KnownRows, decode_text, fetch_pages
from cantrip_actors.machine.project import Life
from cantrip_actors.records.codec import encode
from cantrip_actors.records.mail import decode_mail
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.records.timers import Timer, decode_timer

MOST = 1000
LARGE = 4 << 20
"""Lines, and their bytes, that one transaction replaces: it takes some ten milliseconds."""
GROUP = 50
"""Entities whose end one transaction records."""
MARK = "half forgotten: "
"""The beginning of the names of marks, which are accounts."""

Fetch = Callable[..., list[Any]]
"""Returns the rows of a query with these values."""


class _Change(NamedTuple):
    """A tombstone, the number of the record whose line it replaces, and the length of that line."""

    tombstone: str
    number: int
    size: int
    entity: str


class _Doomed(NamedTuple):
    """An entity that is about to be forgotten, as it was read."""

    entity: str
    no: int
    tree: int
    log: ErasedLog
    last: int
    """The number of its last record."""
    changes: Sequence[_Change]
    digests: AbstractSet[str]
    """The blobs that it and its mail refer to; all blobs if it was half forgotten, because some lines are gone."""


class _Uses(NamedTuple):
    """The blobs, out of some, that are used by timers, and by records and mail up to a given record and mail."""

    digests: AbstractSet[str]
    record: int
    mail: int


_UNREAD = _Uses(frozenset(), 0, 0)


class ForgettingTables(MailTables):
    """A store that replaces rows by tombstones."""

    _known: KnownRows

    @abstractmethod
    def _lock_blobs(self, db: Connection) -> None:
        """Keep others from referring to a blob that is about to be deleted."""

    def _expect_silence(self, db: Connection) -> None:  # one server at most cares
        """Let a transaction be silent for as long as it takes to read much."""

    def prepare_forget(self, wanted: Erasure, leases: Mapping[str, int] = NO_LEASES) -> Callable[[], int]:
        """Replace the records of entities that have ended by tombstones, and delete all else about them."""
        doomed = [entry for entity in wanted.entities if (entry := self._read_doomed(entity)) is not None]
        mails = {no for entry in doomed for no, _, _ in _select_mail(self._fetch_rows, entry)}
        uses = self._find_uses(set().union(*(entry.digests for entry in doomed)), {entry.no for entry in doomed}, mails)
        schedules = self._read_schedules() if doomed else []
        removed = 0
        for first in range(0, max(1, len(doomed)), GROUP):  # without entities, the checkpoints of forks are deleted
            group, rest = doomed[first : first + GROUP], doomed[first + GROUP :]
            changes = [change for entry in group for change in entry.changes if change.number != entry.no]
            headers = [change for entry in group for change in entry.changes if change.number == entry.no]
            *parts, last = _split(changes)
            for part in parts:
                self._transact(partial(self._replace_lines, part, leases))
            last = [*last, *headers]  # with the rows that repeat what the headers say
            digests = set().union(*(entry.digests for entry in group)).difference(*(entry.digests for entry in rest))
            removed += self._transact(
                partial(self._forget_group, wanted, group, last, schedules, digests, uses, leases)
            )
        if wanted.scrubs:
            self.scrub()
        return lambda: removed

    def half_forgotten(self) -> AbstractSet[str]:
        """Return the entities that a killed process has left without some of their content."""
        marks = {name.removeprefix(MARK): mark for name, mark in self.accounts(MARK).items()}
        return {entry for entry, mark in marks.items() if self.seal.is_locked or mark == self._make_mark(entry)}

    def _make_mark(self, entity: str) -> str:
        """Return what proves, in a loom with a key, that this entity was to be forgotten."""
        return hmac.digest(self.seal.state, entity.encode(errors="surrogatepass"), "sha256").hex()

    # ---------------------------------------------------------------------------------------------------------- reading

    def _read_doomed(self, entity: str) -> _Doomed | None:
        """Return an entity with its tombstones; None for one that is forgotten, or not there. Raises LoomError."""
        rows = self._fetch_rows("select no, tree, life from entities where id = ?", entity)
        if not rows or rows[0][2] == Life.FORGOTTEN:
            return None
        no, tree, life = rows[0]
        check_ended(entity, Life(life))
        log, changes, last = ErasedLog(entity), [], 0
        while rows := self._fetch_rows(_LOG_OF, no, last, MANY):
            last = rows[-1][0]
            changes += _erase(entity, log, rows)
        if len(changes) < log.count:
            return _Doomed(entity, no, tree, log, last, changes, frozenset(self.blobs()))
        entry = _Doomed(entity, no, tree, log, last, changes, log.digests)
        log.digests.update(
            image.digest
            for _, line, _ in _select_mail(self._fetch_rows, entry)
            for image in (decode_mail(line).images if line else ())
            if image.digest
        )
        return entry

    def _read_schedules(self) -> list[Timer]:
        rows = self._fetch_rows(_SCHEDULES, SCHEDULES)
        return [decode_timer(decode_text(line).encode()) for (line,) in rows]

    def _find_uses(
        self, digests: Collection[str], doomed: Collection[int] = (), doomed_mail: Collection[int] = ()
    ) -> _Uses:
        """Return which of these blobs are used, apart from the records of doomed entities, and doomed mail."""
        if not digests:
            return _UNREAD
        query = "select (select coalesce(max(seq), 0) from records), (select coalesce(max(no), 0) from mail)"
        ((record, mail),) = self._fetch_rows(query)
        used = _list_used(self._fetch_rows, set(digests), _UNREAD, doomed, doomed_mail)
        return _Uses(used, record, mail)

    # --------------------------------------------------------------------------------------------------------- changing

    def _replace_lines(self, changes: Sequence[_Change], leases: Mapping[str, int], db: Connection) -> None:
        entities = sorted({change.entity for change in changes})
        self._look_up(db, roots=entities)
        for entity in entities:
            check_lease(entity, self._known.places[entity].tree, leases)
        marks = [(MARK + entity, self._make_mark(entity)) for entity in entities]
        db.executemany("insert into accounts (name, state) values (?, ?) on conflict (name) do nothing", marks)
        _update_lines(db, changes)

    def _forget_group(
        self,
        wanted: Erasure,
        doomed: Sequence[_Doomed],
        changes: Sequence[_Change],
        schedules: Sequence[Timer],
        digests: AbstractSet[str],
        uses: _Uses,
        leases: Mapping[str, int],
        db: Connection,
    ) -> int:
        """Replace the last lines, and record that the entities are forgotten; return how many blobs are deleted."""
        if digests:
            self._expect_silence(db)
        self._lock_head(db)
        self._look_up(db, roots=[entry.entity for entry in doomed])
        _update_lines(db, changes)
        for entry in doomed:  # a reward may have been recorded meanwhile
            rows = db.execute(_LOG_OF, (entry.no, entry.last, MANY)).fetchall()
            _update_lines(db, _erase(entry.entity, entry.log, rows))
        names: set[str] = set()
        """Names, scoped, that led to one of these entities."""
        for entry in doomed:
            rows = db.execute(_LATEST_OF_NAME, (entry.no,)).fetchall()
            names.update(scope_name(decode_text(tenant), decode_text(name)) for tenant, name in rows)
            db.execute("update entities set name = null, tenant = '' where no = ?", (entry.no,))
        if doomed:
            records = [entry.log.make_record(wanted) for entry in doomed]
            plan, _ = self._plan(db, records, [encode(record) for record in records], leases)
            self._write(db, plan)
            self._known.apply(plan)
            for entry, number in zip(doomed, plan.numbers, strict=True):
                self._forget_mail(db, entry, self._known.places[entry.entity], number)
        db.executemany("delete from accounts where name = ?", [(MARK + entry.entity,) for entry in doomed])
        for entity in (*wanted.entities, *wanted.forks):
            db.execute("delete from checkpoints where entity = (select no from entities where id = ?)", (entity,))
        ids = [(SCHEDULES, timer.id) for timer in schedules if is_schedule_for(timer, wanted.entities, names)]
        db.executemany("delete from timers where entity = ? and id = ?", ids)
        return self._delete_blobs(db, digests, uses) if digests else 0

    def _forget_mail(self, db: Connection, entry: _Doomed, place: Place, number: int) -> None:
        """Remove everything about an entity's mail except its numbers.

        The rows stay until their keys expire, marked as taken by the entity's last record, because no number may be
        used twice.
        """
        mails = _select_mail(lambda query, *values: db.execute(query, values).fetchall(), entry)
        db.executemany(
            "update mail set key = ?, digest = ?, line = '', taken = ? where no = ?",
            [(make_blank_key(no), b"", number, no) for no, _, _ in mails],
        )
        if any(taken is None for _, _, taken in mails):
            db.execute(_COUNT_AGAIN, (place.tree.no,))
            counts = db.execute("select control, intents, loads from trees where no = ?", (place.tree.no,)).fetchone()
            place.tree.waiting = Waiting(*counts)

    def drop_unused_blobs(self) -> int:
        """Delete the blobs that no record, waiting mail or timer refers to; return how many."""
        digests = set(self.blobs())
        uses = self._find_uses(digests)
        return self._transact(lambda db: self._delete_blobs(db, digests, uses))

    def _delete_blobs(self, db: Connection, digests: AbstractSet[str], uses: _Uses) -> int:
        """Delete those of these blobs that nothing refers to, given their uses up to some record and mail."""
        digests = digests - uses.digests
        if not digests:
            return 0
        self._lock_blobs(db)
        since = uses if self.numbers_in_order else _UNREAD
        used = _list_used(lambda query, *values: db.execute(query, values).fetchall(), digests, since)
        unused = [
            (digest,)
            for digest in digests - used
            if db.execute("select 1 from blobs where digest = ?", (digest,)).fetchone() is not None
        ]
        db.executemany("delete from blobs where digest = ?", unused)
        return len(unused)


def _split(changes: Sequence[_Change]) -> list[Sequence[_Change]]:
    """Return the changes in parts for one transaction each; at least one part."""
    parts: list[list[_Change]] = [[]]
    size = 0
    for change in changes:
        if len(parts[-1]) == MOST or size > LARGE:
            parts.append([])
            size = 0
        parts[-1].append(change)
        size += change.size
    return list(parts)


def _update_lines(db: Connection, changes: Sequence[_Change]) -> None:
    rows = [(change.tombstone, change.number) for change in changes]
    db.executemany("update records set body = ? where seq = ?", rows)


def _erase(entity: str, log: ErasedLog, rows: Sequence[tuple[int, Any]]) -> list[_Change]:
    """Add rows to an erased log; return the changes of those that are no tombstones yet."""
    changes = []
    for seq, body in rows:
        line = decode_text(body).encode()
        tombstone = log.add(line)
        if tombstone != line:
            changes.append(_Change(tombstone.decode(), seq, len(line), entity))
    return changes


def _select_mail(fetch: Fetch, entry: _Doomed) -> list[tuple[int, bytes, int | None]]:
    """Return the mail that is forgotten with an entity: its number, its line, and the record that took it."""
    is_root = entry.tree == entry.no
    rows = fetch(_MAIL_OF, entry.tree, int(is_root), entry.no)
    found = [(no, decode_text(line).encode(), taken) for no, line, taken in rows]
    return [
        (no, line, taken)
        for no, line, taken in found
        if is_root or taken is not None or (line and decode_mail(line).child == entry.entity)
    ]


def _list_used(
    fetch: Fetch,
    digests: AbstractSet[str],
    since: _Uses,
    doomed: Collection[int] = (),
    doomed_mail: Collection[int] = (),
) -> set[str]:
    """Return which of these blobs are used by timers, and by records and waiting mail since some record and mail."""
    used: set[str] = set()
    patterns = '%"digest":%', '%"snapshot":%'
    for _, entity, body in fetch_pages(fetch, _WITH_BLOBS, *patterns, after=(since.record,)):
        if entity not in doomed:
            used.update(find_blobs_in_line(decode_text(body).encode(), digests))
    for no, line in fetch_pages(fetch, _MAIL_WITH_BLOBS, patterns[0], after=(since.mail,)):
        if no not in doomed_mail:
            used.update(find_blobs_in_mail(decode_text(line).encode(), digests))
    for (line,) in fetch(_TIMERS_WITH_BLOBS, '%"digest":%'):
        used.update(find_blobs_in_timer(decode_text(line).encode(), digests))
    return used


_LOG_OF = "select seq, body from records where entity = ? and seq > ? order by seq limit ?"
_MAIL_OF = (
    "select no, line, taken from mail where entity = ? and (taken is null or ? = 1 or taken in "
    "(select seq from records where entity = ?)) order by no"
)
_SCHEDULES = "select line from timers where entity = ?"
"""Schedules, without submissions."""
_WITH_BLOBS = (
    "select seq, entity, body from records where seq > ? and (body like ? or body like ?) order by seq limit ?"
)
_MAIL_WITH_BLOBS = "select no, line from mail where taken is null and no > ? and line like ? order by no limit ?"
_TIMERS_WITH_BLOBS = "select line from timers where line like ?"
_LATEST_OF_NAME = """
select tenant, name from entities where no = ? and lasting and name is not null and not exists
  (select 1 from entities later where later.name = entities.name and later.tenant = entities.tenant
    and later.lasting and later.no > entities.no)
"""
_COUNT_AGAIN = """
update trees set
  control = (select count(*) from mail where entity = no_ and taken is null and lane = 0),
  intents = (select count(*) from mail where entity = no_ and taken is null and lane = 1),
  loads = (select count(*) from mail where entity = no_ and taken is null and loads) where no = ?
""".replace("no_", "trees.no")
