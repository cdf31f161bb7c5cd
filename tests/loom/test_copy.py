"""`copy_loom`: the same records in the same order, whichever kind of store they come from and go to."""

import pytest
from hypothesis import given

from cantrip_actors.loom import Loom, copy_loom, open_store, repair_loom, thread_jsonl, verify_loom
from cantrip_actors.records.records import Rewarded
from cantrip_actors.terms.errors import LoomError
from tests.exhaustive import EXHAUSTIVE
from tests.loom.histories import header, histories, run
from tests.loom.test_inbox import mail
from tests.loom.test_store import KINDS, anywhere, assert_holds, examples, no_append


def threads(store):
    return [thread_jsonl(thread) for thread in Loom(store, no_append).threads()]


@pytest.mark.rule("LOOM-10")
@pytest.mark.parametrize("source_kind", KINDS)
@pytest.mark.parametrize("target_kind", KINDS)
def test_a_copy_has_the_same_records_as_its_source(source_kind, target_kind):
    @examples(source_kind, target_kind, most=40 if EXHAUSTIVE else 12)
    @given(histories())
    def holds(history):
        with (
            anywhere(source_kind) as here,
            anywhere(target_kind) as there,
            here.open() as source,
            there.open() as target,
        ):
            for batch in history.batches:
                source.append(batch)
            copied = copy_loom(source, target)
            assert_holds(target, history)
            assert threads(target) == threads(source)
            assert copied.fingerprint == verify_loom(source).fingerprint

    holds()


def test_a_copy_continues_like_its_source(tmp_path):
    with open_store(tmp_path / "a.jsonl") as source, open_store(tmp_path / "b.db") as target:
        source.append(run("e", "t1", ends=False))
        copy_loom(source, target)
        for store in (source, target):
            store.append(run("f", "t2", parent="t1", parent_entity="e"))
        assert verify_loom(source) == verify_loom(target)


def test_a_copy_has_all_mail_of_a_larger_inbox(store, tmp_path):
    store.max_waiting = 1
    with open_store(tmp_path / "a.jsonl") as source:
        source.append([header("e", lasting=True)])
        source.post([mail(key) for key in "abc"])
        copy_loom(source, store)
        assert store.pending("e") == source.pending("e")


def test_a_copy_has_two_rewards_of_one_key_if_an_earlier_version_has_written_both(store, tmp_path):
    rewards = [Rewarded("e", "t1", value, "2026-07-25T12:00:00Z", key="k") for value in (1.0, 2.0)]
    with open_store(tmp_path / "a.jsonl") as source:
        source.append([*run("e", "t1"), rewards[0]])
        source.append_copied(rewards[1:], {})
        assert copy_loom(source, store).ok
    assert list(store.records("e"))[-2:] == rewards


def test_existing_records_of_the_target_are_kept(store, tmp_path):
    with open_store(tmp_path / "a.jsonl") as source:
        source.append(run("e", "t1"))
        store.append(run("mine", "t0"))
        copied = copy_loom(source, store)
    assert copied.entities == 2
    assert list(store.records("mine")) == run("mine", "t0")


def test_copying_an_entity_that_the_target_has_is_refused_as_a_whole(store, tmp_path):
    with open_store(tmp_path / "a.jsonl") as source:
        source.append([*run("f", "t2"), *run("e", "t1")])
        store.append([header("e")])
        with pytest.raises(LoomError, match=r"^[^<]+ holds entity e already: nothing was copied"):
            copy_loom(source, store)
    assert list(store.unfinished()) == ["e"]


def test_many_records_are_copied_in_several_batches(store, tmp_path, monkeypatch):
    monkeypatch.setattr("cantrip_actors.loom.integrity.copy.BATCH", 7)
    with open_store(tmp_path / "a.jsonl") as source:
        for number in range(20):
            source.append(run(f"e{number}", f"t{number}"))
        assert copy_loom(source, store).records == 120


def test_a_copy_that_differs_from_its_source_is_refused(tmp_path, monkeypatch):
    with open_store(tmp_path / "a.jsonl") as source, open_store(tmp_path / "b.jsonl") as target:
        source.append([*run("e", "t1"), *run("f", "t2")])
        append = target.append_copied
        monkeypatch.setattr(target, "append_copied", lambda records, tombstones: append(records[:-1], tombstones))
        with pytest.raises(LoomError, match=r"^the copy in \S+b\.jsonl differs from its source: its records differ"):
            copy_loom(source, target)


def test_a_record_that_cannot_be_read_ends_the_copy(tmp_path):
    with open_store(tmp_path / "a.jsonl") as source:
        source.append(run("e", "t1"))
    whole = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(whole.replace(b'"duration_ms":12.5', b'"duration_ms";12.5'))
    with (
        open_store(tmp_path / "a.jsonl", read_only=True) as source,
        open_store(tmp_path / "b.jsonl") as target,
        pytest.raises(LoomError, match="record 3 cannot be copied"),
    ):
        copy_loom(source, target)


def copy_half(store, path, monkeypatch):
    """Make a loom in the file `path`, and copy it up to its last entity, as a copy that is killed there."""
    monkeypatch.setattr("cantrip_actors.loom.integrity.copy.BATCH", 7)
    with open_store(path) as source:
        for number in range(4):
            source.append(run(f"e{number}", f"t{number}"))
    whole = path.read_bytes()
    before, damaged, after = whole.rpartition(b'"duration_ms":12.5')
    path.write_bytes(before + damaged.replace(b":", b";") + after)
    with open_store(path, read_only=True) as source, pytest.raises(LoomError, match="cannot be copied"):
        copy_loom(source, store)
    path.write_bytes(whole)


def test_a_part_that_a_copy_has_left_does_not_verify_as_a_whole_loom(store, tmp_path, monkeypatch):
    copy_half(store, tmp_path / "a.jsonl", monkeypatch)
    verified = verify_loom(store)
    assert (verified.records, verified.ok) == (14, False)
    assert str(verified.faults[0]).startswith(f"it has only a part of {tmp_path / 'a.jsonl'}, whose copy was not fin")
    with (
        open_store(tmp_path / "b.db") as target,
        pytest.raises(LoomError, match=r"is only a part of .*: finish that copy first"),
    ):
        copy_loom(store, target)


def test_copying_a_loom_again_finishes_a_copy_that_was_not_finished(store, tmp_path, monkeypatch):
    copy_half(store, tmp_path / "a.jsonl", monkeypatch)
    with open_store(tmp_path / "a.jsonl") as source:
        source.append(run("f", "t8", parent="t1", parent_entity="e1", ends=False))
        source.post([mail("k", "e1")])
        assert copy_loom(source, store) == verify_loom(source) == verify_loom(store)
        assert list(store.records("f")) == list(source.records("f"))
        with pytest.raises(LoomError, match="holds entity e0 already: nothing was copied"):
            copy_loom(source, store)


@pytest.mark.parametrize("ending", ["jsonl", "db"])
def test_a_repair_leaves_a_part_of_a_copy_a_part(tmp_path, monkeypatch, ending):
    with open_store(tmp_path / f"b.{ending}") as store:
        copy_half(store, tmp_path / "a.jsonl", monkeypatch)
    repair_loom(tmp_path / f"b.{ending}")
    with open_store(tmp_path / f"b.{ending}", repair=True) as store:
        assert not verify_loom(store).ok
