"""Images in stores: kept once, sealed with a key that does not travel, and missed by nobody who can replay."""

import errno
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.loom import copy_loom, open_store, verify_loom
from cantrip_actors.loom.images import brought
from cantrip_actors.loom.jsonl import Disk, JsonlStore
from cantrip_actors.loom.record import decode, encode
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.snapshot import SandboxImage, Snapshot, reference
from cantrip_actors.model.turn import Committed, GateStarted
from tests.loom.histories import IMAGE, KEY, header, run

FILES = ("jsonl", "sqlite")


@pytest.fixture(params=FILES)
def path(request, tmp_path):
    return tmp_path / ("loom.jsonl" if request.param == "jsonl" else "loom.db")


class TestAnImage:
    @given(st.text(), st.binary(), st.binary(min_size=1))
    def test_is_named_by_its_content_and_its_engine(self, engine, data, key):
        image = SandboxImage.of(engine, data, key)
        assert image.is_whole
        assert image.is_sealed_with(key)
        assert SandboxImage.of(engine, data, b"another").digest == image.digest
        assert SandboxImage.of(engine + "!", data, key).digest != image.digest
        assert SandboxImage.of(engine, data + b"!", key).digest != image.digest
        assert not image.is_sealed_with(key + b"!")
        assert image.sealed_again(KEY) == SandboxImage.of(engine, data, KEY)

    @given(st.binary(min_size=1), st.data())
    def test_no_change_of_its_bytes_goes_unseen(self, data, draw):
        image = SandboxImage.of("toy", data, KEY)
        at, to = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 255))
        changed = data[:at] + bytes([to]) + data[at + 1 :]
        forged = SandboxImage(image.digest, "toy", changed, image.seal)
        assert forged.is_whole == (changed == data)

    def test_is_no_part_of_the_record_that_brings_it(self):
        *_, started, _, turn = run("e", "t1", image=IMAGE)[:-1] + run("e", "t1", image=IMAGE)[-1:]
        for record in (started, turn):
            assert isinstance(record, (GateStarted, Committed))
            back = decode(encode(record))
            assert back == record
            assert back.snapshot.image is None
            assert reference(record.snapshot) == back.snapshot
        assert IMAGE.data not in encode(turn)

    @pytest.mark.parametrize("digest", ["5", '""', '"../../etc"', "[]", '"ABC"'])
    def test_what_names_none_is_no_record(self, digest):
        line = encode(run("e", "t1", image=IMAGE)[-1]).replace(f'"{IMAGE.digest}"'.encode(), digest.encode())
        with pytest.raises(LoomError, match="expected a digest"):
            decode(line)


@pytest.mark.rule("LOOM-1")
class TestKept:
    def test_once_however_many_records_refer_to_it(self, store):
        store.append(run("e", "t1", "t2", image=IMAGE))
        store.append(run("f", "t3", image=IMAGE))
        assert list(store.images()) == [IMAGE.digest]
        assert store.image(IMAGE.digest) == IMAGE
        assert store.image("0" * 40) is None

    def test_with_the_records_or_not_at_all(self, store):
        if type(store).__name__ == "JsonlStore":
            pytest.skip("an image that no line refers to is harmless there")
        with pytest.raises(LoomError):
            store.append([*run("e", "t1", image=IMAGE), header("e")])
        assert list(store.images()) == []

    def test_they_are_read_by_somebody_beside_the_writer(self, place):
        if not place.lasts:
            pytest.skip("nobody stands beside a memory")
        with place.open() as writer:
            writer.append(run("e", "t1"))
            with open_store(place.url, read_only=True) as reader:
                assert list(reader.images()) == []
                writer.append(run("f", "t2", image=IMAGE))
                assert reader.image(IMAGE.digest) == IMAGE

    def test_what_records_bring_is_in_order_of_its_digests(self):
        images = [SandboxImage.of("toy", bytes([n]), KEY) for n in range(20)]
        records = [record for n, image in enumerate(images) for record in run(f"e{n}", f"t{n}", image=image)]
        assert [one.digest for one in brought(records)] == sorted(one.digest for one in images)
        assert brought(run("e", "t1")) == []


class TestVerified:
    def test_whole(self, store):
        store.append(run("e", "t1", image=IMAGE))
        assert verify_loom(store).ok

    def test_the_first_record_that_misses_one_is_named(self, store):
        store.append(run("e", "t1", image=IMAGE))
        gone = Snapshot("0" * 40)
        store.append([header("f"), GateStarted("f", "t", "call", "echo", snapshot=gone)])
        (fault,) = verify_loom(store).faults
        assert fault.record is not None
        assert f"its snapshot {gone.digest} is missing" in str(fault)

    def test_one_that_was_changed_is_found(self, path):
        with open_store(path) as store:
            store.append(run("e", "t1", image=IMAGE))
        tamper(path, IMAGE)
        with open_store(path, read_only=True) as store:
            (fault,) = verify_loom(store).faults
            assert "is not what was written" in str(fault) or "is missing" in str(fault)

    def test_what_lies_beside_a_jsonl_loom_may_be_torn(self, tmp_path):
        path = tmp_path / "loom.jsonl"
        with open_store(path) as store:
            store.append(run("e", "t1", image=IMAGE))
        with (tmp_path / "loom.jsonl.images").open("ab") as file:
            file.write(b'{"digest":"00')
        another = SandboxImage.of("toy", b"another", KEY)
        with open_store(path) as store:
            store.append(run("f", "t2", image=another))
            assert store.image(another.digest) == another
        with open_store(path, read_only=True) as store:
            assert verify_loom(store).ok
            assert {*store.images()} == {IMAGE.digest, another.digest}

    @pytest.mark.parametrize("fails", [1, 2])
    def test_a_disk_that_is_full_of_them_changes_nothing(self, tmp_path, fails):
        """It fails with the image, or, when that is there, with the lines: half of what was to be written is."""
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
                store.append(run("e", "t1", image=IMAGE))
            assert list(store.records("e")) == []
            store.append(run("e", "t1", image=IMAGE))
            assert store.image(IMAGE.digest) == IMAGE
        with open_store(path, read_only=True) as store:
            assert verify_loom(store).ok
            assert list(store.images()) == [IMAGE.digest]

    def test_what_lies_beside_it_may_be_gone(self, tmp_path):
        path = tmp_path / "loom.jsonl"
        with open_store(path) as store:
            store.append(run("e", "t1", image=IMAGE))
        (tmp_path / "loom.jsonl.images").unlink()
        with open_store(path) as store:
            assert store.image(IMAGE.digest) is None
            assert len(verify_loom(store).faults) == 1
            store.append(run("f", "t2", image=IMAGE))
            assert verify_loom(store).ok


def tamper(path, image):
    """Change one byte of an image where it lies."""
    if path.suffix == ".jsonl":
        beside = path.with_name(f"{path.name}.images")
        text = beside.read_bytes()
        at = text.index(b'"data":"', text.index(image.digest.encode())) + 8
        beside.write_bytes(text[:at] + (b"A" if text[at : at + 1] != b"A" else b"B") + text[at + 1 :])
    else:
        import sqlite3

        with sqlite3.connect(path) as other:
            other.execute(
                "update images set data = ? where digest = ?",
                (image.data[:-1] + bytes([image.data[-1] ^ 0xFF]), image.digest),
            )


class TestTheKey:
    def test_is_the_same_each_time_and_for_its_owner_only(self, path):
        with open_store(path) as store:
            key = store.key()
            assert store.key() == key
        beside = path.with_name(f"{path.name}.key")
        assert beside.stat().st_mode & 0o777 == 0o600
        with open_store(path, read_only=True) as store:
            assert store.key() == key
        assert key not in beside.read_bytes()

    def test_is_not_made_before_somebody_needs_it_nor_by_who_only_reads(self, path):
        with open_store(path) as store:
            store.append(run("e", "t1"))
        with open_store(path, read_only=True) as store:
            assert store.key() is None
        assert not path.with_name(f"{path.name}.key").exists()

    def test_a_file_that_came_along_is_another_key(self, path, tmp_path):
        with open_store(path) as store:
            key = store.key()
            store.append(run("e", "t1"))
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for file in tmp_path.glob("loom.*"):
            shutil.copy2(file, elsewhere / file.name)
        with open_store(elsewhere / path.name) as store:
            assert store.key() not in (None, key)

    @pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
    def test_one_that_others_can_read_is_none(self, path, mode, caplog):
        with open_store(path) as store:
            store.key()
            path.with_name(f"{path.name}.key").chmod(mode)
            assert store.key() is None

    @pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
    def test_one_of_another_length_is_none(self, path, content):
        beside = path.with_name(f"{path.name}.key")
        beside.write_bytes(content)
        beside.chmod(0o600)
        with open_store(path) as store:
            assert store.key() is None

    def test_a_link_is_none(self, path, tmp_path):
        (tmp_path / "mine").write_bytes(b"x" * 32)
        path.with_name(f"{path.name}.key").symlink_to(tmp_path / "mine")
        with open_store(path) as store:
            assert store.key() is None

    def test_two_processes_that_begin_at_once_have_the_same_one(self, path):
        with open_store(path) as store:
            store.append(run("e", "t1"))
        program = (
            "import sys; from pathlib import Path; from cantrip_actors.loom.images import key_beside\n"
            "print(key_beside(Path(sys.argv[1]), make=True).hex())"
        )
        started = [
            subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) for _ in range(3)
        ]
        assert len({process.communicate()[0] for process in started}) == 1

    def test_a_memory_has_one_for_itself(self):
        with open_store("memory:") as one, open_store("memory:") as other:
            assert one.key() == one.key() != other.key()

    def test_a_server_has_none(self, store):
        if type(store).__name__ == "PostgresStore":
            assert store.key() is None


class TestCopied:
    def test_images_go_along_and_get_the_seal_of_where_they_are(self, path, tmp_path):
        with open_store(path) as source, open_store(tmp_path / "copy.db") as target:
            mine, foreign = (
                SandboxImage.of("toy", b"mine", source.key()),
                SandboxImage.of("toy", b"foreign", b"somebody's"),
            )
            source.append([*run("e", "t1", image=mine), *run("f", "t2", image=foreign)])
            assert copy_loom(source, target).ok
            key = target.key()
            assert target.image(mine.digest) == mine.sealed_again(key)
            assert target.image(foreign.digest) == foreign, "a copy makes nobody's image one's own"
            assert verify_loom(target) == verify_loom(source)

    def test_what_is_missing_does_not_keep_the_rest_from_being_copied(self, tmp_path):
        with open_store(tmp_path / "a.jsonl") as source, open_store(tmp_path / "b.db") as target:
            source.append(run("e", "t1", image=IMAGE))
            (tmp_path / "a.jsonl.images").unlink()
            source._images.close()
            copied = copy_loom(source, target)
            assert [fault.image for fault in copied.faults] == [IMAGE.digest]
            assert copied.fingerprint == verify_loom(source).fingerprint
