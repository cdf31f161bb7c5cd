"""The key that seals a loom's snapshots, and the file beside the loom that it is made from."""

import os
import shutil
import time

import pytest

from cantrip_actors.loom import open_store
from cantrip_actors.loom.seal.key_file import read_key
from tests.loom.histories import run
from tests.loom.processes import python


@pytest.fixture
def path(tmp_path):
    return tmp_path / "loom.db"


@pytest.fixture
def key_file(path):
    return path.with_name(f"{path.name}.key")


def test_a_key_is_the_same_each_time_and_for_its_owner_only(path, key_file):
    with open_store(path) as store:
        key = store.key()
        assert store.key() == key
    assert key_file.stat().st_mode & 0o777 == 0o600
    with open_store(path, read_only=True) as store:
        assert store.key() == key
    assert key not in key_file.read_bytes()


def test_a_key_is_not_made_before_it_is_needed_nor_by_a_reader(path, key_file):
    with open_store(path) as store:
        store.append(run("e", "t1"))
    with open_store(path, read_only=True) as store:
        assert store.key() is None
    assert not key_file.exists()


def test_a_copied_key_file_gives_another_key(path, tmp_path):
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
def test_a_key_file_that_others_can_read_is_not_used(path, key_file, mode):
    with open_store(path) as store:
        store.key()
        key_file.chmod(mode)
        assert store.key() is None


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_key_file_of_the_wrong_length_is_not_used(path, key_file, content):
    key_file.write_bytes(content)
    key_file.chmod(0o600)
    with open_store(path) as store:
        assert store.key() is None


def test_a_symbolic_link_is_not_a_key_file(path, key_file, tmp_path):
    (tmp_path / "mine").write_bytes(b"x" * 32)
    key_file.symlink_to(tmp_path / "mine")
    with open_store(path) as store:
        assert store.key() is None


def test_a_key_that_is_read_while_its_file_is_written_is_that_of_later_processes(path, key_file, monkeypatch):
    read = os.read

    def read_late(fd, most):
        time.sleep(0.02)  # a file system may count in ticks of some milliseconds
        key_file.write_bytes(b"x" * 32)
        return read(fd, most)

    key_file.touch(0o600)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read_late)
        key = read_key(path, make=True)
    assert key is not None
    assert key == read_key(path, make=True)


def test_processes_that_begin_at_once_have_the_same_key(path):
    with open_store(path) as store:
        store.append(run("e", "t1"))
    program = (
        "import sys; from pathlib import Path; from cantrip_actors.loom.seal.key_file import read_key\n"
        "print(read_key(Path(sys.argv[1]), make=True).hex())"
    )
    started = [python(program, path) for _ in range(3)]
    keys = {process.communicate()[0] for process in started}
    assert [len(bytes.fromhex(key)) for key in keys] == [32]


def test_a_memory_loom_has_a_key_of_its_own():
    with open_store("memory:") as one, open_store("memory:") as other:
        assert one.key() == one.key() != other.key()


def test_a_jsonl_loom_has_a_key_as_long_as_it_is_open_unless_it_is_sealed(tmp_path):
    for seal_key in (None, b"a secret of sixteen bytes or more"):
        path, keys = tmp_path / f"{seal_key is None}.jsonl", set()
        for _ in range(2):
            with open_store(path, seal_key=seal_key) as store:
                assert store.key() == store.key()
                keys.add(store.key())
        assert len(keys) == (2 if seal_key is None else 1)
    assert {file.suffix for file in tmp_path.iterdir()} == {".jsonl"}


def test_a_postgres_loom_has_no_key_file(store):
    if type(store).__name__ == "PostgresStore":
        assert store.key() is None
