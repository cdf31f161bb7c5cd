"""Attempts (`Store.attempt`) wait for nothing, read little, and change nothing if they are postponed."""

import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from functools import partial

import pytest

from cantrip_actors.loom import SqliteStore, open_store
from cantrip_actors.loom.sqlite import sqlite
from cantrip_actors.loom.sqlite.sqlite_connections import STATEMENT
from cantrip_actors.loom.stores.read_budget import BUDGET
from cantrip_actors.loom.stores.store import Postponed
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import IntentGiven, Steered
from tests.loom.histories import AT, header, run, turn

pytestmark = pytest.mark.rule("K-30")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "loom.db"


@pytest.fixture
def store(path):
    with SqliteStore(path) as opened:
        opened.append(run("e", "t1", ends=False))
        yield opened


@contextmanager
def locked(path):
    """Hold the write lock of the file, as another process does."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    try:
        yield other
    finally:
        other.close()


def test_an_attempt_to_append_is_postponed_while_another_process_writes(path, store):
    with locked(path), pytest.raises(Postponed):
        store.attempt(partial(store.append, run("f", "t2")))
    assert store.header("f") is None
    store.append(run("f", "t2"))


def test_an_append_waits_for_another_process_that_writes(path, store):
    with locked(path) as other:
        thread = threading.Thread(target=store.append, args=(run("f", "t2"),))
        thread.start()
        time.sleep(0.2)
        assert thread.is_alive()
        other.execute("rollback")
        thread.join()
    assert store.header("f") is not None


def test_an_attempt_to_append_is_postponed_while_a_thread_writes(store):
    with store._writing, pytest.raises(Postponed):
        store.attempt(partial(store.append, run("f", "t2")))
    store.attempt(partial(store.append, run("f", "t2")))


def test_an_attempt_to_post_is_postponed_like_an_append(path, store):
    mail = Mail(entity_id="e", key="k", kind="intent", body={"intent": "go"}, sender="", at=AT)
    with locked(path), pytest.raises(Postponed):
        store.attempt(partial(store.post, [mail]))
    assert store.find_mail("e", "k") is None


def test_an_attempt_reads_while_another_process_writes(path, store):
    with locked(path):
        assert store.attempt(partial(store.header, "e")) == run("e")[0]


def test_an_attempt_to_look_for_mail_is_postponed_while_a_thread_writes(store):
    with store._writing, pytest.raises(Postponed):
        store.attempt(partial(store.new_mail, 0))


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
def any_store(request, tmp_path):
    names = {"memory": "memory:", "jsonl": f"jsonl:{tmp_path}/loom.jsonl", "sqlite": f"sqlite:{tmp_path}/loom.db"}
    with open_store(names[request.param]) as opened:
        opened.append(run("e", "t1", ends=False))
        yield opened


def test_an_attempt_to_read_a_long_log_is_postponed(any_store):
    store = any_store
    store.append([Steered("e", f"{n}", AT) for n in range(BUDGET)])
    with pytest.raises(Postponed):
        store.attempt(partial(store.records, "e"))
    assert len(store.records("e")) > BUDGET
    assert len(store.attempt(partial(store.newest, "e", 10))) == 10


def test_an_attempt_to_check_a_long_chain_is_postponed(any_store):
    any_store.append([Steered("e", f"{n}", AT) for n in range(BUDGET)])
    if any_store.sealed:
        with pytest.raises(Postponed):
            any_store.attempt(partial(any_store.check_chain, "e"))
    any_store.check_chain("e")


def test_an_attempt_to_read_a_large_record_is_postponed(any_store):
    any_store.append([Steered("e", "x" * 2_000_000, AT)])
    with pytest.raises(Postponed):
        any_store.attempt(partial(any_store.newest, "e", 1))
    assert len(any_store.newest("e", 1)) == 1


def test_an_attempt_to_read_often_is_postponed(store):
    def read_often():
        for _ in range(BUDGET // STATEMENT + 1):
            store.life("e")

    with pytest.raises(Postponed):
        store.attempt(read_often)
    store.attempt(partial(store.life, "e"))


def test_an_attempt_with_a_statement_that_looks_at_much_is_postponed(store):
    store.append([Steered("e", f"{n}", AT) for n in range(10_000)])
    count = "select count(*) from records where body like '%nothing%'"
    with pytest.raises(Postponed):
        store.attempt(partial(store._fetch_rows, count))
    assert store._fetch_rows(count) == [(0,)]


def test_an_attempt_to_write_much_to_a_file_is_postponed(any_store):
    large = [header("f"), IntentGiven("f", "x" * 2_000_000, AT)]
    if any_store.where != "memory:":
        with pytest.raises(Postponed):
            any_store.attempt(partial(any_store.append, large))
        assert any_store.header("f") is None
    any_store.append(large)
    assert any_store.header("f") is not None


def test_attempts_are_postponed_while_the_write_ahead_log_is_copied(store, monkeypatch):
    connect, may_go_on = store._wal._connect, threading.Event()

    def connect_late():
        may_go_on.wait()
        return connect()

    monkeypatch.setattr(store._wal, "_connect", connect_late)
    store._wal.note_full_disk()
    with pytest.raises(Postponed):
        store.attempt(partial(store.life, "e"))
    may_go_on.set()
    store._wal.close()
    store.attempt(partial(store.life, "e"))


def test_attempts_are_postponed_once_the_store_is_closed(store):
    store.close()
    with pytest.raises(Postponed):
        store.attempt(partial(store.life, "e"))
    assert store.life("e") is not None


def test_an_attempt_after_one_that_was_postponed_has_a_budget_of_its_own(store):
    store.append([Steered("e", f"{n}", AT) for n in range(BUDGET)])
    for _ in range(3):
        with pytest.raises(Postponed):
            store.attempt(partial(store.records, "e"))
        store.attempt(partial(store.newest, "e", BUDGET // 2))


def test_a_postponed_append_takes_the_same_numbers_again(store):
    before = store.tip("e").position
    with store._writing, pytest.raises(Postponed):
        store.attempt(partial(store.append, turn("e", "t2", "t1", 2)))
    store.append(turn("e", "t2", "t1", 2))
    assert store.tip("e").position == before + len(turn("e", "t2", "t1", 2))


def test_a_long_read_of_one_thread_delays_no_other_reader(store):
    reading, may_end = threading.Event(), threading.Event()

    def wait_inside():
        with store.snapshot():
            assert store.life("f") is None
            reading.set()
            may_end.wait()
            assert store.life("f") is None  # it sees one state

    thread = threading.Thread(target=wait_inside)
    thread.start()
    reading.wait()
    store.append(run("f", "t2"))
    assert store.life("f") is not None
    may_end.set()
    thread.join()


def test_the_log_is_emptied_although_another_connection_copies_it_meanwhile(path, store):
    stop = threading.Event()

    def copy():
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            while not stop.is_set():
                other.execute("pragma wal_checkpoint(passive)").fetchone()

    threads = [threading.Thread(target=copy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            store.scrub()
            assert path.with_name(f"{path.name}-wal").stat().st_size == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_waiting_for_readers_ends_soon_when_the_log_is_emptied(path, store, monkeypatch):
    monkeypatch.setattr(sqlite, "READERS_PATIENCE", 0.05)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("begin")
    reader.execute("select count(*) from records").fetchone()
    with pytest.raises(sqlite.LoomError, match="still in the write-ahead log"):
        store.scrub()
    reader.close()
    store.scrub()
