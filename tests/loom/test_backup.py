"""Backups of looms in use, compaction, retention, migration and damage."""

import math
import os
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from cantrip_actors.loom import (
    DamagedLoom,
    Loom,
    Mail,
    Store,
    Timer,
    Wanted,
    backup_loom,
    compact_loom,
    forget_entities,
    open_loom,
    open_store,
    prune_loom,
    repair_loom,
    this_process,
    verify_loom,
)
from cantrip_actors.loom.maintenance.retention import parse_retention, parse_seconds
from cantrip_actors.own_files.claims import list_loom_files
from cantrip_actors.records.codec import Newer
from cantrip_actors.records.records import Ended, IntentGiven, Rewarded
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.image import Image
from tests.loom.histories import AT, SNAPSHOT, header, run, turn
from tests.loom.processes import child, python
from tests.loom.test_forget import counted, dies_at
from tests.loom.test_store import LASTING, Place
from tests.loom.test_timers import note, schedule, timer
from tests.pictures import png

DAY = 86_400.0
NOW = 1_795_500_000.0  # 2026-11-24


def intent(key, entity="b"):
    return Mail(entity_id=entity, key=key, kind="intent", body={"intent": "go"}, at=AT)


@pytest.fixture(params=LASTING)
def lasting(request, tmp_path):
    here = Place(request.param, tmp_path)
    yield here
    here.clear()


# ------------------------------------------------------------------------------------------------------------- backups


@pytest.mark.rule("C-51")
@pytest.mark.parametrize("name", ["backup.db", "backup.jsonl"])
def test_a_backup_of_a_loom_in_use_has_its_records_mail_and_blobs(lasting, tmp_path, name):
    with lasting.open() as store:
        store.append([*run("a", "a1", snapshot=SNAPSHOT), Ended("a", "terminated", AT)])
        store.append(run("b", "b1", lasting=True, name="notes"))
        store.post([intent("k1")])
        forget_entities(store, Wanted(["a"]))
        store.append(run("c", "c1", snapshot=SNAPSHOT))
        store.append([note("b")], timers=[(0, timer(entity="b"))])
        store.replace_timer(None, schedule())
        store.claim("b", this_process(), 60.0)
        made = backup_loom(lasting.url, tmp_path / name)
        assert made.ok
        assert made.fingerprint == verify_loom(store).fingerprint
    with open_store(tmp_path / name) as restored:
        assert verify_loom(restored) == made
        assert [one.mail.key for one in restored.pending("b")] == ["k1"]
        assert [one.id for one in restored.timers_due(math.inf)] == ["s", "t"]
        assert restored.blob(SNAPSHOT.digest).data == SNAPSHOT.data
        assert restored.claim("b", this_process(), 60.0).token > 0


WRITE = """
import sys, time
from cantrip_actors.loom import Mail, open_store
from cantrip_actors.records.records import IntentGiven
from tests.loom.histories import AT, header, turn
with open_store(sys.argv[1]) as store:
    store.append([header("w", lasting=True), IntentGiven("w", "go", AT)])
    print("begun", flush=True)
    last = None
    for n in range(1, 100_000):
        (row,) = store.post([Mail(entity_id="w", key=f"k{n}", kind="intent", body={"intent": "go"}, at=AT)])
        taken = IntentGiven("w", "go", AT, key=f"k{n}")
        store.append([taken, *turn("w", f"t{n}", last, n, terminated=True)], taken=[(0, row.no)])
        last = f"t{n}"
        time.sleep(0.002)  # as fast as it can, it would write more than each backup reads
"""


@pytest.mark.rule("C-51")
def test_a_backup_under_load_restores_and_verifies(lasting, tmp_path):
    with python(WRITE, lasting.url) as writer:
        try:
            assert writer.stdout.readline() == "begun\n"
            turns = 0
            for number in range(4):
                made = backup_loom(lasting.url, tmp_path / f"backup{number}.db")
                assert made.ok
                assert made.turns >= turns
                turns = made.turns
        finally:
            writer.kill()
    with open_store(tmp_path / "backup3.db") as restored:
        waiting = {one.mail.key for one in restored.pending("w")}
        taken = {record.key for record in restored.records("w") if isinstance(record, IntentGiven)} - {None}
        assert not waiting & taken
        assert waiting | taken == {f"k{n}" for n in range(1, len(waiting | taken) + 1)}
        restored.append([Ended("w", "cancelled", AT)])
        assert verify_loom(restored).ok


@pytest.mark.rule("C-51")
def test_a_backup_does_not_replace_a_file_and_leaves_no_file_when_it_fails(tmp_path):
    with open_store(tmp_path / "loom.db") as store:
        store.append(run("a", "a1"))
        (tmp_path / "there.db").write_bytes(b"")
        with pytest.raises(LoomError, match="exists already: give the name of a new file"):
            backup_loom(tmp_path / "loom.db", tmp_path / "there.db")
        with closing(sqlite3.connect(tmp_path / "loom.db", isolation_level=None)) as other:
            other.execute("update records set body = replace(body, '12.5', '13.5')")
        with pytest.raises(LoomError, match="has faults, and no backup was made"):
            backup_loom(tmp_path / "loom.db", tmp_path / "new.db")
    assert not [path for path in tmp_path.iterdir() if "new" in path.name]


@pytest.mark.rule("C-51", "C-53")
@pytest.mark.parametrize("key", [None, b"sixteen bytes of a secret"])
@pytest.mark.parametrize("target", ["copy.db", "copy.jsonl"])
@pytest.mark.parametrize("name", ["loom.db", "loom.jsonl"])
def test_a_loom_that_has_lost_a_picture_is_backed_up_and_the_backup_says_what_is_missing(tmp_path, name, target, key):
    path = tmp_path / name
    with open_store(path, seal_key=key) as store:
        store.append([header("a"), IntentGiven("a", "look", AT, images=(Image(png()),))])
        (digest,) = store.blobs()
    if name == "loom.db":
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("delete from blobs")
    else:
        path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(True) if b'{"blob":' not in line))
        repair_loom(path, seal_key=key)
    verified = backup_loom(path, tmp_path / target, seal_key=key)
    assert [(fault.record, fault.blob) for fault in verified.faults] == [(2, digest)]
    with open_store(tmp_path / target, seal_key=key) as copy:
        assert len(copy.records("a")) == 2
        assert verify_loom(copy) == verified


@pytest.mark.rule("C-51")
@pytest.mark.parametrize("name", ["[1].db", "*.db", "?.jsonl", "no ending", "new/folder/loom.db"])
def test_a_backup_takes_any_file_name_and_leaves_one_file(lasting, tmp_path, name):
    with lasting.open() as store:
        store.append(run("a", "a1"))
        (tmp_path / ".other.db.part").write_text("of another backup")
        folder = tmp_path / "to"
        made = backup_loom(lasting.url, folder / name)
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / name]
    kind = "jsonl" if name.endswith(".jsonl") else "sqlite"
    with open_store(f"{kind}:{quote(str(folder / name))}", read_only=True) as copy:
        assert verify_loom(copy) == made


@pytest.mark.rule("C-51")
def test_a_backup_takes_no_file_that_an_earlier_one_left_as_its_own(tmp_path):
    with open_store(tmp_path / "loom.db") as store:
        store.append(run("a", "a1"))
        (tmp_path / "copy.db-wal").write_bytes(b"of an earlier copy")
        with pytest.raises(LoomError, match=r"copy\.db-wal exists already: remove it"):
            backup_loom(tmp_path / "loom.db", tmp_path / "copy.db")


BACK_UP = """
import resource, signal, sys
from cantrip_actors.loom import backup_loom
from cantrip_actors.terms.errors import LoomError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
try:
    backup_loom(sys.argv[1], sys.argv[2])
except LoomError as error:
    print("refused", flush=True)
"""


@pytest.mark.rule("C-51")
@pytest.mark.parametrize("name", ["backup.db", "backup.jsonl"])
def test_a_backup_to_a_full_disk_fails_and_leaves_no_file(lasting, tmp_path, name):
    with lasting.open() as store:
        for number in range(30):  # more than SQLite keeps in memory
            store.append([header(f"e{number}"), IntentGiven(f"e{number}", "go" * 50_000, AT)])
        target = tmp_path / "to"
        target.mkdir()
        with python(BACK_UP, lasting.url, str(target / name)) as process:
            assert process.stdout.readline() == "refused\n"
            process.wait()
        assert list(target.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------- compacting


@pytest.mark.rule("C-51")
def test_compacting_deletes_blobs_that_no_record_refers_to(place):
    with place.open() as store:
        store.append([*run("a", "a1"), *run("b", "b1", snapshot=SNAPSHOT)])
        assert compact_loom(store).blobs == 0
        assert list(store.blobs()) == [SNAPSHOT.digest]
        if place.kind == "sqlite":
            store._transact(lambda db: db.execute("insert into blobs values ('00', 'image/png', x'00', '')"))
            assert compact_loom(store).blobs == 1
        assert verify_loom(store).ok


# ----------------------------------------------------------------------------------------------------------- retention


def at(days_ago):
    from datetime import UTC, datetime

    return datetime.fromtimestamp(NOW - days_ago * DAY, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.rule("C-52")
def test_prune_forgets_only_entities_that_ended_longer_ago(store):
    store.append([*run("old", "o1"), *run("kid", "k1", parent="o1", parent_entity="old")])
    store.append([Ended("kid", "terminated", at(100)), Ended("old", "terminated", at(100))])
    store.append([*run("young", "y1"), Ended("young", "terminated", at(10))])
    store.append(run("idle", "i1", lasting=True))
    store.append(run("crashed", "x1"))
    dry = prune_loom(store, "90d", now=NOW, dry_run=True)
    assert (dry.entities, dry.records) == (("old", "kid"), 0)
    pruned = prune_loom(store, "90d", now=NOW)
    assert (pruned.entities, pruned.records) == (("old", "kid"), 14)
    loom = Loom(store, store.append)
    forgotten = [one for one in loom.entities() if loom.is_forgotten(one)]
    assert forgotten == ["old", "kid"]
    assert prune_loom(store, "90d", now=NOW).entities == ()
    assert prune_loom(store, 5 * DAY, now=NOW).entities == ("young",)
    assert verify_loom(store).ok


@pytest.mark.rule("C-52")
def test_a_reward_does_not_keep_an_entity_for_longer(store):
    store.append([*run("old", "o1"), Ended("old", "terminated", at(100))])
    store.append([Rewarded("old", "o1", 1.0, at(1)) for _ in range(20)])
    assert prune_loom(store, "90d", now=NOW).entities == ("old",)


@pytest.mark.rule("C-52")
def test_an_entity_with_a_fork_that_has_not_ended_is_not_pruned(store):
    store.append([*run("old", "o1"), Ended("old", "terminated", at(100))])
    store.append(run("fork", "f1", parent="o1", forked=True, lasting=True))
    assert prune_loom(store, "90d", now=NOW).entities == ()
    store.append([Ended("fork", "cancelled", at(1))])
    assert prune_loom(store, "90d", now=NOW).entities == ("old",)


@pytest.mark.rule("C-52")
def test_two_processes_that_prune_at_the_same_moment_forget_every_entity_once(tmp_path):
    path = tmp_path / "loom.db"
    with open_store(path) as store:
        for name in range(45):
            ended = Ended(f"e{name}", "terminated", "2020-01-01T00:00:00Z")
            store.append([*run(f"e{name}", f"t{name}"), ended])
    script = """
import sys
from cantrip_actors.looms import open_loom

with open_loom(sys.argv[1], read_only=False) as loom:
    print("ready", flush=True)
    sys.stdin.readline()
    print(len(loom.prune(0).entities))
"""
    processes = [child(script, path, stdin=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert sum(int(process.communicate()[0]) for process in processes) == 45
    with open_store(path, read_only=True) as store:
        assert verify_loom(store).forgotten == 45


def test_prune_looks_at_every_entity_of_a_large_loom(store):
    for number in range(50):
        store.append(
            [*run(f"e{number}", f"t{number}"), Ended(f"e{number}", "terminated", at(100 if number % 2 else 1))]
        )
    assert len(prune_loom(store, "90d", now=NOW).entities) == 25


@pytest.mark.rule("C-52")
@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("90d", 90 * DAY),
        ("12h", 43_200),
        ("1.5 m", 90),
        ("45s", 45),
        ("2w", 14 * DAY),
        (7, 7),
        (timedelta(days=1), DAY),
    ],
)
def test_a_duration_is_a_text_a_number_or_a_timedelta(given, seconds):
    assert parse_seconds(given) == seconds


@pytest.mark.rule("C-52")
@pytest.mark.parametrize("given", ["90", "d", "90 days", "-1d", -1, float("nan"), None, True])
def test_an_invalid_duration_is_refused(given):
    with pytest.raises(ValueError, match="expected a duration like"):
        parse_seconds(given)


@pytest.mark.rule("C-52")
def test_a_retention_names_the_kinds_of_entities():
    assert parse_retention({"one-shot": "90d", "long-lived": None}) == {"one-shot": 90 * DAY, "long-lived": None}
    with pytest.raises(ValueError, match="expected one of 'one-shot', 'long-lived'"):
        parse_retention({"oneshot": "90d"})


# -------------------------------------------------------------------------------------------------------------- damage


@pytest.fixture(params=["loom.db", "loom.jsonl"])
def path(request, tmp_path):
    here = tmp_path / request.param
    with open_store(here) as store:
        store.append([*run("a", "a1"), *run("b", "b1", lasting=True), *run("c", "c1")])
        store.post([intent("k1")])
    return here


def edit(path, old, new):
    """Change one record behind the store's back."""
    if path.suffix == ".db":
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("update records set body = replace(body, ?, ?) where body like ?", (old, new, f"%{old}%"))
    else:
        data = path.read_text()
        assert old in data
        path.write_text(data.replace(old, new))


@pytest.mark.rule("C-53")
def test_an_entity_whose_chain_is_broken_is_not_continued(path):
    edit(path, '"text":"b1"', '"text":"B1"')
    with open_store(path) as store:
        store.check_chain("a")
        store.check_chain("c")
        with pytest.raises(DamagedLoom, match=r"entity b cannot be continued: record .* was changed or taken out"):
            store.check_chain("b")


@pytest.mark.rule("C-53")
def test_a_repair_keeps_a_copy_and_reports_what_it_drops(path):
    with open_store(path) as store:
        cancelled = timer("cancelled", entity="b")
        store.append([note("b")], timers=[(0, timer(entity="b")), (0, cancelled)])
        store.append([note("b")], timers=[(0, replace(cancelled, due=None))])
        store.replace_timer(None, schedule())
    edit(path, '"text":"b1"', '"text":"B1"')
    with capture_logs() as logs:
        done = repair_loom(path)
    assert (done.records, done.left_out) == (14, {"b": 6})
    assert [log["event"] for log in logs] == ["loom.repaired"]
    assert (done.copy / path.name).exists()
    with open_store(path) as store:
        assert verify_loom(store).faults == []
        assert [len(store.records(one)) for one in ("a", "b", "c")] == [6, 2, 6]
        assert [one.mail.key for one in store.pending("b")] == ["k1"]
        assert [one.id for one in store.timers_due(math.inf)] == ["s", "t"]
        store.append(turn("b", "b9", None, 1))


HOLD = """
import sys
from cantrip_actors.loom import open_store
with open_store(sys.argv[1]) as store:
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_loom_that_is_open_is_not_repaired(path, is_elsewhere):
    with open_store(path) if not is_elsewhere else python(HOLD, path, stdin=subprocess.PIPE) as holder:
        assert not is_elsewhere or holder.stdout.readline() == "open\n"
        before = {file: file.read_bytes() for file in path.parent.iterdir()} if is_elsewhere else {}
        with pytest.raises(LoomError, match="is open, here or in another process: close it there first"):
            repair_loom(path)
        if is_elsewhere:
            assert {file: file.read_bytes() for file in path.parent.iterdir()} == before
            holder.communicate("")
        else:
            holder.append([note("a")])
    assert repair_loom(path).left_out == {}
    with open_store(path) as store:
        assert (note("a") in store.records("a")) is not is_elsewhere


@pytest.mark.rule("C-53")
def test_a_repair_keeps_all_mail_and_timers_that_wait(path, monkeypatch):
    with open_store(path) as store:
        store.append([header("d", lasting=True)])
        (row,) = store.post([intent("k", "d")])
        store.append(
            [IntentGiven("d", "go", AT, key="k"), *turn("d", "d1", None, terminated=True)], taken=[(0, row.no)]
        )
        store.post([intent("k2", "d")])
        store.expire_mail("2027")
        store.post([replace(intent("k", "d"), at="2026-12-01T00:00:00.000Z"), intent("k3", "d")])
        pictured = replace(intent("k4", "d"), images=(Image(png()),))
        store.replace_timer(None, Timer(id="t", due=5.0, entity_id="d", mail=pictured))
        waiting = store.pending("d")
        assert len(waiting) == 3
    edit(path, '"text":"b1"', '"text":"B1"')
    monkeypatch.setattr(Store, "max_waiting", 1)
    repair_loom(path)
    with open_store(path) as store:
        assert [pending.mail for pending in store.pending("d")] == [pending.mail for pending in waiting]
        assert store.timers("d")[0].mail.images[0].data == png()
        assert verify_loom(store).faults == []


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("key", [None, b"sixteen bytes of a secret"])
@pytest.mark.parametrize("name", ["loom.db", "loom.jsonl"])
def test_a_loom_without_records_is_repaired_to_one_with_the_same_schedules(tmp_path, name, key):
    path = tmp_path / name
    open_store(path, seal_key=key).close()
    assert repair_loom(path, seal_key=key).records == 0
    with open_store(path, seal_key=key) as store:
        store.replace_timer(None, schedule())
    assert repair_loom(path, seal_key=key).records == 0
    with open_store(path, read_only=True, seal_key=key) as store:
        assert verify_loom(store).ok
        assert list(store.timers()) == [schedule()]


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("name", ["loom.db", "loom.jsonl"])
def test_a_file_whose_maker_was_killed_at_once_is_repaired_to_an_empty_loom(tmp_path, name):
    path = tmp_path / name
    path.touch()
    assert repair_loom(path).records == 0
    with open_store(path, read_only=True) as store:
        assert verify_loom(store).ok


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("name", ["loom.db", "loom.jsonl"])
@pytest.mark.parametrize("data", [b"garbage" * 100, b'{"kind":"header",garbage}\n'])
def test_a_repair_of_a_file_without_a_readable_record_changes_nothing(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(LoomError, match="nothing of it can be read: restore it from a backup"):
        repair_loom(path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(name, data)]


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("name", ["loom", "lo[o]m*"])
def test_a_repair_leaves_the_files_of_others(path, name):
    path = path.rename(path.with_name(name + path.suffix))
    others = [path.with_name(path.name + ending) for ending in (".old.db", "2", "-notes.txt", ".bak")]
    for other in others:
        other.write_text("of the user")
    edit(path, '"text":"b1"', '"text":"B1"')
    done = repair_loom(path)
    assert [other.read_text() for other in others] == ["of the user"] * 4
    assert not {other.name for other in others} & {one.name for one in done.copy.iterdir()}


@pytest.mark.parametrize("name", ["backup.db", "backup.jsonl"])
def test_of_several_backups_to_one_file_at_the_same_moment_one_is_made_and_the_others_are_refused(path, tmp_path, name):
    script = """
import sys
from cantrip_actors import LoomError
from cantrip_actors.looms import backup_loom

print("ready", flush=True)
sys.stdin.readline()
try:
    print(backup_loom(sys.argv[1], sys.argv[2]).ok)
except LoomError as error:
    print(error)
"""
    folder = tmp_path / "backups"
    processes = [child(script, path, folder / name, stdin=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = sorted(process.communicate()[0].strip() for process in processes)
    assert answers.count("True") == 1
    refusals = [answer for answer in answers if answer != "True"]
    assert all("exists already" in refusal or "another backup to" in refusal for refusal in refusals), refusals
    assert [file.name for file in folder.iterdir()] == [name]
    with open_store(folder / name) as store:
        assert verify_loom(store).ok


def test_a_backup_that_was_killed_is_made_by_repeating_it(path, tmp_path, monkeypatch):
    folder = tmp_path / "backups"
    step, was_killed = 1, True
    while was_killed:
        pid = os.fork()
        if pid == 0:
            count = dies_at(step)
            for method in (Path.replace, Path.unlink):
                monkeypatch.setattr(Path, method.__name__, counted(method, count))
            monkeypatch.setattr("cantrip_actors.loom.maintenance.backup.shutil.rmtree", counted(shutil.rmtree, count))
            backup_loom(path, folder / "backup.db")
            os._exit(0)
        was_killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        if not (folder / "backup.db").exists():
            assert backup_loom(path, folder / "backup.db").ok
            assert [file.name for file in folder.iterdir()] == ["backup.db"]
        with open_store(folder / "backup.db", read_only=True) as store:
            assert verify_loom(store).ok
        for file in list_loom_files(folder / "backup.db"):
            file.unlink()
        step += 1
    assert step > 2


@pytest.mark.rule("C-53")
def test_a_repair_that_was_killed_at_any_step_is_finished_by_repeating_it(path, monkeypatch):
    with open_store(path) as store:
        store.append([note("c")])
        edit(path, '"text":"b1"', '"text":"B1"')
        whole = {one.name: one.read_bytes() for one in list_loom_files(path)}  # an SQLite loom has a log beside it
    step, was_killed = 1, True
    while was_killed:
        for one in list_loom_files(path):
            one.unlink()
        for name, data in whole.items():
            path.with_name(name).write_bytes(data)
        child = os.fork()
        if child == 0:
            count = dies_at(step)
            for method in (Path.rename, Path.replace, Path.unlink):
                monkeypatch.setattr(Path, method.__name__, counted(method, count))
            repair_loom(path)
            os._exit(0)
        was_killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        with open_store(path, read_only=True) as store:
            assert [len(store.records(one)) for one in ("a", "c")] == [6, 7]
        with open_store(path, repair=True) as store:
            assert verify_loom(store).faults == []
            assert [len(store.records(one)) for one in ("a", "b", "c")] == [6, 2, 7]
            assert [one.mail.key for one in store.pending("b")] == ["k1"]
        step += 1
    assert step > 2


@pytest.mark.rule("C-53")
def test_repeating_a_repair_that_was_killed_while_it_copied_leaves_one_copy_of_the_damaged_files(path, monkeypatch):
    with open_store(path) as store:
        store.append([note("c")])
    edit(path, '"text":"b1"', '"text":"B1"')
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(shutil, "copy2", counted(shutil.copy2, dies_at(2)))
        repair_loom(path)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    copy = repair_loom(path).copy
    assert [folder for folder in path.parent.iterdir() if folder.is_dir()] == [copy]
    assert b"B1" in (copy / path.name).read_bytes()


@pytest.mark.rule("C-53")
def test_a_line_that_is_not_a_record_is_refused_and_left_out_by_a_repair(tmp_path):
    path = tmp_path / "loom.jsonl"
    with open_store(path) as store:
        store.append([*run("a", "a1"), *run("b", "b1")])
    edit(path, '{"kind":"turn","entity":"a"', '{"kind":"tu')
    with pytest.raises(DamagedLoom, match="cantrip loom repair"):
        open_store(path)
    with open_store(path, repair=True) as store:
        assert [len(store.records(one)) for one in ("a", "b")] == [5, 6]
        assert verify_loom(store).ok


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("suffix", ["db", "jsonl"])
def test_bytes_that_are_no_text_in_a_forgotten_record_are_damage_and_no_backup_is_made(tmp_path, suffix):
    path = tmp_path / "loom.jsonl"
    with open_store(path) as store:
        store.append([*run("a", "a1"), Ended("a", "terminated", AT), *run("b", "b1")])
        forget_entities(store, Wanted(["a"]))
    whole = path.read_bytes()
    at = whole.index(b'"chain":"', whole.rindex(b'"gone":')) + 12
    path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    with pytest.raises(LoomError, match=r"cannot be copied: .* is not a record of a loom"):
        backup_loom(path, tmp_path / f"copy.{suffix}")
    with open_store(path, repair=True) as store:
        assert [len(store.records(one)) for one in ("a", "b")] == [8, 6]  # `a` was ended and forgotten again
        assert verify_loom(store).ok


@pytest.mark.rule("C-53")
def test_bytes_that_are_no_text_in_the_schema_of_a_file_are_damage(tmp_path):
    path = tmp_path / "loom.db"
    with open_store(path) as store:
        store.append(run("a", "a1"))
    whole = path.read_bytes()
    at = whole.index(b"tablerecordsrecords") + 5
    path.write_bytes(whole[:at] + b"\xfe" + whole[at + 1 :])
    for read_only in (False, True):
        with pytest.raises(DamagedLoom, match=r"malformed database schema.*cantrip loom repair"):
            open_store(path, read_only=read_only)


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_a_repair_restores_the_line_ends_of_a_loom_that_an_editor_has_converted(tmp_path, key):
    path = tmp_path / "loom.jsonl"
    with open_store(path, seal_key=key) as store:
        store.append([*run("a", "a1", snapshot=SNAPSHOT), *run("b", "b1", lasting=True, name="notes")])
        store.post([intent("k1")])
        records = [len(store.records(one)) for one in ("a", "b")]
        store.replace_timer(None, schedule())
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\n", b"\r\n"))
    with pytest.raises(DamagedLoom, match=r"line 1 is corrupt: it ends in CRLF.*cantrip loom repair"):
        open_store(path, seal_key=key)
    with open_store(path, repair=True, seal_key=key) as store:
        assert verify_loom(store).faults == []
        assert [len(store.records(one)) for one in ("a", "b")] == records
        assert store.blob(SNAPSHOT.digest) is not None
        assert [one.mail.key for one in store.pending("b")] == ["k1"]
        assert store.find_timer("", schedule().id) is not None
    if key is None:  # a seal has new salt
        assert sorted(path.read_bytes().splitlines()) == sorted(content.splitlines())


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("number", [3, 5, 8], ids=["intent", "gate_started", "last"])
def test_a_loom_with_one_converted_line_is_refused_for_writing_and_can_be_repaired(tmp_path, number):
    path = tmp_path / "loom.jsonl"
    with open_store(path) as store:
        store.append([*run("a", "a1"), *run("b", "b1")][:7])
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace(b"\n", b"\r\n")
    path.write_bytes(b"".join(lines))
    with pytest.raises(DamagedLoom, match=rf"line {number} is corrupt: it ends in CRLF.*cantrip loom repair"):
        open_store(path)
    with open_store(path, read_only=True) as reader:
        assert len([*reader.lines()]) == 7
        assert not verify_loom(reader).ok
    with open_store(path, repair=True):
        assert path.read_bytes() == content


@pytest.mark.rule("C-53")
def test_a_file_with_a_bad_page_is_refused_for_writing_and_can_be_repaired(tmp_path):
    path = tmp_path / "loom.db"
    with open_store(path) as store:
        for number in range(40):
            store.append(run(f"e{number}", f"t{number}"))
    with path.open("r+b") as file:
        page = 4096 * (path.stat().st_size // 4096 // 2)
        file.seek(page)
        file.write(b"\xff" * 4096)
    with pytest.raises(DamagedLoom, match=r"is damaged: .* Restore it from a backup"):
        open_store(path)
    with open_store(path, read_only=True) as reader:
        assert reader.read_only
    with open_store(path, repair=True) as store:
        assert verify_loom(store).faults == []
        assert 0 < sum(len(store.records(f"e{number}")) for number in range(40)) <= 240
        store.append(run("new", "n1"))


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("share", [0.6, 0.9, 0.999])
def test_a_file_that_lost_its_end_is_repaired_up_to_there(tmp_path, share):
    path = tmp_path / "loom.db"
    with open_store(path) as store:
        for number in range(300):
            store.append(run(f"e{number}", f"t{number}"))
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(DamagedLoom, match="Restore it from a backup"):
        open_store(path)
    done = repair_loom(path)
    assert 600 < done.records < 1800
    assert done.records + sum(done.left_out.values()) <= 1800
    with open_store(path) as store:
        assert verify_loom(store).faults == []
        assert len(store.records("e0")) == 6


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("value", ["null", "cast(x'ff' as text)"])
def test_a_row_without_text_is_damage_and_left_out_by_a_repair(tmp_path, value):
    path = tmp_path / "loom.db"
    with open_store(path) as store:
        store.append([*run("a", "a1"), *run("b", "b1", lasting=True)])
        store.post([intent("k1"), intent("k2")])
        store.replace_timer(None, schedule("s"))
        store.replace_timer(None, schedule("t"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("pragma writable_schema = on")
        other.execute("update sqlite_master set sql = replace(sql, ' not null', '') where type = 'table'")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"update records set body = {value} where seq = 8")
        other.execute(f"update mail set line = {value} where key = 'k2'")
        other.execute(f"update timers set line = {value} where id = 't'")
    with open_store(path, read_only=True) as store, pytest.raises(DamagedLoom, match="a row of the loom is damaged"):
        verify_loom(store)
    with open_store(path, repair=True) as store:
        assert verify_loom(store).ok
        assert [len(store.records(one)) for one in ("a", "b")] == [6, 1]
        assert [one.mail.key for one in store.pending("b")] == ["k1"]
        assert [one.id for one in store.timers()] == ["s"]


@pytest.mark.rule("C-53")
def test_a_whole_loom_is_not_changed_by_repair_true(path):
    with open_store(path) as store:
        before = verify_loom(store)
    with open_store(path, repair=True) as store:
        assert verify_loom(store) == before
    assert not list(path.parent.glob("*.damaged-*"))


@pytest.mark.rule("C-53")
def test_a_new_jsonl_file_has_a_version_line_and_an_old_file_opens_without_one(tmp_path):
    path = tmp_path / "loom.jsonl"
    with open_store(path) as store:
        store.append(run("a", "a1"))
    first, rest = path.read_bytes().split(b"\n", 1)
    assert first.startswith(b'{"loom":1,')
    path.write_bytes(rest)
    with open_store(path) as store:
        assert verify_loom(store).ok
        store.append(run("b", "b1"))
    assert path.read_bytes().startswith(rest)
    path.write_bytes(b'{"loom":2}\n' + rest)
    for read_only in (True, False):
        with pytest.raises(Newer, match=r"loom\.jsonl: line 1 is of version 2, this version reads 1: use a newer"):
            open_store(path, read_only=read_only)


@pytest.mark.rule("C-52")
def test_a_loom_that_was_opened_for_writing_forgets_and_prunes(tmp_path):
    with open_store(tmp_path / "loom.db") as store:
        store.append([*run("a", "a1"), Ended("a", "terminated", AT), *run("b", "b1"), Ended("b", "terminated", AT)])
    with open_loom(tmp_path / "loom.db", read_only=False) as loom:
        assert loom.forget("a", by="anna").entities == ("a",)
        assert loom.prune(0).entities in ((), ("b",))
