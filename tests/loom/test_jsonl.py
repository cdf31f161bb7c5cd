"""The JSONL store against what happens to files: kills, full and failing disks, other processes, other editors."""

import errno
import json
import os
import resource
import shutil
import stat
import threading
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cantrip_actors.loom import DamagedLoom, JsonlStore, Wanted, begin_forget, forget_entities, open_store, verify_loom
from cantrip_actors.loom.memory import jsonl
from cantrip_actors.loom.memory.memory_index import MemoryIndex
from cantrip_actors.loom.seal import line_file
from cantrip_actors.loom.seal.line_file import Disk
from cantrip_actors.machine.project import Life
from cantrip_actors.records.codec import encode
from cantrip_actors.records.records import Ended
from cantrip_actors.terms.errors import LoomError
from tests.loom.histories import AT, header, histories, run, turn
from tests.loom.processes import python
from tests.loom.test_store import anywhere, assert_holds
from tests.loom.test_timers import mail, note, timer

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
BAD = OSError(errno.EIO, os.strerror(errno.EIO))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS))
SIGNAL = InterruptedError(errno.EINTR, os.strerror(errno.EINTR))


class Faulty:
    """System calls that go wrong as told: each write takes the next of `writes`, a number of bytes or an error."""

    def __init__(self, *writes, truncate=None, sync=None):
        self.writes = list(writes)
        self.truncate_error = truncate
        self.sync_error = sync
        self.calls = []

    @property
    def disk(self):
        return Disk(self.write, self.truncate, self.sync)

    def write(self, fd, data):
        self.calls.append("write")
        fault = self.writes.pop(0) if self.writes else len(data)
        if isinstance(fault, OSError):
            raise fault
        return os.write(fd, data[:fault])

    def truncate(self, fd, length):
        self.calls.append("truncate")
        if self.truncate_error:
            raise self.truncate_error
        os.ftruncate(fd, length)

    def sync(self, fd):
        self.calls.append("sync")
        if self.sync_error:
            raise self.sync_error
        os.fsync(fd)

    def mend(self):
        self.writes, self.truncate_error, self.sync_error = [], None, None


@pytest.fixture
def path(tmp_path):
    return tmp_path / "loom.jsonl"


def written(path, *batches):
    with open_store(path) as store:
        for batch in batches:
            store.append(batch)
    return path.read_bytes()


def held(path):
    """Return every record in the file, as the next process reads it."""
    with open_store(path, read_only=True) as store:
        return [record for head in store.headers() for record in store.records(head.entity_id)]


# ---------------------------------------------------------------------------------------------------------------- torn


@pytest.mark.rule("LOOM-1")
def test_a_file_cut_at_any_byte_opens_to_its_last_whole_record(path):
    records = run("e", "t1", "t2")
    whole = b'{"loom":1}\n' + written(path, records).partition(b"\n")[2]  # nothing of it was acknowledged yet
    last = len(b"".join(whole.splitlines(keepends=True)[:-5]))
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        lines = whole[: cut + 1].count(b"\n") - 1  # a line that lacks only its newline gets it
        with capture_logs() as logs, JsonlStore(path) as store:
            assert list(store.records("e")) == records[:lines]
            torn = b"" if whole[cut : cut + 1] == b"\n" else whole[:cut].rpartition(b"\n")[2]
            if torn:
                assert [(log["event"], log["line"], log["bytes"]) for log in logs] == [
                    ("loom.torn_line", lines + 2, len(torn))
                ]
            else:
                assert logs == []
            assert store.recovered == len(torn)
            assert list(path.parent.iterdir()) == [path]
            store.append([Ended("e", "cancelled", AT)])
        assert held(path) == [*records[:lines], Ended("e", "cancelled", AT)]


def test_zeros_after_the_last_record_count_as_torn(path):
    whole = written(path, run("e", "t1"))
    path.write_bytes(whole + bytes(4096))
    with JsonlStore(path) as store:
        assert store.recovered == 4096
    assert path.read_bytes() == whole


def test_a_reader_does_not_cut_off_a_torn_line(path):
    whole = written(path, run("e", "t1"))
    path.write_bytes(whole + b'{"kind":')
    with open_store(path, read_only=True) as store:
        assert len(store.records("e")) == 6
    assert path.read_bytes() == whole + b'{"kind":'
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_file_is_an_empty_loom(path):
    path.touch()
    with JsonlStore(path) as store:
        assert list(store.headers()) == []
        assert store.recovered == 0


# ------------------------------------------------------------------------------------------------------- failing disks


@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize("fault", [FULL, BAD, READ_ONLY])
@pytest.mark.parametrize("taken", [None, 1, 100, 500])
def test_a_write_that_fails_leaves_nothing_behind(path, fault, taken):
    faulty = Faulty()
    with JsonlStore(path, disk=faulty.disk) as store:
        store.append(run("e", "t1", ends=False))
        before = path.read_bytes()
        faulty.writes = [fault] if taken is None else [taken, fault]
        with pytest.raises(LoomError, match=fault.strerror) as caught:
            store.append(turn("e", "t2", "t1", 2))
        assert caught.value.__cause__ is fault
        assert path.read_bytes() == before
        assert store.owner("t2") is None
        faulty.mend()
        store.append(turn("e", "t2", "t1", 2))
    assert held(path) == [*run("e", "t1", ends=False), *turn("e", "t2", "t1", 2)]


def test_a_write_that_the_system_splits_is_complete(path):
    with JsonlStore(path, disk=Faulty(1, SIGNAL, 10, SIGNAL, 200).disk) as store:
        store.append(run("e", "t1"))
        assert list(store.records("e")) == run("e", "t1")
    assert held(path) == run("e", "t1")


def test_retrying_a_write_that_writes_nothing_ends(path):
    with JsonlStore(path, disk=Faulty(5, 0).disk) as store, pytest.raises(LoomError, match="wrote nothing"):
        store.append(run("e", "t1"))
    assert path.read_bytes() == b""


def test_nothing_is_written_after_half_a_record_until_it_is_cut_off(path):
    faulty = Faulty()
    with JsonlStore(path, disk=faulty.disk) as store:
        store.append(run("e", "t1", ends=False))
        faulty.writes, faulty.truncate_error = [100, BAD], BAD
        with pytest.raises(LoomError, match="Input/output error"):
            store.append(turn("e", "t2", "t1", 2))
        faulty.writes = []
        with pytest.raises(LoomError, match="cannot be cut back to its last whole one"):
            store.append(turn("e", "t2", "t1", 2))
        faulty.mend()
        store.append(turn("e", "t2", "t1", 2))
    assert held(path) == [*run("e", "t1", ends=False), *turn("e", "t2", "t1", 2)]


def test_half_a_record_that_was_never_cut_off_is_torn_for_the_next_process(path):
    faulty = Faulty()
    with JsonlStore(path, disk=faulty.disk) as store:
        store.append(run("e", "t1"))
        faulty.writes, faulty.truncate_error = [300, BAD], BAD
        with pytest.raises(LoomError):
            store.append([header("f", name="x" * 1000)])
    with JsonlStore(path) as store:
        assert store.recovered == 300
        assert store.header("f") is None


def test_power_durability_syncs_once_a_batch_and_the_folder_once(path):
    faulty = Faulty()
    with JsonlStore(path, durability="power", disk=faulty.disk) as store:
        assert faulty.calls == ["sync"]
        store.append(run("e", "t1"))
        store.append(run("f", "t2"))
    assert faulty.calls == ["sync", "write", "sync", "write", "sync"]


def test_process_durability_never_waits_for_the_disk(path):
    faulty = Faulty()
    with JsonlStore(path, disk=faulty.disk) as store:
        store.append(run("e", "t1"))
    assert faulty.calls == ["write"]


def test_a_record_that_could_not_be_synced_is_not_recorded(path):
    faulty = Faulty()
    with JsonlStore(path, durability="power", disk=faulty.disk) as store:
        store.append(run("e", "t1"))
        faulty.sync_error = BAD
        with pytest.raises(LoomError, match="Input/output error"):
            store.append(run("f", "t2"))
        assert store.header("f") is None
        faulty.mend()
        store.append(run("f", "t2"))
    assert held(path) == [*run("e", "t1"), *run("f", "t2")]


@contextmanager
def file_size_limit(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_size_limit_in_the_middle_of_a_record_records_nothing(path):
    whole = written(path, run("e", "t1"))
    with JsonlStore(path) as store:
        with file_size_limit(len(whole) + 300), pytest.raises(LoomError, match="File too large"):
            store.append(run("f", "t2"))
        assert path.read_bytes() == whole
        store.append(run("f", "t2"))
    assert held(path) == [*run("e", "t1"), *run("f", "t2")]


faults = st.lists(st.one_of(st.integers(0, 400), st.sampled_from([FULL, BAD, SIGNAL])), max_size=4)


@pytest.mark.rule("LOOM-1")
@given(histories(), st.lists(st.tuples(faults, st.booleans()), max_size=20))
def test_exactly_the_acknowledged_records_survive_disk_faults(history, troubles):
    with anywhere("jsonl") as place:
        path = Path(place.url.removeprefix("jsonl:"))
        faulty = Faulty()
        with JsonlStore(path, disk=faulty.disk) as store:
            for batch, (writes, stuck) in zip(history.batches, chain(troubles, repeat(([], False))), strict=False):
                faulty.writes, faulty.truncate_error = list(writes), BAD if stuck else None
                try:
                    store.append(batch)
                except LoomError:
                    faulty.mend()
                    store.append(batch)
                faulty.mend()
        with JsonlStore(path) as store:
            assert_holds(store, history)
            assert store.recovered == 0


# --------------------------------------------------------------------------------------------------- files of all sorts


@given(histories(), st.integers(1, 300))
def test_a_file_is_read_whole_with_any_chunk_size(history, chunk):
    with anywhere("jsonl") as place, pytest.MonkeyPatch.context() as patch:
        with place.open() as store:
            for batch in history.batches:
                store.append(batch)
        patch.setattr(line_file, "CHUNK", chunk)
        with place.open() as store:
            assert_holds(store, history)


@pytest.mark.rule("K-32")
@given(histories())
def test_a_rewritten_file_says_the_same(history):
    with anywhere("jsonl") as place:
        with place.open() as store:
            for batch in history.batches:
                store.append(batch)
            lines = list(store.lines())
            store.scrub()
            assert_holds(store, history)
        with place.open() as store:
            assert_holds(store, history)
            assert list(store.lines()) == lines
            assert verify_loom(store).ok


def test_a_file_with_nothing_but_records_is_read_and_continued(path):
    """The reference form, as another program would write it: no version, no links, and no newline at the end."""
    records = run("e", "t1", ends=False)
    path.write_bytes(b"\n".join(map(encode, records)))
    with open_store(path, read_only=True) as reader:
        assert list(reader.records("e")) == records
    with JsonlStore(path) as store:
        assert list(store.records("e")) == records
        assert store.recovered == 0
        store.append(turn("e", "t2", "t1", 2))
    assert held(path) == [*records, *turn("e", "t2", "t1", 2)]


@pytest.mark.rule("K-32")
@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_loom_has_one_file(path, durability):
    with JsonlStore(path, durability=durability) as store:
        store.append([header("e", lasting=True), note()], timers=[(1, timer())])
        store.post([mail("k1")])
        store.keep_checkpoint("e", store.tip("e"), b"state")
        store.change_account("limits", lambda state, now: ("full", None), 1.0)
        store.key()
        forget_entities(store, Wanted([]))
        store.scrub()
        assert list(path.parent.iterdir()) == [path]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.rule("K-32")
def test_accounts_are_kept_in_the_file(path):
    with JsonlStore(path) as store:
        for state in ("one", "two", "two"):
            store.change_account("limits", lambda old, now, state=state: (state, old), 1.0)
        size = path.stat().st_size
    with JsonlStore(path) as store:
        assert store.accounts("lim") == {"limits": "two"}
        assert store.change_account("limits", lambda old, now: (old, old), 1.0) == "two"
        assert path.stat().st_size == size


@pytest.mark.rule("K-32")
@pytest.mark.parametrize("grows", [True, False])
def test_a_large_file_is_reported_once(path, monkeypatch, grows):
    if not grows:
        written(path, run("e", "t1"))
    monkeypatch.setattr(jsonl, "LARGE", 500)
    with capture_logs() as logs, JsonlStore(path) as store:
        assert bool(logs) is not grows
        for name in "fgh":
            store.append(run(name, f"t{name}"))
    assert [log["event"] for log in logs] == ["loom.large"]
    assert "SQLite" in logs[0]["hint"]


# ----------------------------------------------------------------------------------------------------------- rewriting


@pytest.mark.rule("K-32")
def test_no_record_is_written_while_the_file_is_rewritten_but_accounts_are(path):
    with JsonlStore(path) as store:
        store.append([*run("e", "t1"), Ended("e", "terminated", AT), header("f")])
        finish = begin_forget(store, Wanted(["e"]))
        with pytest.raises(LoomError, match="is being rewritten, and nothing was recorded"):
            store.append(turn("f", "t2", None))
        store.change_account("limits", lambda state, now: ("full", None), 1.0)
        assert finish().entities == ("e",)
        store.append(turn("f", "t2", None))
    with JsonlStore(path) as store:
        assert store.accounts("") == {"limits": "full"}
        assert (len(store.records("f")), store.life("e")) == (5, Life.FORGOTTEN)
        assert verify_loom(store).ok


@pytest.mark.rule("K-32")
def test_a_change_that_is_under_way_when_a_rewrite_begins_is_in_the_new_file(path, monkeypatch):
    with JsonlStore(path) as store:
        store.append([header("e", lasting=True)])
        rewriting, apply = threading.Thread(target=store.scrub), MemoryIndex.apply

        def apply_late(index, plan):
            if rewriting.ident is None:
                rewriting.start()
                rewriting.join(0.05)  # it waits for this change
            apply(index, plan)

        with monkeypatch.context() as patch:
            patch.setattr(MemoryIndex, "apply", apply_late)
            store.post([mail("k")])
        rewriting.join()
    with JsonlStore(path) as store:
        assert [pending.mail for pending in store.pending("e")] == [mail("k")]


@pytest.mark.parametrize("fails", ["write", "sync", "replace"])
def test_a_loom_that_cannot_be_rewritten_stays_as_it_is(path, monkeypatch, fails):
    faulty = Faulty()
    with JsonlStore(path, disk=faulty.disk) as store:
        store.append([*run("e", "t1"), Ended("e", "terminated", AT)])
        before, records = path.read_bytes(), list(store.records("e"))
        with monkeypatch.context() as patch:
            if fails == "replace":
                patch.setattr(Path, "replace", raise_full)
            faulty.writes = [FULL] if fails == "write" else []
            faulty.sync_error = FULL if fails == "sync" else None
            with pytest.raises(LoomError, match=r"cannot rewrite .* Make room"):
                forget_entities(store, Wanted(["e"]))
        faulty.mend()
        assert path.read_bytes() == before
        assert list(store.records("e")) == records
        store.append(run("f", "t2"))
        assert forget_entities(store, Wanted(["e"])).records == len(records)
    with JsonlStore(path) as store:
        assert verify_loom(store).ok
    assert list(path.parent.iterdir()) == [path]


def test_a_rewritten_file_whose_folder_cannot_be_synced_takes_no_record_until_it_can_be(path):
    faults: list[OSError] = []

    def sync(fd):
        if faults and stat.S_ISDIR(os.fstat(fd).st_mode):
            raise faults[0]
        os.fsync(fd)

    with JsonlStore(path, durability="power", disk=Disk(sync=sync)) as store:
        store.append([*run("e", "t1"), Ended("e", "terminated", AT), header("f", lasting=True)])
        store.post([mail("k", "f")])
        faults.append(BAD)
        assert forget_entities(store, Wanted(["e"])).entities == ("e",)
        with pytest.raises(LoomError, match="cannot write to"):
            store.append(run("g", "t2"))
        faults.clear()
        store.append(run("h", "t3"))
    with JsonlStore(path) as store:
        assert verify_loom(store).faults == []
        assert [header.entity_id for header in store.headers()] == ["e", "f", "h"]
        assert store.life("e") is Life.FORGOTTEN


def raise_full(*_):
    raise FULL


# ------------------------------------------------------------------------------------------------- lines of other kinds


@given(histories())
def test_lines_that_another_program_wrote_anew_are_read(history):
    with anywhere("jsonl") as place:
        with place.open() as store:
            for batch in history.batches:
                store.append(batch)
        path = Path(place.url.removeprefix("jsonl:"))
        said = [json.loads(line) for line in path.read_bytes().splitlines()]
        path.write_text("".join(json.dumps(dict(sorted(one.items()))) + "\n" for one in said))
        with place.open() as store:
            assert_holds(store, history)


E = b'{"kind":"ended","entity":"e","reason":"cancelled","at":"now"}\n'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"garbage\n", "garbage"),
        (b"\n", "not a line of a loom"),
        (bytes(50) + b"\n", "not a line of a loom"),
        (b"[]\n", "not a line of a loom"),
        (b"{}\n", "not a line of a loom"),
        (b'{"loom":1}\n', "only the first line names a version"),
        (E[:30] + b"\n", "not a record"),
        (E.replace(b"ended", b"endde"), "unknown kind 'endde'"),
        (E.replace(b'"e"', b'"\xff"'), "not a record"),
        (E.replace(b'"e"', b'"nobody"'), "entity nobody has no header before it"),
        (b'{"kind":"header","entity":"e"}\n', "missing required field `cantrip`"),
        (b'{"kind":"turn","entity":"e","sequence":1}\n', "missing required field `turn`"),
    ],
)
@pytest.mark.rule("C-53")
def test_a_corrupt_line_in_the_middle_is_named_and_skipped_by_a_reader(path, line, why):
    whole = written(path, run("e", "t1")).splitlines(keepends=True)
    path.write_bytes(b"".join([*whole[:3], line, *whole[3:]]))
    with pytest.raises(DamagedLoom, match=r"loom\.jsonl: line 4 is corrupt: .*cantrip loom repair") as caught:
        open_store(path)
    assert why in str(caught.value)
    with capture_logs() as logs, open_store(path, read_only=True) as reader:
        assert len(reader.records("e")) == len(whole) - 1
        assert 3 in [fault.record for fault in verify_loom(reader).faults]
    assert [(log["event"], log["lines"]) for log in logs] == [("loom.damaged", [4])]


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("kind", ["mail", "timer"])
def test_a_corrupt_line_of_the_journal_is_skipped_by_a_reader_and_left_out_by_a_repair(path, kind):
    with open_store(path) as store:
        store.append([header("e", lasting=True), note()], timers=[(1, timer())])
        store.post([mail("k1")])
        store.append([note()], post=[(0, mail("k2"))], timers=[(0, timer("u"))])
    lines = path.read_bytes().splitlines(keepends=True)
    number = max(n for n, line in enumerate(lines) if line.startswith(b'{"%b":' % kind.encode()))
    path.write_bytes(b"".join([*lines[:number], lines[number].replace(b":{", b":["), *lines[number + 1 :]]))
    kept = (["k1"], ["t", "u"]) if kind == "mail" else (["k1", "k2"], ["t"])
    with pytest.raises(DamagedLoom, match=rf"line {number + 1} is corrupt: .*cantrip loom repair"):
        open_store(path)
    with open_store(path, read_only=True) as reader:
        assert ([row.mail.key for row in reader.pending("e")], [one.id for one in reader.timers("e")]) == kept
        assert "is not a record of a loom" in verify_loom(reader).faults[0].what
    with open_store(path, repair=True) as store:
        assert ([row.mail.key for row in store.pending("e")], [one.id for one in store.timers("e")]) == kept
        assert verify_loom(store).ok


@pytest.mark.rule("C-53")
def test_a_fork_whose_turn_is_damaged_is_skipped_by_a_reader_and_left_out_by_a_repair(path):
    written(path, run("e", "t1", lasting=True), run("fork", "t2", parent="t1", forked=True), run("other", "t3"))
    damaged = [line.replace(b'"t1"', b'"t1') if b'"turn"' in line else line for line in path.read_bytes().split(b"\n")]
    path.write_bytes(b"\n".join(damaged))
    with pytest.raises(DamagedLoom, match=r"line \d is corrupt: .*cantrip loom repair"):
        open_store(path)
    with open_store(path, read_only=True) as reader:
        assert [row.entity_id for row in reader.headers()] == ["e", "other"]
        assert any("fork" in str(fault) for fault in verify_loom(reader).faults)
    with open_store(path, repair=True) as store:
        assert [row.entity_id for row in store.headers()] == ["e", "other"]
        assert verify_loom(store).ok


def test_a_line_of_a_later_version_does_not_count_as_damage(path):
    whole = written(path, run("e", "t1"))
    path.write_bytes(whole.replace(b'"schema":1', b'"schema":2'))
    with pytest.raises(LoomError, match=r"loom\.jsonl: line 2 is of schema 2, .* use a newer cantrip-actors$"):
        open_store(path)
    path.write_bytes(b"garbage\n" + whole)
    with pytest.raises(LoomError, match=r"line 1 is corrupt: .* Restore it from a copy$"):  # nothing lies before it
        open_store(path)


def test_an_entity_that_begins_twice_is_named(path):
    whole = written(path, run("e", "t1"))
    path.write_bytes(whole + whole.partition(b"\n")[2])
    with pytest.raises(LoomError, match="line 8 is corrupt: entity e begins a second time"):
        open_store(path)


def test_an_invalid_line_is_named(path):
    whole = written(path, run("e", "t1"), run("f", "t2")).splitlines(keepends=True)
    path.write_bytes(b"".join([*whole[:8], whole[8][:90] + whole[8][91:].replace(b":", b";"), *whole[9:]]))
    with pytest.raises(LoomError, match="line 9 is corrupt"):
        open_store(path)


@pytest.mark.rule("LOOM-3")
@given(histories())
def test_lines_that_were_written_never_change(history):
    with anywhere("jsonl") as place, place.open() as store:
        before = b""
        for batch in history.batches:
            store.append(batch)
            _, _, now = Path(place.url.removeprefix("jsonl:")).read_bytes().partition(b"\n")
            assert now.startswith(before)
            before = now


# ------------------------------------------------------------------------------------------------------ other processes


OPEN = """
import sys
from cantrip_actors.loom import open_store
from cantrip_actors.terms.errors import LoomError
try:
    with open_store(sys.argv[1], read_only=sys.argv[2:] == ["read"]) as store:
        print(len(store.records("e")), flush=True)
except LoomError as error:
    print(error, flush=True)
"""


def test_a_second_process_cannot_write_and_may_read(path):
    with JsonlStore(path) as store:
        store.append(run("e", "t1"))
        with python(OPEN, path) as writer, python(OPEN, path, "read") as reader:
            assert "is open for writing already, in another process" in writer.communicate()[0]
            assert reader.communicate()[0] == "6\n"
    with python(OPEN, path) as writer:
        assert writer.communicate()[0] == "6\n"


def test_a_second_store_of_this_process_cannot_write_either(path):
    with JsonlStore(path), pytest.raises(LoomError, match="another runtime of this one"):
        JsonlStore(path)


def test_a_writer_continues_while_others_read(path):
    with JsonlStore(path) as store:
        store.append(run("e", "t1"))
        with open_store(path, read_only=True) as reader:
            store.append(run("f", "t2"))
            assert len(reader.records("e")) == 6
            assert reader.header("f") is None


def test_the_file_may_be_copied_while_it_is_written(path):
    with JsonlStore(path) as store:
        store.append(run("e", "t1"))
        shutil.copy(path, path.with_name("copy.jsonl"))
    assert held(path.with_name("copy.jsonl")) == run("e", "t1")
