"""Blobs in stores, images and snapshots: each kept once, byte for byte, with the records that refer to them."""

import errno
import os
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import LoomError
from cantrip_actors.loom import Loom, Mail, Timer, copy_loom, open_store, verify_loom
from cantrip_actors.loom.memory.jsonl import JsonlStore
from cantrip_actors.loom.memory.memory import MemoryStore
from cantrip_actors.loom.reading.redaction import redact_record, redacted_loom
from cantrip_actors.loom.seal.line_file import Disk
from cantrip_actors.machine.project import read_turns
from cantrip_actors.records.blob import Blob, Snapshot, make_reference
from cantrip_actors.records.codec import decode, encode
from cantrip_actors.records.records import (
    Committed,
    GateFinished,
    GateStarted,
    IntentGiven,
    Observation,
    Steered,
    get_images,
)
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.terms.image import Image
from tests.loom.histories import AT, KEY, SNAPSHOT, header, run, turn
from tests.loom.processes import python
from tests.loom.test_store import LASTING, SHARED, anywhere
from tests.pictures import images, png

IMAGE = Image(png(640, 480))
OTHER = Image(png(shade=7), detail="low")
IMAGE_BLOB, OTHER_BLOB = (Blob.of_image("image/png", image.data) for image in (IMAGE, OTHER))


def shown(entity, *some):
    """An entity that was shown these images with its intent, in a result and in between."""
    return [
        header(entity),
        IntentGiven(entity, "look", AT, None, some),
        *turn(entity, f"{entity}1", None, images=some),
        Steered(entity, "and again", AT, some),
    ]


def both(entity):
    """An entity whose records bring an image and a snapshot."""
    return [*run(entity, f"{entity}1", snapshot=SNAPSHOT, ends=False), Steered(entity, "look", AT, (IMAGE,))]


@pytest.fixture(params=["loom.jsonl", "loom.db"])
def path(request, tmp_path):
    return tmp_path / request.param


def tamper(path, blob):
    """Change one byte of a blob where it lies."""
    if path.suffix == ".jsonl":
        text = path.read_bytes()
        at = text.index(b'"data":"', text.index(b'"blob":{"digest":"%b"' % blob.digest.encode())) + 8
        path.write_bytes(text[:at] + (b"A" if text[at : at + 1] != b"A" else b"B") + text[at + 1 :])
    else:
        changed = blob.data[:-1] + bytes([blob.data[-1] ^ 0xFF])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("update blobs set data = ? where digest = ?", (changed, blob.digest))


class FailingDisk:
    """Its write number `at` writes half and raises `error`; all others work."""

    def __init__(self, at, error):
        self.left, self.error = at, error

    def write(self, fd, data):
        self.left -= 1
        if self.left:
            return os.write(fd, data)
        os.write(fd, bytes(data)[: len(data) // 2])
        raise self.error


# ---------------------------------------------------------------------------------------------------------- one blob


@given(st.text(), st.binary(), st.binary(min_size=1))
def test_a_snapshot_is_named_by_its_content_and_its_engine(engine, data, key):
    blob = Blob.of_snapshot(engine, data, key)
    assert (blob.engine, blob.is_snapshot, blob.is_whole) == (engine, True, True)
    assert blob.is_sealed_with(key)
    assert not blob.is_sealed_with(key + b"!")
    assert Blob.of_snapshot(engine, data, b"another").digest == blob.digest
    assert Blob.of_snapshot(engine + "!", data, key).digest != blob.digest
    assert Blob.of_snapshot(engine, data + b"!", key).digest != blob.digest
    assert blob.seal_again(KEY) == Blob.of_snapshot(engine, data, KEY)


@given(st.binary(min_size=1), st.data())
def test_any_change_of_a_blobs_bytes_is_found(data, draw):
    at, to = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 255))
    changed = data[:at] + bytes([to]) + data[at + 1 :]
    for blob in (Blob.of_snapshot("toy", data, KEY), Blob.of_image("image/png", data)):
        assert replace(blob, data=changed).is_whole == (changed == data)


def test_a_seal_that_is_not_ascii_is_invalid():
    assert not replace(SNAPSHOT, seal="é").is_sealed_with(KEY)


def test_a_snapshot_is_not_part_of_the_record_that_brings_it():
    for record in run("e", "t1", snapshot=SNAPSHOT):
        if isinstance(record, (GateStarted, Committed)):
            read = decode(encode(record))
            assert read == record
            assert read.snapshot.blob is None
            assert make_reference(record.snapshot) == read.snapshot
            assert SNAPSHOT.data not in encode(record)


def test_a_line_has_the_facts_of_an_image_and_no_bytes():
    line = encode(IntentGiven("e", "look", AT, None, (IMAGE.with_position(4), OTHER)))
    facts = {"type": "image/png", "digest": IMAGE.digest, "size": IMAGE.size, "width": 640, "height": 480, "after": 4}
    other = {"type": "image/png", "digest": OTHER.digest, "size": OTHER.size, "width": 3, "height": 2, "detail": "low"}
    assert orjson.loads(line)["images"] == [facts, other]
    assert IMAGE.base64().encode() not in line


@pytest.mark.parametrize("digest", ["5", '""', '"../../etc"', '"ABC"'])
@pytest.mark.parametrize(
    ("record", "named"),
    [
        (IntentGiven("e", "look", AT, None, (IMAGE,)), IMAGE.digest),
        (run("e", "t1", snapshot=SNAPSHOT)[-1], SNAPSHOT.digest),
    ],
    ids=["image", "snapshot"],
)
def test_a_record_with_an_invalid_digest_is_refused(record, named, digest):
    with pytest.raises(LoomError, match="expected a digest"):
        decode(encode(record).replace(f'"{named}"'.encode(), digest.encode()))


def test_a_database_writes_blobs_in_the_order_of_their_digests(tmp_path):
    snapshots = [Blob.of_snapshot("toy", bytes([n]), KEY) for n in range(20)]
    records = [record for n, blob in enumerate(snapshots) for record in run(f"e{n}", f"t{n}", snapshot=blob)]
    records.insert(4, Steered("e0", "look", AT, (IMAGE, OTHER)))
    digests = sorted([IMAGE.digest, OTHER.digest, *(one.digest for one in snapshots)])
    with open_store(f"sqlite:{tmp_path}/l.db") as store:
        store.append(records)
    with closing(sqlite3.connect(tmp_path / "l.db")) as file:
        assert [digest for (digest,) in file.execute("select digest from blobs order by rowid")] == digests


# -------------------------------------------------------------------------------------------------------------- kept


@pytest.mark.rule("LOOM-1")
def test_a_blob_is_stored_once_for_all_records_that_refer_to_it(store):
    store.append(both("e"))
    store.append([*both("f"), Steered("f", "this", AT, (OTHER,))])
    assert {digest: store.blob(digest) for digest in store.blobs()} == {
        blob.digest: blob for blob in (SNAPSHOT, IMAGE_BLOB, OTHER_BLOB)
    }
    assert store.blob("0" * 40) is None


@pytest.mark.rule("LOOM-1")
def test_a_blob_is_stored_with_its_records_or_not_at_all(store):
    with pytest.raises(LoomError):
        store.append([*both("e"), header("e")])
    assert list(store.blobs()) == []


@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize("kind", SHARED)
def test_a_reader_sees_the_blobs_that_a_writer_adds(kind):
    with anywhere(kind) as place, place.open() as writer:
        writer.append(run("e", "t1"))
        with open_store(place.url, read_only=True) as reader:
            assert list(reader.blobs()) == []
            writer.append(both("f"))
            assert reader.blob(SNAPSHOT.digest) == SNAPSHOT
            assert reader.blob(IMAGE.digest) == IMAGE_BLOB


@pytest.mark.rule("LOOM-1", "LOOM-10")
def test_records_are_read_with_the_bytes_of_their_images(place):
    with place.open() as store:
        store.append(shown("e", IMAGE.with_position(2), OTHER))
        read = store.records("e")
    if place.lasts:
        with place.open() as store:
            read = store.records("e")
            (made,) = read_turns(read)
            assert made.gate_calls[0].images[1].data == OTHER.data
    assert read == shown("e", IMAGE, OTHER)
    for record in read:
        assert [one.data for one in get_images(record)] in ([], [IMAGE.data, OTHER.data])
        assert [one.after for one in get_images(record)] in ([], [2, None])


def test_the_bytes_of_an_image_are_read_when_they_are_first_wanted(store):
    store.append(shown("e", IMAGE))
    (one,) = get_images(store.records("e")[1])
    assert not one.is_at_hand
    assert one.data == IMAGE.data
    assert one.is_at_hand


def test_the_loom_stores_no_bytes_for_an_address(store):
    store.append(shown("e", Image.at("https://example.org/a.png")))
    assert list(store.blobs()) == []
    assert store.records("e")[1].images == (Image.at("https://example.org/a.png"),)
    assert verify_loom(store).ok


@given(st.lists(st.lists(images, max_size=3).map(tuple), max_size=4))
def test_any_images_in_any_split_are_read_as_they_were_written(batches):
    with MemoryStore() as store:
        store.append([header("e")])
        for some in batches:
            store.append([Steered("e", "look", AT, some)])
        read = [record.images for record in store.records("e")[1:]]
    assert read == batches
    for some, given_ in zip(read, batches, strict=True):
        assert [one.find_data() for one in some] == [one.find_data() for one in given_]


@given(st.lists(images, max_size=3).map(tuple), st.lists(images, max_size=3).map(tuple))
def test_any_images_are_read_from_disk_as_they_were_written(tmp_path_factory, some, more):
    for name in ("loom.jsonl", "loom.db"):
        path = tmp_path_factory.mktemp("looms") / name
        for records in ([header("e"), Steered("e", "look", AT, some)], [Steered("e", "look", AT, more)]):
            with open_store(path) as store:
                store.append(records)
        with open_store(path, read_only=True) as store:
            for record, given_ in zip(store.records("e")[1:], (some, more), strict=True):
                assert [one.find_data() for one in record.images] == [one.find_data() for one in given_]
            assert verify_loom(store).ok


# ------------------------------------------------------------------------------------------- the lines of a JSONL loom


def without_blobs(path):
    """Take the lines of blobs out of a JSONL loom."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if not line.startswith(b'{"blob":')))


def test_a_torn_line_of_a_blob_is_cut_off(tmp_path):
    path = tmp_path / "loom.jsonl"
    with open_store(path) as store:
        store.append(shown("e", IMAGE))
    with path.open("ab") as file:
        file.write(b'{"blob":{"digest":"00')
    with open_store(path) as store:
        store.append(shown("f", OTHER))
        assert store.blob(OTHER.digest) == OTHER_BLOB
    with open_store(path, read_only=True) as store:
        assert verify_loom(store).ok
        assert {*store.blobs()} == {IMAGE.digest, OTHER.digest}


def test_a_blob_that_is_gone_is_written_again(tmp_path):
    path = tmp_path / "loom.jsonl"
    with open_store(path) as store:
        store.append(run("e", "t1", snapshot=SNAPSHOT))
    without_blobs(path)
    with open_store(path) as store:
        assert store.blob(SNAPSHOT.digest) is None
        assert len(verify_loom(store).faults) == 1
        store.append(run("f", "t2", snapshot=SNAPSHOT))
        assert verify_loom(store).ok


class Killed(Exception):
    """The process ends here."""


@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_kill_in_the_middle_of_a_write_with_blobs_leaves_a_valid_loom(tmp_path, durability):
    path = tmp_path / "loom.jsonl"
    store = JsonlStore(path, disk=Disk(write=FailingDisk(1, Killed()).write), durability=durability)
    with pytest.raises(Killed):
        store.append(shown("e", IMAGE))
    store._file.close()  # as the end of a process does; nothing else of it is closed in order
    with open_store(path) as again:
        left_over = again.records("e")
        assert left_over == shown("e", IMAGE)[: len(left_over)]
        assert all(one.data == IMAGE.data for record in left_over for one in get_images(record))
        assert verify_loom(again).ok
        again.append(shown("f", IMAGE))
    with open_store(path, read_only=True) as reader:
        assert get_images(reader.records("f")[1])[0].data == IMAGE.data
        assert verify_loom(reader).ok


def test_a_full_disk_stores_no_blob(tmp_path):
    path = tmp_path / "loom.jsonl"
    full = FailingDisk(1, OSError(errno.ENOSPC, "No space left on device"))
    with JsonlStore(path, disk=Disk(write=full.write)) as store:
        with pytest.raises(LoomError, match="Make room"):
            store.append(shown("e", IMAGE))
        assert store.records("e") == []
        assert list(store.blobs()) == []
        store.append(shown("e", IMAGE))
    with open_store(path, read_only=True) as store:
        assert verify_loom(store).ok
        assert list(store.blobs()) == [IMAGE.digest]


# -------------------------------------------------------------------------------------------------- damaged and missing


def test_a_loom_with_its_blobs_verifies(store):
    store.append(both("e"))
    assert verify_loom(store).ok


def test_verify_names_the_first_record_that_lacks_its_snapshot(store):
    store.append(run("e", "t1", snapshot=SNAPSHOT))
    gone = Snapshot("0" * 40)
    store.append([header("f"), GateStarted("f", "t", "call", "echo", snapshot=gone)])
    (fault,) = verify_loom(store).faults
    assert fault.record is not None
    assert fault.blob == gone.digest
    assert f"its snapshot {gone.digest} is missing" in str(fault)


def test_verify_finds_a_snapshot_that_was_changed(path):
    with open_store(path) as store:
        store.append(run("e", "t1", snapshot=SNAPSHOT))
    tamper(path, SNAPSHOT)
    with open_store(path, read_only=True) as store:
        (fault,) = verify_loom(store).faults
        assert "is not what was written" in str(fault) or "is missing" in str(fault)


def test_an_image_that_was_changed_or_lost_is_a_fault_and_is_not_shown(path):
    with open_store(path) as store:
        store.append(shown("e", IMAGE, OTHER))
    if path.suffix == ".db":
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("update blobs set data = ? where digest = ?", (png(), IMAGE.digest))
            database.execute("delete from blobs where digest = ?", (OTHER.digest,))
    else:
        lines = path.read_bytes().splitlines(keepends=True)
        kept = b"".join(line for line in lines if b'"blob":{"digest":"%b"' % OTHER.digest.encode() not in line)
        path.write_bytes(kept.replace(IMAGE.base64().encode(), Image(png()).base64().encode()))
    with open_store(path, read_only=True) as store:
        first, second = store.records("e")[1].images
        with pytest.raises(LoomError, match="is not what was recorded"):
            first.find_data()
        assert second.find_data() is None
        faults = verify_loom(store).faults
    assert {(fault.record, fault.blob) for fault in faults} == {(2, IMAGE.digest), (2, OTHER.digest)}
    assert sorted(str(fault).split(": ")[1][-7:] for fault in faults) == ["missing", "written"]


@pytest.mark.parametrize("waits_as", ["mail", "timer"])
def test_a_lost_image_of_mail_that_waits_is_a_fault(path, waits_as):
    mail = Mail(entity_id="e", key="k", kind="intent", body={"intent": "look"}, at=AT, images=(IMAGE,))
    with open_store(path) as store:
        store.append([header("e", lasting=True)])
        if waits_as == "mail":
            store.post([mail])
        else:
            store.replace_timer(None, Timer(id="t", due=5.0, entity_id="e", mail=mail))
        assert verify_loom(store).ok
    if path.suffix == ".db":
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("delete from blobs")
    else:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(line for line in lines if not line.startswith(b'{"blob":')))
    with open_store(path, read_only=True) as store:
        (fault,) = verify_loom(store).faults
    assert (fault.blob, IMAGE.digest in str(fault), waits_as in str(fault)) == (IMAGE.digest, True, True)


WRITE = """
import sys
from cantrip_actors.loom import open_store
from cantrip_actors.terms.image import Image
from cantrip_actors.records.records import Steered
from tests.loom.histories import AT, header
from tests.pictures import png

with open_store(sys.argv[1]) as store:
    store.append([header("e")])
    for n in range(1, 10_000):
        store.append([Steered("e", str(n), AT, (Image(png() + bytes(20_000) + n.to_bytes(4)),))])
        print(n, flush=True)
"""


@pytest.mark.real_time
@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize("kind", LASTING)
@pytest.mark.parametrize("count", [1, 25])
def test_a_writer_that_is_killed_loses_no_acknowledged_image(kind, count):
    with anywhere(kind) as place:
        with python(WRITE, place.url) as writer:
            for line in writer.stdout:
                if int(line) >= count:
                    writer.send_signal(signal.SIGKILL)
                    break
            acknowledged = max([count, *map(int, writer.stdout)])
        with place.open() as store:
            read = store.records("e")[1:]
            assert acknowledged <= len(read) <= acknowledged + 1
            for n, record in enumerate(read, 1):
                (image,) = record.images
                assert (record.text, image.data[-4:]) == (str(n), n.to_bytes(4))
            assert verify_loom(store).ok
            assert len(list(store.blobs())) in (len(read), len(read) + 1)
            store.append([Steered("e", "next", AT, (IMAGE,))])
            assert store.records("e")[-1].images[0].data == IMAGE.data


# ------------------------------------------------------------------------------------------------------------- copied


def test_a_copy_has_the_blobs_of_its_source(store, tmp_path):
    store.append(both("e"))
    for name in ("copy.jsonl", "copy.db"):
        with open_store(tmp_path / name) as target:
            assert copy_loom(store, target).ok
            assert {*target.blobs()} == {*store.blobs()}
            assert verify_loom(target).fingerprint == verify_loom(store).fingerprint


def test_a_copied_snapshot_gets_the_seal_of_its_new_store(path, tmp_path):
    with open_store(path) as source, open_store(tmp_path / "copy.db") as target:
        mine = Blob.of_snapshot("toy", b"mine", source.key())
        foreign = Blob.of_snapshot("toy", b"foreign", b"somebody's")
        source.append([*run("e", "t1", snapshot=mine), *run("f", "t2", snapshot=foreign)])
        assert copy_loom(source, target).ok
        assert target.blob(mine.digest) == mine.seal_again(target.key())
        assert target.blob(foreign.digest) == foreign, "a copy vouches for nobody else's snapshot"
        assert verify_loom(target) == verify_loom(source)


def test_a_copy_says_which_blobs_its_source_has_lost(tmp_path):
    with open_store(tmp_path / "a.jsonl") as source:
        source.append(both("e"))
    without_blobs(tmp_path / "a.jsonl")
    with open_store(tmp_path / "a.jsonl", read_only=True) as source, open_store(tmp_path / "b.db") as target:
        copied = copy_loom(source, target)
        assert {fault.blob for fault in copied.faults} == {SNAPSHOT.digest, IMAGE.digest}
        assert copied.fingerprint == verify_loom(source).fingerprint


# ----------------------------------------------------------------------------------------------------------- redacted

SECRET = "hunter2-hunter2"


def test_a_redacted_loom_shows_images_unless_they_are_left_out():
    with MemoryStore() as store:
        store.append(both("e"))
        seen = redacted_loom(Loom(store, None), Redactor([SECRET]))
        assert seen.records("e")[-1].images[0].data == IMAGE.data
        assert seen.attach(IMAGE.bare()).data == IMAGE.data
        hidden = redacted_loom(Loom(store, None), Redactor([SECRET]), show_images=False)
        assert hidden.records("e")[-1].images[0].find_data() is None
        assert hidden.records("e")[-1].images == (IMAGE,)
        assert hidden.attach(IMAGE).find_data() is None


def test_the_address_of_an_image_is_redacted():
    image = Image.at(f"https://example.org/a.png?token={SECRET}").with_position(3)
    record = IntentGiven("e", "look", AT, None, (image, IMAGE))
    kept = redact_record(record, Redactor([("key", SECRET)]))
    assert kept.images[0].url == "https://example.org/a.png?token=[redacted:key]"
    assert (kept.images[0].after, kept.images[1].data) == (3, IMAGE.data)


def test_a_record_without_secrets_is_returned_unchanged():
    record = IntentGiven("e", "look", AT, None, (IMAGE,))
    assert redact_record(record, Redactor([SECRET])) is record
    seen = GateFinished.of("e", "t", Observation("shoot", None, IMAGE.handle, images=(IMAGE,)))
    bare = redact_record(seen, Redactor([SECRET]), show_images=False)
    assert bare == replace(seen)
    assert bare.observation.images[0].find_data() is None
