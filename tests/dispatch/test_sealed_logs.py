"""Dispatch logs that are sealed with a key: approvals, edits, cuts and swaps without it are noticed."""

import shutil

import pytest

from cantrip_actors import LoomError, Runtime
from cantrip_actors.dispatch import Dispatcher, DispatchError, Dispatches, Progressed, StatusChanged, TamperedRecord
from cantrip_actors.dispatch.log import read_trusted_records
from cantrip_actors.loom import Heads
from cantrip_actors.records.seal import seal, split_link
from tests.dispatch.contracts import AT, contract

SECRET = b"sixteen bytes and more"
WORKER = {"by": "worker", "author": "w", "token": 1}


def opened(folder, key=SECRET):
    return Dispatches(folder, clock=lambda: AT, seal_key=key)


@pytest.fixture
def folder(tmp_path):
    """Two sealed logs, `one` and `two`, of three entries each."""
    logs = opened(tmp_path / "dispatches")
    for name in ("one", "two"):
        logs.create(contract(dispatch_id=name), author="ann")
        logs.append(name, StatusChanged("active"), **WORKER)
        logs.append(name, Progressed("milestone", "a step on"), **WORKER)
    return logs.folder


def lines_of(folder, name="one"):
    return (folder / f"{name}.jsonl").read_bytes().splitlines()


def write(folder, lines, name="one"):
    (folder / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def linked(lines, name="one"):
    """The lines with the links that one can make without a key."""
    made, link = [], name.encode()
    for line in lines:
        whole, link = seal(split_link(line)[0], link)
        made.append(whole)
    return made


def approval(folder):
    """A line that says that a human approved, as one that has no key would write it."""
    last = lines_of(folder)[1]
    forged = last.replace(b'"seq":2', b'"seq":4').replace(b'"author":"w"', b'"author":"grace"')
    assert forged != last
    return forged


CHANGES = {
    "edited": lambda folder: [line.replace(b"a step on", b"it is done") for line in lines_of(folder)],
    "cut": lambda folder: lines_of(folder)[:-1],
    "cut to its contract": lambda folder: lines_of(folder)[:1],
    "swapped": lambda folder: [lines_of(folder)[0], *lines_of(folder)[:0:-1]],
    "inserted": lambda folder: [*lines_of(folder), approval(folder)],
    "made anew": lambda folder: linked([line.replace(b"a step on", b"it is done") for line in lines_of(folder)]),
    "of another log": lambda folder: lines_of(folder, "two"),
}


@pytest.mark.rule("X-21")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_log_without_the_key_is_detected(folder, change):
    assert opened(folder).verify() == {}
    write(folder, CHANGES[change](folder))
    with pytest.raises(TamperedRecord):
        opened(folder).read("one")
    assert opened(folder).read("two").seq == 3
    assert [*opened(folder).verify()] == ["one"]


def test_a_log_that_cannot_be_read_keeps_the_others_readable(folder):
    (folder / "three.jsonl").mkdir()
    logs = opened(folder)
    with pytest.raises(DispatchError):
        logs.read("three")
    assert [record.id for record in read_trusted_records(logs)] == ["one", "two"]
    assert [*logs.verify()] == ["three"]


@pytest.mark.rule("X-21")
@pytest.mark.parametrize("head", [None, b"", b"x" * 128])
def test_a_log_with_a_missing_or_damaged_head_is_refused(folder, head):
    beside = folder / "one.jsonl.head"
    if head is None:
        beside.unlink()
    else:
        beside.write_bytes(head)
    with pytest.raises(TamperedRecord, match="head is missing or damaged"):
        opened(folder).read("one")


@pytest.mark.rule("X-21")
def test_the_head_of_another_log_is_refused(folder):
    shutil.copy(folder / "two.jsonl.head", folder / "one.jsonl.head")
    with pytest.raises(TamperedRecord, match="head in the sidecar"):
        opened(folder).read("one")


@pytest.mark.rule("X-21")
@pytest.mark.parametrize("key", [SECRET, None])
def test_exported_heads_find_an_older_copy_of_a_log(tmp_path, key):
    logs = opened(tmp_path / "now", key)
    logs.create(contract(dispatch_id="one"), author="ann")
    shutil.copytree(tmp_path / "now", tmp_path / "old")
    logs.append("one", StatusChanged("active"), **WORKER)
    heads = Heads.from_json(logs.heads().as_json())
    assert logs.verify(heads) == {}
    logs.append("one", Progressed("milestone", "a step on"), **WORKER)
    assert logs.verify(heads) == {}
    old = opened(tmp_path / "old", key)
    assert old.verify() == {}
    assert "older copy" in old.verify(heads)["one"]
    (tmp_path / "old" / "one.jsonl").unlink()
    assert "is gone" in old.verify(heads)["one"]


@pytest.mark.rule("X-21")
@pytest.mark.parametrize(("key", "why"), [(None, "give `seal_key`"), (b"another key, as long", "the key is wrong")])
def test_a_sealed_log_cannot_be_read_without_its_key(folder, key, why):
    with pytest.raises(TamperedRecord, match=why):
        opened(folder, key).read("one")


def test_an_unsealed_log_is_refused_with_a_key(tmp_path):
    opened(tmp_path, None).create(contract(dispatch_id="one"), author="ann")
    with pytest.raises(TamperedRecord, match="never sealed"):
        opened(tmp_path).read("one")


def test_records_after_the_head_of_a_killed_process_are_kept(folder):
    head = (folder / "one.jsonl.head").read_bytes()
    opened(folder).append("one", Progressed("milestone", "another"), **WORKER)
    (folder / "one.jsonl.head").write_bytes(head)  # as if it had been killed before it wrote the head
    logs = opened(folder)
    assert logs.append("one", Progressed("milestone", "a third"), **WORKER).seq == 5
    assert opened(folder).read("one").seq == 5


def test_a_head_without_a_log_does_not_block_later_writers(folder):
    (folder / "one.jsonl").unlink()
    assert opened(folder).create(contract(dispatch_id="one"), author="ann").seq == 1


def test_a_key_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(LoomError, match="at least 16"):
        opened(tmp_path, b"short")


@pytest.mark.rule("X-21")
async def test_the_dispatches_of_a_sealed_runtime_are_sealed_with_its_key(tmp_path):
    async with Runtime.open("memory:", seal_key=SECRET) as runtime:
        dispatcher = Dispatcher(runtime, tmp_path)
        await dispatcher.dispatch(contract(dispatch_id="one"))
        await dispatcher.reject("one", "nobody needs it", by="ann")
        assert opened(tmp_path).read("one").status == "rejected"
        await dispatcher.forget("one")
    assert [*tmp_path.iterdir()] == []
