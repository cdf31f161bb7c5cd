"""What both SQL stores do with the tables of `schema.py`, in the SQL that both speak. How they connect is theirs."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

from cantrip_actors.loom.blobs import attach_images, blobs_of
from cantrip_actors.loom.checkpoints import Tip
from cantrip_actors.loom.inbox import MailPlan, Refusal, mark_fault
from cantrip_actors.loom.lease import DEATHS, NO_LEASES, Held, Lease, Quarantined, count_deaths, not_root
from cantrip_actors.loom.rules import NONE_WAITS, Known, Plan, Tree, Waiting, plan, seal_lines
from cantrip_actors.loom.schema import VERSION, blobs_of_version
from cantrip_actors.loom.store import Store
from cantrip_actors.machine.project import Life, as_header, committed_turn
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import Newer, decode, encode
from cantrip_actors.records.mail import Mail, MailRow, Pending
from cantrip_actors.records.records import Header, Record
from cantrip_actors.records.seal import NOTHING, sealed_with
from cantrip_actors.terms.errors import LoomError

__all__ = ["MAIL_ROWS", "MANY", "Connection", "TableStore", "mail_row"]

T = TypeVar("T")

MANY = 500
"""Rows that are read at once where all are."""


class Connection(Protocol):
    """A connection in the middle of a transaction. A `?` in a query stands for a value."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        """Run a statement; the cursor has its rows."""

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> Any:
        """Run a statement for each row."""


class TableStore(Store):
    """A store whose records are rows."""

    _where: str
    """The database, as messages name it."""
    _version: int = VERSION
    """The version of its tables: an earlier one where they were opened read-only."""
    _known: Known
    _leases: str
    """The query for token, owner and deaths of leases, and for how long they last (`_left`)."""
    _locked: str
    """What locks the rows that it finds."""
    _owners: set[str]
    """Those that have claimed through this store."""
    _conflict: type[Exception]
    """What the driver raises for a row that is there already."""

    @abstractmethod
    def _rows(self, query: str, *values: Any) -> list[Any]:
        """Return the answer to a query. Text comes as str or as UTF-8."""

    @abstractmethod
    def _transact(self, work: Callable[[Connection], T], *expected: type[Exception]) -> T:
        """Do `work` in one transaction. Raises LoomError where that fails, and what is `expected` as it is."""

    @abstractmethod
    def _look_up(
        self,
        db: Connection,
        records: Sequence[Record] = (),
        mails: Sequence[Mail] = (),
        taken: Sequence[int] = (),
        roots: Sequence[str] = (),
    ) -> tuple[Sequence[int], Iterator[int]]:
        """Make `_known` know what these ask for; return a number for each record, and numbers for mail."""

    @abstractmethod
    def _at_once(self, db: Connection) -> AbstractContextManager[object]:
        """Send statements without waiting for the answers."""

    @abstractmethod
    def _left(self, *found: Any) -> float:
        """Return for how many seconds a lease lasts, of what `_leases` found."""

    @abstractmethod
    def _is_live(self, owner: str, left: float) -> bool:
        """Return whether a lease of that owner, who is not this one, is valid."""

    @abstractmethod
    def _hold(self, db: Connection, owner: str, ttl: float) -> float:
        """Let all leases of `owner` last until `ttl` seconds from now; return until when, in seconds since 1970."""

    @abstractmethod
    def _fail(self, what: str, error: Exception) -> NoReturn:
        """Raise LoomError for an error of the driver."""

    # -------------------------------------------------------------------------------------------------------- appending

    def append(
        self,
        records: Sequence[Record],
        leases: Mapping[str, int] = NO_LEASES,
        *,
        taken: Sequence[tuple[int, int]] = (),
        post: Sequence[tuple[int, Mail]] = (),
    ) -> None:
        """Write `records` as one transaction, all or none."""
        lines = [encode(record) for record in records]
        mails = [mail for _, mail in post]
        blobs = blobs_of(records, mails)

        def work(db: Connection) -> None:
            if not records:
                return
            numbers, mail_numbers = self._look_up(db, records, mails, [no for _, no in taken])
            made = plan(records, numbers, self._known, leases)
            mail = None
            if taken or post or made.over:
                mail = MailPlan(self._known, self.max_waiting, mail_numbers)
                mail.follow(made, records, numbers, taken=taken, post=post)
            sealed, heads = seal_lines(lines, made.places, _find_no_head)
            rows = [
                (number, place.no, committed_turn(record), line.decode())
                for number, place, record, line in zip(numbers, made.places, records, sealed, strict=True)
            ]
            self._known.apply(made)
            for tree, head in heads.items():
                tree.head = head
            self._write(db, rows, made, blobs, mail, heads)

        try:
            self._transact(work, self._conflict)
        except self._conflict as error:
            self._refuse(records, error)

    def _write(
        self,
        db: Connection,
        rows: Sequence[Any],
        made: Plan,
        blobs: Sequence[Blob],
        mail: MailPlan | None,
        heads: Iterable[Tree] = (),
    ) -> None:
        """Write lines, blobs and mail, and what follows from them; `heads` are the trees that the lines belong to."""
        places = self._known.places
        with self._at_once(db):
            if blobs:
                kept = [(blob.digest, blob.kind, blob.data, blob.seal) for blob in blobs]
                db.executemany("insert into blobs values (?, ?, ?, ?) on conflict do nothing", kept)
            if made.entities:
                db.executemany("insert into entities values (?, ?, ?, ?, ?, ?, ?, ?, ?)", made.entities)
            if rows:
                db.executemany("insert into records values (?, ?, ?, ?)", rows)
            if made.lives:
                lives = [(life.value, places[entity].no) for entity, life in made.lives.items()]
                db.executemany("update entities set life = ? where no = ?", lives)
            if mail is not None:
                self._write_mail(db, mail)
                heads = {*heads, *mail.waiting}
            db.executemany(
                "insert into trees values (?, ?, ?, ?, ?) on conflict (no) do update set head = excluded.head, "
                "control = excluded.control, intents = excluded.intents, loads = excluded.loads",
                [(tree.no, (tree.head or NOTHING).decode(), *tree.waiting) for tree in heads],
            )

    def _write_mail(self, db: Connection, mail: MailPlan) -> None:
        places = self._known.places
        for tree, waiting in mail.waiting.items():
            tree.waiting = waiting
        if mail.posted:
            rows = [
                (row.no, places[row.entity_id].no, row.lane, row.loads, row.key, row.digest, line.decode(), row.taken)
                for row, line, _ in mail.posted.values()
            ]
            db.executemany("insert into mail values (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        if mail.taken:
            marks = [(number, no) for no, (_, number) in mail.taken.items()]
            db.executemany("update mail set taken = ?, line = '' where no = ?", marks)
        for tree, number in mail.over:
            db.execute("update mail set taken = ?, line = '' where entity = ? and taken is null", (number, tree.no))

    # ------------------------------------------------------------------------------------------------------------- mail

    def post(self, mails: Sequence[Mail]) -> list[MailRow | Refusal]:
        """Post mail, all in one transaction."""

        def work(db: Connection) -> list[MailRow | Refusal]:
            _, numbers = self._look_up(db, (), mails)
            mail = MailPlan(self._known, self.max_waiting, numbers)
            results = [mail.post(one) for one in mails]
            if mail.posted:
                accepted = [one for one in mails if (one.entity_id, one.key) in mail.posted]
                self._write(db, (), Plan(), blobs_of((), accepted), mail)
            return results

        return self._transact(work)

    def pending(self, entity_id: str, limit: int = 100) -> list[Pending]:
        """The mail that waits for an entity, control lane first, then in order."""
        rows = self._new_rows(
            "select no, line from mail where entity = (select no from entities where id = ?) and taken is null "
            "order by lane, no limit ?",
            entity_id,
            limit,
        )
        return [self._pending(no, _text(line).encode()) for no, line in rows]

    def waiting(self, *, loads: bool = True) -> list[str]:
        """The entities for whose mail they are loaded."""
        least = 1 if loads else 0
        query = "select id from trees join entities using (no) where control + intents > 0 and loads >= ? order by no"
        return [_text(id) for (id,) in self._new_rows(query, least)]

    def count_mail(self, entity_id: str) -> Waiting:
        """How much mail waits for an entity."""
        query = "select control, intents, loads from trees where no = (select no from entities where id = ?)"
        rows = self._new_rows(query, entity_id)
        return Waiting(*rows[0]) if rows else NONE_WAITS

    def _waiting_after(self, no: int, limit: int = sys.maxsize) -> list[MailRow]:
        rows = self._new_rows(f"{MAIL_ROWS} where mail.no > ? and taken is null order by mail.no limit ?", no, limit)
        return [mail_row(row) for row in rows]

    def find_mail(self, entity_id: str, key: str) -> MailRow | None:
        """The mail of an entity with that key."""
        rows = self._new_rows(f"{MAIL_ROWS} where id = ? and key = ?", entity_id, key)
        return mail_row(rows[0]) if rows else None

    def expire_mail(self, before: str) -> None:
        """Forget mail that records took before that time."""
        at = 0
        query = (
            "select mail.no, seq, body from mail join records on seq = taken where mail.no > ? order by mail.no limit ?"
        )
        while rows := self._new_rows(query, at, MANY):
            at = rows[-1][0]
            expired = [(no,) for no, seq, body in rows if str(getattr(self._decoded(seq, body), "at", "")) < before]
            if expired:
                self._transact(partial(self._forget, expired))

    def _forget(self, numbers: Sequence[tuple[int]], db: Connection) -> None:
        db.executemany("delete from mail where no = ? and no < (select max(no) from mail)", numbers)

    # ----------------------------------------------------------------------------------------------------------- leases

    def _claim(self, db: Connection, entity: str, owner: str, ttl: float, *, lift: bool) -> Lease | Quarantined:
        """Claim an entity, or put it into quarantine."""
        deaths = 0
        held = db.execute(f"{self._leases} where leases.entity = ? {self._locked}", (entity,)).fetchone()
        if held is not None:
            token, by, deaths, *found = held
            left = self._left(*found)
            if by is not None and by != owner and self._is_live(by, left):
                raise Held.by(entity, by, left)
            if by is None and not lift:
                return Quarantined.after(deaths, entity)
            # this one, which is locked: one that came since, while another claim was waited for, is nobody's to take
            db.execute("delete from leases where token = ?", (token,))
            deaths = count_deaths(deaths, by, owner)
        self._look_up(db, roots=[entity])
        place = self._known.place(entity)
        if place is not None and place.tree.root != entity:
            raise not_root(entity, place.tree.root)
        if place is None or lift:
            deaths = 0
        is_quarantined = deaths >= DEATHS
        until = 0.0 if is_quarantined else self._hold(db, owner, ttl)
        db.execute(
            "insert into leases (entity, holder, deaths) "
            "values (?, coalesce((select no from holders where owner = ?), 0), ?)",
            (entity, "" if is_quarantined else owner, deaths),
        )
        (token,) = db.execute("select token from leases where entity = ?", (entity,)).fetchone()
        if place is not None:
            place.tree.token = token
        return Quarantined.after(deaths, entity) if is_quarantined else Lease(entity, owner, token, until)

    def quarantined(self) -> list[str]:
        """The entities whose holders died."""
        query = "select entity from leases where deaths >= ? order by entity"
        return [_text(entity) for (entity,) in self._new_rows(query, DEATHS)]

    def release(self, *leases: Lease) -> None:
        """Release leases; nothing happens to one that is over already."""
        self._transact(lambda db: self._release(db, leases))

    def is_held(self, entity_id: str) -> bool:
        """Whether somebody else holds a lease on the tree of an entity."""
        root = "coalesce((select id from entities where no = (select tree from entities where id = ?)), ?)"
        rows = self._new_rows(f"{self._leases} where leases.entity = {root}", entity_id, entity_id)
        held = ((_text(owner), self._left(*found)) for _, owner, _, *found in rows if owner is not None)
        return any(owner not in self._owners and self._is_live(owner, left) for owner, left in held)

    def release_if_empty(self, *leases: Lease) -> list[Lease]:
        """Release leases of entities for which no mail waits that would load them; return the others."""

        def work(db: Connection) -> list[Lease]:
            self._look_up(db, roots=[lease.entity_id for lease in leases])
            places = {lease: self._known.place(lease.entity_id) for lease in leases}
            kept = [lease for lease, place in places.items() if place is not None and place.tree.waiting.loads]
            self._release(db, [lease for lease in leases if lease not in kept])
            return kept

        return self._transact(work)

    def _release(self, db: Connection, leases: Sequence[Lease]) -> None:
        for lease in leases:
            db.execute("delete from leases where token = ?", (lease.token,))
            place = self._known.places.get(lease.entity_id)
            if place is not None and place.tree.token == lease.token:
                place.tree.token = None

    def _new_rows(self, query: str, *values: Any) -> list[Any]:
        """Return the answer to a query about what tables of an earlier version do not have: then nothing."""
        return self._rows(query, *values) if self._version >= VERSION else []

    def _refuse(self, records: Sequence[Record], error: Exception) -> NoReturn:
        """Say which record was there already."""
        for record in records:
            turn = committed_turn(record)
            if turn is not None and self.owner(turn) is not None:
                raise LoomError(
                    f"loom is append-only: turn {turn} is recorded already and cannot be changed"
                ) from error
            if as_header(record) is not None and self.header(record.entity_id) is not None:  # begun in the same moment
                raise LoomError(
                    f"loom is append-only: entity {record.entity_id} has begun already and cannot begin again"
                ) from error
        self._fail("cannot write to", error)

    # ---------------------------------------------------------------------------------------------------------- reading

    def records(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        """What is recorded of an entity after that number, in order."""
        rows = self._rows(
            "select seq, body from records where entity = (select no from entities where id = ?) and seq > ? "
            "order by seq limit ?",
            entity_id,
            after,
            limit,
        )
        return attach_images((self._decoded(seq, body) for seq, body in rows), self.blob)

    def tip(self, entity_id: str) -> Tip | None:
        """The place of an entity's last record."""
        rows = self._rows(
            "select seq, body from records where entity = (select no from entities where id = ?) "
            "order by seq desc limit 1",
            entity_id,
        )
        return Tip(rows[0][0], _link_in(rows[0][1])) if rows else None

    def _link(self, entity_id: str, position: int) -> bytes | None:
        rows = self._rows(
            "select body from records where seq = ? and entity = (select no from entities where id = ?)",
            position,
            entity_id,
        )
        return _link_in(rows[0][0]) if rows else None

    def life(self, entity_id: str) -> Life | None:
        """Where an entity stands in its life."""
        rows = self._rows("select life from entities where id = ?", entity_id)
        return Life(rows[0][0]) if rows else None

    def _keep_checkpoint(self, entity_id: str, kept: bytes) -> None:
        self._transact(
            lambda db: db.execute(
                "insert into checkpoints select no, ? from entities where id = ? "
                "on conflict (entity) do update set data = excluded.data",
                (kept, entity_id),
            )
        )

    def _find_checkpoint(self, entity_id: str) -> bytes | None:
        query = "select data from checkpoints where entity = (select no from entities where id = ?)"
        rows = self._new_rows(query, entity_id)
        return bytes(rows[0][0]) if rows else None

    def header(self, entity_id: str) -> Header | None:
        """How an entity began."""
        rows = self._rows("select seq, body from entities join records on seq = no where id = ?", entity_id)
        return self._header(*rows[0]) if rows else None

    def headers(self) -> Iterator[Header]:
        """Every entity's header, in order of creation, up to the moment of the call."""
        ((last,),) = self._rows("select coalesce(max(no), 0) from entities")
        at = 0
        while rows := self._rows(
            "select seq, body from entities join records on seq = no where no > ? and no <= ? order by no limit ?",
            at,
            last,
            MANY,
        ):
            at = rows[-1][0]
            for seq, body in rows:
                yield self._header(seq, body)

    def owner(self, turn_id: str) -> str | None:
        """The entity that a committed turn belongs to."""
        found = self._ids("select id from records join entities on no = entity where turn = ?", turn_id)
        return found[0] if found else None

    def children(self, turn_id: str) -> Sequence[str]:
        """The entities that a turn spawned."""
        return self._ids("select id from entities where parent_turn = ? and not forked order by no", turn_id)

    def forks(self, turn_id: str) -> Sequence[str]:
        """The entities that were forked from a turn."""
        return self._ids("select id from entities where parent_turn = ? and forked order by no", turn_id)

    def below(self, entity_id: str) -> Sequence[str]:
        """The entities that an entity spawned."""
        return self._ids("select id from entities where parent_entity = ? and not forked order by no", entity_id)

    def named(self, name: str) -> str | None:
        """The latest long-lived entity of that name."""
        found = self._ids("select id from entities where lasting and name = ? order by no desc limit 1", name)
        return found[0] if found else None

    def unfinished(self, *, idle: bool = True) -> Sequence[str]:
        """The entities that are not over, in order of creation."""
        most = Life.IDLE if idle else Life.BUSY
        return self._ids("select id from entities where life < 2 and life <= ? order by no", most.value)

    def faults(self) -> Iterator[str]:
        """Where the table of mail says something else than the lines."""
        at = 0
        while rows := self._new_rows(_MARKS, at, MANY):
            at = rows[-1][0]
            for no, key, entity, lasting, body in rows:
                try:
                    record = decode(_text(body or "").encode())
                except LoomError:  # `verify` says so, or the record is missing
                    record = None
                if (fault := mark_fault(no, _text(entity), _text(key), record, lasting=bool(lasting))) is not None:
                    yield fault
        for (entity,) in self._new_rows(_MISCOUNTED):
            yield f"how much mail waits for entity {_text(entity)} is not what its tree says"

    def heads(self) -> Mapping[str, bytes]:
        """The last link of each root's tree."""
        rows = self._rows("select id, head from trees join entities using (no)")
        return {_text(root): _text(head).encode() for root, head in rows}

    def blob(self, digest: str) -> Blob | None:
        """The blob of that digest."""
        query = f"select kind, data, seal from {blobs_of_version(self._version)} where digest = ?"  # noqa: S608  # ours
        rows = self._rows(query, digest)
        return Blob(digest, _text(rows[0][0]), bytes(rows[0][1]), _text(rows[0][2])) if rows else None

    def blobs(self) -> Iterator[str]:
        """The digests of all blobs."""
        blobs, at = blobs_of_version(self._version), ""
        query = f"select digest from {blobs} where digest > ? order by digest limit ?"  # noqa: S608  # ours
        while found := self._ids(query, at, MANY):
            at = found[-1]
            yield from found

    def _ids(self, query: str, *values: Any) -> list[str]:
        return [_text(id) for (id,) in self._rows(query, *values)]

    def _decoded(self, seq: int, body: str | bytes) -> Record:
        try:
            return decode(body.encode() if isinstance(body, str) else body)
        except Newer as error:
            raise Newer(f"{self._where}: record {seq} {error}") from error
        except LoomError as error:
            raise LoomError(f"{self._where}: record {seq} is corrupt: {error}") from error

    def _header(self, seq: int, body: str | bytes) -> Header:
        header = as_header(self._decoded(seq, body))
        if header is None:
            raise LoomError(f"{self._where}: record {seq} is corrupt: an entity begins with it, and it is no header")
        return header

    def __repr__(self) -> str:
        ((entities, turns),) = self._rows(
            "select (select count(*) from entities), (select count(*) from records where turn is not null)"
        )
        return f"<{type(self).__name__} {self._where} of {entities} entities, {turns} turns>"


_MARKS = """
select mail.no, key, root.id, root.lasting, body from mail join entities root on root.no = mail.entity
  left join (records join entities on entities.no = records.entity) on seq = taken and entities.tree = mail.entity
  where taken is not null and mail.no > ? order by mail.no limit ?
"""
_MISCOUNTED = """
select id from trees join entities using (no) left join (
  select mail.entity, sum(1 - lane) as control, sum(lane) as intents, sum(case when loads then 1 else 0 end) as loads
    from mail where taken is null group by mail.entity) counted on counted.entity = trees.no
  where trees.control <> coalesce(counted.control, 0) or trees.intents <> coalesce(counted.intents, 0)
    or trees.loads <> coalesce(counted.loads, 0)
"""
MAIL_ROWS = (
    "select mail.no, taken, id, key, mail.lane, mail.loads, digest from mail join entities on entities.no = mail.entity"
)


def mail_row(row: Sequence[Any]) -> MailRow:
    """Return a row of `MAIL_ROWS`."""
    no, taken, entity, key, lane, loads, digest = row
    return MailRow(no, taken, _text(entity), _text(key), lane, bool(loads), bytes(digest))


def _link_in(body: str | bytes) -> bytes:
    return sealed_with(body.encode() if isinstance(body, str) else body)[1] or NOTHING


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _find_no_head(tree: Tree) -> bytes:
    raise AssertionError(f"the head of tree {tree.root} is looked up with it")
