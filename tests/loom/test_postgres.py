"""The Postgres store under lost connections, other writers, other tables and a missing server."""

import os
import select
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from urllib.parse import quote

import psycopg
import pytest

from cantrip_actors.loom import Held, Mail, open_store, this_process, verify_loom
from cantrip_actors.loom.postgres import postgres
from cantrip_actors.loom.postgres.postgres import PostgresStore
from cantrip_actors.loom.tables.schema import VERSION
from cantrip_actors.records.records import Ended, IntentGiven, Rewarded
from cantrip_actors.terms.errors import LoomError
from tests.loom import postgres as servers
from tests.loom.histories import AT, header, run, turn
from tests.loom.processes import child, python
from tests.loom.test_store import anywhere
from tests.loom.test_verify import FAMILY


@pytest.fixture
def place():
    with anywhere("postgres") as fresh:
        yield fresh


@pytest.fixture
def store(place):
    with place.open() as opened:
        yield opened


@pytest.fixture
def other(place):
    """Return another connection to the same tables."""
    with psycopg.connect(servers.server(), autocommit=True) as connection:
        connection.execute(f"set search_path to {place.url.rpartition('=')[2]}")
        yield connection


def cut(connection):
    """Lose a connection, as a network or a restarted server does."""
    pid = connection.info.backend_pid
    with psycopg.connect(servers.server(), autocommit=True) as admin:
        admin.execute("select pg_terminate_backend(%s, 5000)", (pid,))


# --------------------------------------------------------------------------------------------------------- round trips


class Wire:
    """A proxy before the server that counts how often a client speaks after the server has answered."""

    def __init__(self, folder):
        self.trips = 0
        self._server = str(servers.running().folder / ".s.PGSQL.5432")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        with suppress(OSError):  # it is closed
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._forward, args=(client,)))
                self._threads[-1].start()

    def _forward(self, client):
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            last = server
            while True:
                for one in select.select([client, server], [], [])[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    self.trips += one is client and last is server
                    last = one
                    (server if one is client else client).sendall(data)

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def wire(tmp_path):
    wire = Wire(tmp_path)
    yield wire
    wire.close()


@pytest.mark.rule("LOOM-1")
def test_an_append_waits_twice_for_the_server(place, wire, tmp_path):
    folder = quote(str(servers.running().folder), safe="")
    assert folder in place.url
    with open_store(place.url.replace(folder, quote(str(tmp_path), safe=""))) as store:
        lease = store.claim("e", "me", 60)
        store.append(run("e", "t1", ends=False), {"e": lease.token})
        before = wire.trips
        store.append(turn("e", "t2", parent="t1", number=2), {"e": lease.token})
        assert wire.trips - before == 2


# ----------------------------------------------------------------------------------------------------- lost connections


@pytest.mark.rule("LOOM-1")
def test_a_connection_that_was_lost_between_two_appends_is_not_noticed(store):
    store.append(run("e", "t1", ends=False))
    cut(store._writer.connection)
    store.append(turn("e", "t2", "t1", 2))
    cut(store._reader.connection)
    assert len(store.records("e")) == 10


@pytest.mark.rule("LOOM-1")
def test_a_server_that_was_restarted_has_lost_nothing(store):
    store.append(run("e", "t1", ends=False))
    servers.restart()
    store.append(turn("e", "t2", "t1", 2))
    assert list(store.records("e")) == [*run("e", "t1", ends=False), *turn("e", "t2", "t1", 2)]
    assert verify_loom(store).ok


def test_a_batch_whose_connection_is_lost_before_its_end_is_written_again_as_a_whole(store, monkeypatch):
    store.append(run("e", "t1", ends=False))
    write, lost = store._write, []

    def lossy(db, *rows):
        write(db, *rows)
        if not lost:
            lost.append(cut(db.connection))
            db.execute("select 1")

    monkeypatch.setattr(store, "_write", lossy)
    store.append(turn("e", "t2", "t1", 2))
    assert lost == [None]
    assert len(store.records("e")) == 10
    assert verify_loom(store).ok


def test_a_connection_that_is_lost_while_it_commits_is_an_error_that_says_so(store, monkeypatch):
    store.append(run("e", "t1", ends=False))
    write = store._write
    monkeypatch.setattr(store, "_write", lambda db, *rows: (write(db, *rows), cut(db.connection)))
    with pytest.raises(LoomError, match="it may be recorded or not, read it again"):
        store.append(turn("e", "t2", "t1", 2))
    monkeypatch.undo()
    assert len(store.records("e")) == 6
    store.append(turn("e", "t2", "t1", 2))


@pytest.mark.rule("N-74")
def test_server_timeouts_do_not_cancel_appends(place, other):
    with open_store(f"{place.url}&options=-cstatement_timeout%3D100") as store:
        store.append(run("e", "t1", ends=False))
        assert store._reader.connection.execute("show statement_timeout").fetchone() == ("100ms",)
        with ThreadPoolExecutor() as pool:
            with other.transaction():
                other.execute("select 1 from trees for update")
                recorded = pool.submit(store.append, turn("e", "t2", "t1", 2))
                time.sleep(0.3)
                assert not recorded.done()
            recorded.result()
        assert len(store.records("e")) == 10


@pytest.mark.rule("N-74", "N-04")
def test_server_timeouts_do_not_cancel_renewals_of_leases(place, other):
    with open_store(f"{place.url}&options=-cstatement_timeout%3D100") as store:
        store.claim("e", owner := this_process(), ttl=60)
        with ThreadPoolExecutor() as pool:
            with other.transaction():
                other.execute("select 1 from holders for update")
                renewed = pool.submit(store.renew, owner, 60)
                time.sleep(0.3)
                assert not renewed.done()
            renewed.result()


@pytest.mark.rule("N-74")
def test_appends_after_a_vacuum_that_connected_again_are_not_cancelled_by_server_timeouts(place):
    with open_store(f"{place.url}&options=-cstatement_timeout%3D100") as store:
        store.append(run("e", "t1", ends=False))
        cut(store._writer.connection)
        store.scrub()
        store.append(turn("e", "t2", "t1", 2))
        assert store._writer.connection.execute("show statement_timeout").fetchone() == ("0",)


@pytest.mark.rule("LOOM-1")
def test_a_connection_that_hangs_in_the_middle_of_a_pipeline_is_given_up_for_another(store, monkeypatch):
    """As after a kill of the server at that moment: the client never gets an error (found by killing)."""

    def hanging(db, *_rows):
        db.connection.pgconn.enter_pipeline_mode()
        db.connection.pgconn.send_query_params(b"select 1", None)
        monkeypatch.undo()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    store.append(run("e", "t1", ends=False))
    monkeypatch.setattr(store, "_write", hanging)
    store.append(turn("e", "t2", "t1", 2))
    assert len(store.records("e")) == 10
    store._reader.connection.pgconn.enter_pipeline_mode()
    assert len(store.records("e")) == 10
    assert verify_loom(store).ok


def test_an_unreachable_server_is_an_error_until_it_is_back(store, monkeypatch):
    store.append(run("e", "t1", ends=False))
    there = store._url
    monkeypatch.setattr(store, "_url", "postgresql:///postgres?host=/nowhere")
    cut(store._writer.connection)
    cut(store._reader.connection)
    with pytest.raises(LoomError, match=r"^cannot reach postgresql database .*No such file"):
        store.append(turn("e", "t2", "t1", 2))
    with pytest.raises(LoomError, match=r"^cannot reach"):
        store.records("e")
    monkeypatch.setattr(store, "_url", there)
    store.append(turn("e", "t2", "t1", 2))
    assert len(store.records("e")) == 10


# ------------------------------------------------------------------------------------------------------------- refusals


def test_a_database_that_cannot_be_reached_is_an_error():
    with pytest.raises(
        LoomError, match=r"^cannot reach postgresql database nothing at /nowhere: .* No such file or directory"
    ):
        open_store("postgresql://me:secret@/nothing?host=/nowhere")


def test_no_error_message_has_the_password():
    with pytest.raises(LoomError) as caught:
        open_store("postgresql://me:secret@/nothing?host=/nowhere")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://[host/x", "postgresql:///x?nonsense=1"])
def test_an_invalid_address_is_refused(url):
    with pytest.raises(LoomError, match="not an address of a Postgres database"):
        open_store(url)


def test_options_of_libpq_may_have_spaces(place):
    with open_store(f"{place.url}&options=-c%20work_mem%3D7MB") as store:
        store.append(run("e"))
        assert store._writer.connection.execute("show work_mem").fetchone() == ("7MB",)


def test_options_of_the_store_are_not_passed_to_libpq():
    with pytest.raises(LoomError, match='unknown durability "powr": did you mean "power"'):
        open_store("postgresql:///x?durability=powr")


def test_reading_creates_no_tables(other):
    with pytest.raises(LoomError, match="holds no loom"):
        open_store(servers.fresh(), read_only=True)


def test_a_read_only_store_accepts_no_records(place, store):
    store.append(run("e", "t1"))
    with open_store(place.url, read_only=True) as reader:
        assert len(reader.records("e")) == 6
        with pytest.raises(LoomError, match="was opened read-only"):
            reader.append(run("f"))


def test_tables_that_only_a_later_version_can_use_are_refused(place, store, other):
    other.execute(f"update version set version = {VERSION + 1}, readable_by = {VERSION + 1}")
    with pytest.raises(
        LoomError, match=f"has tables of version {VERSION + 1}, this version knows up to {VERSION}: use a newer"
    ):
        place.open()


def test_a_read_only_server_is_an_error_that_says_so(store):
    store.append(run("e", "t1"))
    store._writer.connection.execute("set default_transaction_read_only = on")
    with pytest.raises(LoomError, match=r"The server takes no writes now: it is a standby, or was set read-only"):
        store.append(run("f"))
    store._writer.connection.execute("set default_transaction_read_only = off")
    store.append(run("f"))


@pytest.mark.parametrize("entity", ["half \ud83d", "nul \0"])
def test_an_id_that_a_database_cannot_store_is_refused(store, entity):
    with pytest.raises(LoomError, match="not a text that a database can store"):
        store.append([header(entity)])
    store.append(run("e"))


def test_a_missing_psycopg_is_named_with_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cantrip_actors.loom.postgres.postgres", None)
    with pytest.raises(LoomError, match=r"install cantrip-actors\[postgres\]"):
        open_store("postgresql:///x")


def test_durability_none_does_not_wait_for_the_servers_disk(place):
    with open_store(f"{place.url}&durability=none") as store:
        assert store._writer.connection is None
        store.append(run("e"))
        assert store._writer.connection.execute("show synchronous_commit").fetchone() == ("off",)


# -------------------------------------------------------------------------------------------------------- other writers


MANY = """
import sys
from cantrip_actors.loom import open_store
from tests.loom.histories import run
with open_store(sys.argv[1]) as store:
    for number in range(50):
        store.append(run(f"{sys.argv[2]}{number}", f"{sys.argv[2]}t{number}"))
"""


def test_processes_that_open_a_new_loom_at_once_all_write_to_it(place):
    with ExitStack() as running:
        writers = [running.enter_context(python(MANY, place.url, name)) for name in "abcd"]
        assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    with open_store(place.url, read_only=True) as store:
        assert len(list(store.headers())) == 200
        assert verify_loom(store).ok


def test_two_writers_of_one_entity_take_turns(place):
    with place.open() as one, place.open() as two:
        one.append([header("e")])

        def write(store):
            for number in range(30):
                store.append([IntentGiven("e", f"{number}", AT)])

        threads = [threading.Thread(target=write, args=(store,)) for store in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(one.records("e")) == 61
        assert verify_loom(one).ok


def test_an_entity_that_two_processes_begin_at_once_begins_once(place, monkeypatch):
    with place.open() as one, place.open() as two:
        write = one._write

        def after_the_other(db, *rows):
            two.append([header("e")])
            write(db, *rows)

        monkeypatch.setattr(one, "_write", after_the_other)
        with pytest.raises(LoomError, match="loom is append-only: entity e has begun already"):
            one.append([header("e")])


FROZEN = """
import os, signal, sys
from cantrip_actors.loom import open_store
from cantrip_actors.terms.errors import LoomError
from tests.loom.histories import turn

def frozen(db, *rows):
    {before}
    os.kill(os.getpid(), signal.SIGSTOP)
    {after}

with open_store(sys.argv[1]) as store:
    write, store._write = store._write, frozen
    lease = store.claim("e", "first", 2.0)
    print(flush=True)
    try:
        store.append(turn("e", "t2", "t1", 2), {{"e": lease.token}})
    except LoomError as error:
        print(type(error).__name__)
"""


@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        pytest.param("pass", "write(db, *rows)", "Fenced", id="before it writes"),
        pytest.param(
            "pipe = db.connection.pipeline(); pipe.__enter__(); db.execute('select 1'); "
            "db.connection.pgconn.send_flush_request(); db.connection.pgconn.flush()",
            "pipe.__exit__(None, None, None)",
            "Fenced",
            id="in a pipeline",
        ),
        pytest.param("write(db, *rows)", "pass", "Unsure", id="before it commits, and cannot know whether it has"),
    ],
)
def test_a_frozen_transaction_holds_its_tree_no_longer_than_its_lease(store, monkeypatch, before, after, refused):
    monkeypatch.setattr(postgres, "SILENCE", 0.2)
    store.append(run("e", "t1", ends=False))
    store.close()
    with child(FROZEN.format(before=before, after=after), f"{store._url}&schema={store.schema}") as first:
        first.stdout.readline()
        assert os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT).si_code == os.CLD_STOPPED
        with PostgresStore(store._url, schema=store.schema) as second:
            with pytest.raises(Held):
                second.claim("e", "second", 30)
            time.sleep(2.1)
            lease = second.claim("e", "second", 30)
            first.send_signal(signal.SIGCONT)
            assert first.communicate()[0].split() == [refused]
            second.append(turn("e", "t2", "t1", 2), {"e": lease.token})
            assert verify_loom(second).ok


@pytest.mark.rule("Z-10")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("pass", "write(db, *rows)", id="before it writes"),
        pytest.param("write(db, *rows)", "pass", id="in a pipeline"),
        pytest.param("os.write(db.connection.pgconn.socket, b'P\\0\\0\\1\\0half')", "pass", id="in a message"),
    ],
)
def test_senders_wait_for_a_frozen_transaction_and_get_no_error(store, monkeypatch, before, after):
    monkeypatch.setattr(postgres, "SILENCE", 0.2)
    monkeypatch.setattr(postgres, "TURN", 0.1)
    store.append(run("e", "t1", ends=False))
    store.close()
    with child(FROZEN.format(before=before, after=after), f"{store._url}&schema={store.schema}") as first:
        first.stdout.readline()
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        with PostgresStore(store._url, schema=store.schema) as sender:
            began = time.monotonic()
            (row,) = sender.post([Mail(entity_id="e", key="k", kind="intent", body={"intent": "go"}, at=AT)])
            assert (row.key, time.monotonic() - began < 3) == ("k", True)
        first.kill()


@pytest.mark.rule("Z-10")
def test_a_renewal_that_waits_for_a_lock_does_not_count_from_the_end_of_its_wait(store, other):
    store.claim("e", "us", 30)
    with other.transaction():
        other.execute("select from holders for update")
        renewal = threading.Thread(target=store.renew, args=["us", 30])
        renewal.start()
        time.sleep(0.6)
    renewal.join()
    ((lasts,),) = other.execute("select extract(epoch from until - clock_timestamp())::float8 from holders").fetchall()
    assert 25 < lasts < 29.5


@pytest.mark.rule("LOOM-1")
def test_reclaiming_an_own_lease_does_not_lose_it_to_a_concurrent_claim(store, other):
    store.claim("e", "first", 30)
    came = []

    def late():
        with pytest.raises(Held) as held:
            store.claim("e", "second", 30)
        came.append(held.value)

    rival = threading.Thread(target=late)
    with other.transaction():
        other.execute("delete from leases where entity = 'e'")
        other.execute("insert into leases (entity, holder) select 'e', no from holders where owner = 'first'")
        rival.start()
        while not other.execute("select from pg_locks where not granted").fetchall():
            time.sleep(0.01)
    rival.join()
    assert came


@pytest.mark.rule("N-73")
def test_an_entity_ahead_of_a_server_that_failed_over_records_nothing_from_memory(store, other):
    lease = store.claim("e", "us", 60)
    store.append(run("e", "t1", ends=False), {"e": lease.token})
    ((head,),) = other.execute("select head from trees").fetchall()
    ((last,),) = other.execute("select max(seq) from records").fetchall()
    store.append(turn("e", "t2", "t1", 2, terminated=True), {"e": lease.token})
    cut(store._writer.connection)  # and the next server does not have the last append
    other.execute("delete from records where seq > %s", (last,))
    other.execute("update trees set head = %s", (head,))
    intent = [IntentGiven("e", "the next one", AT)]
    with pytest.raises(LoomError, match="cannot continue from memory"):
        store.append(intent, {"e": lease.token})
    again = store.claim("e", "us", 60)  # it is read again
    store.append(turn("e", "t2", "t1", 2, terminated=True), {"e": again.token})
    store.append(intent, {"e": again.token})
    assert verify_loom(store).ok


@pytest.mark.rule("N-73")
def test_an_entity_continues_over_a_new_connection_when_nothing_of_it_is_lost(store):
    lease = store.claim("e", "us", 60)
    store.append(run("e", "t1", ends=False), {"e": lease.token})
    cut(store._writer.connection)
    store.append(turn("e", "t2", "t1", 2), {"e": lease.token})
    with PostgresStore(store._url, schema=store.schema) as elsewhere:
        elsewhere.append([Rewarded("e", "t1", 1.0, AT)])
    cut(store._writer.connection)
    store.append(turn("e", "t3", "t2", 3), {"e": lease.token})
    assert verify_loom(store).ok


@pytest.mark.rule("N-10")
def test_the_server_ends_a_transaction_whose_writer_says_nothing(store, other, monkeypatch):
    store.append(run("e", "t1", ends=False))
    store.close()
    monkeypatch.setattr(postgres, "SILENCE", 0.2)
    has_locked, may_end = threading.Event(), threading.Event()

    def freeze(db):
        db.execute("select from trees for update")
        has_locked.set()
        may_end.wait()

    def write():
        with suppress(LoomError):
            writer._transact(freeze)

    with PostgresStore(store._url, schema=store.schema) as writer:
        frozen = threading.Thread(target=write)
        frozen.start()
        has_locked.wait()
        other.execute("set lock_timeout = '5s'")
        try:
            assert other.execute("select id from trees join entities using (no) for update").fetchall() == [("e",)]
        finally:
            may_end.set()
            frozen.join()


def test_a_tree_that_stays_locked_is_an_error(store, other, monkeypatch):
    store.append(run("e", "t1", ends=False))
    store.close()
    monkeypatch.setattr(postgres, "TURN", 0.01)
    with PostgresStore(store._url, schema=store.schema) as second, other.transaction():
        other.execute("select from trees for update")
        with pytest.raises(LoomError, match="Another process has been writing there all that time"):
            second.append(turn("e", "t2", "t1", 2))
    with PostgresStore(store._url, schema=store.schema) as second:
        second.append(turn("e", "t2", "t1", 2))


def test_a_writer_whose_wait_for_a_lock_is_cancelled_waits_again(store, other):
    """The server cancels a statement whose lock comes as its time ends, and calls that a request of a user."""
    store.append(run("e", "t1", ends=False))
    pid = store._writer.connection.info.backend_pid
    with ThreadPoolExecutor() as threads:
        with other.transaction():
            other.execute("select from trees for update")
            appending = threads.submit(store.append, turn("e", "t2", "t1", 2))
            for _ in range(3):
                while not other.execute("select from pg_locks where pid = %s and not granted", [pid]).fetchall():
                    assert not appending.done()
                other.execute("select pg_cancel_backend(%s)", [pid])
                time.sleep(0.05)
        appending.result(10)
    assert verify_loom(store).ok


def test_looms_of_one_database_are_separate(store):
    with anywhere("postgres") as elsewhere, elsewhere.open() as another:
        store.append(run("e", "t1"))
        assert another.header("e") is None
        another.append(run("e", "t1"))


# ----------------------------------------------------------------------------------------------------- behind its back


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        (
            "delete from records where seq = 5",
            "record 6: this Committed of entity e does not follow the record before it",
        ),
        ("update records set body = replace(body, 'be terse', 'be wordy') where seq = 1", "record 1: this Header of"),
        ("delete from records where seq = 18", "the tree of entity e does not end where its last record was written"),
        ("update records set entity = 7 where seq = 15", "record 15: its row names another entity, or another turn"),
        ("update entities set name = 'x' where id = 'e'", "record 1: the row of its entity differs"),
        (
            "update entities set life = 0 where id = 'e'",
            "the index says that entity e is busy, terminated",
        ),
        ("delete from records where seq = 1", "record 1 is missing, and an entity should begin with it"),
        ("update records set body = '{' where seq = 4", "record 4: '{' is not a record of a loom"),
    ],
)
def test_a_changed_record_is_detected(store, other, statement, fault):
    store.append(FAMILY)
    assert verify_loom(store).ok
    other.execute(statement)
    found = verify_loom(store)
    assert any(str(one).startswith(fault) for one in found.faults), found.faults


def test_a_line_that_is_not_a_record_is_named_when_it_is_read(store, other):
    store.append(run("e", "t1"))
    other.execute("update records set body = '{' where seq = 4")
    with pytest.raises(LoomError, match="record 4 is corrupt"):
        store.records("e")
    line = '{"kind":"intent","entity":"e","intent":"hm","at":"now"}'
    other.execute("update records set body = %s where seq = 1", (line,))
    with pytest.raises(LoomError, match="record 1 is corrupt: the first record of an entity is not a header"):
        store.header("e")


def test_a_closed_store_opens_no_connection_that_stays(store):
    store.append([*run("e", "t1"), Ended("e", "cancelled", AT)])
    store.close()
    assert len(store.records("e")) == 7
    assert isinstance(store, PostgresStore)
    assert store._reader.connection.closed
