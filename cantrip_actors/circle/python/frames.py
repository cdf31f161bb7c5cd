"""Messages between the host and a worker of Python programs: JSON and bytes, each preceded by its length.

The processes send in turn, so a reader never reads beyond the end of a message. The streams are unbuffered.
"""

from __future__ import annotations

import struct
from io import RawIOBase
from typing import Any, Final, NamedTuple

from cantrip_actors.terms.exact_json import dump_exactly, parse_exactly

_HEAD: Final = struct.Struct(">QQ")


class WorkerFrame(NamedTuple):
    """A message: its parsed JSON, and the bytes that came with it."""

    data: Any
    state: bytes


def send(stream: RawIOBase, data: Any, state: bytes = b"") -> None:
    """Write a message. Raises BrokenPipeError if the other process has ended."""
    text = dump_exactly(data)
    left = memoryview(b"".join((_HEAD.pack(len(text), len(state)), text, state)))
    while left:
        left = left[stream.write(left) or 0 :]


def receive(stream: RawIOBase, most: int | None = None) -> WorkerFrame | None:
    """Read a message; return None if the other process has ended.

    Raises ValueError for JSON of more than `most` bytes, and reads none of it.
    """
    try:
        length, rest = _HEAD.unpack(_read(stream, _HEAD.size))
        if most is not None and length > most:
            raise ValueError(f"expected a message of at most {most:,} bytes, got {length:,}")
        return WorkerFrame(parse_exactly(_read(stream, length)), _read(stream, rest))
    except EOFError:
        return None


def _read(stream: RawIOBase, count: int) -> bytes:
    """Return this many bytes. Raises EOFError if the stream ends before."""
    data = bytearray(count)
    left = memoryview(data)
    while left:
        read = stream.readinto(left)
        if not read:
            raise EOFError
        left = left[read:]
    return bytes(data)
