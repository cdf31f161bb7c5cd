"""The SQLite store: the default for real use. One file, any number of readers and writers, in any processes.

The rules of this file:

- A batch is one transaction. Where it fails (a full disk, a lock that nobody lets go) nothing of it is there, the
  caller gets a LoomError, and the next append tries again: it goes on once the cause is mended.
- The file is in WAL mode: readers never wait for a writer, nor it for them. Writers wait for each other, for the few
  dozen microseconds of a batch, and at most `PATIENCE`.
- This store has one connection to write with and one to read with, and a read sees what was committed when it began.
- What a batch must know of what is there (`Known`) is kept in memory between batches; whenever another connection has
  written meanwhile, which SQLite tells, it is looked up anew. So leases, too, are checked inside the transaction.
- The table is the log. The others say where things are in it, are written in the same transaction, and `cantrip loom
  verify` compares them with it.

`process` is `synchronous=NORMAL`: a commit reaches the page cache. `power` is FULL: it waits for the disk, and
`blocking` is then True. `none` is OFF: not even the order of writes is kept, and a power cut may leave no loom at all.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from cantrip_actors.loom.chain import NOTHING
from cantrip_actors.loom.checkpoint import Checkpoints
from cantrip_actors.loom.images import key_beside
from cantrip_actors.loom.lease import NO_LEASES, Held, Lease, gone, not_root
from cantrip_actors.loom.life import Life
from cantrip_actors.loom.rows import Known, Place, Rows, Tree, plan
from cantrip_actors.loom.store import Durability
from cantrip_actors.loom.tables import MANY, TableStore
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.turn import Committed, Record

__all__ = ["SqliteStore"]

APPLICATION = 0x4C4F4F4D
"""What the file says it is: LOOM."""
VERSION = 3
"""Of these tables. What a line looks like has a version of its own, `record.SCHEMA`."""
_WITH_IMAGES, _WITH_PICTURES = 2, 3
PATIENCE = 5.0
"""Seconds that a writer waits for another one: far more than any batch takes, unless its process is stopped."""
REMAINS = 3600.0
"""Seconds after which a holder that holds nothing is forgotten."""
REMEMBERED = 50_000
"""Entities that are known between batches."""

_TABLES = """
create table records (seq integer primary key, entity integer not null, turn text, body text not null);
create index records_of on records (entity);
create unique index turns on records (turn) where turn is not null;
create table entities (
  no integer primary key, id text not null unique, tree integer not null, parent_entity text, parent_turn text,
  forked integer not null, name text, lasting integer not null, life integer not null);
create index below on entities (parent_entity) where parent_entity is not null and not forked;
create index branches on entities (parent_turn) where parent_turn is not null;
create index named on entities (name) where lasting and name is not null;
create index unfinished on entities (life) where life < 2;
create table trees (no integer primary key, head text not null);
create table holders (no integer primary key, owner text not null unique, until real not null);
create table leases (token integer primary key autoincrement, entity text not null unique, holder integer not null);
create index held on leases (holder);
create table images (digest text primary key, engine text not null, seal text not null, data blob not null);
create table pictures (digest text primary key, type text not null, data blob not null);
create view log as select records.seq, entities.id as entity, json_extract(body, '$.kind') as kind,
  json_extract(body, '$.turn') as turn, body from records join entities on entities.no = records.entity;
"""

_UPGRADES = (
    "create table images (digest text primary key, engine text not null, seal text not null, data blob not null)",
    "create table if not exists pictures (digest text primary key, type text not null, data blob not null)",
)
"""What makes tables of version 1, 2, … those of the next one. What stands in them stays as it is."""

_FAULTS = """
select no, 'no such record, and an entity should begin with it'
  from entities where not exists (select 1 from records where seq = no and entity = no)
union all
select seq, 'its row names another entity, or another turn, than its line'
  from records left join entities on no = entity where json_valid(body) and (
    id is not json_extract(body, '$.entity')
    or turn is not iif(json_extract(body, '$.kind') = 'turn', json_extract(body, '$.turn'), null))
union all
select no, 'the row of its entity says something else than this line'
  from entities join records on seq = no where json_valid(body) and (
    parent_entity is not json_extract(body, '$.parent_entity')
    or parent_turn is not json_extract(body, '$.parent_turn')
    or forked is not coalesce(json_extract(body, '$.forked'), 0)
    or name is not json_extract(body, '$.name')
    or lasting is not coalesce(json_extract(body, '$.lasting'), 0))
union all
select last, 'this is the last one, and there should be as many'
  from (select max(seq) as last, count(*) as many from records) where last <> many
"""
"""Numbers past what SQL's own JSON knows make a line that it does not take for one: those are left to `verify`."""

_SYNCHRONOUS = {"process": "normal", "power": "full", "none": "off"}


class SqliteStore(TableStore):
    """A loom in an SQLite file. Raises LoomError where it cannot be opened, or is something else."""

    def __init__(
        self, path: str | os.PathLike[str], *, durability: Durability = "process", read_only: bool = False
    ) -> None:
        self.path = Path(path).absolute()
        self._where = str(self.path)
        self.read_only = read_only
        self.durability = durability
        self.blocking = durability == "power"
        self._lock = threading.Lock()  # one batch at a time, from whichever thread
        self._writer: sqlite3.Connection | None = None
        self._known = _Known()
        self._seen = -1  # what SQLite says as long as nobody else writes
        self._next = 0
        self._checkpoints = Checkpoints(self._connect, self._lock)
        self._closed = False
        if self.path.exists() and not self.path.is_file():
            raise LoomError(f"{self.path} is no file: a loom needs a regular one")
        if not read_only:
            self._writer = self._create()
        self._reader = self._open_reader()

    # ---------------------------------------------------------------------------------------------------------- opening

    def _create(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LoomError(f"cannot open {self.path}: {error.strerror}") from error
        try:
            connection = self._connect()
        except sqlite3.Error as error:
            self._fail("cannot open", error)
        try:
            self._check(connection)
            _wal(connection)
            connection.execute("begin immediate")
            found = self._check(connection)
            for statement in _TABLES.split(";\n") if found == 0 else _UPGRADES[found - 1 :]:
                connection.execute(statement)
            if found == 0:
                connection.execute(f"pragma application_id = {APPLICATION}")
            if found < VERSION:
                connection.execute(f"pragma user_version = {VERSION}")
            connection.execute("commit")
        except sqlite3.Error as error:
            connection.close()
            self._fail("cannot open", error)
        except LoomError:
            connection.close()
            raise
        return connection

    def _open_reader(self) -> sqlite3.Connection:
        reader = None
        try:
            reader = self._connect()
            reader.text_factory = bytes
            found = self._check(reader)
            self._has_images, self._has_pictures = found >= _WITH_IMAGES, found >= _WITH_PICTURES
        except sqlite3.Error as error:
            self._give_up(reader)
            self._fail("cannot open", error)
        except LoomError:
            self._give_up(reader)
            raise
        return reader

    def _give_up(self, *connections: sqlite3.Connection | None) -> None:
        for connection in (*connections, self._writer):
            if connection is not None:
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        """A connection of any thread's; the file itself is touched by the first statement."""
        mode = "ro" if self.read_only else "rwc"
        if self.read_only and not os.access(self.path.parent, os.W_OK) and not self._beside("-wal").exists():
            mode = "ro&immutable=1"  # SQLite's own notes cannot be made there, and nobody writes
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        connection.execute(f"pragma synchronous = {_SYNCHRONOUS[self.durability]}")
        connection.execute("pragma wal_autocheckpoint = 0")
        connection.execute("pragma journal_size_limit = 67108864")
        return connection

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _check(self, connection: sqlite3.Connection) -> int:
        """The version of the tables; 0 for an empty file. Raises LoomError where they are not ours to use."""
        (application,) = connection.execute("pragma application_id").fetchone()
        (version,) = connection.execute("pragma user_version").fetchone()
        (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
        if application != APPLICATION and (tables or self.read_only):
            raise LoomError(f"{self.path} is an SQLite database, but no loom: give the path of another file")
        if version > VERSION:
            raise LoomError(
                f"{self.path} has tables of version {version}, this version knows up to {VERSION}: "
                f"use a newer cantrip-actors"
            )
        return int(version)

    # -------------------------------------------------------------------------------------------------------- appending

    def append(self, records: Sequence[Record], leases: Mapping[str, int] = NO_LEASES) -> None:
        """Write `records` as one transaction, all or none."""
        with self._lock:
            writer = self._ready()
            if not records:
                return
            try:
                self._begin(writer)
                rows = plan(records, range(self._next, self._next + len(records)), self._known, leases)
                _write(writer, rows)
                writer.execute("commit")
            except BaseException as error:
                self._undo(writer)
                if isinstance(error, sqlite3.IntegrityError):
                    self._refuse(records, error)
                if isinstance(error, sqlite3.Error):
                    self._fail("cannot write to", error)
                if isinstance(error, UnicodeEncodeError):
                    raise LoomError(f"an id or a name is no text that a database can keep: {error}") from error
                raise
            self._next += len(records)
        kept = sum(len(image.data) for image in rows.images) + sum(len(one.data) for one in rows.pictures)
        self._checkpoints.wrote(sum(len(row.body) for row in rows.records) + kept)

    def _ready(self) -> sqlite3.Connection:
        if self._closed:
            raise LoomError(f"{self.path} is closed: nothing can be recorded any more")
        if self.read_only:
            raise LoomError(f"{self.path} was opened read-only: nothing can be recorded")
        if self._writer is None:
            self._writer = self._create()
            self._seen = -1
        return self._writer

    def _begin(self, writer: sqlite3.Connection) -> None:
        """Begin to write; from here on nobody else does, and what is known is right."""
        writer.execute("begin immediate")
        (seen,) = writer.execute("pragma data_version").fetchone()
        if seen != self._seen or self._known.crowded:
            self._known.turn_to(writer)
            (last,) = writer.execute("select max(seq) from records").fetchone()
            self._next = (last or 0) + 1
            self._seen = seen

    def _undo(self, writer: sqlite3.Connection) -> None:
        """Nothing of the batch is there. A connection that cannot even be told so is given up for a new one."""
        self._seen = -1
        try:
            if writer.in_transaction:
                writer.execute("rollback")
        except sqlite3.Error:
            writer.close()
            self._writer = None

    def _refuse(self, records: Sequence[Record], error: sqlite3.IntegrityError) -> NoReturn:
        for record in records:
            if isinstance(record, Committed) and self.owner(record.turn_id) is not None:
                raise LoomError(
                    f"loom is append-only: turn {record.turn_id} is recorded already and cannot be changed"
                ) from error
        self._fail("cannot write to", error)

    def _fail(self, what: str, error: sqlite3.Error) -> NoReturn:
        code = getattr(error, "sqlite_errorcode", None)
        advice = "" if code is None else _ADVICE.get(code & 0xFF, "")
        raise LoomError(f"{what} {self.path}: {error}{advice}") from error

    # ----------------------------------------------------------------------------------------------------------- leases

    def claim(self, entity_id: str, owner: str, ttl: float) -> Lease:
        """The right to write for the tree of a root entity, which may be about to begin."""
        with self._lock:
            writer = self._ready()
            try:
                self._begin(writer)
                lease = self._claim(writer, entity_id, owner, time.time() + ttl)
                writer.execute("commit")
            except BaseException as error:
                self._undo(writer)
                if isinstance(error, sqlite3.Error):
                    self._fail("cannot write to", error)
                raise
            self._known.claimed(entity_id, lease.token)
            return lease

    def _claim(self, writer: sqlite3.Connection, entity: str, owner: str, until: float) -> Lease:
        place = self._known.place(entity)
        if place is not None and place.tree.root != entity:
            raise not_root(entity, place.tree.root)
        held = writer.execute(
            "select token, owner, until from leases join holders on holders.no = holder where entity = ?", (entity,)
        ).fetchone()
        if held is not None:
            token, by, lasts = held
            if by != owner and lasts > time.time() and not gone(by):
                raise Held.by(entity, by, lasts)
            writer.execute("delete from leases where token = ?", (token,))
        writer.execute(
            "delete from holders where until < ? and not exists (select 1 from leases where holder = holders.no)",
            (time.time() - REMAINS,),
        )
        writer.execute(
            "insert into holders (owner, until) values (?1, ?2) on conflict (owner) do update set until = ?2",
            (owner, until),
        )
        token = writer.execute(
            "insert into leases (entity, holder) select ?, no from holders where owner = ?", (entity, owner)
        ).lastrowid
        assert token is not None  # a row was inserted
        return Lease(entity, owner, token, until)

    def renew(self, owner: str, ttl: float) -> None:
        """Let all leases of `owner` last until `ttl` seconds from now."""
        with self._changing() as writer:
            writer.execute("update holders set until = ? where owner = ?", (time.time() + ttl, owner))

    def release(self, *leases: Lease) -> None:
        """Let go of leases; nothing happens to one that is over already."""
        with self._changing() as writer:
            let_go = "delete from leases where token = ?"
            gone = [lease for lease in leases if writer.execute(let_go, (lease.token,)).rowcount]
        for lease in gone:
            self._known.claimed(lease.entity_id, None)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One transaction about leases."""
        with self._lock:
            writer = self._ready()
            try:
                writer.execute("begin immediate")
                yield writer
                writer.execute("commit")
            except sqlite3.Error as error:
                self._undo(writer)
                self._fail("cannot write to", error)

    # ---------------------------------------------------------------------------------------------------------- reading

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line with its number, in the order in which they were recorded, up to the moment of the call."""
        ((last,),) = self._rows("select coalesce(max(seq), 0) from records")
        at = 0
        while rows := self._rows(
            "select seq, body from records where seq > ? and seq <= ? order by seq limit ?", at, last, MANY
        ):
            at = rows[-1][0]
            yield from rows

    def heads(self) -> Mapping[str, bytes]:
        """The last link of each root's tree."""
        return {root.decode(): head for root, head in self._rows("select id, head from trees join entities using (no)")}

    def faults(self) -> Iterator[str]:
        """What SQLite finds in the file, and where the tables say something else than the lines."""
        for (found,) in self._rows("pragma integrity_check(20)"):
            if found != b"ok":
                yield found.decode()
        for seq, what in self._rows(_FAULTS):
            yield f"record {seq}: {what.decode()}"

    def key(self) -> bytes | None:
        """The key in the file beside it."""
        return key_beside(self.path, make=not self.read_only)

    def unfinished(self, *, idle: bool = True) -> Sequence[str]:
        """The entities that are not over, in order of creation."""
        # SQLite has to be told which index holds just those
        most = Life.IDLE if idle else Life.BUSY
        return self._ids("select id from entities indexed by unfinished where life < 2 and life <= ? order by no", most)

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            if not self._closed:
                return self._reader.execute(query, values).fetchall()
            reader = self._open_reader()  # an episode may be looked at long after its runtime
            try:
                return reader.execute(query, values).fetchall()
            finally:
                reader.close()
        except sqlite3.Error as error:
            self._fail("cannot read", error)
        except UnicodeEncodeError:
            return []  # no database holds such a text

    def close(self) -> None:
        """Close the file: whoever closes it last copies what is left of its write-ahead log into it."""
        with self._lock:
            was, self._closed = self._closed, True
        if not was:
            self._checkpoints.close()
            self._give_up(self._reader)


class _Known(Known):
    """Looked up in the transaction that is under way."""

    def __init__(self) -> None:
        super().__init__()
        self._writer: sqlite3.Connection | None = None

    @property
    def crowded(self) -> bool:
        return len(self.places) > REMEMBERED

    def turn_to(self, writer: sqlite3.Connection) -> None:
        self._writer = writer
        self.forget()

    def _one(self, query: str, value: str | int) -> Any:
        assert self._writer is not None
        return self._writer.execute(query, (value,)).fetchone()

    def find(self, entity: str) -> Place | None:
        row = self._one("select no, tree, lasting, life from entities where id = ?", entity)
        return None if row is None else Place(row[0], self._tree(row[1]), bool(row[2]), Life(row[3]))

    def _tree(self, no: int) -> Tree:
        found = self.trees.get(no)
        if found is None:
            row = self._one(
                "select id, head, token from entities left join trees using (no) left join leases on entity = id "
                "where no = ?",
                no,
            )
            root, head, token = row
            found = self.trees[no] = Tree(no, root, NOTHING if head is None else head.encode(), token)
        return found

    def claimed(self, root: str, token: int | None) -> None:
        place = self.places.get(root)
        if place is not None:
            place.tree.token = token

    def owner(self, turn: str) -> str | None:
        row = self._one("select id from records join entities on no = entity where turn = ?", turn)
        return None if row is None else row[0]

    def token(self, root: str) -> int | None:
        row = self._one("select token from leases where entity = ?", root)
        return None if row is None else row[0]


def _write(writer: sqlite3.Connection, rows: Rows) -> None:
    if rows.images:
        images = [(image.digest, image.engine, image.seal, image.data) for image in rows.images]
        writer.executemany("insert or ignore into images values (?, ?, ?, ?)", images)
    if rows.pictures:
        writer.executemany("insert or ignore into pictures values (?, ?, ?)", rows.pictures)
    if rows.entities:
        writer.executemany("insert into entities values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows.entities)
    writer.executemany("insert into records values (?, ?, ?, ?)", rows.records)
    writer.executemany(
        "insert or replace into trees values (?, ?)", [(tree.no, tree.head.decode()) for tree in rows.trees.values()]
    )
    if rows.lives:
        writer.executemany("update entities set life = ? where no = ?", [(life, no) for no, life in rows.lives.items()])


def _wal(connection: sqlite3.Connection) -> None:
    """SQLite waits for no lock while it changes the mode, so two that open a new file at once have to."""
    for pause in (0.01, 0.05, 0.2, 0.5, 1.0, 0.0):
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not pause:
                raise
            time.sleep(pause)


_ADVICE = {
    sqlite3.SQLITE_FULL: ". Make room on that disk; nothing that was acknowledged is lost, and recording goes on then",
    sqlite3.SQLITE_READONLY: ". It cannot be written to: open it read-only, or change who may write it and its folder",
    sqlite3.SQLITE_BUSY: f". Another process has been writing for {PATIENCE:g} s, or was stopped while it did",
    sqlite3.SQLITE_LOCKED: ". Another connection holds it",
    sqlite3.SQLITE_NOTADB: ". Give the path of another file, or restore this one from a copy",
    sqlite3.SQLITE_CORRUPT: ". The file was changed by something else, or its disk is failing: restore it from a copy",
    sqlite3.SQLITE_IOERR: ". The disk is failing or full: what was acknowledged before should be copied elsewhere",
    sqlite3.SQLITE_CANTOPEN: ". There is no such loom, or permission is missing for it or its folder",
}
