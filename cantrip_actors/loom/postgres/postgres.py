"""The Postgres store: one loom for many machines. It needs the extra `postgres` (psycopg 3).

The rules of this file:

- A batch is one transaction, and `append` waits for the server (`blocking`): call it from a thread.
- Writers of different trees do not wait for each other. Writers of one tree take turns: each locks its row of `trees`
  first, so the tree's chain and lease do not change during the transaction.
- The facts that a batch depends on are read before it is planned, and forgotten after it. A batch waits for the server
  twice: for these facts, and for its commit (0094).
- This store has one connection to write with, one to read with and one to renew leases with. If one is lost, its user
  gets a LoomError, and the next call connects again. An append that failed because the connection was lost may still
  have been committed, if only the server's answer was lost: read the entity again before it continues.
- A writer waits for another one of its tree, for 10 s at most. A writer that was frozen in the middle of a transaction,
  or is out of reach, would keep its tree locked for good. The server ends its transaction after `SILENCE` seconds
  without a word from it, and a process that may claim the tree ends the writer's connection if the server does not. The
  writer learns of that, and of the loss of its lease, when it continues.
- Writers of a sealed loom take turns, whatever tree they write for: its head covers all trees.
- Several looms may share a database, each in a schema of its own: `?schema=name`.
- Behind a pooler (pgbouncer) each transaction may use another connection to the server, with another client's settings.
  So there every transaction sets its own settings, and nothing is prepared.

`process` commits with `synchronous_commit = on`, the server's own promise, which survives a power cut if the server is
configured for that; so does `power`. `none` does not wait for the server's disk.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from hashlib import blake2b
from itertools import chain
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import psycopg
from psycopg import sql

from cantrip_actors.loom.postgres.postgres_connection import (
    Raw,
    Session,
    Sql,
    Transaction,
    describe_error,
    is_lost,
    name_database,
)
from cantrip_actors.loom.seal.seal_key import GivenKey
from cantrip_actors.loom.stores.blobs import attach_images
from cantrip_actors.loom.stores.checkpoints import StoredCheckpoint
from cantrip_actors.loom.stores.facts import EntityFacts, WithRecords
from cantrip_actors.loom.stores.lease import Held, Lease, is_gone
from cantrip_actors.loom.stores.rules import Plan, Tree
from cantrip_actors.loom.stores.store import Durability, Unsure
from cantrip_actors.loom.tables import schema as tables
from cantrip_actors.loom.tables.migration import Migrate, Migrated, check_version, note_migration
from cantrip_actors.loom.tables.node_tables import BUSY
from cantrip_actors.loom.tables.table_rows import Connection, KnownRows, read_link
from cantrip_actors.loom.tables.tables import TableStore
from cantrip_actors.machine.project import Life
from cantrip_actors.records.mail import MailRow
from cantrip_actors.records.seal import NOTHING
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")

PATIENCE = 10
"""The most seconds that connecting may take."""
SILENCE = 3.0
"""Seconds without a word from a writer after which the server ends its transaction."""
TURN = 0.5
"""Seconds that a writer waits for another one before it looks whether that is silent, and asks again."""
TURNS = 20
"""How often it asks: 10 s in all, far more than any batch and the silence of a frozen writer take."""
WAITING = 5.0
"""Seconds that any other statement waits for a lock."""
LISTEN_CHECK = 0.5
"""Seconds between two checks of whether the thread that listens for hints must stop."""
SETTING_UP = 0x4C4F4F4D
"""The number of the lock under which tables are made."""
WRITING = 0x57524954
"""The number of the lock that shows which of the server's connections are those of writers."""
POSTING = 0x4D41494C
"""The number of the lock that all posters of mail share."""

_TYPES = {
    "key": "bigint primary key",
    "serial": "bigint generated always as identity primary key",
    "token": "bigint generated always as identity primary key",
    "time": "timestamptz",
    "bytes": "bytea",
    "ordered": 'text collate "C"',
    "seq": ", seq",
    "no": ", no",
}
_VACUUM = "alter table {} set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)"
_ALSO = (
    "create table version (version integer not null, readable_by integer not null); "
    "create sequence seqs; create sequence mails;"
)


class _Tip(NamedTuple):
    """The last record that a process knows of a tree that it has claimed."""

    link: bytes
    """The last link."""
    number: int
    """The number of the record with this link; -1 if another process wrote it."""
    writer: int
    """The number of the store's connection that wrote or read it."""


class PostgresStore(TableStore):
    """A loom in a Postgres database. Raises LoomError if it cannot be reached, or is something else."""

    blocking = True
    expires = True
    _conflicts = (psycopg.errors.UniqueViolation,)
    _contended = (psycopg.errors.UniqueViolation,)
    _now = "extract(epoch from clock_timestamp())::float8"
    # not clock_timestamp(): a renewal that waits for a lock must not count from the end of its wait
    _until = "statement_timestamp() + make_interval(secs => ?)"
    _lasts = "extract(epoch from until - clock_timestamp())::float8"
    # to_regclass would not see tables that were committed while this transaction waited
    _table_query = "select 1 from pg_catalog.pg_tables where tablename = ? and schemaname = ?"
    _locked = "for update of leases"
    numbers_in_order = False
    _row_locked = "for update"

    def __init__(
        self,
        url: str,
        *,
        schema: str = "cantrip",
        durability: Durability = "process",
        read_only: bool = False,
        migrate: Migrate = "upgrade",
        seal_key: GivenKey = None,
    ) -> None:
        self._seal_key = seal_key
        self.migrated: Migrated | None = None
        """The upgrade of tables of an earlier version at opening, if there was one."""
        self._migrate = migrate
        self.is_pooled = False
        """Whether a pooler is between this process and the server."""
        self._frozen: Raw | None = None
        """The connection that reads inside `snapshot`."""
        self.schema = schema
        self._table_place = (schema,)
        self.read_only = read_only
        self.durability = durability
        self._url = url
        self._owners = set()
        self._heard = time.time(), time.monotonic()
        """The server's clock at the last contact, and when that was."""
        self._closed = False
        self._known = KnownRows()
        self._writer = Session(self._connect_writer, self._fail)
        self._reader = Session(self._connect, self._fail)
        self._renewer = Session(self._connect_renewer, self._fail)
        self._writers = 0
        """How often it has connected to write."""
        self._locking: tuple[Sequence[str], bool] = (), False
        """The entities whose trees the current transaction locks, and whether it claims them."""
        self._tips: dict[str, _Tip] = {}
        """The last record of each tree that this process has claimed, by its root."""
        self._new_tips: dict[str, _Tip | None] = {}
        """The changes of `_tips` by the current transaction; None for a tree that is released."""
        self._hints_from = 0
        """The server's id of the connection that sends hints."""
        self.where = name_database(url)
        try:
            self._ask(self._check)
        except LoomError:
            self.close()
            raise

    # ---------------------------------------------------------------------------------------------------------- opening

    def _connect(self, *, writes: bool = False, lock_timeout: float = WAITING) -> Raw:
        """Return a new connection; if it `writes`, no timeout of the server cancels its statements."""
        try:
            connection = psycopg.connect(self._url, autocommit=True, connect_timeout=PATIENCE)
            pid, now = connection.execute(f"select pg_backend_pid(), {self._now}").fetchone() or (None, None)
            self._note_time(now)
            self.connections += 1
            self.is_pooled = pid != connection.info.backend_pid
            if self.is_pooled:
                connection.prepare_threshold = None
            else:
                settings = self._compose_settings("set", writes=writes, lock_timeout=lock_timeout)
                connection.execute(sql.SQL("; ").join(settings))
                if writes:
                    connection.execute("select pg_advisory_lock_shared(%s, 0)", (WRITING,))
        except psycopg.Error as error:
            self._fail("cannot reach", error)
        return connection

    def _connect_writer(self) -> Raw:
        connection = self._connect(writes=True, lock_timeout=TURN)
        self._writers += 1
        return connection

    def _connect_renewer(self) -> Raw:
        connection = self._connect(writes=True)
        self._hints_from = connection.info.backend_pid
        return connection

    def _compose_settings(
        self, how: Literal["set", "set local"], *, writes: bool = False, lock_timeout: float = WAITING
    ) -> list[sql.Composed]:
        given = {"search_path": sql.Identifier(self.schema), "lock_timeout": _format_time(lock_timeout)}
        given |= {"enable_seqscan": sql.Literal("off"), "jit": sql.Literal("off")}  # whatever the statistics say
        if self.durability == "none":
            given["synchronous_commit"] = sql.SQL("off")
        if writes:  # a cancelled commit that waits for a standby stays, visible but not safe
            given["statement_timeout"] = sql.Literal("0")
        if writes:  # frees the locks of a writer that was frozen or whose machine vanished
            given["idle_in_transaction_session_timeout"] = _format_time(SILENCE)
        each = sql.SQL(f"{how} {{}} to {{}}")
        return [each.format(sql.Identifier(name), value) for name, value in given.items()]

    @contextmanager
    def _set_up(self, connection: Raw) -> Iterator[None]:
        """Behind a pooler, make the block one transaction with our settings."""
        if not self.is_pooled:
            yield
            return
        with connection.transaction():
            connection.execute(sql.SQL("; ").join(self._compose_settings("set local")))
            yield

    def _check(self, connection: Raw) -> None:
        """Make missing tables, or upgrade tables of an earlier version."""
        version = self._find_version(connection)
        if self.read_only and not version:
            raise LoomError(f"{self.where} holds no loom")
        if self.read_only or (version >= tables.VERSION and not self._seal_key):
            self.seal = self._open_seal(Sql(connection), self._seal_key, makes=False)
            return
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s)", (SETTING_UP,))
            version = self._find_version(connection)  # another process may have just made them
            versions = tables.VERSION, tables.READABLE_BY
            if not version:
                connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(self.schema)))
                connection.execute(_ALSO + tables.write_statements(0, _TYPES))
                self._keep_small(Sql(connection), BUSY)
                connection.execute("insert into version (version, readable_by) values (%s, %s)", versions)
            elif version < tables.VERSION:
                connection.execute(tables.write_statements(version, _TYPES))
                connection.execute("update version set version = %s, readable_by = %s", versions)
                self.migrated = note_migration(self.where, version)
            self.seal = self._open_seal(Sql(connection), self._seal_key, makes=True)

    def _keep_small(self, db: Connection, tables: Sequence[str]) -> None:
        for table in tables:
            db.execute(_VACUUM.format(table))

    def _lock_tables(self, db: Connection) -> None:
        db.execute("select pg_advisory_xact_lock(?)", (SETTING_UP,))

    def can_join(self) -> str:
        """Return why no node can join; "" if one can. A node's own connections need a direct address."""
        if not self.is_pooled:
            return ""
        return "the address is that of a pooler, and a node keeps connections of its own: give the server's address"

    def _find_version(self, connection: Raw) -> int:
        """Return the version of the tables, 0 without tables. Raises LoomError if they cannot be used."""
        if not self._has_table(Sql(connection), "version"):
            return 0
        row = connection.execute("select version, readable_by from version").fetchone()
        if row is None:
            raise LoomError(f"{self.where} has a table `version` that is empty: it is not a loom, or was damaged")
        version, readable_by = row
        check_version(self.where, version, readable_by, read_only=self.read_only, migrate=self._migrate)
        return int(version)

    # -------------------------------------------------------------------------------------------------------- appending

    def _transact(self, work: Callable[[Connection], T], *expected: type[Exception]) -> T:
        """Do `work` in one transaction. A connection that was lost before its end is replaced, once.

        A transaction that waits long for another one's locks is begun again, so that its caller sees waiting and no
        error. Meanwhile the server ends the other one, if it was frozen.
        """

        def run(connection: Raw) -> T:
            committing = False
            self._known.forget()
            self._new_tips.clear()
            self._locking = (), False
            try:
                with self._begin(connection) as db:
                    done = work(db)
                    committing = True
            except psycopg.Error as error:
                if committing and is_lost(connection):
                    self._fail("cannot write to", error, unsure=True)
                raise
            for root, tip in self._new_tips.items():
                if tip is None:
                    self._tips.pop(root, None)
                else:
                    self._tips[root] = tip
            return done

        turn = 0
        while True:
            turn += 1
            with self._writer.lock:
                self._check_open("recorded")
                try:
                    return self._writer.run("cannot write to", run, *_NOT_LOCKED, *expected)
                except _NOT_LOCKED as error:
                    if turn == TURNS:
                        self._fail("cannot write to", error)
                    entities, claims = self._locking
            self._end_silent(entities, claims=claims)

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise LoomError(f"{self.where} is closed: nothing can be {what} any more")
        if self.read_only:
            raise LoomError(f"{self.where} was opened read-only: nothing can be {what}")

    def _begin(self, connection: Raw) -> AbstractContextManager[Sql]:
        """Return a transaction, which is committed at the end of the block."""
        settings = self._compose_settings("set local", writes=True, lock_timeout=TURN) if self.is_pooled else ()
        return Transaction(connection, settings)

    def _write(self, db: Connection, plan: Plan) -> None:
        numbers = {place.tree.root: number for number, place in zip(plan.numbers, plan.places, strict=True)}
        for tree, head in plan.heads.items():
            known = self._tips.get(tree.root)
            if known is not None:
                self._check_tip(db, tree, known)
                self._new_tips[tree.root] = _Tip(head, numbers[tree.root], self._writers)
        super()._write(db, plan)

    def _check_tip(self, db: Connection, tree: Tree, known: _Tip) -> None:
        """Raise LoomError if the server lacks a record of a tree that this process has written.

        A server that failed over may have forgotten records. The entity in memory is ahead of the loom then: it has to
        be read again before it records anything.
        """
        if known.writer == self._writers or known.link == tree.head:
            return
        row = db.execute("select body from records where seq = ?", (known.number,)).fetchone()
        if row is None or read_link(row[0]) != known.link:  # else another process has added a reward
            raise LoomError(
                f"entity {tree.root} cannot continue from memory: {self.where} does not have its last records, "
                "because the server failed over or was restored. It continues from the loom once it is read again"
            )

    def _grant(
        self,
        db: Connection,
        entity: str,
        owner: str | None,
        deaths: int,
        ttl: float,
        note: str,
        until: float | None = None,
    ) -> tuple[int, float]:
        place = self._known.find_place(entity)
        head = NOTHING if place is None else place.tree.head
        self._new_tips[entity] = _Tip(head, -1, self._writers)
        return super()._grant(db, entity, owner, deaths, ttl, note, until)

    def _drop(self, db: Connection, entity: str, token: int) -> None:
        self._new_tips[entity] = None
        super()._drop(db, entity, token)

    def _lock(self, db: Connection, entities: Sequence[str], *, claims: bool, posts: bool) -> None:
        self._locking = entities, claims
        if posts:
            db.execute("select pg_advisory_xact_lock_shared(?, hashtext(current_schema()))", (POSTING,))
        db.execute(_LOCK, (entities,))
        if claims:  # trees always exist and leases do not, so without the trees' locks claims would deadlock
            db.execute("select 1 from leases where entity = any(?) order by entity for update", (entities,))

    def _expect_silence(self, db: Connection) -> None:
        if not self.seal.chain:  # else all writers wait for this one
            db.execute("set local idle_in_transaction_session_timeout to 0")

    def _lock_blobs(self, db: Connection) -> None:
        db.execute("lock table blobs in share row exclusive mode")  # writers insert a blob before its record

    def _draw_numbers(self, db: Connection, what: Literal["seqs", "mails"], many: int) -> Iterable[int]:
        if not many:
            return ()
        return chain.from_iterable(db.execute("select nextval(?) from generate_series(1, ?)", (what, many)))

    def _fetch_each(self, db: Connection, query: str, columns: str, rows: Sequence[tuple[str, ...]]) -> Iterable[Any]:
        arrays = ", ".join("?::text[]" for _ in columns.split(", "))
        given = f"unnest({arrays}) as given ({columns})"
        found: Iterable[Any] = db.execute(query.format(given=given), [[*column] for column in zip(*rows, strict=True)])
        return found

    def _pipeline(self, db: Connection) -> AbstractContextManager[object]:
        assert isinstance(db, Transaction)
        return db.at_once()

    def _fail(self, what: str, error: Exception, *, unsure: bool = False) -> NoReturn:
        advice = "".join(text for kind, text in _ADVICE.items() if isinstance(error, kind))
        if unsure:
            advice = (
                ". The connection was lost while this was being committed: it may be recorded or not, read it again"
            )
        kind = Unsure if unsure else LoomError
        raise kind(f"{what} {self.where}: {describe_error(error)}{advice}") from error

    # ----------------------------------------------------------------------------------------------------------- leases

    def claim(self, entity_id: str, owner: str, ttl: float, *, lift: bool = False, now: float | None = None) -> Lease:
        """Claim the right to write for the tree of a root entity, which may be about to begin, by the server's time."""
        with suppress(psycopg.errors.UniqueViolation):  # another claim at the same moment is visible the second time
            return super().claim(entity_id, owner, ttl, lift=lift, now=now)
        try:
            return super().claim(entity_id, owner, ttl, lift=lift, now=now)
        except psycopg.errors.UniqueViolation as error:
            self._fail("cannot write to", error)

    def _end_silent(self, entities: Sequence[str], *, claims: bool) -> None:
        """End the connection of a writer that has locked the tree of an entity and is silent, if there is one.

        The server ends a transaction that is idle, but not one that waits for the rest of a pipeline or of a message.
        Only a process that claims a tree ends a connection that is no writer's of a loom.
        """
        what = {"silence": SILENCE, "entities": list(entities), "claims": claims, "writing": WRITING}
        self._ask(lambda reader: reader.execute(_END_SILENT, what))

    def _is_live(self, owner: str, left: float) -> bool:
        return left > 0 and not is_gone(owner)

    def read_clock(self) -> float:
        """Return the server's clock, extrapolated from the last contact."""
        heard, at = self._heard
        return heard + time.monotonic() - at

    def _note_time(self, heard: float) -> None:
        self._heard = heard, time.monotonic()

    def _run_while_renewing(self, work: Callable[[Connection], T], *, is_single: bool = False) -> T:
        """Do `work` on the connection of renewals: in a transaction, unless it `is_single`, of one statement."""

        def run(connection: Raw) -> T:
            with self._set_up(connection), nullcontext() if is_single else connection.transaction():
                return work(Sql(connection))

        with self._renewer.lock:
            if self._closed:
                raise LoomError(f"{self.where} is closed: no lease can be renewed any more")
            return self._renewer.run("cannot write to", run)

    def new_mail(self, after: int) -> tuple[int, list[MailRow]]:
        """Return the waiting mail with a number above `after`.

        A mail gets its number before it is committed. So this asks for a lock that all posters share: while another
        process posts, mail with a lower number than the latest may still arrive, and the next call asks after the same
        number.
        """
        ((is_quiet, last, now),) = self._fetch_rows(_LAST_MAIL, POSTING)
        self._note_time(now)
        if is_quiet and last <= after:
            return after, []
        return (last if is_quiet else after), self._list_waiting_after(after)

    def scrub(self) -> None:
        """Vacuum the tables. The server's write-ahead log and backups are the administrator's task (docs/data.md)."""
        tables = sql.SQL(", ").join(sql.Identifier(self.schema, name) for name in _VACUUMED)
        with self._writer.lock:
            self._check_open("vacuumed")
            self._writer.run(
                "cannot vacuum", lambda connection: connection.execute(sql.SQL("vacuum {}").format(tables))
            )

    # ---------------------------------------------------------------------------------------------------------- reading

    def _fetch_rows(self, query: str, *values: Any) -> list[Any]:
        if any(isinstance(value, str) and _UNKEEPABLE.search(value) for value in values):
            return []  # no database contains such a text
        return self._ask(lambda reader: reader.execute(query.replace("?", "%s"), values).fetchall())

    def facts(self, entity_id: str, with_records: WithRecords = "always") -> EntityFacts | None:
        """Return the facts that a process needs before it runs an entity, from one statement."""
        found = self._fetch_rows(_FACTS, entity_id, [*self._owners], with_records, with_records)
        begun = [self._decode_header(seq, body) for what, seq, body, *_ in found if what == "entity"]
        if not begun:
            return None
        life = Life(next(life for what, _, _, life, *_ in found if what == "entity"))
        leases = [(owner, left) for what, *_, owner, left in found if what == "lease"]
        held = next((Held.by(entity_id, owner, left) for owner, left in leases if self._is_live(owner, left)), None)
        if with_records == "never" or (with_records == "unless_held" and held):
            return EntityFacts(begun[0], life, held, None, ())
        if with_records == "unless_held" and any(left > 0 for _, left in leases):
            return self.facts(entity_id)  # its holder is gone, but the server still has its lease
        kept = None
        for line, data in [(line, data) for what, _, line, _, data, *_ in found if what == "checkpoint"]:
            stored = self._open_checkpoint(bytes(data))
            if stored is None or line is None or read_link(line) != stored[0].link:
                return EntityFacts(begun[0], life, held, None, self.records(entity_id))
            kept = StoredCheckpoint(stored[0].position, stored[1])
        rows = sorted((seq, body) for what, seq, body, *_ in found if what == "record")
        records = attach_images((self._decode(seq, body) for seq, body in rows), self.blob)
        return EntityFacts(begun[0], life, held, kept, records)

    def _ask(self, question: Callable[[Raw], T]) -> T:
        """Ask on the connection for reading, which is replaced, once, if it was lost."""
        if self._frozen is not None:
            try:
                return question(self._frozen)
            except psycopg.Error as error:
                self._fail("cannot read", error)

        def run(connection: Raw) -> T:
            try:
                with self._set_up(connection):
                    return question(connection)
            finally:
                if self._closed:  # an episode may be inspected long after its runtime closed
                    connection.close()

        with self._reader.lock:
            return self._reader.run("cannot read", run)

    def risks(self) -> list[str]:
        """Return how the server may lose acknowledged records: without fsync, or to a slow standby."""

        def work(connection: Raw) -> tuple[bool, bool, bool]:
            row = connection.execute(_RISKS).fetchone()
            assert row is not None, "it selects constants"
            return row[0], row[1], row[2]

        no_fsync, no_commit, no_standby = self._ask(work)
        parts = {
            "fsync is off: a power cut may lose records that were acknowledged": no_fsync,
            "synchronous_commit is off: a crash of the server may lose records that were acknowledged": no_commit,
            "no standby is synchronous: a failover may lose records that were acknowledged, and their gates run twice; "
            "set synchronous_standby_names": no_standby,
        }
        return [risk for risk, is_there in parts.items() if is_there]

    def can_hint(self) -> bool:
        """Return whether nodes have joined, and the address is not a pooler's: then other processes may listen."""
        return not (self.is_pooled or self.read_only) and self._look_for_nodes()

    @property
    def _channel(self) -> str:
        return f"cantrip_{blake2b(self.schema.encode(), digest_size=12).hexdigest()}"

    def hint(self) -> None:
        """Send a hint to the other processes, in a transaction of its own, because NOTIFY locks the server."""
        self._run_while_renewing(lambda db: db.execute(f"notify {self._channel}"), is_single=True)

    def listen(self, receive: Callable[[], object], stopped: threading.Event) -> None:
        """Call `receive` for each hint, on a connection of its own that is in no transaction."""
        try:
            with self._connect() as connection:
                connection.execute(f"listen {self._channel}".encode())
                receive()  # for hints from before it listened
                while not stopped.is_set():
                    for notify in connection.notifies(timeout=LISTEN_CHECK, stop_after=1):
                        if notify.pid != self._hints_from:  # a process ignores its own hints
                            receive()
        except psycopg.Error as error:
            raise LoomError(f"{self.where}: {describe_error(error)}") from error

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one state, that of the block's beginning, on a connection of its own."""
        if self._frozen is not None:
            yield
            return
        with self._connect() as connection:
            connection.execute("begin isolation level repeatable read read only")
            if self.is_pooled:
                connection.execute(sql.SQL("; ").join(self._compose_settings("set local")))
            self._frozen = connection
            try:
                yield
            finally:
                self._frozen = None

    def close(self) -> None:
        """Close the connections."""
        with self._writer.lock, self._reader.lock, self._renewer.lock:
            self._closed = True
            for session in (self._writer, self._reader, self._renewer):
                if session.connection is not None:
                    session.connection.close()


_LAST_MAIL = (
    "select pg_try_advisory_xact_lock(?, hashtext(current_schema())), "
    "last_value - 1 + is_called::int, extract(epoch from clock_timestamp())::float8 from mails"
)
_RISKS = (
    b"select current_setting('fsync') = 'off', current_setting('synchronous_commit') = 'off', "
    b"current_setting('synchronous_standby_names') = '' and exists (select 1 from pg_stat_replication)"
)
_VACUUMED = ("records", "entities", "mail", "checkpoints", "blobs")

_FACTS = """
with one as materialized (select no, tree, life from entities where id = ?),
lease as materialized (
  select owner, extract(epoch from until - clock_timestamp())::float8 as lasts
    from one join entities root on root.no = one.tree join leases on leases.entity = root.id
    join holders on holders.no = holder where owner <> all(?)),
wanted as materialized (
  select no from one where ?::text = 'always' or
    (?::text = 'unless_held' and not exists (select 1 from lease where lasts > 0))),
kept as materialized (
  select data, ('x' || encode(substring(data from 17 for 8), 'hex'))::bit(64)::bigint as seq, no
    from wanted join checkpoints on entity = no)
select 'entity', seq, body, life, null::bytea, null::text, null::float8 from one join records on seq = no
union all select 'lease', 0, null, 0, null, owner, lasts from lease
union all select 'checkpoint', kept.seq, body, 0, data, null, null
  from kept left join records on records.seq = kept.seq and entity = no
union all select 'record', seq, body, 0, null, null, null
  from wanted join records on entity = no where seq > coalesce((select seq from kept), 0)
"""
"""The facts of an entity. The bytes of a checkpoint contain the position of its record (`encode_checkpoint`)."""
_LOCK = """
select no from trees where no in (select tree from entities where id = any(?)) order by no for update
"""
_END_SILENT = """
select pg_terminate_backend(pid) from pg_locks held join pg_stat_activity using (pid)
  where locktype = 'transactionid' and granted and wait_event = 'ClientRead'
  and state_change < clock_timestamp() - make_interval(secs => %(silence)s)
  and transactionid in (
    select xmax from trees where no in (select tree from entities where id = any(%(entities)s))
    union all select xmax from leases where entity = any(%(entities)s))
  and (%(claims)s or exists (
    select from pg_locks own where own.pid = held.pid and own.locktype = 'advisory' and own.classid = %(writing)s))
"""
"""Ends the connection of a writer that has locked a tree and is silent. A locked row names its transaction."""


def _format_time(seconds: float) -> sql.Literal:
    return sql.Literal(f"{seconds * 1000:.0f}ms")


_NOT_LOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
"""The errors of a writer that has waited for its turn. If it gets one lock as its time ends and waits for the next one,
the server forgets why it cancels the statement, and calls that a user's request."""

_UNKEEPABLE = re.compile("[\0\ud800-\udfff]")
"""The characters that no text in a database has."""

_ADVICE: Mapping[type[Exception], str] = {
    psycopg.errors.LockNotAvailable: ". Another process has been writing there all that time, or was stopped meanwhile",
    psycopg.errors.DiskFull: ". Make room on the server's disk; nothing that was acknowledged is lost",
    psycopg.errors.ReadOnlySqlTransaction: ". The server takes no writes now: it is a standby, or was set read-only",
    psycopg.errors.QueryCanceled: ". The server cancelled the statement: raise its statement_timeout, or try again",
    psycopg.errors.InsufficientPrivilege: ". The database's user needs the right to do that",
    psycopg.errors.OutOfMemory: ". The server has no memory left",
    UnicodeEncodeError: ". An id or a name is not a text that a database can store",
    psycopg.DataError: ". An id or a name is not a text that a database can store",
}
