"""The guarantees of every store: the same histories give the same answers."""

import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings

from cantrip_actors.loom import Loom, Store, open_store, thread_jsonl
from cantrip_actors.loom.stores.store import Postponed
from cantrip_actors.records.records import Committed, Ended, Rewarded
from cantrip_actors.terms.errors import LoomError
from conformance.postgres import drop
from tests.exhaustive import EXHAUSTIVE, part
from tests.loom import postgres
from tests.loom.histories import AT, NAMES, History, header, histories, run, turn
from tests.loom.processes import python

KINDS = ("memory", "jsonl", "sqlite", "postgres")
LASTING = KINDS[1:]
SHARED = KINDS[2:]
COSTLY = {"sqlite": 3, "postgres": 8}


class Place:
    """Where a store lies: opened anew as often as one likes."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.lasts = kind != "memory"
        if kind == "postgres":
            self.url = postgres.fresh()
        else:
            names = {"memory": "memory:", "jsonl": f"jsonl:{folder}/loom.jsonl", "sqlite": f"sqlite:{folder}/loom.db"}
            self.url = names[kind]

    def open(self) -> Store:
        return open_store(self.url)

    def clear(self) -> None:
        if self.kind == "postgres":
            drop(self.url)


@contextmanager
def anywhere(kind: str) -> Iterator[Place]:
    """A fresh place; Hypothesis needs one an example."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(kind, Path(folder))
        yield place
        place.clear()


def examples(*kinds: str, most: int | None = None) -> settings:
    """A third of what the profile says in `make test`, or fewer where tables have to be made for each of them."""
    usual = min(most or (100 if EXHAUSTIVE else 35), settings().max_examples)
    return settings(max_examples=max(5, usual // max(COSTLY.get(kind, 1) for kind in kinds)))


def property_of(kinds: Sequence[str]) -> Callable[[Callable[[str, History], None]], Callable[[str], None]]:
    """A test of what holds for every history, in a store of each kind."""

    def decorate(check: Callable[[str, History], None]) -> Callable[[str], None]:
        @pytest.mark.parametrize("kind", kinds)
        def test(kind: str) -> None:
            @examples(kind)
            @given(histories())
            def holds(history: History) -> None:
                check(kind, history)

            holds()

        test.__doc__, test.__name__ = check.__doc__, check.__name__
        return test

    return decorate


def assert_holds(store: Store, history: History) -> None:
    """The store answers every question as the history does."""
    assert [head.entity_id for head in store.headers()] == list(history.entities)
    for entity, records in history.entities.items():
        assert list(store.records(entity)) == records
        assert store.header(entity) == records[0]
        assert list(store.below(entity)) == history.below.get(entity, [])
    for name in NAMES:
        assert store.named(name) == history.names.get(name)
    assert list(store.unfinished()) == history.unfinished
    assert list(store.unfinished(idle=False)) == [one for one in history.unfinished if one not in history.idle]
    assert {digest: store.blob(digest) for digest in store.blobs()} == history.blobs
    for turn_id, entity in history.owners.items():
        assert store.owner(turn_id) == entity
        assert list(store.children(turn_id)) == history.children.get(turn_id, [])
        assert list(store.forks(turn_id)) == history.forks.get(turn_id, [])


@pytest.mark.rule("LOOM-1", "LOOM-8", "D-008")
@property_of(KINDS)
def test_appended_records_are_read_in_order(kind, history):
    with anywhere(kind) as place, place.open() as store:
        for batch in history.batches:
            store.append(batch)
        assert_holds(store, history)


@pytest.mark.rule("LOOM-1")
@property_of(LASTING)
def test_appended_records_are_read_after_reopening(kind, history):
    with anywhere(kind) as place:
        for batch in history.batches:
            with place.open() as store:
                store.append(batch)
        with place.open() as store:
            assert_holds(store, history)


@pytest.mark.rule("LOOM-10")
@examples(*KINDS)
@given(history=histories())
def test_a_thread_has_the_same_bytes_in_every_store(history):
    threads = []
    for kind in KINDS:
        with anywhere(kind) as place, place.open() as store:
            for batch in history.batches:
                store.append(batch)
            loom = Loom(store, no_append)
            threads.append([thread_jsonl(thread) for thread in loom.threads()])
    assert all(one == threads[0] for one in threads)


async def no_append(records):
    raise AssertionError(f"nobody rewards here: {records}")


@pytest.mark.rule("LOOM-1")
@property_of(KINDS)
def test_a_batch_out_of_order_changes_nothing(kind, history):
    with anywhere(kind) as place, place.open() as store:
        for batch in history.batches:
            store.append(batch)
        with pytest.raises(LoomError):
            store.append([header("another"), *turn("another", "fresh", None), header(next(iter(history.entities)))])
        assert_holds(store, history)
        assert store.header("another") is None
        assert store.owner("fresh") is None


def test_an_unknown_entity_has_no_records(store):
    assert list(store.records("nobody")) == []
    assert store.header("nobody") is None
    assert store.named("nobody") is store.named("a\0b") is store.named("half \ud83d") is None
    assert store.owner("nothing") is None
    assert list(store.children("nothing")) == list(store.forks("nothing")) == list(store.below("nobody")) == []


@pytest.mark.rule("LOOM-3")
def test_a_turn_is_recorded_once(store):
    store.append(run("e", "t1"))
    with pytest.raises(LoomError, match=r"^loom is append-only: turn t1 is recorded already"):
        store.append([Committed(turn_id="t1", entity_id="e", parent_id=None, sequence=1, at=AT, duration_ms=1.0)])
    assert len(store.records("e")) == 6


@pytest.mark.rule("D-008")
def test_two_entities_cannot_have_one_turn(store):
    store.append([*run("a", "t1"), header("b")])
    with pytest.raises(LoomError, match="t1 is recorded already"):
        store.append(turn("b", "t1", None))


@pytest.mark.rule("D-008")
def test_two_turns_of_one_batch_cannot_have_one_id(store):
    with pytest.raises(LoomError, match="t1 is recorded already"):
        store.append([header("e"), *turn("e", "t1", None), *turn("e", "t1", None, 2)])
    assert list(store.headers()) == []


@pytest.mark.rule("LOOM-3")
def test_an_entity_begins_once(store):
    store.append(run("e"))
    with pytest.raises(LoomError, match=r"^loom is append-only: entity e has begun already"):
        store.append([header("e", name="other")])
    assert store.header("e") == header("e")


def test_an_entity_begins_with_its_header(store):
    with pytest.raises(LoomError, match="entity e has no header"):
        store.append(turn("e", "t1", None))


@pytest.mark.rule("LOOM-2")
def test_a_turn_needs_a_recorded_parent(store):
    store.append([header("e")])
    with pytest.raises(LoomError, match="cannot follow turn t0: no such turn"):
        store.append(turn("e", "t1", "t0"))


@pytest.mark.rule("COMP-5")
def test_a_child_needs_a_recorded_parent_turn(store):
    with pytest.raises(LoomError, match="cannot begin below turn t0: no such turn"):
        store.append([header("child", parent_turn="t0", parent_entity="e")])


def test_a_reward_needs_a_turn_of_its_entity(store):
    store.append([*run("a", "t1"), *run("b", "t2")])
    with pytest.raises(LoomError, match="entity b has no such turn"):
        store.append([Rewarded("b", "t1", 1.0, AT)])


def test_an_empty_append_does_nothing(store):
    store.append([])
    assert list(store.headers()) == []


def test_a_value_that_cannot_be_encoded_refuses_the_whole_batch(store):
    with pytest.raises(LoomError, match="JSON cannot express"):
        store.append([header("e"), Ended("e", "terminated", AT, result=object())])
    assert store.header("e") is None


def test_a_closed_store_accepts_no_records(store):
    store.append(run("e", "t1"))
    store.close()
    store.close()
    with pytest.raises(LoomError, match="is closed"):
        store.append(run("f"))


def test_a_closed_store_can_still_be_read(store):
    store.append(run("e", "t1"))
    store.close()
    assert list(store.records("e")) == run("e", "t1")
    assert store.header("e") == run("e")[0]
    assert store.owner("t1") == "e"
    assert "1 turns" in repr(store)


def test_an_attempt_to_append_is_postponed_by_a_server_only(place, store):
    with pytest.raises(Postponed) if place.kind == "postgres" else nullcontext():
        store.attempt(partial(store.append, run("f", "t2")))
    assert (store.header("f") is None) is (place.kind == "postgres")


def test_the_headers_may_be_read_while_entities_begin(store):
    store.append([header("a"), header("b")])
    seen = []
    for head in store.headers():
        seen.append(head.entity_id)
        store.append([header(f"{head.entity_id}'s")])
    assert seen == ["a", "b"]


def test_a_stores_repr_counts_entities_and_turns(store):
    store.append(run("e", "t1", "t2"))
    assert "1 entities, 2 turns" in repr(store)


WRITE = """
import sys
from cantrip_actors.loom import open_store
from tests.loom.histories import header, turn
with open_store(sys.argv[1]) as store:
    store.append([header("e")])
    parent = None
    for number in range(1, 100000):
        store.append(turn("e", f"t{number}", parent, number, text="x" * 3000))
        parent = f"t{number}"
        print(number, flush=True)
"""


@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize("count", part([1, 7, 40, 200], 2))
@pytest.mark.parametrize("kind", LASTING)
def test_a_writer_that_is_killed_loses_no_acknowledged_turn(kind, count):
    with anywhere(kind) as place:
        with python(WRITE, place.url) as writer:
            for line in writer.stdout:
                if int(line) >= count:
                    writer.send_signal(signal.SIGKILL)
                    break
            acknowledged = max([count, *map(int, writer.stdout)])
        with place.open() as store:  # a file's lock went with it
            turns = Loom(store, None).turns("e")
            assert [t.id for t in turns] == [f"t{n}" for n in range(1, len(turns) + 1)]
            assert acknowledged <= len(turns) <= acknowledged + 1
            whole = 1 + 4 * len(turns)
            assert len(store.records("e")) in ({whole} if kind in SHARED else range(whole, whole + 4))
            store.append(turn("e", "next", turns[-1].id, len(turns) + 1))
        with place.open() as store:
            assert len(store.records("e")) >= 1 + 4 * (acknowledged + 1)


def test_each_time_of_a_loom_is_later_than_the_one_before_unless_its_clock_was_set_back(store, monkeypatch):
    readings = iter([100.0, 100.0, 99.7, 100.1, 100.05, 90.0, 90.0])
    monkeypatch.setattr(store, "read_clock", lambda: next(readings))
    times = [store.clock() for _ in range(7)]
    assert times[:5] == sorted(set(times[:5]))
    assert times[5:] == sorted(set(times[5:]))
    assert [round(time, 3) for time in times] == [100.0, 100.0, 100.0, 100.1, 100.1, 90.0, 90.0]
