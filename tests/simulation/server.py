"""A model of a Postgres server that runs the product's own statements: what several sessions see of each other.

SQLite evaluates the statements. Around it this module does what Postgres does at READ COMMITTED:

- A statement sees what was committed when it began, and the writes of its own transaction.
- A write, and `for update`, locks the rows that it finds, one after the other. It waits for a row that another
  transaction has locked. After that the statement goes on with the newest version of *that row*, and with everything
  else as it was when the statement began; a row that no longer matches, or is gone, drops out.
- A key that another transaction is about to insert is waited for, and is a violation if that one commits.
- Two transactions that wait for each other are a deadlock, and a wait has a limit.
- Numbers of a sequence are not given back by a rollback.

A server can fail over to a standby that has not got the last commits; all sessions are lost then.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import psycopg

from cantrip_actors.loom.postgres.postgres import SILENCE, TURN
from cantrip_actors.loom.stores.nodes import TABLES
from cantrip_actors.loom.tables.schema import write_statements
from tests.simulation.world import Process, Task, World

__all__ = ["Change", "Server", "Session", "Transaction"]

LINGERS = 12.0
"""Seconds after which the server notices that the client of a session is gone, if nobody tells it."""

Key = tuple[Any, ...]
Image = tuple[Any, ...] | None
"""The columns of a row; None for one that is not there."""

_TYPES = {
    "key": "integer primary key",
    "serial": "integer primary key",
    "token": "integer primary key",
    "time": "real",
    "bytes": "blob",
    "ordered": "text",
    "seq": "",
    "no": "",
}
_NUMBERED = {"leases": "token", "holders": "no"}
"""Tables whose numbers the server gives, and the columns with them."""


class Change(NamedTuple):
    """A row that a transaction has changed."""

    table: str
    rowid: int
    before: Image
    after: Image


@dataclass(eq=False)
class Transaction:
    """What a session has written and locked since it began."""

    session: Session
    began: float
    writes: dict[tuple[str, int], Image] = field(default_factory=dict)
    locks: list[Key] = field(default_factory=list)
    waits_for: Key | None = None
    statement: str = ""
    statement_began: float = 0.0
    is_over: bool = False
    is_running: bool = False
    """Whether a statement is being carried out."""
    idle_since: float = 0.0
    """When its last statement ended."""


@dataclass(eq=False)
class _Lock:
    holder: Transaction
    waiting: list[tuple[Transaction, Task]] = field(default_factory=list)


class _Table(NamedTuple):
    columns: tuple[str, ...]
    has_number: bool
    """Whether a column of it is its row's number."""
    unique: tuple[tuple[int, ...], ...]


class _Statement(NamedTuple):
    text: str
    kind: str
    table: str
    locks: str
    """Selects the numbers of the rows that it locks, in order; "" for a statement that locks none."""


class Cursor:
    """The answer to a statement."""

    def __init__(self, rows: Sequence[Any], count: int = -1) -> None:
        self._rows = list(rows)
        self.rowcount = count

    def fetchone(self) -> Any:
        """Return the first row."""
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        return self._rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


class Server:
    """The tables, and who has locked what."""

    def __init__(self, world: World, distance: float = 1.0, *, has_unique_keys: bool = True) -> None:
        self.world = world
        self.distance = distance
        """How many milliseconds a message takes, or a few times that."""
        self.is_down = False
        self.on_commit: Callable[[Transaction, list[Change]], None] = lambda *_: None
        self.deadlocks: list[str] = []
        self.sessions: dict[Session, None] = {}
        self.posting: set[Transaction] = set()
        """Transactions that have the lock that all share who post mail."""
        self.sequences = {"seqs": 0, "mails": 0, "leases": 0, "holders": 0}
        self._locks: dict[Key, _Lock] = {}
        self._log: list[tuple[list[Change], dict[str, int]]] = []
        """Of each commit what it changed, and the sequences before it."""
        self._kept = 0
        self._rowid = 1 << 40
        self._db = db = sqlite3.connect(":memory:", isolation_level=None)
        db.create_function("clock_timestamp", 0, lambda: world.now)
        db.create_function("statement_timestamp", 0, lambda: self._statement_began)
        self._statement_began = 0.0
        for statement in (*write_statements(0, _TYPES).split(";"), *TABLES):
            db.execute(statement)
        if not has_unique_keys:
            db.execute("drop index mail_keys")
        self.tables = {name: self._describe(name) for (name,) in db.execute(_NAMES).fetchall()}
        self.rows: dict[str, dict[int, Image]] = {name: {} for name in self.tables}
        """What is committed."""
        self._lingering: list[tuple[float, Session]] = []
        Process(world, "server").spawn(self._keep_alive)
        db.execute("savepoint shown")
        self._shown: Transaction | str | None = None
        """Whose writes SQLite has beside what is committed."""

    def _describe(self, name: str) -> _Table:
        columns = self._db.execute(f"pragma table_info({name})").fetchall()
        names = [column[1] for column in columns]
        unique = [tuple(names.index(part[2]) for part in self._db.execute(f"pragma index_info({index[1]})"))
                  for index in self._db.execute(f"pragma index_list({name})").fetchall() if index[2]]  # fmt: skip
        number = [at for at, column in enumerate(columns) if column[5] and column[2] == "INTEGER"]
        has_number = len(number) == 1 and not any(column[5] > 1 for column in columns)
        return _Table(tuple(names), has_number, tuple(unique))

    # ------------------------------------------------------------------------------------------- what is seen

    def _show(self, who: Transaction | None) -> None:
        if self._shown is not who:
            self._db.execute("rollback to shown")
            if who is not None:
                self._apply((table, rowid, image) for (table, rowid), image in who.writes.items())
            self._shown = who

    def _show_as_of(self, who: Transaction, commits: int, newest: Iterable[tuple[str, int]]) -> None:
        """Show what was committed up to a commit, with these rows as they are now, and the writes of `who`."""
        newest = set(newest)
        then: dict[tuple[str, int], Image] = {}
        for changes, _ in reversed(self._log[commits:]):
            for one in changes:
                if (one.table, one.rowid) not in newest:
                    then[one.table, one.rowid] = one.before
        self._db.execute("rollback to shown")
        self._apply((*key, image) for key, image in {**then, **who.writes}.items())
        self._shown = "then"

    def _apply(self, images: Iterable[tuple[str, int, Image]]) -> None:
        images = list(images)
        for table, rowid, _ in images:
            self._db.execute(f"delete from {table} where rowid = ?", (rowid,))
        for table, rowid, image in images:
            if image is not None:
                known = self.tables[table]
                names, values = known.columns, image
                if not known.has_number:
                    names, values = ("rowid", *names), (rowid, *image)
                marks = ", ".join("?" * len(values))
                self._db.execute(f"insert into {table} ({', '.join(names)}) values ({marks})", values)

    def _image(self, table: str, rowid: int) -> Image:
        found: Image = self._db.execute(f"select * from {table} where rowid = ?", (rowid,)).fetchone()
        return found

    # ------------------------------------------------------------------------------------------- locks

    def lock(self, who: Transaction, key: Key) -> bool:
        """Lock something; return whether that had to wait. Raises as Postgres does."""
        lock = self._locks.get(key)
        if lock is None:
            self._locks[key] = _Lock(who)
            who.locks.append(key)
            return False
        if lock.holder is who:
            return False
        other: Transaction | None = lock.holder
        while other is not None and other is not who:
            other = None if other.waits_for is None else self._locks[other.waits_for].holder
        if other is who:
            self.deadlocks.append(self._describe_deadlock(who, key))
            raise psycopg.errors.DeadlockDetected("deadlock detected")
        entry = who, self.world.current
        lock.waiting.append(entry)
        who.waits_for = key
        until = self.world.now + TURN
        try:
            while lock.holder is not who and not who.is_over and self.world.now < until:
                self.world.pause(until - self.world.now)
        finally:
            who.waits_for = None
            if entry in lock.waiting:
                lock.waiting.remove(entry)
        who.session.check()
        if lock.holder is not who:
            raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
        return True

    def _describe_deadlock(self, who: Transaction, key: Key) -> str:
        told = [f"{who.session.process.name} has {who.locks} and wants {key} for: {who.statement}"]
        other = self._locks[key].holder
        while other is not who:
            wanted = other.waits_for
            assert wanted is not None
            told.append(f"{other.session.process.name} has {other.locks} and wants {wanted} for: {other.statement}")
            other = self._locks[wanted].holder
        return "; ".join(told)

    def _unlock(self, who: Transaction) -> None:
        self.posting.discard(who)
        for key in who.locks:
            lock = self._locks[key]
            while lock.waiting:
                following, task = lock.waiting.pop(0)
                if not following.is_over:
                    lock.holder = following
                    following.locks.append(key)
                    following.waits_for = None
                    self.world.wake(task)
                    break
            else:
                del self._locks[key]
        who.locks = []

    def is_locked(self, who: Transaction, key: Key) -> bool:
        """Return whether another transaction has locked something."""
        lock = self._locks.get(key)
        return lock is not None and lock.holder is not who

    def is_stuck(self, tree: int) -> bool:
        """Return whether a tree is locked by a session whose process is gone, frozen or out of reach."""
        lock = self._locks.get(("row", "trees", tree))
        if lock is None:
            return False
        session, process = lock.holder.session, lock.holder.session.process
        return session.closed or process.is_frozen or process.is_cut or process.is_dead

    # ------------------------------------------------------------------------------------------- statements

    def execute(self, who: Transaction, query: str, values: Sequence[Any]) -> Cursor:
        """Carry out a statement of a transaction."""
        if not isinstance(values, dict):
            values = [json.dumps(value) if isinstance(value, list) else value for value in values]
        special = self._special(who, query, values)
        if special is not None:
            return special
        statement = _understood(query)
        who.statement, who.statement_began = statement.text, self.world.now
        if statement.kind == "insert":
            return self._insert(who, statement, values)
        return self._locking(who, statement, values) if statement.locks else self._read(who, statement, values)

    def _special(self, who: Transaction, query: str, values: Sequence[Any]) -> Cursor | None:
        if "pg_try_advisory_xact_lock" in query:
            return Cursor([(not self.posting - {who}, self.sequences["mails"], self.world.now)])
        if "pg_advisory_xact_lock_shared" in query:
            self.posting.add(who)
            return Cursor([])
        if "pg_advisory_xact_lock" in query:
            self.lock(who, ("advisory", values[0]))
            return Cursor([])
        if "nextval" in query:
            name, many = values
            first = self.sequences[name] + 1
            self.sequences[name] += many
            return Cursor([(number,) for number in range(first, first + many)])
        if "pg_catalog.pg_tables" in query or query.startswith("create table"):
            return Cursor([(1,)])
        if "pg_terminate_backend" in query:
            return Cursor([ended for entity in values["entities"] for ended in self._terminate(entity)])
        return None

    def _terminate(self, root: str) -> list[tuple[bool]]:
        """End the sessions that have locked a tree for long and say nothing."""
        number = next((rowid for rowid, row in self.rows["entities"].items() if row and row[1] == root), None)
        keys = [
            ("trees", number),
            *(("leases", at) for at, row in self.rows["leases"].items() if row and row[1] == root),
        ]
        ended = []
        for key in keys:
            lock = self._locks.get(("row", *key))
            if lock is not None and not lock.holder.is_running and lock.holder.began < self.world.now - SILENCE:
                lock.holder.session.end()
                ended.append((True,))
        return ended

    def _read(self, who: Transaction, statement: _Statement, values: Sequence[Any]) -> Cursor:
        self._show(who if who.writes else None)
        self._statement_began = who.statement_began
        cursor = self._db.execute(statement.text, values)
        return Cursor(cursor.fetchall(), cursor.rowcount)

    def _locking(self, who: Transaction, statement: _Statement, values: Sequence[Any]) -> Cursor:
        self._show(who)
        marks = statement.locks.count("?")
        found = self._db.execute(statement.locks, values[len(values) - marks :]).fetchall()
        rows = [(statement.table, rowid) for (rowid,) in found]
        commits, has_waited = len(self._log), False
        for row in rows:
            has_waited = self.lock(who, ("row", *row)) or has_waited
        if has_waited:
            self._show_as_of(who, commits, rows)
        else:
            self._show(who)
        self._statement_began = who.statement_began
        cursor = self._db.execute(statement.text, values)
        answer = Cursor(cursor.fetchall(), cursor.rowcount)
        if statement.kind != "select":
            for table, rowid in rows:
                if self.rows[table].get(rowid) is not None or (table, rowid) in who.writes:
                    who.writes[table, rowid] = self._image(table, rowid)  # else another one has deleted it meanwhile
        return answer

    def _insert(self, who: Transaction, statement: _Statement, values: Sequence[Any]) -> Cursor:
        table, db = statement.table, self._db
        if table in _NUMBERED:
            self.sequences[table] += 1
            values = [self.sequences[table], *values]
        while True:
            self._show(who)
            db.execute("savepoint tried")
            self._statement_began = who.statement_began
            try:
                row = db.execute(statement.text, values).fetchone()
            except sqlite3.IntegrityError as error:
                leaving = self._leaving(who, statement, values)
                self._undo()
                if leaving is None:
                    raise psycopg.errors.UniqueViolation(str(error)) from error
                self.lock(who, leaving)
                continue
            if row is None:  # the key is there, and nothing is to be done then
                db.execute("release tried")
                return Cursor([], 0)
            rowid, *answer = row
            own = who.writes.get((table, rowid), ...)
            is_there = own is not None if own is not ... else self.rows[table].get(rowid) is not None
            if is_there:
                wanted = [("row", table, rowid)]
            else:
                if not self.tables[table].has_number:
                    self._rowid += 1
                    db.execute(f"update {table} set rowid = ? where rowid = ?", (self._rowid, rowid))
                    rowid = self._rowid
                wanted = list(self._keys(table, self._image(table, rowid)))
            taken = next((key for key in wanted if self.is_locked(who, key)), None)
            if taken is None:
                break
            self._undo()
            self.lock(who, taken)  # and look again: the other one may have committed, or not
        db.execute("release tried")
        for key in (*wanted, ("row", table, rowid)):
            self.lock(who, key)
        who.writes[table, rowid] = self._image(table, rowid)
        return Cursor([answer] if answer else [], 1)

    def _leaving(self, who: Transaction, statement: _Statement, values: Sequence[Any]) -> Key | None:
        """Return the row with the same key as a new one, if another transaction is about to delete it."""
        table = statement.table
        text = statement.text.replace("insert into", "insert or replace into", 1).rpartition(" returning ")[0]
        new = set(self._keys(table, self._db.execute(f"{text} returning *", values).fetchone()))
        for rowid, image in self.rows[table].items():
            lock = self._locks.get(("row", table, rowid))
            is_leaving = (
                lock is not None and lock.holder is not who and lock.holder.writes.get((table, rowid), "") is None
            )
            if is_leaving and new.intersection(self._keys(table, image)):
                return "row", table, rowid
        return None

    def _undo(self) -> None:
        self._db.execute("rollback to tried")
        self._db.execute("release tried")

    def _keys(self, table: str, image: Image) -> Iterator[Key]:
        assert image is not None
        for columns in self.tables[table].unique:
            key = tuple(image[column] for column in columns)
            if None not in key:
                yield ("key", table, columns, *key)

    # ------------------------------------------------------------------------------------------- transactions

    def commit(self, who: Transaction) -> None:
        """Make the writes of a transaction everybody's."""
        changes = [
            Change(table, rowid, self.rows[table].get(rowid), image) for (table, rowid), image in who.writes.items()
        ]
        if changes:
            self._show(who)
            self._db.execute("release shown")
            self._db.execute("savepoint shown")
            self._shown = None
            for one in changes:
                if one.after is None:
                    self.rows[one.table].pop(one.rowid, None)
                else:
                    self.rows[one.table][one.rowid] = one.after
            self._log.append((changes, dict(self.sequences)))
            self.on_commit(who, changes)
        self._end(who)

    def abort(self, who: Transaction) -> None:
        """Forget what a transaction has written."""
        self._end(who)

    def _end(self, who: Transaction) -> None:
        if self._shown is who:
            self._shown = "gone"
        who.is_over = True
        self._unlock(who)

    def linger(self, session: Session) -> None:
        """End a session later: the server has not heard that its client is gone."""
        self._lingering.append((self.world.now + LINGERS, session))

    def _keep_alive(self) -> None:
        while True:
            self.world.sleep(1.0)
            for session in list(self.sessions):
                session.end_if_idle()
            for _, session in [one for one in self._lingering if one[0] < self.world.now]:
                session.end()
            self._lingering = [one for one in self._lingering if one[0] >= self.world.now]

    def keep(self) -> None:
        """What is committed now is on every standby."""
        self._kept = len(self._log)

    def fail_over(self, commits: int) -> list[Change]:
        """Forget the last commits, and lose all sessions; return what is lost, newest first."""
        for session in list(self.sessions):
            session.end()
        lost: list[Change] = []
        self._show(None)
        for changes, before in [self._log.pop() for _ in range(min(commits, len(self._log) - self._kept))]:
            self._apply((one.table, one.rowid, one.before) for one in changes)
            for one in changes:
                if one.before is None:
                    self.rows[one.table].pop(one.rowid, None)
                else:
                    self.rows[one.table][one.rowid] = one.before
            lost += changes
            # a standby has the numbers of a sequence some way ahead of what it has replayed
            self.sequences = {name: max(self.sequences[name], before[name]) for name in before}
        self._db.execute("release shown")
        self._db.execute("savepoint shown")
        self._shown = None
        return lost


class Session:
    """A connection of psycopg's, as far as the store uses one."""

    prepare_threshold: int | None = None

    def __init__(self, server: Server, process: Process) -> None:
        self.server = server
        self.process = process
        self.closed = False
        self._transaction: Transaction | None = None
        server.sessions[self] = None

    @property
    def info(self) -> Any:
        """Its state: a transaction of it ends with its block."""
        return SimpleNamespace(transaction_status=psycopg.pq.TransactionStatus.IDLE,
                               pipeline_status=psycopg.pq.PipelineStatus.OFF, backend_pid=0)  # fmt: skip

    def check(self) -> None:
        """Raise if nothing can be said to the server any more."""
        if self.closed or self.process.is_cut or self.server.is_down:
            self.lose()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    def lose(self) -> None:
        """Lose the connection. The server may hear of that later."""
        if not self.closed:
            self.closed = True
            if self.server.world.chance.random() < 0.7:
                self.end()
            else:
                self.server.linger(self)

    def end(self) -> None:
        """End it at the server's side."""
        self.closed = True
        self.server.sessions.pop(self, None)
        if self._transaction is not None and not self._transaction.is_over:
            self.server.abort(self._transaction)

    close = end

    def end_if_idle(self) -> None:
        """End it if it has been silent in a transaction for long (`idle_in_transaction_session_timeout`)."""
        own = self._transaction
        is_idle = own is not None and not own.is_over and not own.is_running
        if is_idle and own.idle_since < self.server.world.now - SILENCE:
            self.end()

    def _wait(self) -> None:
        """Let others do something while a message is on its way."""
        world = self.server.world
        draw = world.chance.random()
        if draw < 0.6:
            world.sleep(draw**4 * 0.04 * self.server.distance * self.process.slowness)

    def execute(self, query: str, values: Any = (), /) -> Cursor:
        """Carry out a statement, in the transaction that is open or in one of its own."""
        if not isinstance(query, str):  # settings of a session
            return Cursor([])
        self._wait()
        self.check()
        own = Transaction(self, self.server.world.now) if self._transaction is None else self._transaction
        own.is_running = True
        try:
            answer = self.server.execute(own, query.replace("%s", "?"), values)
        finally:
            own.is_running, own.idle_since = False, self.server.world.now
        if self._transaction is None:
            self.server.commit(own)
        return answer

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """What runs a statement for each row."""
        yield self

    def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Carry out a statement for each row."""
        for row in rows:
            self.execute(query, row)

    def pipeline(self) -> Any:
        """Statements are carried out one by one in a pipeline, too."""
        return nullcontext()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end of the block."""
        self.check()
        own = self._transaction = Transaction(self, self.server.world.now, idle_since=self.server.world.now)
        try:
            yield
            self._wait()
            self.check()
            if self.server.world.chance.random() < self.process.unsure:
                if self.server.world.chance.random() < 0.5:
                    self.server.commit(own)
                self.closed = True
                self.end()
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            self.server.commit(own)
        except BaseException:
            if not (own.is_over or self.closed):
                self.server.abort(own)
            raise
        finally:
            if own.is_over or not self.closed:
                self._transaction = None
        self._wait()
        if self.closed or self.process.is_cut:
            self.lose()
            raise psycopg.OperationalError("server closed the connection unexpectedly")


@cache
def _understood(query: str) -> _Statement:
    """Return a statement in SQLite's words, and what it locks."""
    text = " ".join(query.split())
    text = re.sub(r"extract\(epoch from (.*?)\)::float8", r"(\1)", text)
    text = text.replace("make_interval(secs => ?)", "(?)").replace("::int", "")
    text = text.replace("= any(?)", "in (select value from json_each(?))")
    text, _, locked = text.partition(" for update")
    if text.startswith("insert into "):
        table = text.split()[2]
        if table in _NUMBERED:
            text = text.replace(f"{table} (", f"{table} ({_NUMBERED[table]}, ").replace("values (", "values (?, ", 1)
        whole = (
            text.replace(" returning ", " returning rowid, ") if " returning " in text else f"{text} returning rowid"
        )
        return _Statement(whole, "insert", table, "")
    if match := re.match(r"(?:update|delete from) (\w+)(.*?)( where .*)?$", text):
        kind, table, rest = text.split()[0], match[1], (match[3] or "").partition(" returning ")[0]
        return _Statement(text, kind, table, f"select rowid from {table}{rest}")
    if "for update" in " ".join(query.split()):
        table = locked.removeprefix(" of ").strip() or re.search(r" from (\w+)", text)[1]
        return _Statement(text, "select", table, f"select {table}.rowid{text[text.index(' from ') :]}")
    return _Statement(text, "select", "", "")


_NAMES = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
