"""`verify_loom` finds every change made outside of the store, and no fault in an unchanged loom."""

import json
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.loom import SqliteStore, copy_loom, open_store, verify_loom
from cantrip_actors.loom.tables.table_rows import MANY
from cantrip_actors.records.codec import encode
from cantrip_actors.records.records import Ended, Rewarded
from cantrip_actors.records.seal import NOTHING, seal, split_link
from cantrip_actors.records.timers import Rule, Scheduled, Timer
from tests.loom.histories import AT, header, histories, records, run, turn
from tests.loom.test_inbox import mail
from tests.loom.test_store import KINDS, SHARED, anywhere, examples, property_of

FAMILY = [
    *run("e", "t1", ends=False),
    *run("c", "t2", parent="t1", parent_entity="e"),
    Ended("c", "terminated", AT),
    *turn("e", "t3", "t1", 2, terminated=True),
    Ended("e", "terminated", AT),
    *run("other", "t4"),
]


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("kind", SHARED)
def test_a_loom_that_another_process_writes_to_meanwhile_has_no_faults(kind, monkeypatch):
    with anywhere(kind) as place, place.open() as store, place.open() as other:
        store.append([header("e", lasting=True), *turn("e", "t", None)])
        read_lines = type(store).indexed_lines

        def write_after_reading(self):
            yield from read_lines(self)
            begun = header(f"late{other.last_number()}", lasting=True)
            other.append([*turn("e", f"t{other.last_number()}", "t", 2), begun])
            other.post([mail("k", entity=begun.entity_id)])

        monkeypatch.setattr(type(store), "indexed_lines", write_after_reading)
        assert verify_loom(store).faults == []
        with open_store("memory:") as copy:
            assert copy_loom(store, copy).faults == []
            assert copy.last_number() < store.last_number()


@given(records, st.binary(max_size=24).map(bytes.hex).map(str.encode))
def test_a_sealed_line_is_its_line_and_a_link(record, before):
    line = encode(record)
    sealed, link = seal(line, before)
    assert split_link(sealed) == (line, link)
    assert json.loads(sealed)["chain"] == link.decode()
    assert seal(line, before) == (sealed, link)
    assert seal(line, link)[1] != link


def test_text_that_resembles_a_link_is_not_a_link():
    assert split_link(b'{"kind":"intent"}') == (b'{"kind":"intent"}', None)
    assert split_link(b"") == (b"", None)


@pytest.mark.rule("LOOM-3")
@property_of(KINDS)
def test_an_unchanged_loom_verifies(kind, history):
    with anywhere(kind) as place, place.open() as store:
        for batch in history.batches:
            store.append(batch)
        found = verify_loom(store)
        assert found.faults == []
        assert found.ok
        assert (found.entities, found.turns) == (len(history.entities), len(history.owners))
        assert found.records == sum(map(len, history.entities.values()))


@examples(*KINDS)
@given(history=histories())
def test_the_fingerprint_is_the_same_in_every_store_and_after_reopening(history):
    prints = set()
    for kind in KINDS:
        with anywhere(kind) as place:
            with place.open() as store:
                for batch in history.batches[:3]:
                    store.append(batch)
                if not place.lasts:
                    for batch in history.batches[3:]:
                        store.append(batch)
                    prints.add(verify_loom(store).fingerprint)
            for batch in history.batches[3:] if place.lasts else ():
                with place.open() as store:
                    store.append(batch)
            if place.lasts:
                with place.open() as store:
                    prints.add(verify_loom(store).fingerprint)
    assert len(prints) == 1


@pytest.mark.rule("LOOM-3")
@pytest.mark.parametrize("again", [1, 2])
def test_a_repeated_turn_number_is_a_fault(store, again):
    store.append(run("e", "t1", "t2", ends=False))
    store.append(run("other", "t3", "t4", ends=False))
    assert verify_loom(store).ok
    store.append(turn("e", "t5", "t2", again))
    (fault,) = verify_loom(store).faults
    assert fault.what == f"this is turn {again} of entity e, and turn 2 is recorded already"
    store.append(turn("e", "t6", "t5", 3))
    assert verify_loom(store).faults == [fault]


def test_a_loom_with_other_records_has_another_fingerprint(store):
    store.append(run("e", "t1"))
    before = verify_loom(store).fingerprint
    store.append([Rewarded("e", "t1", 1.0, AT)])
    assert verify_loom(store).fingerprint != before


# ----------------------------------------------------------------------------------------- what is done behind its back


def without(lines, number):
    return [*lines[: number - 1], *lines[number:]]


def edited(lines, number):
    said = json.loads(lines[number - 1])
    changed = next(name for name in ("at", "duration_ms", "gate", "result") if name in said)
    line = lines[number - 1].replace(
        json.dumps(said[changed], separators=(",", ":")).encode(), b'"else"' if isinstance(said[changed], str) else b"9"
    )
    assert line != lines[number - 1]
    return [*lines[: number - 1], line, *lines[number:]]


def swapped(lines, number):
    return [*lines[: number - 1], lines[number], lines[number - 1], *lines[number + 1 :]]


def unsealed(lines, number):
    return [*lines[: number - 1], split_link(lines[number - 1])[0], *lines[number:]]


class Held:
    """A loom's lines, to be changed by another hand than a store's."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.path = folder / f"loom.{'db' if kind == 'sqlite' else 'jsonl'}"

    def open(self):
        return open_store(f"{self.kind}:{self.path}")

    def change(self, change, number):
        if self.kind == "jsonl":
            version, *lines = self.path.read_bytes().splitlines()
            lines = change(lines, number)
            self.path.write_bytes(b"".join(line + b"\n" for line in (version, *lines)))
            return
        with closing(sqlite3.connect(self.path)) as connection, connection:
            rows = connection.execute("select seq, entity, turn, body from records order by seq").fetchall()
            by_line = {body.encode(): (entity, turn) for _, entity, turn, body in rows}
            lines = change([body.encode() for *_, body in rows], number)
            connection.execute("delete from records")
            for seq, line in enumerate(lines, 1):
                entity, turn = by_line.get(line) or rows[number - 1][1:3]
                connection.execute("insert into records values (?, ?, ?, ?)", (seq, entity, turn, line.decode()))


@pytest.fixture(params=["jsonl", "sqlite"])
def held(request, tmp_path):
    kept = Held(request.param, tmp_path)
    with kept.open() as store:
        for record in FAMILY:
            store.append([record])
    return kept


def faults(held):
    with open_store(f"{held.kind}:{held.path}", read_only=True) as store:
        return [str(fault) for fault in verify_loom(store).faults]


@pytest.mark.rule("LOOM-3")
@pytest.mark.parametrize("number", [n for n, record in enumerate(FAMILY, 1) if record is not None])
def test_a_record_that_was_edited_is_named(held, number):
    held.change(edited, number)
    if number in {1, 7, 19}:  # SQLite knows of it, too
        assert faults(held)[0].startswith(f"record {number}: this Header of entity")
    else:
        (fault,) = faults(held)
        assert fault.startswith(f"record {number}: this {type(FAMILY[number - 1]).__name__} of entity")
        assert "it was edited" in fault


@pytest.mark.parametrize("number", [2, 3, 4, 5, 9, 10, 13, 14, 15, 16, 17])
def test_verify_finds_that_a_record_was_taken_out(held, number):
    held.change(without, number)
    assert faults(held)[0].startswith(f"record {number}: this {type(FAMILY[number]).__name__} of entity")


@pytest.mark.parametrize("number", [3, 4, 5, 9, 10, 16])
def test_records_that_were_swapped_are_found(held, number):
    held.change(swapped, number)
    assert faults(held)[0].startswith(f"record {number}: this")


def test_verify_finds_that_a_whole_child_was_taken_out(held):
    def childless(lines, _):
        return [line for line in lines if b'"entity":"c"' not in line]

    held.change(childless, 7)
    assert "an earlier record of its tree was edited, moved or removed" in faults(held)[0]


def test_only_the_line_without_a_link_is_named(held):
    held.change(unsealed, 5)
    (fault,) = faults(held)
    assert fault.startswith("record 5: this GateFinished of entity e has no link: no store wrote")


# --------------------------------------------------------------------------------------------------------- SQLite's own


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("delete from records where seq = 18", "the tree of entity e does not end where its last record was written"),
        ("delete from records where seq = 24", "the tree of entity other does not end where its last record was"),
        ("delete from records where seq >= 19", "the tree of entity other is missing"),
        (
            "delete from records where seq = 17",
            "record 24: this is the last record, but the loom has fewer records than that",
        ),
        ("update records set entity = 7 where seq = 15", "record 15: its row names another entity, or another turn"),
        ("update records set turn = 't9' where seq = 6", "turn t1 is entity e's, and the index says otherwise"),
        ("update records set turn = 'x' where seq = 15", "record 15: its row names another entity, or another turn"),
        ("update entities set name = 'x' where id = 'e'", "record 1: the row of its entity differs"),
        ("update entities set parent_turn = null", "record 7: the row of its entity differs"),
        (
            "update entities set life = 0 where id = 'e'",
            "the index says that entity e is busy, terminated",
        ),
        ("update trees set head = 'x' where no = 1", "the tree of entity e does not end where its last record was"),
        ("delete from entities where id = 'other'", "record 19: its row names another entity"),
        ("update records set body = '{' where seq = 4", "record 4: '{' is not a record of a loom"),
        ("delete from records where seq = 1", "record 1 is missing, and an entity should begin with it"),
    ],
)
def test_tables_that_contradict_the_lines_are_found(tmp_path, statement, fault):
    with SqliteStore(tmp_path / "loom.db") as store:
        store.append(FAMILY)
    with closing(sqlite3.connect(tmp_path / "loom.db")) as connection, connection:
        connection.execute(statement)
    with open_store(tmp_path / "loom.db", read_only=True) as store:
        found = verify_loom(store)
        assert not found.ok
        assert any(str(one).startswith(fault) for one in found.faults), found.faults


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("update timers set due = due + 1", "timer wake of entity e: its row differs from its line"),
        ("update timers set id = 'x' where entity = 0", "timer x: its row differs from its line"),
        ("update timers set line = '{' where entity = 0", "timer daily: '{' is not a timer"),
        ("update timers set entity = 99 where id = 'wake'", "timer wake: its entity has ended, or never began"),
        ("update entities set life = 2 where id = 'e'", "timer wake of entity e: its entity has ended"),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_timers_that_contradict_their_lines_are_found(kind, statement, fault):
    rule = Rule(at=9.0)
    wake = Timer(id="wake", due=5.0, entity_id="e", mail=mail("k"))
    daily = Scheduled(to="entity", name="x", intent="go", rule=rule, created=1.0, next=9.0)
    with anywhere(kind) as place:
        with place.open() as store:
            store.append([header("e", lasting=True)], timers=[(0, wake)])
            store.replace_timer(None, Timer(id="daily", due=9.0, schedule=daily))
            assert verify_loom(store).ok
            store._transact(lambda db: db.execute(statement))
        with open_store(place.url, read_only=True) as store:
            assert any(str(one).startswith(fault) for one in verify_loom(store).faults), verify_loom(store).faults


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_fault_is_found_in_the_last_of_many_timers_of_one_entity(kind):
    timers = [(0, Timer(id=f"wake{n:04}", due=5.0, entity_id="e", mail=mail("k"))) for n in range(2 * MANY)]
    with anywhere(kind) as place:
        with place.open() as store:
            store.append([header("e", lasting=True)], timers=timers)
            store._transact(lambda db: db.execute("update timers set due = 6 where id = ?", (timers[-1][1].id,)))
        with open_store(place.url, read_only=True) as store:
            (fault,) = verify_loom(store).faults
            assert str(fault) == f"timer wake{2 * MANY - 1:04} of entity e: its row differs from its line"


def test_a_broken_index_is_found(tmp_path):
    with SqliteStore(tmp_path / "loom.db") as store:
        store.append(FAMILY)
    connection = sqlite3.connect(tmp_path / "loom.db", isolation_level=None)
    connection.execute("pragma writable_schema = 1")
    connection.execute(
        "update sqlite_master set sql = 'create index records_of on records (seq)' where name='records_of'"
    )
    connection.close()
    with open_store(tmp_path / "loom.db", read_only=True) as store:
        assert any("records_of" in str(one) for one in verify_loom(store).faults)


def test_the_first_hash_of_a_chain_has_no_predecessor():
    assert NOTHING == b""
