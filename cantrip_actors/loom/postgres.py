"""The Postgres store: one loom for many machines. It needs the extra `postgres` (psycopg 3).

The rules of this file:

- A batch is one transaction, and `append` waits for the server (`blocking`): call it from a thread.
- Writers of different trees do not wait for each other. Those of one tree take turns: each locks its row of `trees`
  first, and so its chain and its lease are what the transaction says they are.
- What a batch must know of what is there is asked in one go before it is planned, and forgotten after it.
- This store has one connection to write with and one to read with. Where one is lost, whoever was using it gets a
  LoomError, and the next call connects again. An append that failed because the connection was lost may still have
  been committed, if the server's answer was what got lost: its entity has to be read again before it goes on.
- A writer waits for another one of its tree for a moment only (`WAITING`). One that was frozen in the middle of a
  transaction, or is out of reach, would keep its tree locked for good: whoever may claim that tree ends its connection,
  and it learns so, and that it has lost its lease, when it goes on.
- Several looms may share a database, each in a schema of its own: `?schema=name`.

`process` commits with `synchronous_commit = on`, the server's own promise, which survives a power cut if the server is
set up like that; so does `power`. `none` does not wait for the server's disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from cantrip_actors.loom.chain import NOTHING
from cantrip_actors.loom.lease import NO_LEASES, Held, Lease, gone, not_root
from cantrip_actors.loom.life import Life
from cantrip_actors.loom.record import decode
from cantrip_actors.loom.rows import Known, Place, Rows, Tree, plan
from cantrip_actors.loom.store import Durability, Unsure
from cantrip_actors.loom.tables import MANY, TableStore
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.turn import Committed, Header, Record, Rewarded

__all__ = ["PostgresStore"]

T = TypeVar("T")

VERSION = 3
"""Of these tables. What a line looks like has a version of its own, `record.SCHEMA`."""
PATIENCE = 10
"""Seconds that connecting may take."""
WAITING = 5.0
"""Seconds that a writer waits for another one of the same tree: far more than any batch takes."""
SETTING_UP = 0x4C4F4F4D
"""The number of the lock under which tables are made."""

_TABLES = """
create table version (version integer not null);
create sequence seqs;
create table records (seq bigint primary key, entity bigint not null, turn text, body text not null);
create index records_of on records (entity, seq);
create unique index turns on records (turn) where turn is not null;
create table entities (
  no bigint primary key, id text not null unique, tree bigint not null, parent_entity text, parent_turn text,
  forked boolean not null, name text, lasting boolean not null, life smallint not null);
create index below on entities (parent_entity, no) where parent_entity is not null and not forked;
create index branches on entities (parent_turn, no) where parent_turn is not null;
create index named on entities (name, no) where lasting and name is not null;
create index unfinished on entities (life, no) where life < 2;
create table trees (no bigint primary key, head text not null);
create table holders (no bigint generated always as identity primary key, owner text not null unique,
  until timestamptz not null);
create table leases (token bigint generated always as identity primary key, entity text not null unique,
  holder bigint not null references holders);
create index held on leases (holder);
create table images (digest text primary key, engine text not null, seal text not null, data bytea not null);
create table pictures (digest text primary key, type text not null, data bytea not null);
"""
_UPGRADES = (
    "create table images (digest text primary key, engine text not null, seal text not null, data bytea not null)",
    "create table if not exists pictures (digest text primary key, type text not null, data bytea not null)",
)
"""What makes tables of version 1, 2, … those of the next one. What stands in them stays as it is."""
_WITH_IMAGES, _WITH_PICTURES = 2, 3


class PostgresStore(TableStore):
    """A loom in a Postgres database. Raises LoomError where it cannot be reached, or is something else."""

    blocking = True

    def __init__(
        self, url: str, *, schema: str = "cantrip", durability: Durability = "process", read_only: bool = False
    ) -> None:
        self.schema = schema
        self.read_only = read_only
        self.durability = durability
        self._url = url
        self._closed = False
        self._known = _Known()
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer: psycopg.Connection[TupleRow] | None = None
        self._reader: psycopg.Connection[TupleRow] | None = None
        self._where = _where(url)
        try:
            self._ask(self._check)
        except LoomError:
            self.close()
            raise

    # ---------------------------------------------------------------------------------------------------------- opening

    def _connect(self) -> psycopg.Connection[TupleRow]:
        try:
            connection = psycopg.connect(self._url, autocommit=True, connect_timeout=PATIENCE)
            connection.execute(
                sql.SQL("set search_path to {}; set lock_timeout to {}").format(
                    sql.Identifier(self.schema), sql.Literal(f"{WAITING * 1000:.0f}ms")
                )
            )
            if self.durability == "none":
                connection.execute("set synchronous_commit = off")
        except psycopg.Error as error:
            raise LoomError(f"cannot reach {self._where}: {_told(error)}") from error
        return connection

    def _check(self, connection: psycopg.Connection[TupleRow]) -> None:
        """Make the tables where there are none; raise LoomError for those of a later version."""
        if not self._there(connection):
            if self.read_only:
                raise LoomError(f"{self._where} holds no loom")
            with connection.transaction():
                connection.execute("select pg_advisory_xact_lock(%s)", (SETTING_UP,))
                if not self._there(connection):  # else somebody else has just made them
                    schema = sql.Identifier(self.schema)
                    connection.execute(sql.SQL("create schema if not exists {}").format(schema))
                    connection.execute(_TABLES)
                    connection.execute("insert into version values (%s)", (VERSION,))
        found = self._version(connection)
        if found < VERSION and not self.read_only:
            with connection.transaction():
                connection.execute("select pg_advisory_xact_lock(%s)", (SETTING_UP,))
                found = self._version(connection)
                for statement in _UPGRADES[found - 1 :]:
                    connection.execute(statement)
                found = max(found, VERSION)
                connection.execute("update version set version = %s", (found,))
        self._has_images, self._has_pictures = found >= _WITH_IMAGES, found >= _WITH_PICTURES

    def _version(self, connection: psycopg.Connection[TupleRow]) -> int:
        row = connection.execute("select version from version").fetchone()
        if row is None or row[0] > VERSION:
            raise LoomError(
                f"{self._where} has tables of version {row and row[0]}, this version knows up to {VERSION}: "
                f"use a newer cantrip-actors"
            )
        return int(row[0])

    def _there(self, connection: psycopg.Connection[TupleRow]) -> bool:
        """Whether the tables are. (to_regclass would not see what was committed while this transaction waited.)"""
        query = "select 1 from pg_catalog.pg_tables where schemaname = %s and tablename = 'version'"
        return connection.execute(query, (self.schema,)).fetchone() is not None

    # -------------------------------------------------------------------------------------------------------- appending

    def append(self, records: Sequence[Record], leases: Mapping[str, int] = NO_LEASES) -> None:
        """Write `records` as one transaction, all or none."""

        def work(writer: psycopg.Connection[TupleRow]) -> None:
            if records:
                numbers = self._known.ask(writer, records)
                _write(writer, plan(records, numbers, self._known, leases))

        try:
            self._transact(work, psycopg.errors.UniqueViolation)
        except psycopg.errors.UniqueViolation as error:
            self._refuse(records, error)

    def _transact(self, work: Callable[[psycopg.Connection[TupleRow]], T], *expected: type[psycopg.Error]) -> T:
        """Do `work` in a transaction. A connection that was lost before the end of it is replaced, once.

        Raises LoomError where it cannot be done, and what is `expected` as it is.
        """
        with self._writing:
            if self._closed:
                raise LoomError(f"{self._where} is closed: nothing can be recorded any more")
            if self.read_only:
                raise LoomError(f"{self._where} was opened read-only: nothing can be recorded")
            for again in (True, False):
                if self._writer is None or _lost(self._writer):
                    self._writer = self._connect()
                committing = False
                try:
                    with self._writer.transaction():
                        done = work(self._writer)
                        committing = True
                except expected:
                    raise
                except (psycopg.Error, UnicodeEncodeError) as error:
                    lost = _lost(self._writer)
                    if lost and again and not committing:
                        continue
                    self._fail("cannot write to", error, unsure=committing and lost)
                return done
        raise AssertionError  # the second time either returns or fails

    def _refuse(self, records: Sequence[Record], error: psycopg.Error) -> NoReturn:
        """Say which record was there already; of an entity, because somebody else began it in the same moment."""
        for record in records:
            if isinstance(record, Committed) and self.owner(record.turn_id) is not None:
                raise LoomError(
                    f"loom is append-only: turn {record.turn_id} is recorded already and cannot be changed"
                ) from error
            if isinstance(record, Header) and self.header(record.entity_id) is not None:
                raise LoomError(
                    f"loom is append-only: entity {record.entity_id} has begun already and cannot begin again"
                ) from error
        self._fail("cannot write to", error)

    def _fail(self, what: str, error: Exception, *, unsure: bool = False) -> NoReturn:
        advice = "".join(text for kind, text in _ADVICE.items() if isinstance(error, kind))
        if unsure:
            advice = (
                ". The connection was lost while this was being committed: it may be recorded or not, read it again"
            )
        kind = Unsure if unsure else LoomError
        raise kind(f"{what} {self._where}: {_told(error)}{advice}") from error

    # ----------------------------------------------------------------------------------------------------------- leases

    def claim(self, entity_id: str, owner: str, ttl: float) -> Lease:
        """The right to write for the tree of a root entity, which may be about to begin. Time is the server's."""
        for again in (True, False):
            try:
                return self._transact(
                    lambda writer: _claim(writer, entity_id, owner, ttl),
                    psycopg.errors.UniqueViolation,
                    psycopg.errors.LockNotAvailable,
                )
            except psycopg.errors.UniqueViolation as error:  # another claim in the same moment is there the second time
                if not again:
                    self._fail("cannot write to", error)
            except psycopg.errors.LockNotAvailable as error:
                if not (again and self._unlocked(entity_id)):
                    self._fail("cannot write to", error)
        raise AssertionError  # the second time either returns or fails

    def _unlocked(self, root: str) -> bool:
        """Whether somebody had locked a tree for long, without a word, and does so no longer."""
        what = {"waited": WAITING, "root": root}
        return bool(self._ask(lambda reader: reader.execute(_UNLOCK, what).fetchall()))

    def renew(self, owner: str, ttl: float) -> None:
        """Let all leases of `owner` last until `ttl` seconds from now."""
        self._transact(
            lambda writer: writer.execute(
                "update holders set until = clock_timestamp() + make_interval(secs => %s) where owner = %s",
                (ttl, owner),
            )
        )

    def release(self, *leases: Lease) -> None:
        """Let go of leases; nothing happens to one that is over already."""
        tokens = [lease.token for lease in leases]
        self._transact(lambda writer: writer.execute("delete from leases where token = any(%s)", (tokens,)))

    # ---------------------------------------------------------------------------------------------------------- reading

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line with its number, tree by tree in the order in which they were recorded, up to the call."""
        for seq, body in self._streamed("select seq, body from records order by seq"):
            yield seq, body.encode()

    def heads(self) -> Mapping[str, bytes]:
        """The last link of each root's tree."""
        return {root: head.encode() for root, head in self._rows("select id, head from trees join entities using (no)")}

    def faults(self) -> Iterator[str]:
        """Where the tables say something else than the lines."""
        for seq, entity, turn, body, begins, *row in self._streamed(_TOLD):
            try:
                record = decode(body.encode())
            except LoomError:
                continue  # `verify` says so
            if record.entity_id != entity or turn != (record.turn_id if isinstance(record, Committed) else None):
                yield f"record {seq}: its row names another entity, or another turn, than its line"
            if begins and isinstance(record, Header):
                said = [record.parent_entity, record.parent_turn, record.forked, record.name, record.lasting]
                if said != row:
                    yield f"record {seq}: the row of its entity says something else than this line"
        for (seq,) in self._rows("select no from entities where not exists (select 1 from records where seq = no)"):
            yield f"record {seq}: no such record, and an entity should begin with it"

    def _rows(self, query: str, *values: Any) -> list[Any]:
        if any(isinstance(value, str) and not _can_be_kept(value) for value in values):
            return []  # no database holds such a text
        return self._ask(lambda reader: reader.execute(query.replace("?", "%s"), values).fetchall())

    def _ask(self, question: Callable[[psycopg.Connection[TupleRow]], T]) -> T:
        """Ask on the connection to read with, which is replaced, once, where it was lost."""
        with self._reading:
            for again in (True, False):
                if self._reader is None or _lost(self._reader):
                    self._reader = self._connect()
                try:
                    return question(self._reader)
                except (psycopg.Error, UnicodeEncodeError) as error:
                    if not (_lost(self._reader) and again):
                        self._fail("cannot read", error)
                finally:
                    if self._closed:  # an episode may be looked at long after its runtime
                        self._reader.close()
        raise AssertionError  # the second time either returns or fails

    def _streamed(self, query: str) -> Iterator[Any]:
        """All rows, as they are at one moment, without holding them all."""
        connection = self._connect()
        try:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with connection.transaction(), connection.cursor("all") as cursor:
                cursor.itersize = MANY
                yield from cursor.execute(query)
        except psycopg.Error as error:
            self._fail("cannot read", error)
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connections."""
        with self._writing, self._reading:
            self._closed = True
            for connection in (self._writer, self._reader):
                if connection is not None:
                    connection.close()


class _Known(Known):
    """What one batch has to know, asked in one go."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[str, str] = {}
        self._tokens: dict[str, int] = {}

    def ask(self, writer: psycopg.Connection[TupleRow], records: Sequence[Record]) -> list[int]:
        """Lock the trees that `records` belong to and look up what they name; a number for each record."""
        self.forget()
        ids: set[str] = set()
        turns: set[str | None] = set()
        for record in records:
            ids.add(record.entity_id)
            if isinstance(record, Header):
                turns.add(record.parent_turn)
                if record.parent_entity is not None:
                    ids.add(record.parent_entity)
            elif isinstance(record, Committed):
                turns.add(record.parent_id)
            elif isinstance(record, Rewarded):
                turns.add(record.turn_id)
        entities = [*ids]
        with writer.pipeline():
            # each statement sees what was committed before it began: after the lock, nobody changes these trees
            writer.execute(_LOCK, (entities,))
            places = writer.execute(_PLACES, (entities,))
            owners = writer.execute(_OWNERS, ([turn for turn in turns if turn is not None],))
            tokens = writer.execute("select entity, token from leases where entity = any(%s)", (entities,))
            numbers = writer.execute("select nextval('seqs') from generate_series(1, %s)", (len(records),))
        for entity, no, tree, lasting, life, root, head, token in places:
            if tree not in self.trees:
                self.trees[tree] = Tree(tree, root, NOTHING if head is None else head.encode(), token)
            self.places[entity] = Place(no, self.trees[tree], lasting, Life(life))
        self._owners = dict(owners.fetchall())
        self._tokens = dict(tokens.fetchall())
        return sorted(number for (number,) in numbers)

    def find(self, entity: str) -> Place | None:  # noqa: ARG002  # what is there is in `places` already
        return None

    def owner(self, turn: str) -> str | None:
        return self._owners.get(turn)

    def token(self, root: str) -> int | None:
        return self._tokens.get(root)


_LOCK = """
select no from trees where no in (select tree from entities where id = any(%s)) order by no for update
"""
_UNLOCK = """
select pg_terminate_backend(pid) from pg_locks join pg_stat_activity using (pid)
  where locktype = 'transactionid' and granted and wait_event = 'ClientRead'
  and xact_start < clock_timestamp() - make_interval(secs => %(waited)s)
  and transactionid in (
    select trees.xmax from trees join entities using (no) where id = %(root)s
    union all select xmax from leases where entity = %(root)s)
"""
"""Ends the connection of who has locked a tree and says nothing. A row that is locked names its transaction."""
_PLACES = """
select one.id, one.no, one.tree, one.lasting, one.life, root.id, head, token
  from entities one join entities root on root.no = one.tree
  left join trees on trees.no = one.tree left join leases on leases.entity = root.id
  where one.id = any(%s)
"""
_TOLD = """
select seq, id, turn, body, no = seq, parent_entity, parent_turn, forked, name, lasting
  from records left join entities on no = entity order by seq
"""
_OWNERS = "select turn, id from records join entities on no = entity where turn = any(%s)"


def _write(writer: psycopg.Connection[TupleRow], rows: Rows) -> None:
    with writer.pipeline(), writer.cursor() as cursor:
        if rows.images:
            images = [(image.digest, image.engine, image.seal, image.data) for image in rows.images]
            cursor.executemany("insert into images values (%s, %s, %s, %s) on conflict do nothing", images)
        if rows.pictures:
            cursor.executemany("insert into pictures values (%s, %s, %s) on conflict do nothing", rows.pictures)
        if rows.entities:
            cursor.executemany("insert into entities values (%s, %s, %s, %s, %s, %s, %s, %s, %s)", rows.entities)
        cursor.executemany("insert into records values (%s, %s, %s, %s)", rows.records)
        cursor.executemany(
            "insert into trees values (%s, %s) on conflict (no) do update set head = excluded.head",
            [(tree.no, tree.head.decode()) for tree in rows.trees.values()],
        )
        if rows.lives:
            lives = [(life.value, no) for no, life in rows.lives.items()]
            cursor.executemany("update entities set life = %s where no = %s", lives)


def _claim(writer: psycopg.Connection[TupleRow], entity: str, owner: str, ttl: float) -> Lease:
    held = writer.execute(
        "select token, owner, extract(epoch from until)::float8, until > clock_timestamp() "
        "from leases join holders on holders.no = holder where entity = %s for update of leases",
        (entity,),
    ).fetchone()
    if held is not None:
        token, by, until, lasts = held
        if by != owner and lasts and not gone(by):
            raise Held.by(entity, by, until)
        # this one, which is locked: one that came since, while another claim was waited for, is nobody's to take
        writer.execute("delete from leases where token = %s", (token,))
    writer.execute(_LOCK, ([entity],))
    root = writer.execute(
        "select root.id from entities one join entities root on root.no = one.tree where one.id = %s", (entity,)
    ).fetchone()
    if root is not None and root[0] != entity:
        raise not_root(entity, root[0])
    row = writer.execute(
        "insert into holders (owner, until) values (%s, clock_timestamp() + make_interval(secs => %s)) "
        "on conflict (owner) do update set until = excluded.until returning no, extract(epoch from until)::float8",
        (owner, ttl),
    ).fetchone()
    assert row is not None  # a row was written
    token_row = writer.execute(
        "insert into leases (entity, holder) values (%s, %s) returning token", (entity, row[0])
    ).fetchone()
    assert token_row is not None  # likewise
    return Lease(entity, owner, token_row[0], row[1])


def _lost(connection: psycopg.Connection[TupleRow]) -> bool:
    """Whether a connection that nobody is using is of no use any more.

    One whose server was killed in the middle of a pipeline does not know that it is: it waits for answers for good.
    """
    told = connection.info
    if not connection.closed and (told.transaction_status, told.pipeline_status) != (_IDLE, _OFF):
        connection.close()
    return connection.closed


_IDLE, _OFF = psycopg.pq.TransactionStatus.IDLE, psycopg.pq.PipelineStatus.OFF


def _where(url: str) -> str:
    """The database as messages name it: without a password."""
    try:
        told = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise LoomError(f"this is no address of a Postgres database: {_told(error)}") from error
    return f"postgresql database {told.get('dbname') or ''} at {told.get('host') or 'this machine'}"


def _can_be_kept(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _told(error: Exception) -> str:
    return " ".join(str(error).split())


_ADVICE: Mapping[type[Exception], str] = {
    psycopg.errors.LockNotAvailable: ". Another process has been writing there all that time, or was stopped meanwhile",
    psycopg.errors.DiskFull: ". Make room on the server's disk; nothing that was acknowledged is lost",
    psycopg.errors.ReadOnlySqlTransaction: ". The server takes no writes now: it is a standby, or was set read-only",
    psycopg.errors.InsufficientPrivilege: ". The database's user needs the right to do that",
    psycopg.errors.OutOfMemory: ". The server has no memory left",
    UnicodeEncodeError: ". An id or a name is no text that a database can keep",
    psycopg.DataError: ". An id or a name is no text that a database can keep",
}
