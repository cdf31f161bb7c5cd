"""The common part of both SQL stores: operations on the tables of `schema.py`, in the SQL that both understand."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, cast

from cantrip_actors.loom.seal.seal_key import GivenKey, Head, Seal, SealMark, open_seal
from cantrip_actors.loom.stores.blobs import attach_images
from cantrip_actors.loom.stores.checkpoints import Tip
from cantrip_actors.loom.stores.damage import REPAIR, DamagedLoom
from cantrip_actors.loom.stores.rules import Plan, check_lease, lease_of_name
from cantrip_actors.loom.stores.selection import EVERYTHING, LARGEST_PAGE, ListedEntity, Selection
from cantrip_actors.loom.stores.store import EntitySpan
from cantrip_actors.loom.tables.mail_tables import SCHEDULES
from cantrip_actors.loom.tables.schema import IS_ASIDE, SEAL
from cantrip_actors.loom.tables.table_faults import find_table_faults
from cantrip_actors.loom.tables.table_forget import ForgettingTables
from cantrip_actors.loom.tables.table_listing import decode_listed, write_selection
from cantrip_actors.loom.tables.table_rows import (
    MAIL_ROWS,
    MANY,
    Connection,
    KnownRows,
    decode_mail_row,
    decode_optional_text,
    decode_text,
    fetch_pages,
    read_link,
)
from cantrip_actors.machine.project import (
    NOTED,
    EntityStanding,
    Life,
    Status,
    as_header,
    get_committed_turn,
    get_named_turn,
)
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Header, Record
from cantrip_actors.records.seal import NOTHING
from cantrip_actors.records.tenant import split_name
from cantrip_actors.terms.errors import LoomError


class TableStore(ForgettingTables):
    """A store that keeps records as rows of SQL tables."""

    _known: KnownRows

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
    def _fail(self, what: str, error: Exception) -> NoReturn:
        """Raise LoomError for an error of the driver."""

    # ---------------------------------------------------------------------------------------------------------- sealing

    def _open_seal(self, db: Connection, key: GivenKey, *, makes: bool) -> Seal:
        """Return the seal of the loom. With `makes` a loom without records gets one if there is a key."""
        rows = None
        if self._has_table(db, "seal"):
            row = db.execute("select salt, mark from seal").fetchone()
            if row is None:
                raise DamagedLoom(f"{self.where}: its seal is missing. {REPAIR}")
            rows = SealMark(decode_text(row[0]), decode_text(row[1]))
        is_new = makes and rows is None and db.execute("select 1 from records limit 1").fetchone() is None
        seal = open_seal(key, rows, self.where, is_new=is_new)
        if rows is None and seal.mark is not None:
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
            raise DamagedLoom(f"{self.where}: its seal is missing. {REPAIR}")
        return Head(row[0], decode_text(row[1]).encode())

    def head(self) -> Head | None:
        """Return the head of a sealed loom."""
        rows = [] if self.seal.mark is None else self._fetch_rows("select records, link from seal")
        return Head(rows[0][0], decode_text(rows[0][1]).encode()) if rows else None

    # -------------------------------------------------------------------------------------------------------- appending

    def _look_up(
        self,
        db: Connection,
        records: Sequence[Record] = (),
        *,
        mails: Sequence[Mail] = (),
        taken: Sequence[int] = (),
        roots: Sequence[str] = (),
        entities: Sequence[str] = (),
    ) -> tuple[Sequence[int], Iterator[int]]:
        known, places = self._known, self._known.places
        missing: set[str] = set()
        if roots or entities or mails:
            missing.update(
                entity_id
                for entity_id in (*roots, *entities, *(mail.entity_id for mail in mails))
                if entity_id not in places
            )
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
        mail_rows: list[Iterable[Any]] = []
        mail_numbers: Iterable[int] = ()
        with self._pipeline(db):
            # each statement sees what was committed before it began: once locked, these trees do not change
            self._lock(db, [*missing], claims=bool(roots), posts=bool(mails))
            found = self._fetch_each(db, _PLACES, "id", [(entity_id,) for entity_id in missing]) if missing else ()
            owners = self._fetch_each(db, _OWNERS, "turn", named) if named else ()
            # locked, so that the next holder of an id or a name waits for the commit, and sees this entity
            tokens = self._fetch_each(db, f"{_TOKENS} {self._locked}", "entity", begun) if begun else ()
            numbers = self._draw_numbers(db, "seqs", len(records))
            if mails:
                mail_rows.append(
                    self._fetch_each(db, _BY_KEY, "id, key", [(mail.entity_id, mail.key) for mail in mails])
                )
                mail_numbers = self._draw_numbers(db, "mails", len(mails))
            mail_rows += [db.execute(f"{MAIL_ROWS} where mail.no = ?", (no,)) for no in taken]
        known.fill(found, dict(owners), dict(tokens), [decode_mail_row(row) for rows in mail_rows for row in rows])
        return sorted(numbers), iter(sorted(mail_numbers))

    def _write(self, db: Connection, plan: Plan) -> None:
        with self._pipeline(db):
            if plan.blobs:
                # in order, so that two transactions that write the same ones cannot deadlock
                blobs = [blob for _, blob in sorted(plan.blobs.items())]
                db.executemany(_KEEP_BLOB, [(blob.digest, blob.kind, blob.data, blob.seal) for blob in blobs])
            if plan.entities:
                db.executemany(_ADD_ENTITY, plan.entities)
            if plan.records:
                numbers, places, lines = plan.numbers, plan.places, plan.lines
                rows = [
                    (numbers[at], places[at].no, get_committed_turn(record), lines[at].decode())
                    for at, record in enumerate(plan.records)
                ]
                db.executemany("insert into records (seq, entity, turn, body) values (?, ?, ?, ?)", rows)
            if plan.standings:
                standings = [
                    (how.life.value, how.status, how.cantrip, self._get_entity_number(entity, plan))
                    for entity, how in plan.standings.items()
                ]
                db.executemany("update entities set life = ?, state = ?, cantrip = ? where no = ?", standings)
            if plan.posted:
                posted = [
                    (
                        row.no,
                        self._get_entity_number(row.entity_id, plan),
                        row.lane,
                        row.loads,
                        row.key,
                        row.digest,
                        line.decode(),
                        row.taken,
                    )
                    for row, line, _ in plan.posted.values()
                ]
                db.executemany(_ADD_MAIL, posted)
            if plan.taken:
                marks = [(number, no) for no, (_, number) in plan.taken.items()]
                db.executemany("update mail set taken = ?, line = '' where no = ?", marks)
            for tree, number in plan.emptied:
                db.execute("update mail set taken = ?, line = '' where entity = ? and taken is null", (number, tree.no))
            if plan.timers or plan.timed_out:
                self._write_timers(db, plan)
            heads = {**{tree: tree.head for tree in plan.waiting}, **plan.heads} if plan.waiting else plan.heads
            trees = [
                (tree.no, head.decode(), *(plan.waiting.get(tree) or tree.waiting)) for tree, head in heads.items()
            ]
            db.executemany(
                "insert into trees (no, head, control, intents, loads) values (?, ?, ?, ?, ?) "
                "on conflict (no) do update set head = excluded.head, "
                "control = excluded.control, intents = excluded.intents, loads = excluded.loads",
                trees,
            )
            if plan.end is not None:
                db.execute("update seal set records = ?, link = ?", (plan.end.records, plan.end.link.decode()))

    def _get_entity_number(self, entity: str, plan: Plan) -> int:
        return (plan.new.get(entity) or self._known.places[entity]).no

    def _write_timers(self, db: Connection, plan: Plan) -> None:
        rows = [
            (self._get_entity_number(entity, plan) if entity else SCHEDULES, id, timer.due, line.decode())
            for (entity, id), (timer, line, _) in plan.timers.items()
        ]
        kept, removed = [row for row in rows if row[-1]], [row[:2] for row in rows if not row[-1]]
        if kept:
            db.executemany(_SET_TIMER, kept)
        if removed:
            db.executemany(_REMOVE_TIMER, removed)
        for entity in plan.timed_out:
            db.execute("delete from timers where entity = ?", (self._get_entity_number(entity, plan),))

    def ended_roots(self, after: str | None = None, limit: int = 100) -> list[str]:
        """Return root entities that have ended and are not forgotten, after that one."""
        return self._fetch_ids(
            "select id from entities where life = 2 and tree = no and no > "
            "coalesce((select no from entities where id = ?), 0) order by no limit ?",
            after or "",
            limit,
        )

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

    def asides(self, entity_id: str) -> Sequence[tuple[int, Record]]:
        """Return an entity's rewards and moves, with their numbers."""
        return [(seq, self._decode(seq, body)) for seq, body in self._fetch_rows(_ASIDES, entity_id)]

    def _read_asides(self, db: Connection, entity_id: str) -> Iterator[Record]:
        for seq, body in db.execute(_ASIDES, (entity_id,)).fetchall():
            yield self._decode(seq, body)

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

    def _read_tree_lines(self, root: str, first: int, expected: int = sys.maxsize) -> Iterator[tuple[int, bytes]]:
        at, is_last, many = max(first, 0) - 1, False, min(MANY, expected)
        while not is_last:
            rows = self._fetch_rows(_OF_TREE, root, at, many)
            is_last = len(rows) < many
            for seq, body in rows:
                at = seq
                yield seq, decode_text(body).encode()

    def _find_span(self, entity_id: str, after: int, count: int) -> EntitySpan | None:
        rows = self._fetch_rows(_SPAN, after, count, entity_id)
        if not rows or rows[0][2] is None:
            return None
        root, first, last, head = rows[0]
        return EntitySpan(decode_text(root), first, last, None if head is None else decode_text(head).encode())

    def _find_link_before(self, root: str, number: int) -> bytes:
        rows = self._fetch_rows(_BEFORE, root, number)
        return read_link(rows[0][1]) if rows else NOTHING

    def standing(self, entity_id: str) -> EntityStanding | None:
        """Return how an entity stands."""
        rows = self._fetch_rows("select life, state, cantrip from entities where id = ?", entity_id)
        return _decode_standing(rows[0]) if rows else None

    def standings(self) -> Iterator[tuple[str, EntityStanding]]:
        """Yield how each entity stands, in order of creation."""
        for _, entity, *standing in fetch_pages(self._fetch_rows, _STANDINGS):
            yield decode_text(entity), _decode_standing(standing)

    def _count_written(self, size: int) -> None:  # a server looks after its own log
        """Count the bytes that a transaction writes."""

    def _keep_checkpoint(self, entity_id: str, data: bytes, leases: Mapping[str, int] | None) -> None:
        def work(db: Connection) -> None:
            if leases is not None:
                self._look_up(db, entities=[entity_id])
                place = self._known.find_place(entity_id)
                if place is not None:
                    check_lease(entity_id, place.tree, leases)
            db.execute(
                "insert into checkpoints (entity, data) select no, ? from entities where id = ? "
                "on conflict (entity) do update set data = excluded.data",
                (data, entity_id),
            )
            self._count_written(len(data))

        self._transact(work)

    def _find_checkpoint(self, entity_id: str) -> bytes | None:
        query = "select data from checkpoints where entity = (select no from entities where id = ?)"
        rows = self._fetch_rows(query, entity_id)
        return bytes(rows[0][0]) if rows else None

    def header(self, entity_id: str) -> Header | None:
        """Return an entity's header."""
        rows = self._fetch_rows("select seq, body from entities join records on seq = no where id = ?", entity_id)
        return self._decode_header(*rows[0]) if rows else None

    def headers(self) -> Iterator[Header]:
        """Yield every entity's header, in order of creation, up to the moment of the call."""
        ((last,),) = self._fetch_rows("select coalesce(max(no), 0) from entities")
        query = "select seq, body from entities join records on seq = no where no > ? and no <= ? order by no limit ?"
        return (self._decode_header(seq, body) for seq, body in fetch_pages(self._fetch_rows, query, last))

    def owner(self, turn_id: str) -> str | None:
        """Return the entity that a committed turn belongs to."""
        rows = self._fetch_ids("select id from records join entities on no = entity where turn = ?", turn_id)
        return rows[0] if rows else None

    def children(self, turn_id: str) -> Sequence[str]:
        """Return the entities that a turn spawned."""
        return self._fetch_ids("select id from entities where parent_turn = ? and not forked order by no", turn_id)

    def forks(self, turn_id: str) -> Sequence[str]:
        """Return the entities that were forked from a turn."""
        return self._fetch_ids("select id from entities where parent_turn = ? and forked order by no", turn_id)

    def branches(self, entity_id: str) -> Sequence[str]:
        """Return the entities that were forked from any turn of an entity."""
        return self._fetch_ids(_BRANCHES, entity_id)

    def below(self, entity_id: str) -> Sequence[str]:
        """Return the entities that an entity spawned."""
        return self._fetch_ids("select id from entities where parent_entity = ? and not forked order by no", entity_id)

    def named(self, name: str) -> str | None:
        """Return the latest long-lived entity of that name."""
        tenant, own = split_name(name)
        rows = self._fetch_ids(_NAMED, own, tenant)
        return rows[0] if rows else None

    def select(
        self,
        selection: Selection = EVERYTHING,
        cursor: str | None = None,
        limit: int = LARGEST_PAGE,
        *,
        oldest_first: bool = False,
    ) -> list[ListedEntity]:
        """Return the newest entities of a selection, or those that follow `cursor`."""
        query, values = write_selection(selection, cursor, oldest_first=oldest_first)
        return [decode_listed(row) for row in self._fetch_rows(query, *values, limit)]

    def count_states(self, tenant: str | None = None) -> dict[Status, int]:
        """Return how many entities are in each state."""
        which, values = ("", ()) if tenant is None else ("where tenant = ?", (tenant,))
        query = f"select state, count(*) from entities {which} group by state"  # noqa: S608  # our own words
        return {cast("Status", decode_text(state)): count for state, count in self._fetch_rows(query, *values)}

    def entities_at(self, first: Life, last: Life) -> Sequence[str]:
        """Return the entities between these phases of life, in order of creation."""
        query = "select id from entities where life < 2 and life between ? and ? order by no"
        return self._fetch_ids(query, first.value, last.value)

    def records_after(self, number: int, limit: int) -> list[tuple[int, Record]]:
        """Return the next records of all entities after that number."""
        rows = self._fetch_rows("select seq, body from records where seq > ? order by seq limit ?", number, limit)
        return [(seq, self._decode(seq, body)) for seq, body in rows]

    def last_number(self) -> int:
        """Return the number of the last record."""
        ((last,),) = self._fetch_rows("select coalesce(max(seq), 0) from records")
        return int(last)

    def indexed_lines(self) -> Iterator[tuple[int, bytes, tuple[str | None, str | None]]]:
        """Yield every line with its number, and its row's entity and turn."""
        ((last,),) = self._fetch_rows("select coalesce(max(seq), 0) from records")
        for seq, body, entity, turn in fetch_pages(self._fetch_rows, _LINES, last):
            yield seq, decode_text(body).encode(), (decode_optional_text(entity), decode_optional_text(turn))

    def faults(self) -> Iterator[str]:
        """Yield where the tables of entities, mail and timers contradict the lines."""
        return find_table_faults(self._fetch_rows, self.half_forgotten())

    def heads(self) -> Mapping[str, bytes]:
        """Return the last link of each root's tree."""
        rows = self._fetch_rows("select id, head from trees join entities using (no)")
        return {decode_text(root): decode_text(head).encode() for root, head in rows}

    def blob(self, digest: str) -> Blob | None:
        """Return the blob of that digest."""
        rows = self._fetch_rows("select kind, data, seal from blobs where digest = ?", digest)
        return Blob(digest, decode_text(rows[0][0]), bytes(rows[0][1]), decode_text(rows[0][2])) if rows else None

    def blobs(self) -> Iterator[str]:
        """Yield the digests of all blobs."""
        query = "select digest from blobs where digest > ? order by digest limit ?"
        return (decode_text(digest) for (digest,) in fetch_pages(self._fetch_rows, query, after=("",)))

    def _decode_header(self, seq: int, body: str | bytes) -> Header:
        header = as_header(self._decode(seq, body))
        if header is None:
            raise LoomError(f"{self.where}: record {seq} is corrupt: the first record of an entity is not a header")
        return header

    def __repr__(self) -> str:
        ((entities, turns),) = self._fetch_rows(
            "select (select count(*) from entities), (select count(*) from records where turn is not null)"
        )
        return f"<{type(self).__name__} {self.where} of {entities} entities, {turns} turns>"


def _decode_standing(row: Sequence[Any]) -> EntityStanding:
    life, state, cantrip = row
    return EntityStanding(Life(life), cast("Status", decode_text(state)), decode_optional_text(cantrip))


_NAMED = "select id from entities where name = ? and tenant = ? and lasting order by no desc limit 1"
_STANDINGS = "select no, id, life, state, cantrip from entities where no > ? order by no limit ?"
_ASIDES = f"""
select seq, body from records
  where entity = (select no from entities where id = ?) and {IS_ASIDE} order by seq
"""  # noqa: S608  # our own words
_BRANCHES = """
select fork.id from records cross join entities fork where entity = (select no from entities where id = ?)
  and turn is not null and parent_turn = turn and forked order by no
"""
_LINES = """
select seq, body, id, turn from records left join entities on no = entity
  where seq > ? and seq <= ? order by seq limit ?
"""
_FAMILY = """
with recursive family (id, no) as (
  select id, no from entities where id = ? union all
  select one.id, one.no from family join entities one on one.parent_entity = family.id
    where one.parent_entity is not null and not one.forked)
"""
_OF_TREE = f"""{_FAMILY}
select seq, body from records where entity in (select no from family) and seq > ? order by seq limit ?
"""  # noqa: S608  # our own words
_BEFORE = f"""{_FAMILY}
select seq, body from records where seq = (select max(last) from (
  select (select max(seq) from records where entity = family.no and seq < ?) as last from family) lasts)
"""  # noqa: S608  # likewise
_SPAN = """
select root.id, one.no,
  (select max(seq) from (select seq from records where entity = one.no and seq > ? order by seq limit ?) span), head
  from entities one join entities root on root.no = one.tree left join trees on trees.no = one.tree where one.id = ?
"""
_REMOVE_TIMER = "delete from timers where entity = ? and id = ?"
_PLACES = """
select one.id, one.no, one.tree, one.lasting, one.life, one.state, one.cantrip,
  exists (select 1 from timers where entity = one.no),
  root.id, token, head, control, intents, loads
  from {given} join entities one on one.id = given.id join entities root on root.no = one.tree
  left join trees on trees.no = one.tree left join leases on leases.entity = root.id
"""
_KEEP_BLOB = "insert into blobs (digest, kind, data, seal) values (?, ?, ?, ?) on conflict do nothing"
_ADD_ENTITY = (
    "insert into entities (no, id, tree, parent_entity, parent_turn, forked, name, lasting, tenant, at, "
    "life, state, cantrip) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADD_MAIL = "insert into mail (no, entity, lane, loads, key, digest, line, taken) values (?, ?, ?, ?, ?, ?, ?, ?)"
_SET_TIMER = (
    "insert into timers (entity, id, due, line) values (?, ?, ?, ?) "
    "on conflict (entity, id) do update set due = excluded.due, line = excluded.line"
)
_OWNERS = "select records.turn, id from {given} join records on records.turn = given.turn join entities on no = entity"
_TOKENS = "select leases.entity, token from {given} join leases on leases.entity = given.entity"
_BY_KEY = """
select mail.no, taken, entities.id, mail.key, mail.lane, mail.loads, digest
  from {given} join entities on entities.id = given.id join mail on mail.entity = entities.no and mail.key = given.key
"""
