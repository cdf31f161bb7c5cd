"""The SQLite store: the default for real use. One file, any number of readers and writers, in any processes.

The rules of this file:

- A batch is one transaction. If it fails (a full disk, a lock that is never released) nothing of it is written, the
  caller gets a LoomError, and the next append tries again, so it continues once the cause is fixed.
- The file is in WAL mode: readers and writers do not wait for each other. Writers wait for each other, for the few
  dozen microseconds of a batch, or the seconds of a vacuum, and at most `PATIENCE`.
- This store has one connection to write with, and one to read with for each thread that reads at the same time. A read
  sees what was committed when it began.
- An attempt (`Store.attempt`) waits for nothing: neither for another process that writes, nor for a thread of this one
  that does, nor for a checkpoint. What may take long is postponed too (`sqlite_connections`).
- The facts that batches depend on (`Known`) are cached; whenever another connection has written meanwhile, which SQLite
  reports, they are looked up again. So leases, too, are checked inside the transaction.
- After each commit the file `<loom>.head` gets the numbers that it reached (`acknowledged.py`). A loom without them has
  lost the end of its write-ahead log: it is refused for writing, and `verify` says what is missing. The file is removed
  with the log.
- The table `records` is the log. The others locate things in it, are written in the same transaction, and `cantrip loom
  verify` compares them with it.

`process` is `synchronous=NORMAL`: a commit reaches the page cache. `power` is FULL: it waits for the disk, so no
attempt commits. `none` is OFF: not even the order of writes is kept, and a power cut may destroy the loom.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, cast

from cantrip_actors.loom.seal.key_file import read_key
from cantrip_actors.loom.seal.seal_key import GivenKey
from cantrip_actors.loom.sqlite import write_ahead
from cantrip_actors.loom.sqlite.acknowledged import AcknowledgedFile, LoomEnd, describe_missing
from cantrip_actors.loom.sqlite.sqlite_connections import Readers, forbid_waiting, is_busy, wait_for_lock
from cantrip_actors.loom.sqlite.write_ahead import WalCheckpoints
from cantrip_actors.loom.stores.damage import REPAIR, DamagedLoom
from cantrip_actors.loom.stores.lease import read_boot_clock, read_boot_id
from cantrip_actors.loom.stores.rules import Plan
from cantrip_actors.loom.stores.store import Durability, Locked, Postponed
from cantrip_actors.loom.tables import schema
from cantrip_actors.loom.tables.migration import Migrate, Migrated, check_version, note_migration
from cantrip_actors.loom.tables.table_rows import Connection, KnownRows, decode_text, read_link
from cantrip_actors.loom.tables.tables import TableStore
from cantrip_actors.machine.project import Life, Status
from cantrip_actors.own_files.claims import APPLICATION, claim_file
from cantrip_actors.own_files.modes import file_size, make_file, make_folder, narrow_files
from cantrip_actors.records.mail import MailRow
from cantrip_actors.records.seal import NOTHING
from cantrip_actors.records.submissions import SubmissionRow
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError, ReadOnlyLoom

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a writer waits for another one. The vacuum of a large loom takes less; a process may be stopped."""
READERS_PATIENCE = 5.0
"""Seconds that emptying the write-ahead log waits for readers. Writers wait meanwhile."""
LOOK = 100
"""Mails that one check for new mail reads."""
LARGE = 1 << 20
"""Bytes that an attempt writes at most."""
REMEMBERED = 50_000
"""Entities that are cached between batches."""

CHECKED = 32 << 20
"""Bytes of a file up to which opening it for writing checks all its pages: that takes a tenth of a second."""

_TYPES = {
    "key": "integer primary key",
    "serial": "integer primary key",
    "token": "integer primary key autoincrement",
    "time": "real",
    "bytes": "blob",
    "ordered": "text",
    "seq": "",
    "no": "",
}
_LOG = """
create view log as select records.seq, entities.id as entity, json_extract(body, '$.kind') as kind,
  json_extract(body, '$.turn') as turn, body from records join entities on entities.no = records.entity;
"""
"""A view for people who inspect the file."""

_COUNT = "insert into tallies (tenant, state, many) values {} on conflict do update set many = many + excluded.many;"
_TALLIES = (
    "create table tallies (tenant text, state text, many integer not null, primary key (tenant, state)) without rowid",
    f"create trigger tally_new after insert on entities begin {_COUNT.format('(new.tenant, new.state, 1)')} end",
    (
        "create trigger tally_change after update of tenant, state on entities "
        "when old.tenant <> new.tenant or old.state <> new.state begin "
        f"{_COUNT.format('(old.tenant, old.state, -1), (new.tenant, new.state, 1)')} end"
    ),
)
"""How many entities of each tenant are in each state: SQLite would read all of an index to count them."""

_LINEAGE = "create table lineage (id text not null, edits integer not null)"
"""One row: the id of the history that this file continues, and how many transactions changed only timers or
submissions."""

_KIND_OF_FILE = (
    "select application_id, user_version, (select count(*) from sqlite_master) "
    "from pragma_application_id, pragma_user_version"
)

_AT_ONCE = nullcontext()
_SYNCHRONOUS = {"process": "normal", "power": "full", "none": "off"}


_log = get_logger("cantrip.loom")


class SqliteStore(TableStore):
    """A loom in an SQLite file. Raises LoomError if it cannot be opened, or is something else."""

    _conflicts = (sqlite3.IntegrityError,)
    _table_query = "select 1 from sqlite_master where name = ?"
    _locked = ""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        read_only: bool = False,
        migrate: Migrate = "upgrade",
        seal_key: GivenKey = None,
    ) -> None:
        self._seal_key = seal_key
        self.path: Path = Path(path).absolute()
        self.migrated: Migrated | None = None
        """The upgrade of tables of an earlier version at opening, if there was one."""
        self._migrate = migrate
        self.where: str = str(self.path)
        self.read_only = read_only
        self.durability = durability
        self.blocking: bool = durability == "power"
        self._writing = threading.Lock()  # one batch at a time, from any thread
        self._writer: sqlite3.Connection | None = None
        self._known = KnownRows()
        self._seen = -1  # SQLite's data version while no other connection writes
        self._next = {"seqs": 0, "mails": 0}
        """The next number of a record and of a mail; 0: not known."""
        self._no_news = (-1, 0)  # data_version, and the latest mail's number at that version
        self._owners = set()
        connect = partial(self._connect, write_ahead.PATIENCE)
        self._wal = WalCheckpoints(connect, self._writing, AcknowledgedFile(self.path))
        self._readers = Readers(self._connect, lambda: PATIENCE)
        self._closed = False
        self._is_damaged = False
        self._check_path()
        self._own_claim = claim_file(self.path)
        if not read_only:
            self._writer = self._create()
        self._readers.give_back(self._open(self._prepare_reader))
        if read_only and (lost := self._find_lost_end()):
            _log.warning("loom.acknowledged_missing", path=self.where, missing=lost)
        if not read_only and self._get_sidecar_path("").stat().st_size <= CHECKED:
            self._check_pages()

    def _check_path(self) -> None:
        """Raise LoomError if there is something else than a file, or if there can be no file of this name."""
        try:
            if self.path.exists() and not self.path.is_file():
                raise LoomError(f"{self.path} is not a regular file: a loom needs one")
        except OSError as error:
            raise LoomError(f"cannot open {self.path}: {error.strerror}{_ADVICE[sqlite3.SQLITE_CANTOPEN]}") from error

    def _check_pages(self) -> None:
        """Raise DamagedLoom, and close the file, if a page of it is damaged."""
        try:
            found = [line.decode() for (line,) in self._fetch_rows("pragma quick_check(1)")]
            if found != ["ok"]:
                raise DamagedLoom(f"{self.path} is damaged: {' '.join(' '.join(found).split())}. {REPAIR}")
        except DamagedLoom:
            self.close()
            raise

    # ---------------------------------------------------------------------------------------------------------- opening

    def _create(self) -> sqlite3.Connection:
        for place in (self.path, self.path.parent):
            if place.exists() and not os.access(place, os.W_OK):
                self._give_up()
                raise ReadOnlyLoom(
                    f"cannot open {self.path} for writing: this process may not write to {place}{_RIGHTS}"
                )
        try:
            make_folder(self.path.parent)
            if make_file(self.path):  # SQLite gives its other files the mode of this one
                self._wal.noted.remove()
        except OSError as error:
            self._give_up()
            raise LoomError(f"cannot open {self.path}: {error.strerror}{_ADVICE[sqlite3.SQLITE_CANTOPEN]}") from error
        try:
            self._refuse_lost_end()
        except LoomError:
            self._give_up()
            raise
        writer = self._open(self._make_tables)
        narrow_files(
            self._get_sidecar_path(suffix) for suffix in ("", "-wal", "-shm")
        )  # now that it is known to be a loom
        return writer

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        self._check(connection)
        _set_wal_mode(connection)
        connection.execute("begin immediate")
        found = self._check(connection)
        for statement in (schema.write_statements(found, _TYPES) + ("" if found else _LOG)).split(";"):
            connection.execute(statement)
        for statement in () if found else (_LINEAGE, *_TALLIES):
            connection.execute(statement)
        if found == 0:
            connection.execute("insert into lineage (id, edits) values (?, 0)", (_make_lineage(),))
            connection.execute(f"pragma application_id = {APPLICATION}")
        if found < schema.VERSION:
            connection.execute(f"pragma user_version = {schema.VERSION}")
            connection.execute("create table if not exists version (readable_by integer not null)")
            connection.execute("delete from version")
            connection.execute("insert into version (readable_by) values (?)", (schema.READABLE_BY,))
        self.seal = self._open_seal(connection, self._seal_key, makes=True)
        self._note_end(connection)
        connection.execute("commit")
        forbid_waiting(connection)
        if 0 < found < schema.VERSION:
            self.migrated = note_migration(self.where, found)

    def _refuse_lost_end(self) -> None:
        """Raise DamagedLoom if acknowledged changes are missing, unless a power cut explains it.

        This comes before any connection that writes: the last one to close would copy what is left of the write-ahead
        log into the file, and remove the log.
        """
        missing = self._find_lost_end()
        if missing and (self.blocking or any(map(self._wal.noted.is_of_this_boot, self._wal.noted.read("")))):
            raise DamagedLoom(f"{self.path}: acknowledged records are missing: {missing}. {_LOST} {REPAIR}")

    def _note_end(self, connection: sqlite3.Connection) -> None:
        """Note the end of the loom from here on; without what was acknowledged it continues as another lineage."""
        lineage, end, missing = self._compare_end(connection)
        if missing:
            _log.warning("loom.acknowledged_missing", path=self.where, missing=missing, hint=_EXPLAINED)
            lineage = _make_lineage()
            connection.execute("update lineage set id = ?", (lineage,))
        self._wal.noted.begin(lineage, end)

    def _compare_end(self, connection: sqlite3.Connection) -> tuple[str, LoomEnd, str]:
        """Return the lineage of the loom, its end, and a text that names the missing part of the noted end."""
        (id,) = connection.execute("select id from lineage").fetchone()
        noted = self._wal.noted.read(lineage := decode_text(id))  # first: what is committed meanwhile is more
        edits, record, mail = connection.execute(_END).fetchone()
        numbers = {record, *(end.record for end in noted)}
        rows = [connection.execute("select seq, body from records where seq = ?", (no,)).fetchone() for no in numbers]
        links = {row[0]: read_link(row[1]) for row in rows if row is not None}
        copied = max((end.copied for end in noted), default=0) if file_size(self._get_sidecar_path("-wal")) else record
        end = LoomEnd(record, mail, edits, copied, links.get(record, NOTHING))
        return lineage, end, describe_missing(noted, end, links)

    def _find_lost_end(self) -> str:
        """Return which acknowledged changes are missing; "" if none are. Reads what is committed now."""
        if not self._wal.noted.read(""):
            return ""
        try:
            with closing(self._connect(read_only=True)) as connection:
                if not self._check(connection):
                    return ""
                lineage, _, missing = self._compare_end(connection)
            return "" if missing and self._is_older_copy(lineage) else missing
        except sqlite3.Error as error:
            self._fail("cannot read", error)

    def _is_older_copy(self, lineage: str) -> bool:
        """Return whether the file, without its log, has fewer records than were copied into it: it is an older one."""
        copied = max(end.copied for end in self._wal.noted.read(lineage))
        try:
            connection = sqlite3.connect(f"{self.path.as_uri()}?mode=ro&immutable=1", uri=True)  # ignores the log
            try:
                (record,) = connection.execute("select coalesce(max(seq), 0) from records").fetchone()
            finally:
                connection.close()
        except sqlite3.Error:
            return False
        return int(record) < copied

    def _prepare_reader(self, connection: sqlite3.Connection) -> None:
        self._readers.prepare(connection)
        self._check(connection)
        if self.read_only:
            self.seal = self._open_seal(connection, self._seal_key, makes=False)

    def _open(self, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        """Return a connection that `prepare` has set up. If that fails, the writer is closed, too."""
        connection = None
        try:
            connection = self._connect()
            prepare(connection)
        except (sqlite3.Error, LoomError) as error:
            self._give_up(connection)
            if isinstance(error, sqlite3.Error):
                self._fail("cannot open", error)
            raise
        return connection

    def _give_up(self, *connections: sqlite3.Connection | None) -> None:
        self._own_claim.release()
        for connection in (*connections, self._writer):
            if connection is not None:
                connection.close()
        self._wal.noted.close()

    def _connect(self, patience: float | None = None, *, read_only: bool = False) -> sqlite3.Connection:
        """Return a connection for any thread, which waits that long for locks; the first statement opens the file."""
        mode = "ro" if self.read_only or read_only else "rwc"
        if self.read_only and not os.access(self.path.parent, os.W_OK) and not self._get_sidecar_path("-wal").exists():
            mode = "ro&immutable=1"  # SQLite cannot make its own files there, and no process writes
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            timeout=PATIENCE if patience is None else patience,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            connection.execute(f"pragma synchronous = {_SYNCHRONOUS[self.durability]}")
            connection.execute("pragma wal_autocheckpoint = 0")
            connection.execute("pragma secure_delete = on")  # so that taken mail leaves no bytes
            connection.execute("pragma journal_size_limit = 67108864")
        except sqlite3.Error:
            connection.close()
            raise
        except UnicodeDecodeError as error:  # SQLite's own message has the damaged bytes in it
            connection.close()
            corrupt = sqlite3.DatabaseError("malformed database schema")
            corrupt.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise corrupt from error
        return connection

    def _get_sidecar_path(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _check(self, connection: sqlite3.Connection) -> int:
        """Return the version of the tables, 0 for an empty file. Raises LoomError if they cannot be used."""
        # one statement: another process may be making the tables
        application, version, tables = connection.execute(_KIND_OF_FILE).fetchone()
        if not tables and any(not end.copied for end in self._wal.noted.read("")):
            raise DamagedLoom(f"{self.path}: all acknowledged records are missing. {_LOST} {REPAIR}")
        if not tables and self.read_only:
            what = "has no tables yet: a process that makes the loom is at work, or was killed"
            raise LoomError(f"{self.path} {what}. Opening it for writing, as a runtime does, makes them")
        if application != APPLICATION and tables:
            raise LoomError(f"{self.path} is an SQLite database, but not a loom: give the path of another file")
        readable_by = None
        if version > schema.VERSION and self._has_table(connection, "version"):
            (readable_by,) = connection.execute("select readable_by from version").fetchone()
        if version:
            check_version(self.where, version, readable_by, read_only=self.read_only, migrate=self._migrate)
        return int(version)

    # -------------------------------------------------------------------------------------------------------- appending

    def attempt(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise Postponed, as while the write-ahead log is being copied."""
        if self._closed or self._wal.is_at_work:
            raise Postponed
        return self._readers.state.attempt(work)

    @property
    def _is_attempt(self) -> bool:
        return self._readers.state.is_attempt

    def _transact(self, work: Callable[[Connection], T], *expected: type[Exception]) -> T:
        is_attempt = self._is_attempt
        if is_attempt and (self._writer is None or self.blocking):
            raise Postponed
        if not self._writing.acquire(blocking=not is_attempt):
            raise Postponed
        try:
            writer = self._get_connection()
            try:
                self._begin(writer)
                done = work(writer)
                writer.execute("commit")
                self._wal.noted.write()
            except BaseException as error:
                self._undo(writer)
                if is_attempt and isinstance(error, sqlite3.Error) and is_busy(error):
                    raise Postponed from error
                if isinstance(error, sqlite3.Error) and not isinstance(error, expected):
                    self._fail("cannot write to", error)
                if isinstance(error, UnicodeEncodeError):
                    raise LoomError(f"an id or a name is not a text that a database can store: {error}") from error
                raise
            return done
        finally:
            self._writing.release()

    def _lock(self, db: Connection, entities: Sequence[str], *, claims: bool, posts: bool) -> None:
        """Do nothing: since the transaction began, no other connection can write."""

    def _lock_blobs(self, db: Connection) -> None:
        """Do nothing, for the same reason."""

    def _draw_numbers(self, db: Connection, what: Literal["seqs", "mails"], many: int) -> Iterable[int]:
        if not self._next[what]:
            query = "select max(seq) from records" if what == "seqs" else "select max(no) from mail"
            (last,) = db.execute(query).fetchone()
            self._next[what] = (last or 0) + 1
        first = self._next[what]
        self._next[what] += many
        return range(first, first + many)

    def _fetch_each(self, db: Connection, query: str, columns: str, rows: Sequence[tuple[str, ...]]) -> Iterable[Any]:
        query = _rewrite_for_one(query, columns)
        return [found for row in rows for found in db.execute(query, row)]

    def _pipeline(self, db: Connection) -> AbstractContextManager[object]:  # noqa: ARG002  # the answers come at once
        return _AT_ONCE

    def _write(self, db: Connection, plan: Plan) -> None:
        size = sum(map(len, plan.lines))
        if plan.posted or plan.timers:
            size += sum(len(line) for _, line, _ in (*plan.posted.values(), *plan.timers.values()))
        if plan.blobs:
            size += sum(len(blob.data) for blob in plan.blobs.values())
        if size > LARGE and self._is_attempt:
            raise Postponed
        super()._write(db, plan)
        if plan.lines:
            self._wal.noted.expect(record=plan.numbers[-1], link=read_link(plan.lines[-1]))
        if plan.posted:
            self._wal.noted.expect(mail=max(row.no for row, _, _ in plan.posted.values()))
        if plan.timers and not (plan.lines or plan.posted):
            self._count_edit(db)
        self._count_written(size)

    def _add_submission(self, db: Connection, row: SubmissionRow) -> bool:
        is_added = super()._add_submission(db, row)
        if is_added:
            self._count_edit(db)
        return is_added

    def _drop_submission(self, db: Connection, row: SubmissionRow) -> bool:
        is_dropped = super()._drop_submission(db, row)
        if is_dropped:
            self._count_edit(db)
        return is_dropped

    def _count_edit(self, db: Connection) -> None:
        """Count a transaction that only changes timers or submissions: no number of a record or a mail shows it."""
        (edits,) = db.execute("update lineage set edits = edits + 1 returning edits").fetchone()
        self._wal.noted.expect(edits=edits)

    def _count_written(self, size: int) -> None:
        self._wal.count_written(size)

    def _get_connection(self) -> sqlite3.Connection:
        if self._closed:
            raise LoomError(f"{self.path} is closed: nothing can be recorded any more")
        if self.read_only:
            raise LoomError(f"{self.path} was opened read-only: nothing can be recorded")
        if self._is_damaged:
            raise DamagedLoom(f"{self.path} is damaged: nothing is recorded any more. {REPAIR}")
        if self._writer is None:
            self._writer = self._create()
            self._seen = -1
        return self._writer

    def _begin(self, writer: sqlite3.Connection) -> None:
        """Begin to write; from here on no other connection does, and the cached facts are right."""
        if self._is_attempt:
            writer.execute("begin immediate")
        else:
            wait_for_lock(lambda: writer.execute("begin immediate"), writer, PATIENCE)
        (seen,) = writer.execute("pragma data_version").fetchone()
        if seen != self._seen or len(self._known.places) > REMEMBERED:
            self._known.forget()
            self._next = {"seqs": 0, "mails": 0}
            self._seen = seen

    def _undo(self, writer: sqlite3.Connection) -> None:
        """Roll the batch back. A connection on which even that fails is replaced by a new one."""
        self._seen = -1
        self._wal.noted.drop()
        try:
            if writer.in_transaction:
                writer.execute("rollback")
        except sqlite3.Error:
            writer.close()
            self._writer = None

    def _fail(self, what: str, error: Exception) -> NoReturn:
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF == sqlite3.SQLITE_CORRUPT:
            self._is_damaged = True
            raise DamagedLoom(f"{what} {self.path}: {error}. {REPAIR}") from error
        if code == sqlite3.SQLITE_FULL:
            self._wal.note_full_disk()
        advice = "" if code is None else _ADVICE.get(code & 0xFF, "")
        kind = LoomError if code is None else _KINDS.get(code & 0xFF, LoomError)
        raise kind(f"{what} {self.path}: {error}{advice}") from error

    # The words of leases are values, and not functions of the connection: threads share a connection, and one of them
    # would wait in a function in Python for the interpreter, which another holds while it waits for the connection.

    @property
    def _now(self) -> str:
        return repr(read_boot_clock())

    @property
    def _until(self) -> str:
        return f"{self._now} + ?"

    @property
    def _lasts(self) -> str:
        return f"case when boot = {self._boot} then until - {self._now} else -1e9 end"

    @property
    def _boot(self) -> str:
        return f"'{read_boot_id()}'"

    def new_mail(self, after: int) -> tuple[int, list[MailRow]]:
        """Return the waiting mail with a number above `after`; reads only if another connection has written."""
        seen = -1
        if not self.read_only:
            if not self._writing.acquire(blocking=not self._is_attempt):
                raise Postponed
            try:
                (seen,) = self._get_connection().execute("pragma data_version").fetchone()
            except sqlite3.Error as error:
                self._fail("cannot read", error)
            finally:
                self._writing.release()
            if (seen, after) == self._no_news:
                return after, []
        rows = self._list_waiting_after(after, LOOK)
        last = rows[-1].no if rows else after
        if len(rows) < LOOK:
            self._no_news = seen, last
        return last, rows

    def scrub(self) -> None:
        """Rewrite the file without its free space, and empty the write-ahead log."""
        with self._writing:
            writer = self._get_connection()
            try:
                wait_for_lock(lambda: writer.execute("vacuum"), writer, PATIENCE)
                deadline = time.monotonic() + READERS_PATIENCE
                while is_used := writer.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.01)  # SQLite waits for readers, but not for the checkpoint of another connection
            except sqlite3.Error as error:
                self._fail("cannot rewrite", error)
            self._seen = -1
        if is_used:
            raise LoomError(
                f"{self.path}: the content is forgotten, but its bytes are still in the write-ahead log, because it "
                f"has been used for {READERS_PATIENCE:g} s. Do the same again later"
            )

    def copy_to(self, target: Path) -> None:
        """Copy the loom as it is at this moment to a new file, without leases, while others write to it."""
        part = target.with_name(f"{target.name}.new")
        part.unlink(missing_ok=True)
        source = self._connect()
        try:
            make_file(part)
            copy = sqlite3.connect(part, isolation_level=None)
            try:
                copy.execute("pragma journal_mode = off")  # a copy that fails is deleted, with nothing beside it
                source.backup(copy)
                copy.execute("delete from leases")
                copy.execute("delete from holders")
                copy.execute("update lineage set id = ?", (_make_lineage(),))
            finally:
                copy.close()
            part.replace(target)
        except (sqlite3.Error, OSError) as error:
            self._fail("cannot copy", error)
        finally:
            source.close()
            part.unlink(missing_ok=True)

    def snapshot(self) -> AbstractContextManager[object]:
        """Read one state, that of the block's beginning."""
        return self._readers.snapshot()

    # ---------------------------------------------------------------------------------------------------------- reading

    def faults(self) -> Iterator[str]:
        """Yield the faults that SQLite finds in the file, and where the tables contradict the lines."""
        for (found,) in self._fetch_rows("pragma integrity_check(20)"):
            if found != b"ok":
                yield found.decode()
        if missing := self._find_lost_end():
            yield f"acknowledged records are missing: {missing}"
        ((last, many),) = self._fetch_rows("select coalesce(max(seq), 0), count(*) from records")
        if last != many:
            yield f"record {last}: this is the last record, but the loom has fewer records than that"
        if self.count_states() != super().count_states():
            yield "the number of entities in each state differs from their rows"
        yield from super().faults()

    def key(self) -> bytes | None:
        """Return the key in the sidecar."""
        return read_key(self.path, make=not self.read_only)

    def entities_at(self, first: Life, last: Life) -> Sequence[str]:
        """Return the entities between these phases of life, in order of creation."""
        # SQLite must be told to use the index of entities that have not ended for good
        query = "select id from entities indexed by unfinished where life < 2 and life between ? and ? order by no"
        return self._fetch_ids(query, first, last)

    def count_states(self, tenant: str | None = None) -> dict[Status, int]:
        """Return how many entities are in each state."""
        query = "select state, sum(many) from tallies where tenant = coalesce(?, tenant) group by state"
        counts = {cast("Status", decode_text(state)): int(count) for state, count in self._fetch_rows(query, tenant)}
        return {state: count for state, count in counts.items() if count}

    def _fetch_rows(self, query: str, *values: Any) -> list[Any]:
        try:
            return self._readers.fetch(query, values)
        except sqlite3.Error as error:
            self._fail("cannot read", error)
        except UnicodeEncodeError:
            return []  # no database contains such a text

    def size(self) -> int:
        """Return the size of the file and of its write-ahead log, in bytes."""
        return file_size(self.path) + file_size(self._get_sidecar_path("-wal"))

    def close(self) -> None:
        """Close the file; the last one to close it copies the rest of its write-ahead log into it."""
        if self._is_attempt:
            raise Postponed
        with self._writing:
            was, self._closed = self._closed, True
        if not was:
            self._wal.close()
            self._readers.close()
            self._give_up()
            if not (self.read_only or self._get_sidecar_path("-wal").exists()):
                self._wal.noted.remove()


@cache
def _rewrite_for_one(query: str, columns: str) -> str:
    """Return the query with one given row."""
    return query.format(given=f"(select {', '.join(f'? as {name}' for name in columns.split(', '))}) as given")


def _set_wal_mode(connection: sqlite3.Connection) -> None:
    """Set the WAL mode. SQLite waits for no lock while it changes it, so two that open a new file at once wait here."""
    for pause in (0.01, 0.05, 0.2, 0.5, 1.0, 0.0):
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not pause:
                raise
            time.sleep(pause)


def _make_lineage() -> str:
    return secrets.token_hex(8)


_END = """
select edits, (select coalesce(max(seq), 0) from records), (select coalesce(max(no), 0) from mail) from lineage
"""
_LOST = (
    "The write-ahead log of the file was damaged, cut or removed, or an older copy has replaced the file. Put the log "
    "back."
)
_EXPLAINED = (
    "this is an older copy of the loom, or the machine was started again: only ?durability=power survives a power cut"
)
_RIGHTS = ". Open it read-only to read it; to write, let this process write to the file and to its folder"
_KINDS = {sqlite3.SQLITE_READONLY: ReadOnlyLoom, sqlite3.SQLITE_BUSY: Locked}
_ADVICE = {
    sqlite3.SQLITE_FULL: ". Make room on that disk; nothing that was acknowledged is lost; recording continues then",
    sqlite3.SQLITE_READONLY: _RIGHTS,
    sqlite3.SQLITE_BUSY: f". Another process has been writing for {PATIENCE:g} s, or was stopped while it did",
    sqlite3.SQLITE_LOCKED: ". Another connection holds it",
    sqlite3.SQLITE_NOTADB: ". Give the path of another file, or restore this one from a copy",
    sqlite3.SQLITE_IOERR: ". The disk is failing or full: what was acknowledged before should be copied elsewhere",
    sqlite3.SQLITE_CANTOPEN: ". There is no such loom, or permission is missing for it or its folder",
}
