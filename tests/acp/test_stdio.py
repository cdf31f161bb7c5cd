"""Lines from a pipe or a file, and answers to one."""

import os
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from cantrip_actors.acp import stdio
from cantrip_actors.acp.stdio import StdioLines, write_all

pytestmark = [pytest.mark.real_time, pytest.mark.rule("ACP-20")]


async def lines_of(pieces: Sequence[bytes]) -> list[bytes]:
    """Write pieces into a pipe while its lines are read."""
    here, there = os.pipe()
    found = []

    async def write() -> None:
        with os.fdopen(there, "wb", buffering=0) as file:
            for piece in pieces:
                await anyio.to_thread.run_sync(file.write, piece)

    with os.fdopen(here, "rb") as file:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            found = [line async for line in StdioLines(file)]
    return found


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([], []),
        ([b"one\n", b"two\n"], [b"one\n", b"two\n"]),
        ([b"one\ntw", b"o\n\nthr", b"ee"], [b"one\n", b"two\n", b"\n", b"three"]),
    ],
)
async def test_lines_are_read_whole_from_any_chunks(pieces: list[bytes], lines: list[bytes]) -> None:
    assert await lines_of(pieces) == lines


async def test_a_large_line_is_received_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"x" * 500_000 + b"\n"
    assert await lines_of([large, b"end\n"]) == [large, b"end\n"]
    monkeypatch.setattr(stdio, "LONGEST", 100_000)
    found = await lines_of([large])
    assert b"".join(found) == large
    assert len(found) > 1


async def test_a_file_on_a_disk_is_read(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo")
    with (tmp_path / "lines").open("rb") as file:
        assert [line async for line in StdioLines(file)] == [b"one\n", b"two"]


async def test_a_wait_for_a_line_is_cancelled_at_once() -> None:
    here, there = os.pipe()
    with os.fdopen(here, "rb") as file, os.fdopen(there, "wb"):
        with anyio.move_on_after(0.05) as scope:
            await anext(StdioLines(file))
        assert scope.cancelled_caught


async def test_a_large_answer_is_written_whole_while_it_is_read() -> None:
    here, there = os.pipe()
    large = os.urandom(300_000)
    read: list[bytes] = []

    async def read_all() -> None:
        with os.fdopen(here, "rb") as file:
            read.append(await anyio.to_thread.run_sync(file.read))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_all)
        with os.fdopen(there, "wb", buffering=0) as file:
            await write_all(file, large)
    assert read == [large]


async def test_an_answer_is_written_to_a_file_on_a_disk(tmp_path: Path) -> None:
    with (tmp_path / "answers").open("wb", buffering=0) as file:
        await write_all(file, b"one\n" * 10_000)
    assert (tmp_path / "answers").read_bytes() == b"one\n" * 10_000


async def test_an_answer_that_no_reader_takes_is_cancelled_at_once() -> None:
    here, there = os.pipe()
    with os.fdopen(here, "rb"), os.fdopen(there, "wb", buffering=0) as file:
        with anyio.move_on_after(0.05) as scope:
            await write_all(file, bytes(10_000_000))
        assert scope.cancelled_caught


async def test_an_answer_to_a_reader_that_has_gone_is_an_error() -> None:
    here, there = os.pipe()
    os.close(here)
    with os.fdopen(there, "wb", buffering=0) as file, pytest.raises(BrokenPipeError):
        await write_all(file, b"an answer\n")
