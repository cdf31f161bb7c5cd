"""Damage that takes acknowledged changes out of a loom: it is found when the loom is opened and verified."""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.loom import DamagedLoom, SqliteStore, backup_loom, forget_entities, open_store
from cantrip_actors.loom.integrity.verify import verify_loom
from cantrip_actors.loom.maintenance.forget import Wanted
from cantrip_actors.loom.opening import repair_loom
from cantrip_actors.loom.sqlite import acknowledged
from cantrip_actors.records.records import Ended
from cantrip_actors.records.submissions import SubmissionRow
from tests.loom.histories import AT, header, run, turn
from tests.loom.processes import python
from tests.loom.test_store import examples
from tests.loom.test_timers import mail, note, schedule, timer

pytestmark = pytest.mark.rule("Z-13")

FRAMES_AT, FRAME = 32, 24 + 4096
"""Where the frames of a write-ahead log begin, and the bytes of each."""
MISSING = "acknowledged records are missing"

ROW = SubmissionRow(key="q", cantrip="desk", intent="go", at=1.0)
STEPS = {
    "a record": lambda store: store.append([note()]),
    "mail": lambda store: store.post([mail("k")]),
    "a timer": lambda store: store.replace_timer(None, timer("wake")),
    "a schedule": lambda store: store.replace_timer(None, schedule("daily")),
    "the end of a schedule": lambda store: store.replace_timer(schedule("first"), None),
    "a submission": lambda store: store.add_submission(ROW),
}
"""The change that is acknowledged last."""


def copy_files(path, folder):
    """Copy the files of a loom in use, as a kill of its process would leave them."""
    folder.mkdir()
    for suffix in ("", "-wal", ".head"):
        if path.with_name(path.name + suffix).exists():
            shutil.copy(path.with_name(path.name + suffix), folder / f"loom.db{suffix}")
    return folder / "loom.db"


def read_facts(store):
    """Return all that was acknowledged."""
    return (
        [line for _, line in store.lines()],
        store.pending("e"),
        store.timers("e"),
        store.timers(),
        store.list_submissions(),
    )


def check_message(error):
    assert MISSING in str(error) or "malformed" in str(error), error


def is_reported(path, facts):
    """Return whether reading, verifying and writing a loom either show all facts, or say that some are missing."""
    try:
        with structlog.testing.capture_logs() as logs, open_store(path, read_only=True) as store:
            is_whole = read_facts(store) == facts
            faults = [str(fault) for fault in verify_loom(store).faults]
        warnings = [event for event in logs if event["event"] == "loom.acknowledged_missing"]
        assert is_whole or (warnings and any(MISSING in fault for fault in faults)), (logs, faults)
        assert not (is_whole and faults), faults
    except DamagedLoom as error:
        is_whole = False
        check_message(error)
    try:
        with open_store(path) as store:
            assert read_facts(store) == facts, "it is opened for writing without a word"
        is_refused = False
    except DamagedLoom as error:
        check_message(error)
        is_refused = True
    assert is_refused is not is_whole
    return is_refused


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def damages(log):
    """Yield damaged versions of a write-ahead log; None for one that is gone."""
    yield from (None, b"", log[:20], bytes(len(log)), flip(log, 9), flip(log, 18))
    for number, at in enumerate(range(FRAMES_AT, len(log), FRAME)):
        yield log[: at + (FRAME // 2 if number % 2 else 0)]
        yield flip(log, at + (1000, 5)[number % 2])
        if number % 4 == 0:
            yield log[:at] + bytes(min(4096, len(log) - at)) + log[at + 4096 :]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Looms whose process was killed after a step, and what was acknowledged."""
    looms = {}
    for name, step in STEPS.items():
        folder = tmp_path_factory.mktemp("killed")
        with SqliteStore(folder / "loom.db") as store:
            store.append([header("e", lasting=True), *turn("e", "t1", None)])
            store.replace_timer(None, schedule("first"))
            with closing(sqlite3.connect(folder / "loom.db")) as other, other:
                other.execute("pragma wal_checkpoint(truncate)")
            store.append(run("f", "t2"))
            step(store)
            looms[name] = copy_files(folder / "loom.db", folder / "copy"), read_facts(store)
    return looms


@pytest.mark.parametrize("last", STEPS)
def test_a_damaged_write_ahead_log_is_whole_or_reported(killed, tmp_path, last):
    path, facts = killed[last]
    log = path.with_name("loom.db-wal").read_bytes()
    found = []
    for number, damaged in enumerate([log, *damages(log)]):
        copy = copy_files(path, tmp_path / str(number))
        copy.with_name("loom.db-wal").unlink()
        if damaged is not None:
            copy.with_name("loom.db-wal").write_bytes(damaged)
        found.append(is_reported(copy, facts))
    assert not found[0]
    assert sum(found) > len(found) / 2


@pytest.mark.parametrize("length", [1, 100, 4000, 4096, 5000, 65536, 100_000])
def test_a_loom_in_use_whose_file_lost_its_end_is_damaged_or_whole(killed, tmp_path, length):
    loom, facts = killed["mail"]
    path = copy_files(loom, tmp_path / "copy")
    os.truncate(path, length)
    for read_only in (True, False):
        try:
            with open_store(path, read_only=read_only) as store:
                assert read_facts(store) == facts
        except DamagedLoom as error:
            check_message(error)


def test_a_loom_that_has_lost_all_is_not_taken_for_a_new_one(tmp_path):
    with SqliteStore(tmp_path / "loom.db") as store:
        store.append(run("e", "t1"))
        log = tmp_path.joinpath("loom.db-wal").read_bytes()
        for number, damaged in enumerate([None, b"", log[: len(log) // 3], log[:FRAMES_AT]]):
            copy = copy_files(tmp_path / "loom.db", tmp_path / str(number))
            copy.with_name("loom.db-wal").unlink()
            if damaged:
                copy.with_name("loom.db-wal").write_bytes(damaged)
            for read_only in (True, False):
                with pytest.raises(DamagedLoom, match="all acknowledged records are missing"):
                    open_store(copy, read_only=read_only)


@given(data=st.data())
@examples(30)
def test_any_damage_to_a_write_ahead_log_is_reported(killed, tmp_path_factory, data):
    path, facts = killed["a record"]
    log = path.with_name("loom.db-wal").read_bytes()
    first = data.draw(st.integers(0, len(log) - 1))
    last = data.draw(st.integers(first, min(len(log), first + 10_000)))
    put_in = data.draw(st.sampled_from([b"\0", b"\xff", b"a", b""]))
    copy = copy_files(path, tmp_path_factory.mktemp("any") / "copy")
    copy.with_name("loom.db-wal").write_bytes(log[:first] + put_in * (last - first) + log[last:])
    is_reported(copy, facts)


def test_a_loom_without_its_end_is_left_as_it_is(killed, tmp_path):
    path, _ = killed["a record"]
    copy = copy_files(path, tmp_path / "copy")
    log = copy.with_name("loom.db-wal")
    damaged = flip(log.read_bytes(), FRAMES_AT + 1000)
    log.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(DamagedLoom, match=MISSING):
            open_store(copy)
    assert log.read_bytes() == damaged
    log.write_bytes(flip(damaged, FRAMES_AT + 1000))
    with open_store(copy) as store:
        assert verify_loom(store).ok


def test_a_repair_accepts_what_is_lost(killed, tmp_path):
    path, _ = killed["mail"]
    copy = copy_files(path, tmp_path / "copy")
    copy.with_name("loom.db-wal").unlink()
    assert repair_loom(copy).records
    with open_store(copy) as store:
        store.append([note("e")])
        assert verify_loom(store).ok


def test_a_power_cut_is_a_warning_unless_the_loom_should_survive_it(killed, tmp_path, monkeypatch):
    path, _ = killed["a record"]
    copy = copy_files(path, tmp_path / "copy")
    copy.with_name("loom.db-wal").unlink()
    monkeypatch.setattr(acknowledged, "read_boot_id", lambda: "another boot")
    with pytest.raises(DamagedLoom, match=MISSING):
        open_store(f"sqlite:{copy}?durability=power")
    with structlog.testing.capture_logs() as logs, open_store(copy) as store:
        store.append([note("e")])
        assert verify_loom(store).ok
    assert [event["event"] for event in logs] == ["loom.acknowledged_missing"]


# --------------------------------------------------------------------------------------------------------------- JSONL


def make_jsonl(path):
    """Return the lines of a closed loom, and what was acknowledged."""
    with open_store(path) as store:
        store.append([header("e", lasting=True), *turn("e", "t1", None)])
        for step in ("a timer", "mail", "a submission"):
            STEPS[step](store)
        store.append([note()], timers=[(0, timer("second"))])
        STEPS["a schedule"](store)
        facts = read_facts(store)
    return path.read_bytes().splitlines(keepends=True), facts


def read_jsonl(path):
    """Return what a loom has, the faults that `verify` finds, and whether opening it reports a loss."""
    with structlog.testing.capture_logs() as logs, open_store(path, read_only=True) as store:
        facts, faults = read_facts(store), [str(fault) for fault in verify_loom(store).faults]
    return facts, faults, {log["event"] for log in logs} & {"loom.acknowledged_missing", "loom.damaged"}


@pytest.mark.parametrize("count", range(1, 13))
def test_a_jsonl_loom_without_its_last_lines_says_so(tmp_path, count):
    path = tmp_path / "loom.jsonl"
    lines, _ = make_jsonl(path)
    for torn in (b"", lines[-count][:-1], lines[-count][:20]):
        path.write_bytes(b"".join(lines[:-count]) + torn)
        _, faults, reports = read_jsonl(path)
        if torn == lines[-1][:-1]:
            assert not faults  # only the newline is missing
            continue
        assert reports
        assert any(MISSING in fault for fault in faults)
        with pytest.raises(DamagedLoom, match=MISSING):
            open_store(path)


@pytest.mark.parametrize("number", range(1, 13))
def test_a_damaged_line_of_a_jsonl_loom_is_found(tmp_path, number):
    path = tmp_path / "loom.jsonl"
    lines, facts = make_jsonl(path)
    line = lines[number]
    flipped = [flip(line, at) for at in range(2, len(line) - 1, 11)]
    for damaged in (b"", bytes(len(line) - 1) + b"\n", line + line, lines[5], *flipped):
        if damaged == line or (number == 12 and damaged == line + line):  # a line more than was acknowledged
            continue
        path.write_bytes(b"".join([*lines[:number], damaged, *lines[number + 1 :]]))
        found, faults, _ = read_jsonl(path)
        assert faults, (damaged, found == facts)


@pytest.mark.parametrize("count", [b"99", b"-1"])
@pytest.mark.parametrize("torn", [b"", b'{"kind":"st'])
def test_a_jsonl_loom_that_is_refused_for_writing_is_not_changed(tmp_path, count, torn):
    path = tmp_path / "loom.jsonl"
    lines, _ = make_jsonl(path)
    damaged = b"".join(lines).replace(b'{"batch":2}', b'{"batch":%b}' % count) + torn  # the rest is in no whole batch
    path.write_bytes(damaged)
    with pytest.raises(DamagedLoom, match=MISSING):
        open_store(path)
    assert path.read_bytes() == damaged
    repair_loom(path)
    with open_store(path) as store:
        assert len(store.records("e")) == len([line for line in lines if line.startswith(b'{"kind":')])


def test_a_changed_line_of_a_jsonl_loom_is_reported_also_after_more_records(tmp_path):
    path = tmp_path / "loom.jsonl"
    lines, _ = make_jsonl(path)
    path.write_bytes(b"".join(lines).replace(b'"id":"second"', b'"id":"sekond"'))
    for _ in range(3):
        with structlog.testing.capture_logs() as logs, open_store(path) as store:
            store.replace_timer(None, timer(f"t{store.last_number()}"))
            store.append([note()])
        assert [log["event"] for log in logs] == ["loom.acknowledged_missing"]
        _, faults, reports = read_jsonl(path)
        assert reports
        assert any(MISSING in fault for fault in faults)


def test_an_older_copy_of_a_jsonl_loom_raises_no_alarm(tmp_path):
    path = tmp_path / "loom.jsonl"
    make_jsonl(path)
    older = path.read_bytes()
    with open_store(path) as store:
        store.append([note()])
        in_use = path.read_bytes()
        store.scrub()
        rewritten = path.read_bytes()
    for content in (older, in_use, rewritten):
        path.write_bytes(content)
        assert read_jsonl(path)[1:] == ([], set())
        with open_store(path) as store:
            store.append([note()])
            assert verify_loom(store).ok


def test_a_jsonl_loom_killed_before_its_end_was_noted_raises_no_alarm(tmp_path):
    path = tmp_path / "loom.jsonl"
    lines, _ = make_jsonl(path)
    with open_store(path) as store:
        store.append([note()])
        store.replace_timer(timer("wake"), None)
    path.write_bytes(b"".join([lines[0], *path.read_bytes().splitlines(keepends=True)[1:]]))
    assert read_jsonl(path)[1:] == ([], set())
    for _ in range(2):
        with open_store(path) as store:
            store.append([note()])
            assert verify_loom(store).ok


def test_a_jsonl_loom_made_by_hand_is_written_without_an_end(tmp_path):
    path = tmp_path / "loom.jsonl"
    lines, _ = make_jsonl(path)
    for first in (b'{"loom":1}\n', b""):
        path.write_bytes(b"".join([first, *lines[1:]]))
        with open_store(path) as store:
            store.append([note()])
        assert path.read_bytes().startswith(first + lines[1])
        with open_store(path) as store:
            store.scrub()
            store.append([note()])
        whole = path.read_bytes()
        path.write_bytes(whole[: whole.rfind(b"\n", 0, -1) + 1])
        with pytest.raises(DamagedLoom, match=MISSING):
            open_store(path)


def test_a_repair_accepts_what_a_jsonl_loom_has_lost(tmp_path):
    path = tmp_path / "loom.jsonl"
    lines, _ = make_jsonl(path)
    path.write_bytes(b"".join(lines[:-3]))
    with open_store(path, repair=True) as store:
        store.append([note()])
        assert verify_loom(store).ok


# ---------------------------------------------------------------------------------------------------- no false alarms


def fill(store, first=1, last=5):
    for number in range(first, last + 1):
        store.append(run(f"e{number}", f"t{number}"))


def copy_alone(path, _):
    for suffix in (".head", "-wal"):
        path.with_name(f"loom.db{suffix}").unlink()
    return path


def restore_backup(path, folder):
    for suffix in ("", "-wal"):
        path.with_name(f"loom.db{suffix}").unlink()
    shutil.copy(folder / "backup.db", path)
    return path


def restore_copy(path, folder):
    path.with_name("loom.db-wal").unlink()
    shutil.copy(folder / "early.db", path)
    return path


def begin_anew(path, _):
    for suffix in ("", "-wal"):
        path.with_name(f"loom.db{suffix}").unlink()
    return path


def fold_log(path, _):
    """Another program copies the log into the file and removes it."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("select * from records").fetchall()
    other.close()
    return path


def lose_note(path, _):
    """A process that was killed between the commit and the note."""
    early = path.with_name("early.head")
    shutil.copy(early, path.with_name("loom.db.head"))
    return path


@pytest.mark.parametrize("change", [copy_alone, restore_backup, restore_copy, begin_anew, fold_log, lose_note])
def test_changes_by_an_administrator_raise_no_alarm(tmp_path, change):
    path = tmp_path / "loom.db"
    with SqliteStore(path) as store:
        fill(store, 1, 2)
    shutil.copy(path, tmp_path / "early.db")
    with SqliteStore(path) as store:
        fill(store, 3, 4)
    with SqliteStore(path) as store:
        fill(store, 5, 6)
        shutil.copy(tmp_path / "loom.db.head", tmp_path / "early.head")
        fill(store, 7, 7)
        backup_loom(path, tmp_path / "backup.db")
        fill(store, 8, 9)
        killed = copy_files(path, tmp_path / "killed")
    shutil.copy(tmp_path / "early.head", killed.with_name("early.head"))
    changed = change(killed, tmp_path)
    if changed.exists():
        with structlog.testing.capture_logs() as logs, open_store(changed, read_only=True) as store:
            assert verify_loom(store).ok
        assert logs == []
    for number in (20, 21):
        with SqliteStore(changed) as store:
            fill(store, number, number)
            assert verify_loom(store).ok


def test_forgetting_and_compacting_raise_no_alarm(tmp_path):
    path = tmp_path / "loom.db"
    with SqliteStore(path) as store:
        fill(store)
        store.append([header("e", lasting=True)])
        store.post([mail("k")])
        store.append([Ended(entity, "cancelled", AT) for entity in ("e5", "e")])
        forget_entities(store, Wanted(["e", "e5"]))
        store.scrub()
        store.expire_mail("9999")
        copy = copy_files(path, tmp_path / "killed")
    for _ in range(2):
        with open_store(copy) as store:
            assert verify_loom(store).ok


WRITE = """
import sys
import time
from cantrip_actors.loom import SqliteStore
from tests.loom.histories import run
store = SqliteStore(sys.argv[1])
number = 0
while True:
    number += 1
    store.append(run(f"{sys.argv[2]}{number}", f"{sys.argv[2]}t{number}"))
    print(number, flush=True)
    time.sleep(0.002)
"""


def test_two_writers_that_are_killed_leave_all_that_they_acknowledged_or_a_report(tmp_path):
    path = tmp_path / "loom.db"
    SqliteStore(path).close()
    writers = [python(WRITE, path, name) for name in "ab"]
    for writer in writers:
        for _ in range(30):
            assert writer.stdout.readline()
    for writer in writers:
        writer.kill()
    for writer in writers:
        writer.communicate()
    log = path.with_name("loom.db-wal")
    with open_store(path, read_only=True) as store:
        assert verify_loom(store).ok
        last = f"{store.last_number():,}"
    whole = log.read_bytes()
    log.write_bytes(whole[: -FRAME * 2])
    with open_store(path, read_only=True) as store:
        assert any(MISSING in str(fault) for fault in verify_loom(store).faults)
    with pytest.raises(DamagedLoom, match=rf"{MISSING}: records [\d,]+ to {last}\."):
        open_store(path)


def test_a_loom_whose_end_cannot_be_noted_is_written_all_the_same(tmp_path):
    (tmp_path / "loom.db.head").mkdir()
    with structlog.testing.capture_logs() as logs, SqliteStore(tmp_path / "loom.db") as store:
        fill(store)
        assert verify_loom(store).ok
    assert [event["event"] for event in logs] == ["loom.head_not_written"]
