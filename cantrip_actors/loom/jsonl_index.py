"""What is known of a large JSONL loom, kept beside it: `<file>.index`. A cache, and never more than that.

To read a million turns line by line takes seconds; to make sure that a file still begins with the bytes that were
read before takes a tenth of that. So this file holds the index of a loom's first so many bytes, and their checksum.
Where the loom still begins with those bytes, only what follows them is read line by line. Where it does not, or this
file is damaged, of another version, of another machine, or not there, the loom is read from its beginning, as if there
had never been one. It can be taken away at any time.

A writer keeps it up for looms that are worth it (`WORTH`); where it cannot be written, opening just takes longer the
next time. Readers use it and leave it as it is.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from array import array
from pathlib import Path
from typing import NamedTuple

import orjson

from cantrip_actors.loom.index import Index
from cantrip_actors.own_files.modes import private
from cantrip_actors.redact.logs import get_logger

__all__ = ["WORTH", "Known", "checksum", "keep", "kept"]

WORTH = 100_000
"""Lines that have to be read anew before the index is kept (again): about an eighth of a second."""

_MAGIC = b"cantrip-jsonl-index 3 " + sys.byteorder.encode() + b"\n"
_CRC = 4
_BUFFER = 1 << 18

_log = get_logger("cantrip.loom")


class Known(NamedTuple):
    """How far a loom is known: its first `end` bytes, which are so many lines, and their checksum."""

    end: int = 0
    lines: int = 0
    crc: int = 0


def checksum(data: bytes, before: int) -> int:
    """The checksum of all that `before` is the checksum of, and `data` behind it."""
    return zlib.crc32(data, before)


def keep(loom: Path, known: Known, index: Index) -> None:
    """Keep what is known of a loom, where that can be written."""
    path = _beside(loom)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    told = {"known": list(known), "lengths": [len(spots) for spots in index.spots], **index.as_json()}
    try:
        with open(made, "wb", opener=private) as file:
            crc = 0
            parts: tuple[bytes | array[int], ...] = (_MAGIC, orjson.dumps(told), b"\n", *index.spots)
            for part in parts:
                crc = zlib.crc32(part, crc)
                file.write(part)
            file.write(crc.to_bytes(_CRC, "big"))
        made.replace(path)
    except OSError as error:
        _log.info("a loom's index could not be kept: opening it will take longer", path=str(path), error=str(error))
        with contextlib.suppress(OSError):
            made.unlink()


def kept(loom: Path, fd: int, index: Index) -> Known:
    """Fill an empty `index` with what was kept of the loom that is open as `fd`; how far it is known then."""
    try:
        held = _beside(loom).read_bytes()
    except OSError:
        return Known()
    data = memoryview(held)
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(data[:-_CRC]) != int.from_bytes(data[-_CRC:], "big"):
        return Known()
    cut = held.index(b"\n", len(_MAGIC))
    told = orjson.loads(data[len(_MAGIC) : cut])
    known = Known(*told["known"])
    if _checksum_of(fd, known.end) != known.crc:
        return Known()
    all_spots, at = [], cut + 1
    for length in told["lengths"]:
        spots = array("Q")
        spots.frombytes(data[at : at + length * spots.itemsize])
        at += length * spots.itemsize
        all_spots.append(spots)
    index.load(told, all_spots)
    return known


def _beside(loom: Path) -> Path:
    return loom.with_name(f"{loom.name}.index")


def _checksum_of(fd: int, end: int) -> int | None:
    """The checksum of a file's first `end` bytes; None where it has fewer, or cannot be read."""
    crc, at = 0, 0
    view = memoryview(bytearray(_BUFFER))
    with contextlib.suppress(OSError):
        while at < end and (read := os.preadv(fd, [view[: min(_BUFFER, end - at)]], at)):
            crc = zlib.crc32(view[:read], crc)
            at += read
    return crc if at == end else None
