"""Images of messages and results in stores: each once, byte for byte, with the records that refer to them."""

import errno
import os
import signal
import sqlite3
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import LoomError
from cantrip_actors.loom import copy_loom, open_store, verify_loom
from cantrip_actors.loom.jsonl import Disk, JsonlStore
from cantrip_actors.loom.memory import MemoryStore
from cantrip_actors.loom.pictures import brought_pictures, pictures_in
from cantrip_actors.loom.record import decode, encode
from cantrip_actors.loom.redaction import RedactedStore, redacted_record
from cantrip_actors.model.image import Image
from cantrip_actors.model.redact import Redactor
from cantrip_actors.model.turn import GateFinished, IntentGiven, Observation, Steered, turns_of
from tests.loom.histories import AT, header, run, turn
from tests.loom.processes import python
from tests.loom.test_store import LASTING, anywhere
from tests.pictures import images, png

PICTURE = Image(png(640, 480))
OTHER = Image(png(shade=7), detail="low")


def shown(entity, *pictures):
    """An entity that was shown these with its intent, in a result and in between."""
    return [
        header(entity),
        IntentGiven(entity, "look", AT, None, pictures),
        *turn(entity, f"{entity}1", None, pictures=pictures),
        Steered(entity, "and again", AT, pictures),
    ]


@pytest.mark.rule("LOOM-1", "LOOM-10")
class TestKept:
    def test_once_however_many_records_refer_to_it(self, store):
        store.append(shown("e", PICTURE))
        store.append(shown("f", PICTURE, OTHER))
        assert sorted(store.pictures()) == sorted([PICTURE.digest, OTHER.digest])
        found = store.picture(PICTURE.digest)
        assert (found.media_type, found.data, found.is_whole) == ("image/png", PICTURE.data, True)
        assert store.picture("0" * 64) is None

    def test_records_come_back_with_their_bytes(self, place):
        with place.open() as store:
            store.append(shown("e", PICTURE.placed(2), OTHER))
            if not place.lasts:
                back = store.records("e")
        if place.lasts:
            with place.open() as store:
                back = store.records("e")
        assert back == shown("e", PICTURE, OTHER)
        for record in back:
            assert [one.data for one in pictures_in(record)] in ([], [PICTURE.data, OTHER.data])
            assert [one.after for one in pictures_in(record)] in ([], [2, None])
        (told,) = turns_of(back)
        assert told.gate_calls[0].images[1].data == OTHER.data

    def test_nothing_is_read_of_them_before_somebody_wants_them(self, store):
        store.append(shown("e", PICTURE))
        (one,) = pictures_in(store.records("e")[1])
        assert not one.is_at_hand
        assert one.data == PICTURE.data
        assert one.is_at_hand

    def test_with_the_records_or_not_at_all(self, store):
        if type(store).__name__ == "JsonlStore":
            pytest.skip("bytes that no line refers to are harmless there")
        with pytest.raises(LoomError):
            store.append([*shown("e", PICTURE), header("e")])
        assert list(store.pictures()) == []

    def test_they_are_read_by_somebody_beside_the_writer(self, place):
        if not place.lasts:
            pytest.skip("nobody stands beside a memory")
        with place.open() as writer:
            writer.append(run("e", "t1"))
            with open_store(place.url, read_only=True) as reader:
                assert list(reader.pictures()) == []
                writer.append(shown("f", PICTURE))
                assert reader.picture(PICTURE.digest).data == PICTURE.data

    def test_an_address_has_nothing_to_keep(self, store):
        store.append(shown("e", Image.at("https://example.org/a.png")))
        assert list(store.pictures()) == []
        assert store.records("e")[1].images == (Image.at("https://example.org/a.png"),)
        assert verify_loom(store).ok

    def test_what_records_bring_is_in_order_of_its_digests(self):
        some = [Image(png(shade=shade)) for shade in range(20)]
        brought = brought_pictures([IntentGiven("e", "look", AT, None, tuple(some))])
        assert [one.digest for one in brought] == sorted(one.digest for one in some)
        assert brought_pictures(run("e", "t1")) == []

    def test_a_line_has_what_it_is_and_no_bytes(self):
        line = encode(IntentGiven("e", "look", AT, None, (PICTURE.placed(4), OTHER)))
        assert orjson.loads(line)["images"] == [
            {
                "type": "image/png",
                "digest": PICTURE.digest,
                "size": PICTURE.size,
                "width": 640,
                "height": 480,
                "after": 4,
            },
            {
                "type": "image/png",
                "digest": OTHER.digest,
                "size": OTHER.size,
                "width": 3,
                "height": 2,
                "detail": "low",
            },
        ]
        assert PICTURE.base64().encode() not in line

    @pytest.mark.parametrize("digest", ["5", '""', '"../../etc"', '"ABC"'])
    def test_what_names_none_is_no_record(self, digest):
        line = encode(IntentGiven("e", "look", AT, None, (PICTURE,)))
        with pytest.raises(LoomError, match="expected a digest"):
            decode(line.replace(f'"{PICTURE.digest}"'.encode(), digest.encode()))

    @given(st.lists(st.lists(images, max_size=3).map(tuple), max_size=4))
    def test_any_bytes_in_any_split_come_back(self, batches):
        with MemoryStore() as store:
            store.append([header("e")])
            for some in batches:
                store.append([Steered("e", "look", AT, some)])
            back = [record.images for record in store.records("e")[1:]]
        assert back == batches
        for some, given_ in zip(back, batches, strict=True):
            assert [one.found() for one in some] == [one.found() for one in given_]


class TestFilesAndDatabases:
    @given(st.lists(images, max_size=3).map(tuple), st.lists(images, max_size=3).map(tuple))
    def test_any_bytes_come_back_from_a_disk(self, tmp_path_factory, some, more):
        for name in ("loom.jsonl", "loom.db"):
            path = tmp_path_factory.mktemp("looms") / name
            for records in ([header("e"), Steered("e", "look", AT, some)], [Steered("e", "look", AT, more)]):
                with open_store(path) as store:
                    store.append(records)
            with open_store(path, read_only=True) as store:
                for record, given_ in zip(store.records("e")[1:], (some, more), strict=True):
                    assert [one.found() for one in record.images] == [one.found() for one in given_]
                assert verify_loom(store).ok

    def test_what_lies_beside_a_jsonl_loom_may_be_torn(self, tmp_path):
        """A kill in the middle of writing bytes: no line refers to them yet."""
        path = tmp_path / "loom.jsonl"
        with open_store(path) as store:
            store.append(shown("e", PICTURE))
        with (tmp_path / "loom.jsonl.pictures").open("ab") as file:
            file.write(b'{"digest":"00')
        with open_store(path) as store:
            store.append(shown("f", OTHER))
            assert store.picture(OTHER.digest).data == OTHER.data
        with open_store(path, read_only=True) as store:
            assert verify_loom(store).ok
            assert {*store.pictures()} == {PICTURE.digest, OTHER.digest}

    def test_who_may_read_the_lines_may_read_them(self, tmp_path):
        with open_store(tmp_path / "loom.jsonl") as store:
            store.append(shown("e", PICTURE))
        modes = {(tmp_path / name).stat().st_mode for name in ("loom.jsonl", "loom.jsonl.pictures")}
        assert len(modes) == 1

    @pytest.mark.parametrize("durability", ["process", "power"])
    @pytest.mark.parametrize("kills_at", [1, 2])
    def test_a_kill_between_the_bytes_and_the_line_leaves_nothing_wrong(self, tmp_path, kills_at, durability):
        """The first write is the bytes', the second the lines'."""
        path = tmp_path / "loom.jsonl"
        left = kills_at

        class Killed(Exception):
            pass

        def write(fd, data):
            nonlocal left
            left -= 1
            if left:
                return os.write(fd, data)
            os.write(fd, bytes(data)[: len(data) // 2])
            raise Killed

        store = JsonlStore(path, disk=Disk(write=write), durability=durability)
        with pytest.raises(Killed):
            store.append(shown("e", PICTURE))
        os.close(store._fd)  # as the end of a process does; nothing else of it is closed in order
        store._pictures.close()
        with open_store(path) as again:
            left_over = again.records("e")
            assert left_over == shown("e", PICTURE)[: len(left_over)]
            assert all(one.data == PICTURE.data for record in left_over for one in pictures_in(record))
            assert verify_loom(again).ok
            again.append(shown("f", PICTURE))
        with open_store(path, read_only=True) as reader:
            assert pictures_in(reader.records("f")[1])[0].data == PICTURE.data
            assert verify_loom(reader).ok

    @pytest.mark.parametrize("fails", [1, 2])
    def test_a_disk_that_is_full_changes_nothing(self, tmp_path, fails):
        left = fails

        def write(fd, data):
            nonlocal left
            left -= 1
            if left:
                return os.write(fd, data)
            os.write(fd, bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        path = tmp_path / "loom.jsonl"
        with JsonlStore(path, disk=Disk(write=write)) as store:
            with pytest.raises(LoomError, match="Make room"):
                store.append(shown("e", PICTURE))
            assert store.records("e") == []
            store.append(shown("e", PICTURE))
            assert verify_loom(store).ok

    @pytest.mark.parametrize("name", ["loom.jsonl", "loom.db"])
    def test_one_that_was_changed_or_lost_is_a_fault_and_read_by_nobody(self, tmp_path, name):
        path = tmp_path / name
        with open_store(path) as store:
            store.append(shown("e", PICTURE, OTHER))
        if name == "loom.db":
            with sqlite3.connect(path) as database:
                database.execute("update pictures set data = ? where digest = ?", (png(), PICTURE.digest))
                database.execute("delete from pictures where digest = ?", (OTHER.digest,))
            database.close()
        else:
            beside = tmp_path / "loom.jsonl.pictures"
            lines = {orjson.loads(line)["digest"]: line for line in beside.read_bytes().splitlines()}
            changed = lines[PICTURE.digest].replace(PICTURE.base64().encode(), Image(png()).base64().encode())
            beside.write_bytes(changed + b"\n")
        with open_store(path, read_only=True) as store:
            first, second = store.records("e")[1].images
            with pytest.raises(LoomError, match="is not what was recorded"):
                first.found()
            assert second.found() is None
            faults = verify_loom(store).faults
        assert {(fault.record, fault.image) for fault in faults} == {(2, PICTURE.digest), (2, OTHER.digest)}
        assert sorted(str(fault).split(": ")[1][-7:] for fault in faults) == ["missing", "written"]


WRITE = """
import sys
from cantrip_actors.loom import open_store
from cantrip_actors.model.image import Image
from cantrip_actors.model.turn import Steered
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
def test_a_writer_that_is_killed_loses_no_acknowledged_picture(kind, count):
    with anywhere(kind) as place:
        with python(WRITE, place.url) as writer:
            for line in writer.stdout:
                if int(line) >= count:
                    writer.send_signal(signal.SIGKILL)
                    break
            acknowledged = max([count, *map(int, writer.stdout)])
        with place.open() as store:
            told = store.records("e")[1:]
            assert acknowledged <= len(told) <= acknowledged + 1
            for n, record in enumerate(told, 1):
                (image,) = record.images
                assert (record.text, image.data[-4:]) == (str(n), n.to_bytes(4))
            assert verify_loom(store).ok
            assert len(list(store.pictures())) in (len(told), len(told) + 1)
            store.append([Steered("e", "next", AT, (PICTURE,))])
            assert store.records("e")[-1].images[0].data == PICTURE.data


class TestCopied:
    def test_from_every_kind_to_every_other(self, store, tmp_path):
        store.append(shown("e", PICTURE, OTHER))
        for name in ("copy.jsonl", "copy.db"):
            with open_store(tmp_path / name) as target:
                assert copy_loom(store, target).ok
                assert pictures_in(target.records("e")[1])[0].data == PICTURE.data
                assert verify_loom(target).fingerprint == copy_loom_fingerprint(store)

    def test_what_the_source_has_lost_the_copy_says_is_missing(self, tmp_path):
        with open_store(tmp_path / "a.jsonl") as source:
            source.append(shown("e", PICTURE))
        (tmp_path / "a.jsonl.pictures").unlink()
        with open_store(tmp_path / "a.jsonl", read_only=True) as source, open_store(tmp_path / "b.db") as target:
            (fault,) = copy_loom(source, target).faults
        assert fault.image == PICTURE.digest


def copy_loom_fingerprint(store):
    return verify_loom(store).fingerprint


class TestRedacted:
    SECRET = "hunter2-hunter2"

    def test_bytes_are_shown_as_they_are_unless_somebody_leaves_them_out(self):
        with MemoryStore() as store:
            store.append(shown("e", PICTURE))
            seen = RedactedStore(store, Redactor([self.SECRET]))
            assert seen.records("e")[1].images[0].data == PICTURE.data
            assert seen.picture(PICTURE.digest).data == PICTURE.data
            hidden = RedactedStore(store, Redactor([self.SECRET]), show_images=False)
            assert hidden.records("e")[1].images[0].found() is None
            assert hidden.records("e")[1].images == (PICTURE,)
            assert hidden.picture(PICTURE.digest) is None
            assert list(hidden.pictures()) == []

    def test_an_address_is_a_text(self):
        image = Image.at(f"https://example.org/a.png?token={self.SECRET}").placed(3)
        record = IntentGiven("e", "look", AT, None, (image, PICTURE))
        kept = redacted_record(record, Redactor([("key", self.SECRET)]))
        assert kept.images[0].url == "https://example.org/a.png?token=[redacted:key]"
        assert (kept.images[0].after, kept.images[1].data) == (3, PICTURE.data)

    def test_a_record_that_is_clean_stays_itself(self):
        record = IntentGiven("e", "look", AT, None, (PICTURE,))
        assert redacted_record(record, Redactor([self.SECRET])) is record
        seen = GateFinished("e", "t", Observation("shoot", None, PICTURE.handle, images=(PICTURE,)))
        bare = redacted_record(seen, Redactor([self.SECRET]), show_images=False)
        assert bare == replace(seen)
        assert bare.observation.images[0].found() is None
