"""Checkpoints and reading from a position on, in every store: never more than a shorter way to the same state."""

import random
import sqlite3
import time
from contextlib import closing

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import LoomError
from cantrip_actors.loom import Fenced, Loom, SqliteStore, Tip, copy_loom, open_store, verify_loom
from cantrip_actors.loom.reading.redaction import redacted_loom
from cantrip_actors.loom.stores.checkpoints import decode_checkpoint, encode_checkpoint
from cantrip_actors.machine.project import Life
from cantrip_actors.records.records import Ended, IntentGiven, Steered
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.terms.image import Image
from tests.exhaustive import EXHAUSTIVE
from tests.loom import postgres
from tests.loom.histories import AT, header, run
from tests.loom.processes import python
from tests.loom.test_store import KINDS, SHARED, anywhere, examples
from tests.pictures import png


@pytest.fixture
def begun(store):
    """A store with a long-lived entity e whose records lie between those of f."""
    store.append([header("e", lasting=True), header("f", lasting=True)])
    for n in range(5):
        store.append([Steered("e", f"e {n}", AT), Steered("f", f"f {n}", AT)])
    return store


# --------------------------------------------------------------------------------------------------- from a position on


@pytest.mark.rule("C-06")
@pytest.mark.parametrize("kind", KINDS)
def test_records_after_the_tip_are_the_records_appended_since(kind):
    @examples(kind, most=30)
    @given(st.lists(st.lists(st.sampled_from("ef"), min_size=1, max_size=4), max_size=6))
    def holds(batches):
        with anywhere(kind) as place, place.open() as store:
            store.append([header("e", lasting=True), header("f", lasting=True)])
            tips = [(store.tip("e"), 1)]
            for n, batch in enumerate(batches):
                store.append([Steered(entity, f"{n}", AT) for entity in batch])
                tips.append((store.tip("e"), len(store.records("e"))))
            everything = list(store.records("e"))
            for tip, count in tips:
                assert list(store.records("e", after=tip.position)) == everything[count:]
                assert list(store.records("e", after=tip.position, limit=1)) == everything[count : count + 1]
                assert list(store.records("e", limit=count)) == everything[:count]

    holds()


def test_an_unknown_entity_has_no_tip_no_records_and_no_checkpoint(begun):
    assert begun.tip("nobody") is begun.checkpoint("nobody") is begun.life("nobody") is None
    assert list(begun.records("nobody", after=3)) == []
    begun.keep_checkpoint("nobody", Tip(1, b""), b"state")


def test_the_life_phase_says_whether_an_entity_has_ended(begun):
    begun.append([*run("g", "t1", ends=False), Ended("g", "terminated", AT)])
    begun.append([Ended("f", "cancelled", AT)])
    assert [begun.life(entity) for entity in "efg"] == [Life.BUSY, Life.OVER, Life.OVER]
    loom = Loom(begun, None)
    assert [loom.is_over(entity) for entity in "efg"] == [False, True, True]
    with pytest.raises(LoomError, match="entity nobody is not in this loom"):
        loom.is_over("nobody")


def test_an_entity_has_begun_when_its_first_intent_is_recorded(begun):
    loom = Loom(begun, None)
    begun.append([header("g")])
    assert [loom.has_begun(entity) for entity in ("g", "nobody")] == [False, False]
    begun.append([IntentGiven("g", "go", AT)])
    assert loom.has_begun("g")


# ---------------------------------------------------------------------------------------------------------- checkpoints


@given(st.integers(0, 2**63), st.binary(max_size=30), st.binary(max_size=300), st.data())
def test_a_checkpoint_decodes_to_its_content_or_to_none_when_a_byte_is_changed(position, link, data, draw):
    kept = encode_checkpoint(Tip(position, link), data)
    assert decode_checkpoint(kept) == (Tip(position, link), data)
    at = draw.draw(st.integers(0, len(kept) - 1))
    damaged = kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :]
    assert decode_checkpoint(damaged) is decode_checkpoint(kept[:at]) is None


@pytest.mark.rule("C-06")
def test_the_latest_checkpoint_of_an_entity_is_found_and_the_records_after_it(begun):
    first = begun.tip("e")
    begun.keep_checkpoint("e", first, b"one")
    begun.append([Steered("e", "more", AT)])
    assert begun.checkpoint("e") == (first.position, b"one")
    assert list(begun.records("e", after=first.position)) == [Steered("e", "more", AT)]
    begun.keep_checkpoint("e", begun.tip("e"), b"two" * 100_000)
    assert begun.checkpoint("e") == (begun.tip("e").position, b"two" * 100_000)
    assert begun.checkpoint("f") is None


@pytest.mark.rule("C-06")
@pytest.mark.parametrize("kind", SHARED)
def test_a_checkpoint_is_found_when_the_store_is_opened_again(kind):
    with anywhere(kind) as place:
        with place.open() as store:
            store.append([header("e", lasting=True), Steered("e", "one", AT)])
            store.keep_checkpoint("e", store.tip("e"), b"state")
        with place.open() as store:
            assert store.checkpoint("e") == (store.tip("e").position, b"state")
            assert Loom(store, None).checkpoint("e").data == b"state"
            assert verify_loom(store).ok


@pytest.mark.rule("C-06")
def test_a_jsonl_loom_keeps_checkpoints_in_memory_only(tmp_path):
    with open_store(tmp_path / "loom.jsonl") as store:
        store.append([header("e", lasting=True), Steered("e", "one", AT)])
        store.keep_checkpoint("e", store.tip("e"), b"state")
        assert store.checkpoint("e") == (store.tip("e").position, b"state")
    with open_store(tmp_path / "loom.jsonl") as store:
        assert store.checkpoint("e") is None
    assert b"state" not in (tmp_path / "loom.jsonl").read_bytes()


@pytest.mark.rule("C-06")
def test_a_checkpoint_of_another_record_is_ignored(begun):
    tip, other = begun.tip("e"), begun.tip("f")
    for wrong in (other, Tip(tip.position + 1, tip.link), Tip(10**9, tip.link), Tip(0, tip.link + b"0")):
        begun.keep_checkpoint("e", wrong, b"state")
        assert begun.checkpoint("e") is None
    if begun.sealed:
        begun.keep_checkpoint("e", Tip(tip.position, b"0" * len(tip.link)), b"state")
        assert begun.checkpoint("e") is None


def test_copies_and_redacted_looms_have_no_checkpoints(begun, tmp_path):
    begun.keep_checkpoint("e", begun.tip("e"), b"state")
    with open_store(tmp_path / "copy.db") as copy:
        copy_loom(begun, copy)
        assert copy.checkpoint("e") is None
    seen = redacted_loom(Loom(begun, None), Redactor(["hunter2"]))
    assert seen.checkpoint("e") is None
    assert seen.is_over("e") is False
    assert len(seen.records("e", after=begun.tip("e").position)) == 0


@pytest.mark.rule("C-06", "N-06")
@pytest.mark.parametrize("kind", SHARED)
def test_a_holder_that_has_lost_its_lease_cannot_write_a_checkpoint(kind):
    with anywhere(kind) as place, place.open() as store:
        store.append([header("e", lasting=True)])
        late = store.claim("e", "late", 60)
        store.keep_checkpoint("e", store.tip("e"), b"early", {"e": late.token})
        store.release(late)
        taken = store.claim("e", "next", 60)
        store.append([Steered("e", "by the next holder", AT)], {"e": taken.token})
        for tokens in ({"e": late.token}, {}):
            with pytest.raises(Fenced):
                store.keep_checkpoint("e", store.tip("e"), b"stale", tokens)
        assert store.checkpoint("e").data == b"early"
        store.keep_checkpoint("e", store.tip("e"), b"new", {"e": taken.token})
        assert store.checkpoint("e").data == b"new"


def test_an_image_gets_its_bytes_from_the_loom(begun):
    image = Image(png())
    begun.append([IntentGiven("e", "look", AT, images=(image,))])
    assert Loom(begun, None).attach(image.bare()).data == image.data


@pytest.mark.rule("C-06")
@pytest.mark.parametrize("statement", ["update checkpoints set data = 'xx'", "delete from checkpoints"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_row_of_checkpoints_that_was_changed_counts_as_deleted(tmp_path, kind, statement):
    with anywhere(kind) as place, place.open() as store:
        store.append([header("e", lasting=True)])
        store.keep_checkpoint("e", store.tip("e"), b"state")
        if isinstance(store, SqliteStore):
            with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
                other.execute(statement)
        else:
            with psycopg.connect(postgres.server(), autocommit=True) as other:
                other.execute(f"set search_path to {store.schema}")
                other.execute(statement)
        assert store.checkpoint("e") is None
        assert verify_loom(store).ok


@pytest.mark.rule("C-06")
@pytest.mark.parametrize("kind", KINDS)
def test_reading_after_a_position_costs_no_more_with_many_records_before_it(kind):
    def cost(store):
        tip, best = store.tip("e"), 1.0
        store.append([Steered("e", "more", AT)])
        for _ in range(200):
            began = time.process_time()
            store.checkpoint("e")
            store.records("e", after=tip.position)
            best = min(best, time.process_time() - began)
        return best

    with anywhere(kind) as place, place.open() as store:
        store.append([header("e", lasting=True)])
        store.keep_checkpoint("e", store.tip("e"), b"state")
        few = cost(store)
        store.append([Steered("e", f"{n}", AT) for n in range(20_000)])
        store.keep_checkpoint("e", store.tip("e"), b"state")
        assert cost(store) < max(2 * few, 200e-6)


KEEPER = """
import sys
from cantrip_actors.loom import open_store
from cantrip_actors.records.records import Steered
store = open_store(sys.argv[1])
print("up", flush=True)
for n in range(len(store.records("e")), 10**6):
    store.append([Steered("e", f"{n}", "2026-11-21T22:00:00.123Z")])
    if n % 3 == 0:
        store.keep_checkpoint("e", store.tip("e"), b"%d" % (n + 1) * 1000)
"""


@pytest.mark.real_time
@pytest.mark.rule("C-06")
@pytest.mark.parametrize("kind", SHARED)
def test_a_killed_process_leaves_either_a_checkpoint_of_its_log_or_no_checkpoint(kind):
    with anywhere(kind) as place:
        with place.open() as store:
            store.append([header("e", lasting=True)])
        found = 0
        for _ in range(20 if EXHAUSTIVE else 3):
            with python(KEEPER, place.url) as process:
                assert process.stdout.readline() == "up\n"
                time.sleep(0.1 + random.random() * 0.2)
                process.kill()
            with place.open() as store:
                kept, records = store.checkpoint("e"), store.records("e")
                assert verify_loom(store).ok
                if kept is not None:
                    found += 1
                    before = len(records) - len(store.records("e", after=kept.position))
                    assert kept.data == b"%d" % before * 1000
        assert found
