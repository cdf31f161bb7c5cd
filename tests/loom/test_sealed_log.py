"""A sealed log: several writers, torn ends, edited lines. The logs of dispatches add their own tests."""

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.loom.seal.seal_key import derive_log_seal
from cantrip_actors.loom.seal.sealed_log import BrokenLine, Disk, SealedLog

FIRST = b'{"n":0}'


def line(number: int) -> bytes:
    return b'{"n":%d}' % number


def collect(state, number, one):
    """Fold lines to the list of their numbers; a line's own number has to be its place."""
    found = json.loads(one)["n"]
    if found != number - 1:
        raise ValueError(f"it is {found}")
    return [*(state or ()), found]


@pytest.fixture
def log(tmp_path):
    log = opened(tmp_path)
    log.create(FIRST)
    return log


def opened(folder, start=b"log"):
    return SealedLog(folder / "sub" / "log.jsonl", collect, start=start, kind="test", disk=Disk())


@pytest.mark.rule("F-08")
@given(writers=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=12))
def test_writers_that_take_turns_continue_each_others_lines(writers, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("log")
    logs = [opened(folder) for _ in range(3)]
    logs[0].create(FIRST)
    total = 1
    for writer, many in writers:
        added = [*range(total, total + many)]
        total += many
        assert logs[writer].append(lambda _, added=added: map(line, added)) == [*range(total)]
    assert [log.read() for log in logs] == [[*range(total)]] * 3


@pytest.mark.rule("F-03")
def test_a_log_is_created_once(log, tmp_path) -> None:
    before = log.path.read_bytes()
    with pytest.raises(FileExistsError):
        opened(tmp_path).create(b'{"n":9}')
    assert [path.read_bytes() for path in log.path.parent.iterdir()] == [before]


@pytest.mark.rule("F-07")
def test_a_line_that_could_not_be_read_again_is_not_written(log) -> None:
    before = log.path.read_bytes()
    with pytest.raises(ValueError, match="it is 7"):
        log.append(lambda _: [line(1), line(7)])
    assert log.path.read_bytes() == before
    assert log.append(lambda state: [line(len(state))]) == [0, 1]


@pytest.mark.rule("F-07")
@pytest.mark.parametrize("at", range(4))
def test_an_append_that_fails_at_any_call_of_the_system_appends_nothing(tmp_path, at) -> None:
    calls: list[str] = []

    def fail_at(call):
        def run(*arguments):
            calls.append(call.__name__)
            if len(calls) == at + 1:
                raise OSError(errno.EIO, "the disk is bad")
            return call(*arguments)

        return run

    disk, key = Disk(write=fail_at(os.write), sync=fail_at(os.fsync)), derive_log_seal(b"a secret of the owner", b"log")
    log = SealedLog(tmp_path / "log.jsonl", collect, start=b"log", kind="test", disk=Disk(), seal=key)
    log.create(FIRST)
    with pytest.raises(OSError, match="the disk is bad"):
        SealedLog(log.path, collect, start=b"log", kind="test", disk=disk, seal=key).append(lambda _: [line(1)])
    assert calls[: at + 1] == ["write", "fsync", "write", "fsync"][: at + 1]
    assert log.read() == [0]
    assert log.append(lambda state: [line(len(state))]) == [0, 1]


@pytest.mark.rule("F-10")
def test_bytes_after_the_last_newline_are_ignored_and_then_cut_off(log) -> None:
    with log.path.open("ab") as file:
        file.write(line(1))
    assert log.read() == [0]
    assert log.append(lambda _: [line(1)]) == [0, 1]
    assert log.path.read_bytes().count(b"\n") == 2


@pytest.mark.rule("F-04")
def test_an_edited_line_is_found_by_its_number(log, tmp_path) -> None:
    log.append(lambda _: [line(1), line(2)])
    log.path.write_bytes(log.path.read_bytes().replace(b'{"n":1,', b'{"n":3,'))
    for reader in (log, opened(tmp_path)):
        with pytest.raises(BrokenLine) as caught:
            reader.read()
        assert caught.value.number == 2


@pytest.mark.rule("F-04")
def test_a_renamed_log_is_found(log, tmp_path) -> None:
    with pytest.raises(BrokenLine):
        opened(tmp_path, start=b"another log").read()


def test_a_file_that_replaces_a_log_is_read_anew(log, tmp_path) -> None:
    copy = log.path.with_name("copy")
    copy.write_bytes(log.path.read_bytes())
    log.append(lambda _: [line(1)])
    copy.replace(log.path)
    assert log.read() == [0]
