"""The logs of dispatches against what happens to files: tampering, kills, full disks, other processes."""

import errno
import os
import shutil
import signal
import threading
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cantrip_actors.dispatch import (
    DispatchError,
    Dispatches,
    DispatchExists,
    EventRefused,
    Progressed,
    Recovered,
    StatusChanged,
    TamperedRecord,
    UnknownDispatch,
)
from cantrip_actors.loom import KeyUsed
from cantrip_actors.loom.seal.line_file import Disk
from cantrip_actors.records.seal import seal
from tests.dispatch.contracts import AT, contract
from tests.exhaustive import part
from tests.forked import Forked

WORKER = {"by": "worker", "author": "w", "token": 1}


@pytest.fixture
def logs(tmp_path):
    return Dispatches(tmp_path / "dispatches", clock=lambda: AT)


@pytest.fixture
def begun(logs):
    """The id of a dispatch that is active."""
    record = logs.create(contract(), author="ann")
    logs.append(record.id, StatusChanged("active"), **WORKER)
    return record.id


def milestone(text="a step on"):
    return Progressed("milestone", text)


class TestCreating:
    @pytest.mark.rule("F-02")
    def test_a_written_log_is_read_unchanged(self, logs):
        made = logs.create(contract(), author="ann", turn_id="t1")
        assert made.status == "queued"
        assert Dispatches(logs.folder).read(made.id) == made
        assert made.contract == contract()
        assert (made.entries[0].author, made.entries[0].turn_id) == ("ann", "t1")

    @pytest.mark.rule("F-03")
    def test_a_contract_is_written_once(self, logs, begun):
        before = logs.path(begun).read_bytes()
        with pytest.raises(DispatchExists, match="supersedes"):
            logs.create(contract(scope=["everything"]), author="eve")
        assert logs.path(begun).read_bytes() == before
        assert list(logs.folder.iterdir()) == [logs.path(begun)]

    @pytest.mark.rule("F-03")
    def test_one_of_many_concurrent_creators_creates_a_log(self, logs):
        said = []

        def create(author):
            try:
                said.append(Dispatches(logs.folder).create(contract(), author=author).entries[0].author)
            except DispatchExists:
                said.append(None)

        threads = [threading.Thread(target=create, args=(f"a{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = filter(None, said)
        assert logs.read(contract().dispatch_id).entries[0].author == winner

    @pytest.mark.rule("F-05")
    def test_a_worker_cannot_create_a_log(self, logs):
        with pytest.raises(EventRefused):
            logs.create(contract(), author="w", by="worker")
        assert logs.ids() == ()

    def test_a_failing_disk_creates_no_log(self, tmp_path):
        def fail(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(DispatchError, match="No space left"):
            Dispatches(tmp_path, disk=Disk(write=fail)).create(contract(), author="ann")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("name", ["../x", "a/b", "", "..", ".hidden", "A", "x.jsonl/../y"])
    def test_an_id_never_leaves_the_folder(self, logs, name):
        with pytest.raises(UnknownDispatch):
            logs.read(name)

    def test_an_unknown_dispatch_is_an_error_with_the_known_ones(self, logs, begun):
        with pytest.raises(UnknownDispatch, match=begun):
            logs.read("another")


@pytest.mark.rule("F-07")
class TestAppending:
    def test_earlier_bytes_never_change(self, logs, begun):
        before = logs.path(begun).read_bytes()
        for n in range(5):
            record = logs.append(begun, milestone(f"step {n}"), **WORKER)
            now = logs.path(begun).read_bytes()
            assert now.startswith(before)
            assert now.count(b"\n") == record.seq
            before = now
        assert [event.text for _, event in record.progress()] == [f"step {n}" for n in range(5)]

    @pytest.mark.rule("F-03")
    def test_no_method_edits_or_removes_an_entry(self):
        public = {name for name in dir(Dispatches) if not name.startswith("_")}
        assert public == {
            "append",
            "append_soon",
            "create",
            "create_soon",
            "heads",
            "ids",
            "path",
            "read",
            "read_soon",
            "records",
            "verify",
        }

    def test_a_refused_record_changes_no_byte(self, logs, begun):
        before = logs.path(begun).read_bytes()
        with pytest.raises(EventRefused, match="progress"):
            logs.append(begun, StatusChanged("completed", result="it works"), **WORKER)
        with pytest.raises(EventRefused):
            logs.append(begun, milestone("fine"), milestone(" "), **WORKER)
        assert logs.path(begun).read_bytes() == before
        assert logs.append(begun, milestone(), **WORKER).seq == 3

    @pytest.mark.rule("F-37")
    def test_a_log_of_an_earlier_version_that_completed_with_open_phases_is_read(self, logs, monkeypatch):
        made = logs.create(contract(depth="minimal"), author="ann")
        logs.append(made.id, StatusChanged("active"), **WORKER)
        evidence = [Progressed("verification", "12 passed in 3 s", item=item) for item in (1, 2)]
        completed = StatusChanged("completed", result="it works")
        with pytest.raises(EventRefused, match="open: debug, tests"):
            logs.append(made.id, *evidence, completed, **WORKER)
        monkeypatch.setattr("cantrip_actors.dispatch.log.refusal", lambda *_: None)
        logs.append(made.id, *evidence, completed, **WORKER)
        assert Dispatches(logs.folder).read(made.id).status == "completed"

    @pytest.mark.rule("F-33")
    def test_a_late_writer_is_refused_by_the_file(self, logs, begun):
        late = Dispatches(logs.folder)
        late.read(begun)
        logs.append(begun, Recovered("its lease expired"), by="supervisor", author="runtime", token=2)
        logs.append(begun, StatusChanged("active"), by="worker", author="w2", token=2)
        with pytest.raises(EventRefused, match="lease 1 is over"):
            late.append(begun, milestone("me"), **WORKER)
        assert late.read(begun) == logs.read(begun)

    def test_any_text_is_read_as_it_was_written(self, logs, begun):
        text = 'lines\nand\r"quotes" \x00 \u2028 😀 \ud800'
        logs.append(begun, milestone(text), **WORKER)
        assert Dispatches(logs.folder).read(begun).progress()[0][1].text == text


@pytest.mark.rule("F-08")
class TestSeveralWriters:
    async def test_appends_of_several_tasks_are_serialised(self, logs, begun):
        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(lambda n=n: logs.append_soon(begun, milestone(f"{n}"), **WORKER))
        record = await logs.read_soon(begun)
        assert [entry.seq for entry in record.entries] == list(range(1, 23))
        assert {event.text for _, event in record.progress()} == {f"{n}" for n in range(20)}

    async def test_a_cancelled_append_is_carried_out(self, logs, begun):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await logs.create_soon(contract(dispatch_id="cancelled"), author="ann")
        with anyio.move_on_after(0):
            await logs.append_soon(begun, milestone(), **WORKER)
        record = await logs.read_soon(begun)
        assert record.seq in (2, 3)

    @pytest.mark.real_time
    def test_appends_of_several_processes_are_serialised(self, logs, begun):
        script = (
            "import sys; from cantrip_actors.dispatch import *\n"
            "logs = Dispatches(sys.argv[1])\n"
            "for n in range(25):\n"
            "    said = Progressed('milestone', f'{sys.argv[3]} {n}')\n"
            "    logs.append(sys.argv[2], said, by='worker', author='w', token=1)"
        )
        processes = [Forked(script, logs.folder, begun, one) for one in range(3)]
        assert [process.wait(60) for process in processes] == [0, 0, 0]
        record = logs.read(begun)
        assert [entry.seq for entry in record.entries] == list(range(1, 78))
        said = [event.text for _, event in record.progress()]
        assert [text for text in said if text.startswith("1 ")] == [f"1 {n}" for n in range(25)]

    def test_a_reader_sees_records_of_another_writer(self, logs, begun):
        other = Dispatches(logs.folder)
        assert other.read(begun).seq == 2
        logs.append(begun, milestone(), **WORKER)
        assert other.append(begun, milestone(), **WORKER).seq == 4


@pytest.mark.rule("F-09")
class TestDurability:
    @pytest.mark.real_time
    def test_acknowledged_records_survive_a_kill(self, logs, begun):
        script = (
            "import os, signal, sys; from cantrip_actors.dispatch import *\n"
            "logs = Dispatches(sys.argv[1])\n"
            "logs.append(sys.argv[2], Progressed('milestone', 'the last word'), by='worker', author='w', token=1)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        assert Forked(script, logs.folder, begun).wait(60) == -signal.SIGKILL
        assert logs.read(begun).progress()[-1][1].text == "the last word"

    def test_every_append_waits_for_the_disk(self, tmp_path):
        calls = []

        def note(name, call):
            return lambda *args: (calls.append(name), call(*args))[1]

        disk = Disk(note("write", os.write), note("truncate", os.ftruncate), note("sync", os.fsync))
        logs = Dispatches(tmp_path, disk=disk)
        record = logs.create(contract(), author="ann")
        assert calls == ["write", "sync", "sync"]  # the file, and the folder that names it
        calls.clear()
        logs.append(record.id, StatusChanged("active"), **WORKER)
        assert calls == ["write", "sync"]

    @pytest.mark.parametrize("fails", ["write", "sync"])
    def test_a_failing_disk_does_not_change_the_log(self, logs, begun, fails):
        before = logs.path(begun).read_bytes()

        def half(fd, data):
            os.write(fd, data[: len(data) // 2])
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def fail(_fd):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        disk = Disk(write=half) if fails == "write" else Disk(sync=fail)
        with pytest.raises(DispatchError, match="Input/output error"):
            Dispatches(logs.folder, disk=disk).append(begun, milestone(), **WORKER)
        assert logs.path(begun).read_bytes() == before
        assert logs.append(begun, milestone(), **WORKER).seq == 3


@pytest.mark.rule("F-10")
class TestTornLines:
    @settings(max_examples=30)
    @given(st.integers(min_value=1))
    def test_a_torn_last_line_is_ignored_and_then_cut_off(self, tmp_path_factory, length):
        folder = tmp_path_factory.mktemp("torn")
        logs = Dispatches(folder)
        record = logs.create(contract(), author="ann")
        whole = logs.path(record.id).read_bytes()
        logs.append(record.id, StatusChanged("active"), **WORKER)
        full = logs.path(record.id).read_bytes()
        length = len(whole) + 1 + length % (len(full) - len(whole) - 1)
        logs.path(record.id).write_bytes(full[:length])
        logs = Dispatches(folder)
        assert logs.read(record.id) == record
        assert logs.path(record.id).stat().st_size == length
        with capture_logs() as said:
            assert logs.append(record.id, StatusChanged("active"), **WORKER).status == "active"
        assert said[0]["event"] == "dispatch.torn_line"
        assert logs.path(record.id).read_bytes().startswith(whole)
        assert Dispatches(folder).read(record.id).seq == 2

    def test_a_log_with_only_a_torn_line_has_no_records(self, logs, begun):
        path = logs.path(begun)
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(TamperedRecord, match="holds no contract"):
            Dispatches(logs.folder).read(begun)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A log of five lines, as bytes, and the records after four and after five of them."""
    logs = Dispatches(tmp_path_factory.mktemp("written"), clock=lambda: AT)
    name = logs.create(contract(), author="ann").id
    logs.append(name, StatusChanged("active"), milestone(), **WORKER)
    before = logs.append(name, Progressed("verification", "12 passed", item=1), **WORKER)
    after = logs.append(name, Progressed("discovery", "tags are in lower case"), **WORKER)
    return logs.path(name).read_bytes(), before, after


@pytest.mark.rule("F-04", "F-10")
class TestTampering:
    @settings(max_examples=300)
    @given(st.data())
    def test_any_byte_that_is_changed_is_found(self, written, tmp_path_factory, data):
        whole, before, after = written
        at = data.draw(st.integers(0, len(whole) - 1))
        byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[at]))
        self.check(
            tmp_path_factory, whole[:at] + bytes([byte]) + whole[at + 1 :], at == len(whole) - 1, before, after.id
        )

    def test_each_bit_of_each_byte_is_found(self, written, tmp_path):
        """A position in four (each with EXHAUSTIVE), with one bit flipped: what a failing disk does."""
        whole, before, after = written
        logs = Dispatches(tmp_path)
        path = logs.path(after.id)
        for at in [*part(range(len(whole) - 1), 4), len(whole) - 1]:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            if at == len(whole) - 1:
                assert logs.read(after.id) == before
            else:
                with pytest.raises(TamperedRecord):
                    logs.read(after.id)
        path.unlink()

    def test_a_byte_that_changes_after_it_was_read_is_found_as_well(self, written, tmp_path):
        whole, _, after = written
        logs = Dispatches(tmp_path)
        path = logs.path(after.id)
        for at in range(len(whole)):
            path.write_bytes(whole)
            assert logs.read(after.id) == after
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(TamperedRecord):
                logs.read(after.id)

    def test_records_of_another_writer_extend_those_read_before(self, logs, begun):
        other = Dispatches(logs.folder)
        for _ in range(3):
            logs.read(begun)
            assert other.append(begun, milestone(), **WORKER) == logs.read(begun) == Dispatches(logs.folder).read(begun)

    @settings(max_examples=100)
    @given(st.data())
    def test_lines_taken_out_doubled_or_moved_are_found(self, written, tmp_path_factory, data):
        whole, before, after = written
        lines = whole.splitlines(keepends=True)
        order = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=7))
        if order == list(range(len(order))):
            return  # the log as it was, or cut at its end, which no chain can tell
        self.check(tmp_path_factory, b"".join(lines[at] for at in order), False, before, after.id)

    @staticmethod
    def check(tmp_path_factory, changed, torn, before, name):
        folder = tmp_path_factory.mktemp("tampered")
        logs = Dispatches(folder)
        logs.path(name).write_bytes(changed)
        if torn:
            assert logs.read(name) == before
        else:
            with pytest.raises(TamperedRecord):
                logs.read(name)
            with pytest.raises(TamperedRecord):
                logs.append(name, milestone(), **WORKER)
            assert logs.path(name).read_bytes() == changed
        shutil.rmtree(folder)

    def test_a_renamed_log_is_found(self, logs, begun):
        logs.path(begun).rename(logs.path("renamed"))
        with pytest.raises(TamperedRecord):
            logs.read("renamed")

    def test_a_contract_with_a_recomputed_chain_is_found_by_its_hash(self, logs, begun):
        lines = logs.path(begun).read_bytes().splitlines()
        bare = [line[: line.rindex(b',"chain"')] + b"}" for line in lines]
        bare[0] = bare[0].replace(b"the user interface", b"nothing at all....")
        forged, link = b"", begun.encode()
        for line in bare:
            line, link = seal(line, link)
            forged += line + b"\n"
        logs.path(begun).write_bytes(forged)
        with pytest.raises(TamperedRecord, match="hash"):
            Dispatches(logs.folder).read(begun)

    def test_an_illegal_record_is_detected_under_a_valid_chain(self, logs, begun):
        path = logs.path(begun)
        lines = path.read_bytes().splitlines()
        link = lines[0][-26:-2]
        bare = lines[1][: lines[1].rindex(b',"chain"')] + b"}"
        forged, _ = seal(bare.replace(b'"status":"active"', b'"status":"completed"'), link)
        path.write_bytes(lines[0] + b"\n" + forged + b"\n")
        with pytest.raises(TamperedRecord, match="never have been written"):
            Dispatches(logs.folder).read(begun)

    def test_a_reader_notices_lines_missing_at_the_end(self, logs, begun):
        logs.append(begun, milestone(), **WORKER)
        path = logs.path(begun)
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
        with pytest.raises(TamperedRecord, match="missing after it"):
            logs.append(begun, milestone(), **WORKER)


def test_only_logs_are_listed(logs, begun):
    (logs.folder / "notes.md").write_text("x")
    (logs.folder / ".half.jsonl.1.2").write_text("x")
    (logs.folder / f"{begun}..copy.jsonl").write_text("x")  # no dispatch can have this id
    assert logs.ids() == (begun,)
    assert logs.verify() == {}
    assert [record.id for record in logs.records()] == [begun]
    assert Dispatches(Path(logs.folder) / "nowhere").ids() == ()


class TestKeys:
    @pytest.mark.rule("HTTP-08")
    def test_a_repeated_request_writes_nothing_and_another_one_is_refused(self, logs, tmp_path):
        made = logs.create(contract(), author="ann", key="k a")
        logs.append(made.id, Progressed("discovery", "more"), by="human", author="ann", key="l a")
        assert Dispatches(tmp_path / "dispatches").create(contract(), author="ann", key="k a") == made
        again = logs.append(made.id, Progressed("discovery", "more"), by="human", author="ann", key="l a")
        assert again.seq == 2
        for use in (
            lambda: logs.append(made.id, Progressed("discovery", "x"), by="human", author="ann", key="l b"),
            lambda: logs.create(contract(), author="ann", key="k b"),
        ):
            with pytest.raises(KeyUsed):
                use()
        assert (logs.read(made.id).seq, logs.ids()) == (2, (made.id,))

    @pytest.mark.rule("HTTP-08")
    def test_keys_that_begin_with_the_same_word_are_different_keys(self, logs):
        made = logs.create(contract(), author="ann", key="order 1 a")
        for key in ("order 2 a", "order b", "order 1 2 a"):
            assert made.written_with(key) is None
