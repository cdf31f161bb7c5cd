"""The SQLite store under kills, full disks, other writers, other files and a growing log."""

import os
import re
import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.loom import SqliteStore, open_store
from cantrip_actors.loom.sqlite import sqlite
from cantrip_actors.loom.sqlite import write_ahead as checkpoint
from cantrip_actors.loom.tables import schema
from cantrip_actors.loom.tables.schema import VERSION
from cantrip_actors.machine.project import Life
from cantrip_actors.records.codec import encode
from cantrip_actors.records.records import Ended, IntentGiven
from cantrip_actors.terms.errors import LoomError, ReadOnlyLoom
from tests.loom.histories import AT, header, histories, run, turn
from tests.loom.processes import python
from tests.loom.statements import trace_reads
from tests.loom.test_jsonl import file_size_limit
from tests.loom.test_store import anywhere, assert_holds, examples

OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "loom.db"


@pytest.fixture
def store(path):
    with SqliteStore(path) as opened:
        yield opened


def held(path):
    """Return every record in the file, as the next process reads it."""
    with open_store(path, read_only=True) as store:
        return [record for head in store.headers() for record in store.records(head.entity_id)]


def wal_size(path):
    return path.with_name("loom.db-wal").stat().st_size


def plain(path):
    """The file as SQLite's own shell opens it."""
    return closing(sqlite3.connect(path, isolation_level=None))


# -------------------------------------------------------------------------------------------------------------- writing


def test_a_batch_is_one_transaction(path, store):
    store.append([*run("e", "t1"), *run("f", "t2")])
    with plain(path) as other:
        assert other.execute("select count(*), max(seq) from records").fetchone() == (12, 12)


def test_a_loom_can_be_queried_with_sql(path, store):
    store.append(run("e", "t1"))
    with plain(path) as other:
        rows = other.execute("select seq, entity, kind, turn from log").fetchall()
    assert rows[0] == (1, "e", "header", None)
    assert rows[-1] == (6, "e", "turn", "t1")


def test_an_id_that_a_database_cannot_store_is_refused(store):
    with pytest.raises(LoomError, match="not a text that a database can store"):
        store.append([header("half \ud83d")])
    assert store.header("half \ud83d") is None
    store.append(run("e"))


@pytest.mark.parametrize("durability", ["process", "power", "none"])
def test_durability_sets_how_sqlite_synchronises(path, durability):
    with SqliteStore(path, durability=durability) as store:
        (level,) = store._writer.execute("pragma synchronous").fetchone()
        assert level == {"none": 0, "process": 1, "power": 2}[durability]


def test_the_index_of_unfinished_entities_uses_the_number_of_ended_ones():
    assert f"life < {Life.OVER:d}" in schema.write_statements(0, sqlite._TYPES)


# ------------------------------------------------------------------------------------------------------------- failures


@pytest.mark.rule("LOOM-1")
def test_a_full_disk_records_nothing_and_appends_work_again_with_room(path, store):
    store.append(run("e", "t1", ends=False))
    (pages,) = store._writer.execute("pragma page_count").fetchone()
    store._writer.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(LoomError, match=r"database or disk is full\. Make room on that disk; nothing that was ack"):
        store.append(turn("e", "t2", "t1", 2, text="x" * 50_000))
    assert store.owner("t2") is None
    assert list(store.records("e")) == run("e", "t1", ends=False)
    store._writer.execute("pragma max_page_count = 1000000")
    store.append(turn("e", "t2", "t1", 2))
    assert held(path) == [*run("e", "t1", ends=False), *turn("e", "t2", "t1", 2)]


@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize("room", [0, 100, 5000, 20_000])
def test_a_file_size_limit_in_the_middle_of_a_batch_records_nothing(path, store, room):
    store.append(run("e", "t1"))
    batch = [*run("f", "t2"), Ended("f", "failed", AT, "x" * 100_000)]
    with file_size_limit(wal_size(path) + room), pytest.raises(LoomError, match=r"loom\.db: disk I/O error\. The disk"):
        store.append(batch)
    assert store.header("f") is None
    store.append(batch)
    assert held(path) == [*run("e", "t1"), *batch]
    with plain(path) as other:
        assert other.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_a_read_only_file_is_an_error_that_says_so(store):
    store.append(run("e", "t1"))
    store._writer.execute("pragma query_only = 1")
    with pytest.raises(ReadOnlyLoom, match=r"readonly database.*Open it read-only to read it; to write, let this"):
        store.append(run("f"))
    store._writer.execute("pragma query_only = 0")
    store.append(run("f"))


def test_waiting_for_a_writer_that_never_releases_its_lock_ends(path, monkeypatch):
    monkeypatch.setattr(sqlite, "PATIENCE", 0.05)
    with SqliteStore(path) as store, plain(path) as other:
        store.append(run("e", "t1"))
        other.execute("begin immediate")
        with pytest.raises(LoomError, match=r"database is locked.*Another process has been writing for"):
            store.append(run("f"))
        assert list(store.records("e")) == run("e", "t1")  # readers do not wait
        other.execute("rollback")
        store.append(run("f"))


def test_a_connection_that_broke_is_replaced(path, store):
    store.append(run("e", "t1"))
    store._writer.close()
    with pytest.raises(LoomError, match="cannot write to"):
        store.append(run("f"))
    store.append(run("f"))
    assert held(path) == [*run("e", "t1"), *run("f")]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_is_not_a_database_is_refused(path, read_only):
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(LoomError, match=r"file is not a database\. Give the path of another file"):
        open_store(path, read_only=read_only)
    assert path.read_bytes() == b"garbage" * 1000


@pytest.mark.rule("X-14")
@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="it reads the list of open files in /proc")
@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_is_refused_is_closed(path, read_only):
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(LoomError) as refused:
        open_store(path, read_only=read_only)
    open_files = [file.readlink() for file in OPEN_FILES.iterdir() if file.is_symlink()]
    assert path not in open_files, refused  # whose traceback keeps the frames


@pytest.mark.parametrize("read_only", [True, False])
def test_a_database_that_is_not_a_loom_is_refused(path, read_only):
    with plain(path) as other:
        other.execute("create table mine (x)")
    before = path.read_bytes()
    with pytest.raises(LoomError, match="is an SQLite database, but not a loom"):
        open_store(path, read_only=read_only)
    assert path.read_bytes() == before


def test_reading_a_file_whose_maker_was_killed_says_that_it_has_no_tables_yet(path):
    path.touch()
    with pytest.raises(LoomError, match="has no tables yet: a process that makes the loom is at work, or was killed"):
        open_store(path, read_only=True)
    open_store(path).close()
    open_store(path, read_only=True).close()


class Overtaken:
    """A connection that is slow: after its first statement about the file, another process has made a loom of it."""

    def __init__(self, connection, make_loom):
        self._connection, self._make_loom = connection, make_loom

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, statement, *values):
        rows = self._connection.execute(statement, *values)
        if "application_id" not in statement or self._make_loom is None:
            return rows
        kept, make_loom, self._make_loom = rows.fetchall(), self._make_loom, None
        make_loom()
        return self._connection.execute(f"values {kept[0]}")


@pytest.mark.rule("Y-03")
def test_a_new_file_that_another_process_makes_a_loom_meanwhile_is_opened(path, monkeypatch):
    connect = SqliteStore._connect

    def make_loom():
        monkeypatch.setattr(SqliteStore, "_connect", connect)
        with SqliteStore(path) as other:
            other.append(run("e", "t1"))

    monkeypatch.setattr(SqliteStore, "_connect", lambda *args, **more: Overtaken(connect(*args, **more), make_loom))
    with SqliteStore(path) as store:
        assert store.header("e") == header("e")


@pytest.mark.parametrize("read_only", [True, False])
def test_a_folder_is_refused_as_a_loom(tmp_path, read_only):
    with pytest.raises(LoomError, match="is not a regular file: a loom needs one"):
        open_store(f"sqlite:{tmp_path}", read_only=read_only)


@pytest.mark.parametrize("read_only", [True, False])
def test_tables_that_only_a_later_version_can_use_are_refused(path, read_only):
    SqliteStore(path).close()
    with plain(path) as other:
        other.execute(f"pragma user_version = {VERSION + 1}")
        other.execute(f"update version set readable_by = {VERSION + 1}")
    with pytest.raises(
        LoomError, match=f"has tables of version {VERSION + 1}, this version knows up to {VERSION}: use a newer"
    ):
        open_store(path, read_only=read_only)


def test_a_record_of_a_later_version_does_not_count_as_damage(path):
    with SqliteStore(path) as store:
        store.append(run("e", "t1"))
    with plain(path) as other:
        other.execute("""update records set body = replace(body, '"schema":1', '"schema":2')""")
    with (
        open_store(path) as store,
        pytest.raises(LoomError, match=r"loom\.db: record 1 is of schema 2, .* use a newer"),
    ):
        store.records("e")


def test_an_overwritten_page_is_an_error(path):
    with SqliteStore(path):
        pass
    empty = path.stat().st_size
    with SqliteStore(path) as store:
        for number in range(50):
            store.append(run(f"e{number}", f"t{number}"))
    data = bytearray(path.read_bytes())
    data[empty:] = b"\xaa" * (len(data) - empty)  # what lies before has the names of tables
    path.write_bytes(data)
    with open_store(path, read_only=True) as store, pytest.raises(LoomError, match=r"malformed|corrupt"):
        [store.records(f"e{number}") for number in range(50)]


def test_a_line_that_is_not_a_record_is_named_when_it_is_read(path):
    with SqliteStore(path) as store:
        store.append(run("e", "t1"))
    with plain(path) as other:
        other.execute("update records set body = '{\"kind\":' where seq = 4")
        other.execute("update records set body = ? where seq = 1", (encode_line(IntentGiven("e", "hm", AT)),))
    with open_store(path, read_only=True) as store:
        with pytest.raises(LoomError, match=r"loom\.db: record 4 is corrupt: .* is not a record of a loom"):
            store.records("e")
        with pytest.raises(LoomError, match="record 1 is corrupt: the first record of an entity is not a header"):
            store.header("e")


def encode_line(record):
    return encode(record).decode()


# -------------------------------------------------------------------------------------------------------- other writers


@pytest.mark.rule("LOOM-1")
@examples("sqlite")
@given(history=histories(), who=st.lists(st.booleans(), min_size=30, max_size=30))
def test_two_writers_of_one_file_see_each_others_records(history, who):
    with anywhere("sqlite") as place, place.open() as one, place.open() as other:
        for batch, first in zip(history.batches, who, strict=False):
            (one if first else other).append(batch)
        assert_holds(one, history)
        assert_holds(other, history)


MANY = """
import sys
from cantrip_actors.loom import open_store
from tests.loom.histories import run
with open_store(sys.argv[1]) as store:
    for number in range(100):
        store.append(run(f"{sys.argv[2]}{number}", f"{sys.argv[2]}t{number}"))
"""


def test_processes_that_open_a_new_file_at_once_all_write_to_it(path):
    with ExitStack() as running:
        writers = [running.enter_context(python(MANY, path, name)) for name in "abcd"]
        assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    with open_store(path, read_only=True) as store:
        assert len(list(store.headers())) == 400
        assert all(store.owner(f"{name}t{number}") == f"{name}{number}" for name in "abcd" for number in range(100))


def test_threads_may_read_while_another_one_writes(store):
    store.append([header("e")])
    wrong, done = [], threading.Event()

    def read():
        while not done.is_set():
            records = store.records("e")
            if (len(records) - 1) % 4:
                wrong.append(len(records))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    parent = None
    for number in range(200):
        store.append(turn("e", f"t{number}", parent, number + 1))
        parent = f"t{number}"
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_a_loom_can_be_read_in_a_folder_without_write_permission(path, monkeypatch):
    with SqliteStore(path) as store:
        store.append(run("e", "t1"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert held(path) == run("e", "t1")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.rule("X-14")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_opening_for_writing_without_write_permission_says_what_to_do_and_changes_nothing(path, monkeypatch, what):
    with SqliteStore(path) as store:
        store.append(run("e", "t1"))
    path.chmod(0o444)
    locked = path if what == "file" else path.parent
    monkeypatch.setattr(os, "access", lambda place, _: place != locked)
    with pytest.raises(ReadOnlyLoom, match=rf"may not write to {locked}\. Open it read-only to read it; to write, let"):
        SqliteStore(path)
    assert (list(path.parent.iterdir()), path.stat().st_mode & 0o777) == ([path], 0o444)
    assert held(path) == run("e", "t1")


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_the_write_ahead_log_stays_small_under_continuous_writes(path, monkeypatch):
    monkeypatch.setattr(checkpoint, "DUE", 1 << 20)
    monkeypatch.setattr(checkpoint, "LARGE", 500)
    with SqliteStore(path) as store:
        store.append([header("e")])
        largest, parent = 0, None
        for number in range(1500):
            store.append(turn("e", f"t{number}", parent, number + 1, text="x" * 2000))
            parent = f"t{number}"
            largest = max(largest, wal_size(path))
    assert largest < 20 << 20  # some 40 MB were written to it
    assert len(held(path)) == 1 + 4 * 1500


def test_a_failed_wal_checkpoint_loses_nothing(path, store, monkeypatch):
    monkeypatch.setattr(checkpoint, "DUE", 1)

    def broken():
        raise sqlite3.OperationalError("disk I/O error")

    store._wal._connect = broken
    store.append(run("e", "t1"))
    assert list(store.records("e")) == run("e", "t1")


@pytest.mark.rule("LOOM-1")
def test_a_full_disk_makes_room_in_the_write_ahead_log(path, store):
    store.append(run("e", "t1", ends=False))
    store.append(turn("e", "t2", "t1", 2, text="x" * 500_000))
    (pages,) = store._writer.execute("pragma page_count").fetchone()
    store._writer.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(LoomError, match="full"):
        store.append(turn("e", "t3", "t2", 3, text="x" * 500_000))
    store._wal.close()  # waits for the checkpoint
    store._writer.execute("pragma max_page_count = 1000000")
    before = wal_size(path)
    store.append(turn("e", "t3", "t2", 3, text="x" * 300_000))
    assert wal_size(path) == before


@pytest.mark.rule("LOOM-1")
def test_a_wal_checkpoint_that_failed_is_made_at_the_next_commit(path, store, monkeypatch):
    connect = store._wal._connect
    store._wal._connect = lambda: sqlite3.connect("file:/no/such/folder", uri=True)
    store.append(run("e", "t1", ends=False))
    monkeypatch.setattr(checkpoint, "DUE", 100_000)
    store.append(turn("e", "t2", "t1", 2, text="x" * 100_000))
    store._wal.close()
    store._wal._connect = connect
    size = path.stat().st_size
    store.append(turn("e", "t3", "t2", 3))
    store._wal.close()
    assert path.stat().st_size > size


def test_closing_leaves_only_the_database_file(path):
    with SqliteStore(path) as store:
        store.append(run("e", "t1"))
    assert list(path.parent.iterdir()) == [path]


# -------------------------------------------------------------------------------------------------------------- queries


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.records("e"),
        lambda store: store.header("e"),
        lambda store: store.owner("t1"),
        lambda store: store.children("t1"),
        lambda store: store.forks("t1"),
        lambda store: store.below("e"),
        lambda store: store.branches("e"),
        lambda store: store.named("notes"),
        lambda store: store.unfinished(),
        lambda store: store.unfinished(idle=False),
        lambda store: store.pending("e"),
        lambda store: store.waiting(),
        lambda store: store.find_mail("e", "k"),
    ],
)
def test_no_query_scans_a_whole_table(path, store, ask):
    asked = []
    trace_reads(store, asked.append)
    ask(store)
    (query,) = asked
    with plain(path) as other:
        plans = [row[3] for row in other.execute(f"explain query plan {query}")]
    assert not [step for step in plans if re.match(r"SCAN (?!.*USING (COVERING )?INDEX (unfinished|inboxes))", step)], (
        plans
    )


def test_a_large_loom_opens_at_once(path):
    with SqliteStore(path) as store:
        store.append([record for number in range(3000) for record in run(f"e{number}", f"t{number}")])
    began = time.process_time()
    with SqliteStore(path) as store:
        assert store.header("e2999") is not None
    assert time.process_time() - began < 0.5
