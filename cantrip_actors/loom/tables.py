"""The common part of both SQL stores: operations on the tables of `schema.py`, in the SQL that both understand."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, NoReturn

from cantrip_actors.loom.blobs import attach_images
from cantrip_actors.loom.checkpoints import Tip
from cantrip_actors.loom.damage import REPAIR, DamagedLoom
from cantrip_actors.loom.erasure import (
    Erasure,
    check_ended,
    erase,
    find_blobs_in_line,
    find_blobs_in_mail,
    is_schedule_for,
    make_blank_key,
)
from cantrip_actors.loom.inbox import TakenMail, mark_fault
from cantrip_actors.loom.lease import DEATHS, NO_LEASES, Holder, Lease
from cantrip_actors.loom.node_tables import Connection, NodeTables
from cantrip_actors.loom.rules import (
    NONE_WAITS,
    Known,
    Place,
    Plan,
    Tree,
    Waiting,
    check_lease,
    lease_of_name,
    read_header_facts,
)
from cantrip_actors.loom.schema import MAIL_SINCE, QUEUES_SINCE, SEAL, TIMERS_SINCE, VERSION, select_blobs_query
from cantrip_actors.loom.seal_key import GivenKey, Head, Seal, SealMark, open_seal
from cantrip_actors.machine.project import NOTED, Life, as_header, get_committed_turn, get_named_turn, get_time
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import Newer, decode, encode
from cantrip_actors.records.mail import Mail, MailRow, Pending, decode_mail
from cantrip_actors.records.records import Header, Record, get_images, get_snapshot
from cantrip_actors.records.seal import NOTHING, split_link
from cantrip_actors.records.timers import FIRST, Due, Timer, decode_timer
from cantrip_actors.terms.errors import LoomError

__all__ = ["MAIL_ROWS", "MANY", "Connection", "KnownRows", "TableStore", "decode_mail_row", "read_link"]

WITH_MAIL = 4
"""The first version of the tables that has mail, leases with deaths and checkpoints."""
MANY = 500
"""Rows that are read at once when all are read."""


class TableStore(NodeTables):
    """A store that keeps records as rows of SQL tables."""

    _version: int = VERSION
    """The version of its tables: an earlier one if they were opened read-only."""
    _known: KnownRows
    _locked: str
    """The end of a query that locks the rows that it finds."""
    _owners: set[str]
    """The owners that have claimed through this store."""

    @abstractmethod
    def _lock(self, db: Connection, entities: Sequence[str], *, claims: bool, posts: bool) -> None:
        """Lock the trees of these entities, and with `claims` their leases, against changes."""

    @abstractmethod
    def _draw_numbers(self, db: Connection, what: Literal["seqs", "mails"], many: int) -> Iterable[int]:
        """Return new numbers of records or mail."""

    @abstractmethod
    def _fetch_each(self, db: Connection, query: str, columns: str, rows: Sequence[tuple[str, ...]]) -> Iterable[Any]:
        """Return the rows of a query from `{given}`, which has these `columns` and `rows` of texts."""

    @abstractmethod
    def _pipeline(self, db: Connection) -> AbstractContextManager[object]:
        """Send statements without waiting for the answers."""

    @abstractmethod
    def _fail(self, what: str, error: Exception) -> NoReturn:
        """Raise LoomError for an error of the driver."""

    # ---------------------------------------------------------------------------------------------------------- sealing

    def _open_seal(self, db: Connection, key: GivenKey, *, makes: bool) -> Seal:
        """Return the seal of the loom. With `makes` a loom without records gets one if there is a key."""
        found = None
        if self._has_table(db, "seal"):
            row = db.execute("select salt, mark from seal").fetchone()
            if row is None:
                raise DamagedLoom(f"{self._where}: its seal is missing. {REPAIR}")
            found = SealMark(_decode_text(row[0]), _decode_text(row[1]))
        is_new = makes and found is None and db.execute("select 1 from records limit 1").fetchone() is None
        seal = open_seal(key, found, self._where, is_new=is_new)
        if found is None and seal.mark is not None:
            records, link = seal.beginning
            db.execute(SEAL)
            db.execute(
                "insert into seal (salt, mark, records, link) values (?, ?, ?, ?)", (*seal.mark, records, link.decode())
            )
        return seal

    def _lock_head(self, db: Connection) -> Head | None:
        if not self.seal.chain:
            return None
        row = db.execute(f"select records, link from seal {self._row_locked}").fetchone()  # noqa: S608  # our own words
        if row is None:
            raise DamagedLoom(f"{self._where}: its seal is missing. {REPAIR}")
        return Head(row[0], _decode_text(row[1]).encode())

    def head(self) -> Head | None:
        """Return the head of a sealed loom."""
        rows = [] if self.seal.mark is None else self._fetch_rows("select records, link from seal")
        return Head(rows[0][0], _decode_text(rows[0][1]).encode()) if rows else None

    # -------------------------------------------------------------------------------------------------------- appending

    def _look_up(
        self,
        db: Connection,
        records: Sequence[Record] = (),
        lines: Sequence[bytes] = (),  # noqa: ARG002  # numbers are given in order
        mails: Sequence[Mail] = (),
        taken: Sequence[int] = (),
        roots: Sequence[str] = (),
        entities: Sequence[str] = (),
    ) -> tuple[Sequence[int], Iterator[int]]:
        known, places = self._known, self._known.places
        missing: set[str] = set()
        if roots or entities or mails:
            missing.update(one for one in (*roots, *entities, *(mail.entity_id for mail in mails)) if one not in places)
        begun: list[tuple[str]] = []
        turns: set[str] = set()
        entity = place = None
        for record in records:
            if record.entity_id != entity:
                entity = record.entity_id
                place = places.get(entity)
                if place is None:
                    missing.add(entity)
            if record.__class__ in NOTED:
                turn = get_named_turn(record)
                if turn is not None and (place is None or place.tip != turn):
                    turns.add(turn)
                header = as_header(record)
                if header is not None:
                    begun.append((header.entity_id,))
                    name = lease_of_name(header)
                    if name is not None:
                        begun.append((name,))
                    if header.parent_entity is not None and header.parent_entity not in places:
                        missing.add(header.parent_entity)
        if not (missing or turns or begun or mails or taken):
            return [*self._draw_numbers(db, "seqs", len(records))], iter(())
        named = [(turn,) for turn in turns.difference(map(get_committed_turn, records))]
        mail: list[Iterable[Any]] = []
        mail_numbers: Iterable[int] = ()
        with self._pipeline(db):
            # each statement sees what was committed before it began: once locked, these trees do not change
            self._lock(db, [*missing], claims=bool(roots), posts=bool(mails))
            found = self._fetch_each(db, _PLACES, "id", [(one,) for one in missing]) if missing else ()
            owners = self._fetch_each(db, _OWNERS, "turn", named) if named else ()
            # locked, so that the next holder of an id or a name waits for the commit, and sees this entity
            tokens = self._fetch_each(db, f"{_TOKENS} {self._locked}", "entity", begun) if begun else ()
            numbers = self._draw_numbers(db, "seqs", len(records))
            if mails:
                mail.append(self._fetch_each(db, _BY_KEY, "id, key", [(one.entity_id, one.key) for one in mails]))
                mail_numbers = self._draw_numbers(db, "mails", len(mails))
            mail += [db.execute(f"{MAIL_ROWS} where mail.no = ?", (no,)) for no in taken]
        known.fill(found, dict(owners), dict(tokens), [decode_mail_row(row) for rows in mail for row in rows])
        return sorted(numbers), iter(sorted(mail_numbers))

    def _write(self, db: Connection, made: Plan) -> None:
        with self._pipeline(db):
            if made.blobs:
                # in order, so that two transactions that write the same ones cannot deadlock
                blobs = [blob for _, blob in sorted(made.blobs.items())]
                db.executemany(_KEEP_BLOB, [(blob.digest, blob.kind, blob.data, blob.seal) for blob in blobs])
            if made.entities:
                db.executemany(_ADD_ENTITY, made.entities)
            if made.records:
                numbers, places, lines = made.numbers, made.places, made.lines
                rows = [
                    (numbers[at], places[at].no, get_committed_turn(record), lines[at].decode())
                    for at, record in enumerate(made.records)
                ]
                db.executemany("insert into records (seq, entity, turn, body) values (?, ?, ?, ?)", rows)
            if made.lives:
                lives = [(life.value, self._get_entity_number(entity, made)) for entity, life in made.lives.items()]
                db.executemany("update entities set life = ? where no = ?", lives)
            if made.posted:
                posted = [
                    (
                        row.no,
                        self._get_entity_number(row.entity_id, made),
                        row.lane,
                        row.loads,
                        row.key,
                        row.digest,
                        line.decode(),
                        row.taken,
                    )
                    for row, line, _ in made.posted.values()
                ]
                db.executemany(_ADD_MAIL, posted)
            if made.taken:
                marks = [(number, no) for no, (_, number) in made.taken.items()]
                db.executemany("update mail set taken = ?, line = '' where no = ?", marks)
            for tree, number in made.emptied:
                db.execute("update mail set taken = ?, line = '' where entity = ? and taken is null", (number, tree.no))
            if made.timers or made.timed_out:
                self._write_timers(db, made)
            heads = {**{tree: tree.head for tree in made.waiting}, **made.heads} if made.waiting else made.heads
            trees = [
                (tree.no, (head or NOTHING).decode(), *(made.waiting.get(tree) or tree.waiting))
                for tree, head in heads.items()
            ]
            db.executemany(
                "insert into trees (no, head, control, intents, loads) values (?, ?, ?, ?, ?) "
                "on conflict (no) do update set head = excluded.head, "
                "control = excluded.control, intents = excluded.intents, loads = excluded.loads",
                trees,
            )
            if made.end is not None:
                db.execute("update seal set records = ?, link = ?", (made.end.records, made.end.link.decode()))

    def _get_entity_number(self, entity: str, made: Plan) -> int:
        return (made.new.get(entity) or self._known.places[entity]).no

    def _write_timers(self, db: Connection, made: Plan) -> None:
        rows = [
            (self._get_entity_number(entity, made) if entity else SCHEDULES, id, *_order(timer), line.decode())
            for (entity, id), (timer, line, _) in made.timers.items()
        ]
        kept, removed = [row for row in rows if row[-1]], [row[:2] for row in rows if not row[-1]]
        if kept:
            db.executemany(_SET_TIMER, kept)
        if removed:
            db.executemany(_REMOVE_TIMER, removed)
        for entity in made.timed_out:
            db.execute("delete from timers where entity = ?", (self._get_entity_number(entity, made),))

    # ------------------------------------------------------------------------------------------------------- forgetting

    def prepare_forget(self, wanted: Erasure, leases: Mapping[str, int] = NO_LEASES) -> Callable[[], int]:
        """Replace the records of entities that have ended by tombstones, in one transaction."""
        removed = self._transact(partial(self._forget_entities, wanted, leases))
        if wanted.scrubs:
            self.scrub()
        return lambda: removed

    def _forget_entities(self, wanted: Erasure, leases: Mapping[str, int], db: Connection) -> int:
        self._lock_head(db)
        self._look_up(db, roots=wanted.entities)
        records: list[Record] = []
        places: list[Place] = []
        digests: set[str] = set()
        names: set[str] = set()
        """Names, scoped, that led to one of these entities."""
        for entity in wanted.entities:
            place = self._known.find_place(entity)
            if place is None or place.life is Life.FORGOTTEN:
                continue
            check_ended(entity, place.life)
            rows = db.execute("select seq, body from records where entity = ? order by seq", (place.no,)).fetchall()
            lines = [_decode_text(body).encode() for _, body in rows]
            for line in lines:
                record = decode(line)
                digests.update(image.digest for image in get_images(record) if image.digest)
                if (snapshot := get_snapshot(record)) is not None:
                    digests.add(snapshot.digest)
            tombstones, record = erase(entity, lines, wanted)
            changed = [(line.decode(), seq) for (seq, _), line in zip(rows, tombstones, strict=True)]
            db.executemany("update records set body = ? where seq = ?", changed)
            names.update(_decode_text(name) for (name,) in db.execute(_LATEST_OF_NAME, (place.no,)).fetchall())
            db.execute("update entities set name = null where no = ?", (place.no,))
            records.append(record)
            places.append(place)
        if records:
            lines = [encode(record) for record in records]
            made, _ = self._plan(db, records, lines, leases)
            self._write(db, made)
            self._known.apply(made)
            for place, number in zip(places, made.numbers, strict=True):
                digests |= self._forget_mail(db, place, number)
        for entity in (*wanted.entities, *wanted.forks):
            db.execute("delete from checkpoints where entity = (select no from entities where id = ?)", (entity,))
        self._forget_schedules(db, wanted.entities, names)
        return self._remove_blobs(db, digests) if digests else 0

    def _forget_schedules(self, db: Connection, entities: Sequence[str], names: Container[str]) -> None:
        """Delete the schedules for entities; their own timers were removed when they ended."""
        rows = db.execute("select line from timers where entity = ?", (SCHEDULES,)).fetchall()
        timers = (decode_timer(_decode_text(line)) for (line,) in rows)
        db.executemany(_REMOVE_TIMER, [(SCHEDULES, one.id) for one in timers if is_schedule_for(one, entities, names)])

    def _forget_mail(self, db: Connection, place: Place, number: int) -> set[str]:
        """Remove everything about an entity's mail except its numbers; return the digests of its images.

        The rows stay until their keys expire, marked as taken by the entity's last record, because no number may be
        used twice.
        """
        is_root = place.tree.no == place.no
        found = db.execute(
            "select no, line, taken from mail where entity = ? and (taken is null or ? = 1 or taken in "
            "(select seq from records where entity = ?))",
            (place.tree.no, int(is_root), place.no),
        ).fetchall()
        digests: set[str] = set()
        waiting = 0
        for no, line, taken in found:
            mail = decode_mail(_decode_text(line).encode()) if line else None
            if (
                taken is None
                and not is_root
                and (mail is None or self._known.places.get(mail.child or "") is not place)
            ):
                continue
            waiting += taken is None
            digests.update(image.digest for image in mail.images if image.digest) if mail is not None else None
            db.execute(
                "update mail set key = ?, digest = ?, line = '', taken = ? where no = ?",
                (make_blank_key(no), b"", number, no),
            )
        if waiting:
            db.execute(_COUNT_AGAIN, (place.tree.no,))
            place.tree.waiting = Waiting(
                *db.execute("select control, intents, loads from trees where no = ?", (place.tree.no,)).fetchone()
            )
        return digests

    @abstractmethod
    def _lock_blobs(self, db: Connection) -> None:
        """Keep others from referring to a blob that is about to be deleted."""

    def drop_unused_blobs(self) -> int:
        """Delete the blobs that neither a record nor waiting mail refers to; return how many."""
        return self._transact(lambda db: self._remove_blobs(db, set(self.blobs())))

    def _remove_blobs(self, db: Connection, digests: set[str]) -> int:
        """Delete those of these blobs that neither a record nor waiting mail refers to."""
        self._lock_blobs(db)
        used: set[str] = set()
        at = 0
        while rows := db.execute(_WITH_BLOBS, (at, '%"digest":%', '%"snapshot":%', MANY)).fetchall():
            at = rows[-1][0]
            for _, body in rows:
                used.update(find_blobs_in_line(_decode_text(body).encode(), digests))
        for (line,) in db.execute(
            "select line from mail where taken is null and line like ?", ('%"digest":%',)
        ).fetchall():
            used.update(find_blobs_in_mail(_decode_text(line).encode(), digests))
        unused = [
            (digest,)
            for digest in digests - used
            if db.execute("select 1 from blobs where digest = ?", (digest,)).fetchone() is not None
        ]
        db.executemany("delete from blobs where digest = ?", unused)
        return len(unused)

    def ended_roots(self, after: str | None = None, limit: int = 100) -> list[str]:
        """Return root entities that have ended and are not forgotten, after that one."""
        return self._fetch_ids(
            "select id from entities where life = 2 and tree = no and no > "
            "coalesce((select no from entities where id = ?), 0) order by no limit ?",
            after or "",
            limit,
        )

    # ------------------------------------------------------------------------------------------------------------- mail

    def pending(self, entity_id: str, limit: int = 100) -> list[Pending]:
        """Return the waiting mail of an entity, control lane first, then in order."""
        rows = self._fetch_new_rows(
            "select no, line from mail where entity = (select no from entities where id = ?) and taken is null "
            "order by lane, no limit ?",
            entity_id,
            limit,
        )
        return [self._decode_pending(no, _decode_text(line).encode()) for no, line in rows]

    def waiting(self, *, loads: bool = True) -> list[str]:
        """Return the entities that have waiting mail for which they are loaded."""
        least = 1 if loads else 0
        query = "select id from trees join entities using (no) where control + intents > 0 and loads >= ? order by no"
        return [_decode_text(id) for (id,) in self._fetch_new_rows(query, least)]

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
                TakenMail(no, _decode_text(id), lane, seq)
                for no, id, lane, seq, body in rows
                if get_time(self._decode(seq, body)) < before
            ]
        expired = self._settled(old, before)
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
            return [self._decode_timer(_decode_text(line)) for (line,) in rows]
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
        return {_decode_text(name): _decode_text(state) for name, state in found}

    def _fetch_queue_rows(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query about queues: none in tables of an earlier version, which have none."""
        return self._fetch_rows(query, *values) if self._version >= QUEUES_SINCE else []

    def _fetch_timers(self, query: str, *values: Any) -> list[Timer]:
        rows = self._fetch_rows(query, *values) if self._version >= TIMERS_SINCE else []
        return [self._decode_timer(_decode_text(line)) for (line,) in rows]

    def _read_timer_lines(self, db: Connection, which: Sequence[tuple[str, str]]) -> list[bytes | None]:
        query = f"select line from timers where entity = ? and id = ? {self._row_locked}"  # noqa: S608  # our own words
        with self._pipeline(db):
            found = [
                db.execute(query, (self._known.places[entity_id].no if entity_id else SCHEDULES, id))
                for entity_id, id in which
            ]
        rows = (cursor.fetchone() for cursor in found)
        return [None if row is None else _decode_text(row[0]).encode() for row in rows]

    # ----------------------------------------------------------------------------------------------------------- leases

    def _find_holder(self, db: Connection, entity: str) -> Holder | None:
        row = db.execute(f"{_LEASES.format(self._lasts)} where leases.entity = ? {self._locked}", (entity,)).fetchone()
        if row is None:
            return None
        token, owner, deaths, *found = row
        return Holder(token, owner, deaths, self._compute_time_left(*found))

    def _grant(self, db: Connection, entity: str, owner: str | None, deaths: int, ttl: float) -> tuple[int, float]:
        until = 0.0
        if owner is not None:
            if owner not in self._owners:
                self._forget_holders(db)
            self._owners.add(owner)
            until = self._hold(db, owner, ttl)
        (token,) = db.execute(
            "insert into leases (entity, holder, deaths) "
            "values (?, coalesce((select no from holders where owner = ?), 0), ?) returning token",
            (entity, owner or "", deaths),
        ).fetchone()
        return token, until

    def _drop(self, db: Connection, entity: str, token: int) -> None:  # noqa: ARG002  # a token is no other entity's
        db.execute("delete from leases where token = ?", (token,))

    def quarantined(self) -> list[str]:
        """Return the entities whose holders died."""
        query = "select entity from leases where deaths >= ? order by entity"
        return [_decode_text(entity) for (entity,) in self._fetch_new_rows(query, DEATHS)]

    def leases_of(self, owner: str) -> list[Lease]:
        """Return the leases of a holder."""
        query = "select entity, token from leases join holders on holders.no = holder where owner = ?"
        return [Lease(_decode_text(entity), owner, token, 0.0) for entity, token in self._fetch_new_rows(query, owner)]

    def is_held(self, entity_id: str) -> bool:
        """Return whether another holder has a lease on the tree of an entity."""
        root = "coalesce((select id from entities where no = (select tree from entities where id = ?)), ?)"
        rows = self._fetch_new_rows(f"{_LEASES.format(self._lasts)} where leases.entity = {root}", entity_id, entity_id)
        held = (
            (_decode_text(owner), self._compute_time_left(*found)) for _, owner, _, *found in rows if owner is not None
        )
        return any(owner not in self._owners and self._is_live(owner, left) for owner, left in held)

    def _fetch_new_rows(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query about tables that an earlier version lacks: none there."""
        return self._fetch_rows(query, *values) if self._version >= MAIL_SINCE else []

    def _refuse(self, records: Sequence[Record], error: Exception) -> NoReturn:
        """Raise LoomError that says which record existed already."""
        for record in records:
            turn = get_committed_turn(record)
            if turn is not None and self.owner(turn) is not None:
                raise LoomError(
                    f"loom is append-only: turn {turn} is recorded already and cannot be changed"
                ) from error
            if as_header(record) is not None and self.header(record.entity_id) is not None:  # begun at the same moment
                raise LoomError(
                    f"loom is append-only: entity {record.entity_id} has begun already and cannot begin again"
                ) from error
        self._fail("cannot write to", error)

    # ---------------------------------------------------------------------------------------------------------- reading

    def records(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        """Return an entity's records after that number, in order."""
        rows = self._fetch_rows(
            "select seq, body from records where entity = (select no from entities where id = ?) and seq > ? "
            "order by seq limit ?",
            entity_id,
            after,
            limit,
        )
        return attach_images((self._decode(seq, body) for seq, body in rows), self.blob)

    def newest(self, entity_id: str, limit: int) -> Sequence[Record]:
        """Return the last records of an entity, in order."""
        rows = self._fetch_rows(
            "select seq, body from records where entity = (select no from entities where id = ?) "
            "order by seq desc limit ?",
            entity_id,
            limit,
        )
        return attach_images((self._decode(seq, body) for seq, body in reversed(rows)), self.blob)

    def tip(self, entity_id: str) -> Tip | None:
        """Return the position of an entity's last record."""
        rows = self._fetch_rows(
            "select seq, body from records where entity = (select no from entities where id = ?) "
            "order by seq desc limit 1",
            entity_id,
        )
        return Tip(rows[0][0], read_link(rows[0][1])) if rows else None

    def _link(self, entity_id: str, position: int) -> bytes | None:
        rows = self._fetch_rows(
            "select body from records where seq = ? and entity = (select no from entities where id = ?)",
            position,
            entity_id,
        )
        return read_link(rows[0][0]) if rows else None

    def _read_tree_lines(self, root: str, first: int) -> Iterator[tuple[int, bytes]]:
        at, is_last = max(first, 0) - 1, False
        while not is_last:
            rows = self._fetch_rows(_OF_TREE, root, at, MANY)
            is_last = len(rows) < MANY
            for seq, body in rows:
                at = seq
                yield seq, _decode_text(body).encode()

    def life(self, entity_id: str) -> Life | None:
        """Return the phase of an entity's life."""
        rows = self._fetch_rows("select life from entities where id = ?", entity_id)
        return Life(rows[0][0]) if rows else None

    def _keep_checkpoint(self, entity_id: str, kept: bytes, leases: Mapping[str, int] | None) -> None:
        def work(db: Connection) -> None:
            if leases is not None:
                self._look_up(db, entities=[entity_id])
                place = self._known.find_place(entity_id)
                if place is not None:
                    check_lease(entity_id, place.tree, leases)
            db.execute(
                "insert into checkpoints (entity, data) select no, ? from entities where id = ? "
                "on conflict (entity) do update set data = excluded.data",
                (kept, entity_id),
            )

        self._transact(work)

    def _find_checkpoint(self, entity_id: str) -> bytes | None:
        query = "select data from checkpoints where entity = (select no from entities where id = ?)"
        rows = self._fetch_new_rows(query, entity_id)
        return bytes(rows[0][0]) if rows else None

    def header(self, entity_id: str) -> Header | None:
        """Return an entity's header."""
        rows = self._fetch_rows("select seq, body from entities join records on seq = no where id = ?", entity_id)
        return self._decode_header(*rows[0]) if rows else None

    def headers(self) -> Iterator[Header]:
        """Yield every entity's header, in order of creation, up to the moment of the call."""
        ((last,),) = self._fetch_rows("select coalesce(max(no), 0) from entities")
        at = 0
        while rows := self._fetch_rows(
            "select seq, body from entities join records on seq = no where no > ? and no <= ? order by no limit ?",
            at,
            last,
            MANY,
        ):
            at = rows[-1][0]
            for seq, body in rows:
                yield self._decode_header(seq, body)

    def owner(self, turn_id: str) -> str | None:
        """Return the entity that a committed turn belongs to."""
        found = self._fetch_ids("select id from records join entities on no = entity where turn = ?", turn_id)
        return found[0] if found else None

    def children(self, turn_id: str) -> Sequence[str]:
        """Return the entities that a turn spawned."""
        return self._fetch_ids("select id from entities where parent_turn = ? and not forked order by no", turn_id)

    def forks(self, turn_id: str) -> Sequence[str]:
        """Return the entities that were forked from a turn."""
        return self._fetch_ids("select id from entities where parent_turn = ? and forked order by no", turn_id)

    def below(self, entity_id: str) -> Sequence[str]:
        """Return the entities that an entity spawned."""
        return self._fetch_ids("select id from entities where parent_entity = ? and not forked order by no", entity_id)

    def named(self, name: str) -> str | None:
        """Return the latest long-lived entity of that name."""
        found = self._fetch_ids("select id from entities where lasting and name = ? order by no desc limit 1", name)
        return found[0] if found else None

    def entities_at(self, first: Life, last: Life) -> Sequence[str]:
        """Return the entities between these phases of life, in order of creation."""
        query = "select id from entities where life < 2 and life between ? and ? order by no"
        return self._fetch_ids(query, first.value, last.value)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield every line with its number, in the order of recording, up to the moment of the call."""
        return ((number, line) for number, line, _ in self.indexed_lines())

    def indexed_lines(self) -> Iterator[tuple[int, bytes, tuple[str | None, str | None]]]:
        """Yield every line with its number, and its row's entity and turn."""
        ((last,),) = self._fetch_rows("select coalesce(max(seq), 0) from records")
        at = 0
        while rows := self._fetch_rows(_LINES, at, last, MANY):
            at = rows[-1][0]
            for seq, body, entity, turn in rows:
                yield seq, _decode_text(body).encode(), (_decode_optional_text(entity), _decode_optional_text(turn))

    def faults(self) -> Iterator[str]:
        """Yield where the tables of entities, mail and timers contradict the lines."""
        at = 0
        while rows := self._fetch_rows(_BEGINNINGS, at, MANY):
            at = rows[-1][0]
            for no, body, parent, turn, forked, name, lasting in rows:
                if body is None:
                    yield f"record {no} is missing, and an entity should begin with it"
                    continue
                try:
                    header = as_header(decode(_decode_text(body).encode()))
                except LoomError:  # `verify` reports it
                    continue
                row = (
                    parent and _decode_text(parent),
                    turn and _decode_text(turn),
                    bool(forked),
                    name and _decode_text(name),
                    bool(lasting),
                )
                if header is not None and row != read_header_facts(header):
                    yield f"record {no}: the row of its entity differs from this line"
        at = 0
        while rows := self._fetch_new_rows(_MARKS, at, MANY):
            at = rows[-1][0]
            for no, key, entity, lasting, body in rows:
                try:
                    record = decode(_decode_text(body or "").encode())
                except LoomError:  # `verify` reports it, or the record is missing
                    record = None
                if (
                    fault := mark_fault(no, _decode_text(entity), _decode_text(key), record, lasting=bool(lasting))
                ) is not None:
                    yield fault
        for (entity,) in self._fetch_new_rows(_MISCOUNTED):
            yield f"the tree of entity {_decode_text(entity)} has a wrong count of waiting mail"
        yield from self._find_timer_faults()

    def _find_timer_faults(self) -> Iterator[str]:
        """Yield the timers without a living entity, and those whose row contradicts their line."""
        at: tuple[Any, Any] = (SCHEDULES - 1, "")
        query = _ALL_TIMERS.format("queue, place" if self._version >= QUEUES_SINCE else "null, null")
        while self._version >= TIMERS_SINCE and (rows := self._fetch_rows(query, *at, MANY)):
            at = rows[-1][:2]
            for no, id, due, queue, place, line, entity, life in rows:
                whose, named = (
                    (None, "") if entity is None else (_decode_text(entity), f" of entity {_decode_text(entity)}")
                )
                try:
                    timer = decode_timer(_decode_text(line))
                except LoomError as error:
                    yield f"timer {_decode_text(id)}{named}: {error}"
                    continue
                if no != SCHEDULES and (life is None or life >= Life.OVER):
                    yield f"timer {_decode_text(id)}{named}: its entity has ended, or never began"
                elif (timer.id, *_order(timer), timer.entity_id) != (
                    _decode_text(id),
                    due,
                    _decode_optional_text(queue),
                    place,
                    whose or "",
                ):
                    yield f"timer {_decode_text(id)}{named}: its row differs from its line"

    def heads(self) -> Mapping[str, bytes]:
        """Return the last link of each root's tree."""
        rows = self._fetch_rows("select id, head from trees join entities using (no)")
        return {_decode_text(root): _decode_text(head).encode() for root, head in rows}

    def blob(self, digest: str) -> Blob | None:
        """Return the blob of that digest."""
        query = f"select kind, data, seal from {select_blobs_query(self._version)} where digest = ?"  # noqa: S608  # ours
        rows = self._fetch_rows(query, digest)
        return Blob(digest, _decode_text(rows[0][0]), bytes(rows[0][1]), _decode_text(rows[0][2])) if rows else None

    def blobs(self) -> Iterator[str]:
        """Yield the digests of all blobs."""
        blobs, at = select_blobs_query(self._version), ""
        query = f"select digest from {blobs} where digest > ? order by digest limit ?"  # noqa: S608  # ours
        while found := self._fetch_ids(query, at, MANY):
            at = found[-1]
            yield from found

    def _fetch_ids(self, query: str, *values: Any) -> list[str]:
        return [_decode_text(id) for (id,) in self._fetch_rows(query, *values)]

    def _decode(self, seq: int, body: str | bytes) -> Record:
        try:
            return decode(body.encode() if isinstance(body, str) else body)
        except Newer as error:
            raise Newer(f"{self._where}: record {seq} {error}") from error
        except LoomError as error:
            raise DamagedLoom(f"{self._where}: record {seq} is corrupt: {error}. {REPAIR}") from error

    def _decode_header(self, seq: int, body: str | bytes) -> Header:
        header = as_header(self._decode(seq, body))
        if header is None:
            raise LoomError(f"{self._where}: record {seq} is corrupt: the first record of an entity is not a header")
        return header

    def __repr__(self) -> str:
        ((entities, turns),) = self._fetch_rows(
            "select (select count(*) from entities), (select count(*) from records where turn is not null)"
        )
        return f"<{type(self).__name__} {self._where} of {entities} entities, {turns} turns>"


_LINES = """
select seq, body, id, turn from records left join entities on no = entity
  where seq > ? and seq <= ? order by seq limit ?
"""
_OF_TREE = """
with recursive family (id, no) as (
  select id, no from entities where id = ? union all
  select one.id, one.no from family join entities one on one.parent_entity = family.id
    where one.parent_entity is not null and not one.forked)
select seq, body from records where entity in (select no from family) and seq > ? order by seq limit ?
"""
_BEGINNINGS = """
select no, body, parent_entity, parent_turn, forked, name, lasting
  from entities left join records on seq = no and entity = no where no > ? order by no limit ?
"""
_MARKS = """
select mail.no, key, root.id, root.lasting, body from mail join entities root on root.no = mail.entity
  left join (records join entities on entities.no = records.entity) on seq = taken and entities.tree = mail.entity
  where taken is not null and mail.no > ? order by mail.no limit ?
"""
_ALL_TIMERS = """
select entity, timers.id, due, {}, line, entities.id, life from timers left join entities on no = entity
  where (entity, timers.id) > (?, ?) order by entity, timers.id limit ?
"""
_MISCOUNTED = """
select id from trees join entities using (no) left join (
  select mail.entity, sum(1 - lane) as control, sum(lane) as intents, sum(case when loads then 1 else 0 end) as loads
    from mail where taken is null group by mail.entity) counted on counted.entity = trees.no
  where trees.control <> coalesce(counted.control, 0) or trees.intents <> coalesce(counted.intents, 0)
    or trees.loads <> coalesce(counted.loads, 0)
"""
_WITH_BLOBS = "select seq, body from records where seq > ? and (body like ? or body like ?) order by seq limit ?"
_LEASES = "select token, owner, deaths, {} from leases left join holders on holders.no = holder"
_LATEST_OF_NAME = """
select name from entities where no = ? and lasting and name is not null and not exists
  (select 1 from entities later where later.lasting and later.name = entities.name and later.no > entities.no)
"""
_REMOVE_TIMER = "delete from timers where entity = ? and id = ?"
_COUNT_AGAIN = """
update trees set
  control = (select count(*) from mail where entity = no_ and taken is null and lane = 0),
  intents = (select count(*) from mail where entity = no_ and taken is null and lane = 1),
  loads = (select count(*) from mail where entity = no_ and taken is null and loads) where no = ?
""".replace("no_", "trees.no")
_PLACES = """
select one.id, one.no, one.tree, one.lasting, one.life, exists (select 1 from timers where entity = one.no),
  root.id, token, head, control, intents, loads
  from {given} join entities one on one.id = given.id join entities root on root.no = one.tree
  left join trees on trees.no = one.tree left join leases on leases.entity = root.id
"""
_KEEP_BLOB = "insert into blobs (digest, kind, data, seal) values (?, ?, ?, ?) on conflict do nothing"
_ADD_ENTITY = (
    "insert into entities (no, id, tree, parent_entity, parent_turn, forked, name, lasting, life) "
    "values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADD_MAIL = "insert into mail (no, entity, lane, loads, key, digest, line, taken) values (?, ?, ?, ?, ?, ?, ?, ?)"
SCHEDULES, NOBODY = 0, -1
"""Two numbers that no entity has: schedules belong to the first, nothing to the second."""
_SET_TIMER = (
    "insert into timers (entity, id, due, queue, place, line) values (?, ?, ?, ?, ?, ?) "
    "on conflict (entity, id) do update set "
    "due = excluded.due, queue = excluded.queue, place = excluded.place, line = excluded.line"
)
_OWNERS = "select records.turn, id from {given} join records on records.turn = given.turn join entities on no = entity"
_TOKENS = "select leases.entity, token from {given} join leases on leases.entity = given.entity"
_BY_KEY = """
select mail.no, taken, entities.id, mail.key, mail.lane, mail.loads, digest
  from {given} join entities on entities.id = given.id join mail on mail.entity = entities.no and mail.key = given.key
"""
MAIL_ROWS = (
    "select mail.no, taken, id, key, mail.lane, mail.loads, digest from mail join entities on entities.no = mail.entity"
)


def decode_mail_row(row: Sequence[Any]) -> MailRow:
    """Return a row of `MAIL_ROWS`."""
    no, taken, entity, key, lane, loads, digest = row
    return MailRow(no, taken, _decode_text(entity), _decode_text(key), lane, bool(loads), bytes(digest))


def read_link(body: str | bytes) -> bytes:
    """Return the link in a line."""
    return split_link(body.encode() if isinstance(body, str) else body)[1] or NOTHING


def _order(timer: Timer) -> tuple[float | None, str | None, float | None]:
    """Return the columns `due`, `queue` and `place` of a timer."""
    return (None, timer.queue, timer.due) if timer.queue and timer.due is not None else (timer.due, None, None)


def _decode_text(value: object) -> str:
    """Return the text of a column. Raises DamagedLoom for a value that is not a text in UTF-8."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()  # type: ignore[attr-defined, no-any-return]  # SQLite's reader returns bytes
    except (AttributeError, UnicodeDecodeError) as error:
        raise DamagedLoom(
            f"a row of the loom is damaged: expected text in UTF-8, got other {type(value).__name__}. {REPAIR}"
        ) from error


def _decode_optional_text(value: object) -> str | None:
    return None if value is None else _decode_text(value)


class KnownRows(Known):
    """The facts that a store's transactions have read. SQLite keeps them until another connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self._trees: dict[int, Tree] = {}
        self._owners: dict[str, str] = {}
        self._tokens: dict[str, int] = {}
        self._mail_rows: dict[int, MailRow] = {}
        self._mail: dict[tuple[str, str], MailRow] = {}

    def forget(self) -> None:
        """Forget all entities."""
        self.places.clear()
        self._trees.clear()

    def fill(
        self, places: Iterable[Any], owners: dict[str, str], tokens: dict[str, int], mail: Sequence[MailRow]
    ) -> None:
        """Add entities; replace the known turns, tokens and mails."""
        for entity, no, root_no, lasting, life, has_timers, root, token, head, *counts in places:
            tree = self._trees.get(root_no)
            if tree is None:
                waiting, link = (NONE_WAITS, NOTHING) if head is None else (Waiting(*counts), head.encode())
                tree = self._trees[root_no] = Tree(root_no, root, link, token, waiting)
            self.places[entity] = Place(no, tree, bool(lasting), Life(life), has_timers=bool(has_timers))
        self._owners, self._tokens = owners, tokens
        self._mail_rows = {row.no: row for row in mail}
        self._mail = {(row.entity_id, row.key): row for row in mail}

    def find_owner(self, turn: str) -> str | None:
        """Return the entity that a committed turn belongs to."""
        return self._owners.get(turn)

    def find_token(self, root: str) -> int | None:
        """Return the token of the lease on an entity that is about to begin."""
        return self._tokens.get(root)

    def find_mail(self, entity: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key."""
        return self._mail.get((entity, key))

    def find_mail_row(self, no: int) -> MailRow | None:
        """Return the mail with that number."""
        return self._mail_rows.get(no)

    def apply(self, made: Plan) -> None:
        """Add the written records."""
        super().apply(made)
        for place in made.new.values():
            self._trees[place.tree.no] = place.tree
