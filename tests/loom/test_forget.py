"""Forgetting entities, in every store: no byte of the content is left, and the rest of the loom is as it was."""

import os
import shutil
import signal
import sqlite3
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from hypothesis import given

from cantrip_actors.loom import (
    Held,
    Loom,
    Mail,
    Wanted,
    backup_loom,
    begin_forget,
    copy_loom,
    find_forks,
    forget_entities,
    open_store,
    repair_loom,
    this_process,
    thread_jsonl,
    verify_loom,
)
from cantrip_actors.loom.postgres.postgres_connection import Sql
from cantrip_actors.loom.seal.line_file import Disk
from cantrip_actors.loom.sqlite.sqlite import SqliteStore
from cantrip_actors.loom.tables import table_forget
from cantrip_actors.machine.project import Life, as_forgotten
from cantrip_actors.machine.project.conversation import build_conversation
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import encode
from cantrip_actors.records.records import ChildStarted, Ended, ForgottenRecord, GateFinished, IntentGiven
from cantrip_actors.records.seal import seal, split_link
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.records.timers import Rule, Scheduled, Timer
from cantrip_actors.records.tombstone import is_tombstone, make_tombstone
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.history import PastMessage
from cantrip_actors.terms.image import Image
from tests.exhaustive import EXHAUSTIVE
from tests.loom.histories import AT, KEY, header, records, run, turn
from tests.loom.test_store import KINDS, LASTING, Place
from tests.pictures import png

SECRETS = (
    b"MARK-intent",
    b"MARK-context",
    b"MARK-history",
    b"MARK-result",
    b"MARK-mail",
    b"MARK-key",
    b"MARK-name",
    b"MARK-state",
    b"MARK-schedule",
)
PICTURE, OTHER_PICTURE = png(width=7, height=5, shade=99), png(width=7, height=5, shade=98)
SANDBOX = Blob.of_snapshot("toy 1.0", b"MARK-sandbox and its variables", KEY)
SHARED = Blob.of_snapshot("toy 1.0", b"a sandbox that others have, too", KEY)

LONG = "MARK-mail" * 2000
"""Longer than a page of SQLite."""


def schedule(id, name, intent="go", to="entity", **facts):
    work = Scheduled(to=to, name=name, intent=intent, rule=Rule(every=60.0), created=0.0, **facts)
    return Timer(id=id, due=100.0, schedule=work)


def fill(store):
    """A long-lived entity `a` with a child, all kinds of content and mail; and `b`, which has nothing to do with it."""
    image = Image(PICTURE).with_position(1)
    store.append(run("b", "b1", snapshot=SHARED))
    store.append(
        [
            header("a", name="MARK-name", lasting=True),
            IntentGiven(
                "a", "MARK-intent", AT, "MARK-context", (image,), history=(PastMessage("user", "MARK-history"),)
            ),
        ]
    )
    store.append(turn("a", "a1", None, text="MARK-result" * 2000, snapshot=SANDBOX, images=(image,)))
    store.append(turn("a", "a2", "a1", 2, text="MARK-result", snapshot=SHARED, terminated=True))
    store.append(run("child", "c1", parent="a1", parent_entity="a"))
    taken = Mail(entity_id="a", key="MARK-key", kind="intent", body={"intent": LONG}, at=AT)
    (row,) = store.post([taken])
    store.append([IntentGiven("a", LONG, AT, key="MARK-key")], taken=[(0, row.no)])
    store.post(
        [Mail(entity_id="a", key="MARK-key-2", kind="steer", body={"text": "MARK-mail"}, at=AT, images=(image,))]
    )
    for id, to in (("of-name", "MARK-name"), ("of-id", "a")):
        store.replace_timer(None, schedule(id, to, "MARK-schedule"))
    store.keep_checkpoint("a", store.tip("a"), b"MARK-state" * 2000)
    store.append([Ended("child", "terminated", AT), Ended("a", "cancelled", AT)])


def leftovers(place, folder):
    """Which secrets are found in a file of the loom, or in a row of any table."""
    wanted = {*SECRETS, PICTURE, SANDBOX.data}
    if place.kind == "postgres":
        schema = parse_qs(urlsplit(place.url).query)["schema"][0]
        with psycopg.connect(place.url.replace(f"&schema={schema}", "")) as connection:
            tables = connection.execute("select tablename from pg_tables where schemaname = %s", (schema,)).fetchall()
            rows = [connection.execute(f'select * from "{schema}".{table}').fetchall() for (table,) in tables]
        data = [repr(rows).encode()] + [
            bytes(value) for table in rows for row in table for value in row if isinstance(value, bytes)
        ]
    else:
        data = [path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()]
    return {secret for secret in wanted for bytes_ in data if secret in bytes_}


@pytest.mark.rule("C-50")
def test_forget_leaves_no_byte_of_the_content(place, tmp_path):
    with place.open() as store:
        fill(store)
        if place.lasts:
            assert leftovers(place, tmp_path) >= {b"MARK-intent", b"MARK-result"}
        forget_entities(store, Wanted(["a"]))
        assert leftovers(place, tmp_path) == set()
    assert leftovers(place, tmp_path) == set()


@pytest.mark.rule("C-50")
def test_forget_counts_records_and_bytes(store):
    fill(store)
    lines = sum(len(line) for _, line in store.lines() if b'"entity":"a"' in line or b'"entity":"child"' in line)
    records = len(store.records("a")) + len(store.records("child"))
    forgotten = forget_entities(store, Wanted(["a"], "anna", "asked"))
    assert forgotten.entities == ("a", "child")
    assert (forgotten.records, forgotten.bytes, forgotten.blobs) == (records, lines, 2)
    last = as_forgotten(store.records("a")[-1])
    assert (last.by, last.why, last.records) == ("anna", "asked", records - len(store.records("child")) + 1)


@pytest.mark.rule("C-50")
def test_a_loom_with_forgotten_entities_verifies_and_counts_them(place):
    with place.open() as store:
        fill(store)
        before = verify_loom(store)
        forget_entities(store, Wanted(["a"]))
        after = verify_loom(store)
        assert after.faults == []
        assert (after.entities, after.turns, after.forgotten) == (before.entities, before.turns, 2)
        assert after.tombstones == after.records - 2 - len(store.records("b"))
    if place.lasts:
        with place.open() as again:
            assert verify_loom(again) == after
            assert again.life("a") is Life.FORGOTTEN


@pytest.mark.rule("C-50")
def test_forget_leaves_siblings_and_shared_blobs_as_they_were(store):
    fill(store)
    before = list(store.records("b"))
    forget_entities(store, Wanted(["a"]))
    assert list(store.records("b")) == before
    assert store.blob(SHARED.digest) == SHARED
    assert list(store.blobs()) == [SHARED.digest]
    assert list(store.unfinished()) == ["b"]


@pytest.mark.rule("C-50")
@pytest.mark.parametrize("is_late", [False, True])
def test_forget_keeps_the_images_of_mail_and_timers_that_wait(place, is_late):
    pictures = (Image(PICTURE),)
    mail = Mail(entity_id="e", key="k", kind="timer", body={"intent": "look"}, at=AT, images=pictures)
    timer = Timer(id="t", due=9e9, entity_id="e", mail=replace(mail, key="t", images=(Image(OTHER_PICTURE),)))
    with place.open() as store:
        intent = IntentGiven("a", "look", AT, images=(*pictures, *timer.mail.images))
        store.append([header("e", lasting=True), header("a"), intent, Ended("a", "cancelled", AT)])
        finish = begin_forget(store, Wanted(["a"])) if is_late else partial(forget_entities, store, Wanted(["a"]))
        store.post([mail])
        store.replace_timer(None, timer)
        finish()
        store.drop_unused_blobs()
    with place.open() if place.lasts else nullcontext(store) as store:
        assert [image.data for pending in store.pending("e") for image in pending.mail.images] == [PICTURE]
        assert [image.data for image in store.find_timer("e", "t").mail.images] == [OTHER_PICTURE]


def long_lived(store, entity, name, **fields):
    """Append a long-lived entity of this name that has ended."""
    begun = [header(entity, name=name, lasting=True, **fields), IntentGiven(entity, "go", AT)]
    store.append([*begun, Ended(entity, "cancelled", AT)])


@pytest.mark.rule("C-50", "X-42")
def test_the_name_of_a_forgotten_entity_leads_to_no_entity_of_another_tenant(store):
    long_lived(store, "theirs", "notes", tenant="acme")
    long_lived(store, "ours", "notes")
    forget_entities(store, Wanted(["ours"]))
    assert store.named("notes") is None
    long_lived(store, "later", "notes", tenant="acme")
    forget_entities(store, Wanted(["later"]))
    assert store.named(scope_name("acme", "notes")) == "theirs"


@pytest.mark.rule("C-50")
def test_forget_leaves_schedules_that_are_for_others(store):
    long_lived(store, "first", "notes")
    long_lived(store, "second", "notes")
    long_lived(store, "old", "diary", tenant="acme")
    kept = [schedule("b", "notes"), schedule("c", "diary"), schedule("d", "diary", to="cantrip", tenant="acme")]
    for one in (schedule("a", "diary", tenant="acme"), *kept):
        store.replace_timer(None, one)
    forget_entities(store, Wanted(["first", "old"]))
    assert sorted(one.id for one in store.timers()) == ["b", "c", "d"]
    forget_entities(store, Wanted(["second"]))
    assert sorted(one.id for one in store.timers()) == ["c", "d"]


@pytest.mark.rule("C-50")
def test_a_forgotten_entity_keeps_its_turns_and_counts_and_no_content(store):
    fill(store)
    loom = Loom(store, store.append)
    before = loom.turns("a"), loom.subtree_usage("a"), loom.subtree("a")
    forget_entities(store, Wanted(["a"]))
    turns = loom.turns("a")
    assert [(one.id, one.parent_id, one.usage) for one in turns] == [
        (one.id, one.parent_id, one.usage) for one in before[0]
    ]
    assert all(one.forgotten and not one.utterance and not one.observation for one in turns)
    assert (loom.subtree_usage("a"), loom.subtree("a")) == before[1:]
    assert (loom.state("a"), loom.is_forgotten("a"), loom.is_over("a")) == ("forgotten", True, True)
    assert [one.id for one in loom.thread("c1")] == ["a1", "c1"]
    assert build_conversation(loom.lineage("a2")).items == ()
    assert b"MARK" not in thread_jsonl(turns)
    assert store.named("MARK-name") is None


@pytest.mark.rule("C-50")
def test_a_forgotten_turn_accepts_no_reward(store):
    fill(store)
    forget_entities(store, Wanted(["a"]))
    with pytest.raises(LoomError, match="turn a1 is forgotten: it takes no reward"):
        Loom(store, store.append).reward("a1", 1.0).send(None)


@pytest.mark.rule("C-50")
def test_forgetting_again_changes_nothing(store):
    fill(store)
    first = forget_entities(store, Wanted(["a"]))
    lines = list(store.lines())
    again = forget_entities(store, Wanted(["a"]))
    assert (again.entities, again.records, again.bytes) == (first.entities, first.records, first.bytes)
    assert list(store.lines()) == lines


@pytest.mark.rule("C-50")
def test_an_entity_that_has_not_ended_is_not_forgotten(store):
    fill(store)
    lines = list(store.lines())
    with pytest.raises(LoomError, match="entity b has not ended, and is not forgotten: stop it first"):
        forget_entities(store, Wanted(["b"]))
    with pytest.raises(LoomError, match="entity nobody is not in this loom"):
        forget_entities(store, Wanted(["nobody"]))
    assert list(store.lines()) == lines


@pytest.mark.rule("C-50")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_entity_that_another_process_holds_is_not_forgotten(kind, tmp_path):
    place = Place(kind, tmp_path)
    with place.open() as store, place.open() as other:
        fill(store)
        lease = other.claim("a", this_process(), 60.0)
        with pytest.raises(Held):
            forget_entities(store, Wanted(["a"]))
        other.release(lease)
        assert forget_entities(store, Wanted(["a"])).entities == ("a", "child")
    place.clear()


@pytest.mark.rule("C-50")
def test_forks_are_listed_and_forgotten_on_request(store):
    fill(store)
    store.append([*run("fork", "f1", parent="a1", forked=True), Ended("fork", "terminated", AT)])
    store.append([*run("fork2", "g1", parent="f1", forked=True), Ended("fork2", "terminated", AT)])
    store.keep_checkpoint("fork", store.tip("fork"), b"MARK-state")
    assert find_forks(store, ["a"]) == ["fork", "fork2"]
    first = forget_entities(store, Wanted(["a"]))
    assert first.forks == ("fork", "fork2")
    assert Loom(store, store.append).state("fork") == "terminated"
    assert store.checkpoint("fork") is None
    second = forget_entities(store, Wanted(["a"], forks=True))
    assert (second.entities, second.forks) == (("a", "child", "fork", "fork2"), ())
    assert verify_loom(store).forgotten == 4


@pytest.mark.rule("C-50")
def test_turns_of_a_parent_that_quote_the_result_are_listed_and_stay(store):
    store.append([*run("p", "p1", ends=False), ChildStarted("p", "p1", "call_2_1", "kid")])
    store.append([*run("kid", "k1", parent="p1", parent_entity="p"), Ended("kid", "terminated", AT)])
    store.append([*turn("p", "p2", "p1", 2, text="what the kid said", terminated=True), Ended("p", "terminated", AT)])
    forgotten = forget_entities(store, Wanted(["kid"]))
    assert [tuple(quote) for quote in forgotten.quotes] == [("p", "p2")]
    finished = [record for record in store.records("p") if isinstance(record, GateFinished)]
    assert finished[-1].result == "what the kid said"
    assert verify_loom(store).faults == []


@pytest.mark.rule("C-50")
def test_parents_that_quote_the_result_are_forgotten_on_request(store):
    store.append([*run("g", "g1", ends=False), ChildStarted("g", "g1", "call_g", "p")])
    store.append(
        [*run("p", "p1", ends=False, parent="g1", parent_entity="g"), ChildStarted("p", "p1", "call_2_1", "kid")]
    )
    store.append([*run("kid", "k1", parent="p1", parent_entity="p"), Ended("kid", "terminated", AT)])
    store.append([*run("other", "o1", parent="p1", parent_entity="p"), Ended("other", "terminated", AT)])
    store.append([*turn("p", "p2", "p1", 2, text="what the kid said", terminated=True), Ended("p", "terminated", AT)])
    store.append([*turn("g", "g2", "g1", 2, text="nothing of it", terminated=True), Ended("g", "terminated", AT)])
    forgotten = forget_entities(store, Wanted(["kid"], parents=True))
    assert (sorted(forgotten.entities), forgotten.quotes) == (["kid", "other", "p"], ())
    assert verify_loom(store).faults == []
    assert not any(b"what the kid said" in line for _, line in store.lines())


@pytest.mark.rule("C-50")
def test_a_loom_accepts_records_after_forgetting(place):
    with place.open() as store:
        fill(store)
        forget_entities(store, Wanted(["a"]))
        store.append(turn("b", "b2", "b1", 2))
        store.append(run("new", "n1"))
        assert verify_loom(store).faults == []
    if place.lasts:
        with place.open() as again:
            assert [record.turn_id for record in again.records("new")[2:]] == ["n1"] * 4
            assert verify_loom(again).faults == []


@pytest.mark.rule("C-50")
@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", ["jsonl", "sqlite", "memory"])
def test_a_copy_keeps_tombstones(source, target, tmp_path):
    (tmp_path / "copy").mkdir()
    here, there = Place(source, tmp_path), Place(target, tmp_path / "copy")
    with here.open() as store, there.open() as other:
        fill(store)
        forget_entities(store, Wanted(["a"]))
        copied = copy_loom(store, other)
        assert (copied.faults, copied.forgotten, copied.tombstones) == ([], 2, verify_loom(store).tombstones)
        if "memory" not in (source, target):
            assert copied.fingerprint == verify_loom(store).fingerprint
    here.clear()


# --------------------------------------------------------------------------------------------------------- verifying


def replace_line(path, old, new):
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


@pytest.mark.rule("C-50")
def test_verify_finds_a_record_that_was_replaced_by_a_tombstone(tmp_path):
    with open_store(tmp_path / "loom.jsonl") as store:
        fill(store)
        line = [line for _, line in store.lines() if b'"entity":"b"' in line][3]
    replace_line(tmp_path / "loom.jsonl", line, make_tombstone(line))
    with open_store(tmp_path / "loom.jsonl") as store:
        faults = [str(fault) for fault in verify_loom(store).faults]
    assert "records of entity b are gone, and no record says that it was forgotten" in faults


@pytest.mark.rule("C-50")
def test_verify_lists_content_of_forgotten_entities_in_the_order_of_the_log(tmp_path):
    path = tmp_path / "loom.jsonl"
    names = [f"entity-{n}" for n in range(12)]
    with open_store(path) as store:
        for name in names:
            store.append([*run(name, f"turn-{name}"), Ended(name, "terminated", AT)])
        lines = [line for _, line in store.lines() if b'"intent"' in line]
        forget_entities(store, Wanted(names))
    with path.open("ab") as log:
        log.writelines(line + b"\n" for line in lines)
    with open_store(path) as store:
        faults = [fault.what for fault in verify_loom(store).faults]
    found = [what for what in faults if "still has its content" in what]
    assert found == [f"entity {name} was forgotten, and this record still has its content" for name in names]


@pytest.mark.rule("C-50")
def test_verify_finds_a_tombstone_that_was_edited(tmp_path):
    with open_store(tmp_path / "loom.jsonl") as store:
        fill(store)
        forget_entities(store, Wanted(["a"]))
        line = next(line for _, line in store.lines() if b'"turn":"a1","usage"' in line)
    replace_line(tmp_path / "loom.jsonl", line, line.replace(b'"prompt_tokens":10', b'"prompt_tokens":90'))
    with open_store(tmp_path / "loom.jsonl") as store:
        faults = [fault.what for fault in verify_loom(store).faults]
    assert faults == ["the tombstones of entity a were changed since they were made"]


@pytest.mark.rule("C-50")
def test_verify_finds_an_edited_record_between_tombstones(tmp_path):
    with open_store(tmp_path / "loom.jsonl") as store:
        store.append([*run("p", "p1", ends=False)])
        store.append([*run("kid", "k1", parent="p1", parent_entity="p"), Ended("kid", "terminated", AT)])
        store.append([*turn("p", "p2", "p1", 2, text="kept", terminated=True), Ended("p", "terminated", AT)])
        forget_entities(store, Wanted(["kid"]))
        assert verify_loom(store).ok
        line = next(line for _, line in store.lines() if b'"result":"kept"' in line)
    replace_line(tmp_path / "loom.jsonl", line, line.replace(b'"kept"', b'"eDit"'))
    with open_store(tmp_path / "loom.jsonl") as store:
        assert not verify_loom(store).ok


@pytest.mark.rule("C-50")
@given(records)
def test_a_tombstone_keeps_the_link_and_no_text(record):
    line, link = seal(encode(record), b"")
    tombstone = make_tombstone(line)
    assert is_tombstone(tombstone)
    assert not is_tombstone(line)
    assert split_link(tombstone)[1] == link
    assert make_tombstone(tombstone) == tombstone
    assert not any(field in tombstone for field in (b'"intent":', b'"result":', b'"call":'))


# ------------------------------------------------------------------------------------------------- killed in the middle


def dies_at(step):
    """A function that counts its calls, and kills this process at the given one."""
    left = [step]

    def count(*_):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def counted(work, count):
    """The function, which first calls `count`."""

    def call(*args, **named):
        count()
        return work(*args, **named)

    return call


def forget_and_die(place, step, monkeypatch):
    """Forget `a` in a child process that is killed at the given step; return whether it was."""
    child = os.fork()
    if child == 0:
        count = dies_at(step)
        if place.kind == "jsonl":
            disk = Disk(
                write=counted(os.write, count), truncate=counted(os.ftruncate, count), sync=counted(os.fsync, count)
            )
            monkeypatch.setattr("cantrip_actors.loom.memory.jsonl.Disk", lambda: disk)
            monkeypatch.setattr(Path, "replace", counted(Path.replace, count))
            monkeypatch.setattr(Path, "unlink", counted(Path.unlink, count))
        elif place.kind == "sqlite":
            connect = SqliteStore._connect

            def connect_traced(self, *patience):
                connection = connect(self, *patience)
                connection.set_trace_callback(count)
                return connection

            monkeypatch.setattr(SqliteStore, "_connect", connect_traced)
        else:
            monkeypatch.setattr(Sql, "execute", counted(Sql.execute, count))
        try:
            with place.open() as store:
                forget_entities(store, Wanted(["a"]))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.rule("C-50", "K-30")
@pytest.mark.parametrize("lines", [1000, 2])
@pytest.mark.parametrize("kind", LASTING)
def test_a_forget_that_was_killed_at_any_step_is_finished_by_repeating_it(kind, lines, tmp_path, monkeypatch):
    monkeypatch.setattr(table_forget, "MOST", lines)  # in one transaction
    step, was_killed = 1, True
    while was_killed:
        folder = tmp_path / str(step)
        folder.mkdir()
        place = Place(kind, folder)
        with place.open() as store:
            fill(store)
            siblings = list(store.records("b"))
        was_killed = forget_and_die(place, step, monkeypatch)
        with place.open() as store:
            assert list(store.records("b")) == siblings
            assert {fault.blob for fault in verify_loom(store).faults} <= {None}
            assert verify_loom(store).ok
            assert forget_entities(store, Wanted(["a"])).entities == ("a", "child")
            assert verify_loom(store).forgotten == 2
        assert leftovers(place, folder) == set()
        place.clear()
        step += (1 if kind == "jsonl" else 7) * (1 if EXHAUSTIVE else 3)
    assert step > 3


@pytest.mark.rule("C-50")
@pytest.mark.parametrize("step", ["prepare_forget", "release"])
def test_a_forget_that_lost_its_store_is_finished_by_repeating_it_at_once(store, monkeypatch, step):
    fill(store)
    lost = Mock(side_effect=LoomError("cannot reach it"))
    monkeypatch.setattr(store, step, lost)
    monkeypatch.setattr(store, "release", lost)
    with pytest.raises(LoomError, match="cannot reach it"):
        forget_entities(store, Wanted(["child"]))
    monkeypatch.undo()
    assert forget_entities(store, Wanted(["child"])).entities == ("child",)
    assert store.life("child") is Life.FORGOTTEN
    assert verify_loom(store).ok
    store.release(store.claim("a", this_process(), 60))


@pytest.mark.rule("C-50")
def test_a_record_of_a_forgotten_entity_is_the_last_of_its_log(store):
    fill(store)
    forget_entities(store, Wanted(["a"]))
    assert [isinstance(record, ForgottenRecord) for record in store.records("a")].index(True) == len(
        store.records("a")
    ) - 1


# -------------------------------------------------------------------------------------------------------------- damage


def damage(path, number):
    """Overwrite a record of a closed loom in a file."""
    if path.suffix == ".jsonl":
        lines = path.read_bytes().splitlines(keepends=True)
        at = [at for at, line in enumerate(lines) if line.startswith(b'{"kind":')][number - 1]
        lines[at] = b'{"kind":' + b"x" * (len(lines[at]) - 9) + b"\n"
        path.write_bytes(b"".join(lines))
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("update records set body = 'x' where seq = ?", (number,))


def check_repaired(path, key, folder):
    """Assert that a repaired loom verifies, can be repaired again, and has no content of `a` and its child."""
    with open_store(path, read_only=True, seal_key=key) as store:
        assert verify_loom(store).faults == []
        ends = {entity: store.life(entity) for entity in ("a", "child")}
        assert set(ends.values()) <= {None, Life.FORGOTTEN}
        records = {entity: len(store.records(entity)) for entity in ("a", "b", "child")}
    again = repair_loom(path, seal_key=key)
    assert (again.records, again.left_out, again.forgotten) == (sum(records.values()), {}, ())
    shutil.rmtree(again.copy)
    backup = folder / f"backup{path.suffix}"
    assert backup_loom(path, backup, seal_key=key).ok
    return records


@pytest.mark.rule("C-50", "C-53")
@pytest.mark.parametrize("key", [None, b"sixteen bytes of a secret"])
@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
def test_a_repair_forgets_again_when_the_record_that_says_so_is_lost(kind, key, tmp_path):
    with open_store(whole := tmp_path / f"whole.{'db' if kind == 'sqlite' else kind}", seal_key=key) as store:
        fill(store)
        forget_entities(store, Wanted(["a"]))
        numbers = range(1, 1 + sum(1 for _ in store.lines()))
    for number in numbers:
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / whole.name
        shutil.copy(whole, path)
        damage(path, number)
        done = repair_loom(path, seal_key=key)
        shutil.rmtree(done.copy)
        check_repaired(path, key, folder)
        assert leftovers(Place(kind, folder), folder) == set()


@pytest.mark.rule("C-50", "C-53")
def test_a_repair_forgets_again_what_follows_an_edited_tombstone(tmp_path):
    with open_store(path := tmp_path / "loom.jsonl") as store:
        fill(store)
        forget_entities(store, Wanted(["a"]))
    data = path.read_bytes()
    assert data.count(b'"sequence":2') == 1
    path.write_bytes(data.replace(b'"sequence":2', b'"sequence":1'))
    done = repair_loom(path)
    assert done.forgotten == ("a",)
    shutil.rmtree(done.copy)
    check_repaired(path, None, tmp_path)


@pytest.mark.rule("C-50", "C-53")
@pytest.mark.parametrize("key", [None, b"sixteen bytes of a secret"])
def test_a_repair_finishes_a_forget_that_was_killed(key, tmp_path, monkeypatch):
    monkeypatch.setattr(table_forget, "MOST", 2)
    path = tmp_path / "loom.db"
    with open_store(path, seal_key=key) as store:
        fill(store)
        monkeypatch.setattr(SqliteStore, "_forget_group", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            forget_entities(store, Wanted(["a"]))
        assert store.half_forgotten()
    monkeypatch.undo()
    done = repair_loom(path, seal_key=key)
    shutil.rmtree(done.copy)
    check_repaired(path, key, tmp_path)
    assert leftovers(Place("sqlite", tmp_path), tmp_path) == set()
