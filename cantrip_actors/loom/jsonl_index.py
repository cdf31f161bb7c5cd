"""The stored index of a large JSONL loom, `<file>.index`, which is only a cache.

Reading a million turns line by line takes seconds; checking that a file still begins with the same bytes takes a tenth
of that. So this file holds the index of a loom's first bytes, their number, and their checksum. If the loom still
begins with those bytes, only the rest is read line by line. Otherwise, or if this file is missing, damaged, of another
version, or of another machine, the loom is read from its beginning. The file can be deleted at any time.

A writer updates it for looms that are large enough (`WORTH`); if it cannot be written, the next opening takes longer.
Readers use it and do not change it.
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

WORTH = 100_000
"""Lines that must be read at opening before the index is stored (again): about an eighth of a second."""

_MAGIC = b"cantrip-jsonl-index 4 " + sys.byteorder.encode() + b"\n"
_CRC = 4
_BUFFER = 1 << 18

_log = get_logger("cantrip.loom")


class Known(NamedTuple):
    """The covered part of a loom: its first `end` bytes, their number of lines, and their checksum."""

    end: int = 0
    lines: int = 0
    crc: int = 0


def keep(loom: Path, known: Known, index: Index) -> None:
    """Store the index of a loom, if it can be written."""
    path = _get_index_path(loom)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    content = {"known": list(known), "lengths": [len(spots) for spots in index.spots], **index.as_json()}
    try:
        with open(made, "wb", opener=private) as file:
            crc = 0
            parts: tuple[bytes | array[int], ...] = (_MAGIC, orjson.dumps(content), b"\n", *index.spots)
            for part in parts:
                crc = zlib.crc32(part, crc)
                file.write(part)
            file.write(crc.to_bytes(_CRC, "big"))
        made.replace(path)
    except OSError as error:
        _log.info("a loom's index could not be kept: opening it will take longer", path=str(path), error=str(error))
        with contextlib.suppress(OSError):
            made.unlink()


def restore_index(loom: Path, fd: int, index: Index) -> Known:
    """Fill an empty `index` with the stored one for the loom that is open as `fd`; return the covered part."""
    try:
        held = _get_index_path(loom).read_bytes()
    except OSError:
        return Known()
    data = memoryview(held)
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(data[:-_CRC]) != int.from_bytes(data[-_CRC:], "big"):
        return Known()
    cut = held.index(b"\n", len(_MAGIC))
    content = orjson.loads(data[len(_MAGIC) : cut])
    known = Known(*content["known"])
    if compute_checksum(fd, known.end) != known.crc:
        return Known()
    all_spots, at = [], cut + 1
    for length in content["lengths"]:
        spots = array("Q")
        spots.frombytes(data[at : at + length * spots.itemsize])
        at += length * spots.itemsize
        all_spots.append(spots)
    index.load(content, all_spots)
    return known


def _get_index_path(loom: Path) -> Path:
    return loom.with_name(f"{loom.name}.index")


def compute_checksum(fd: int, end: int) -> int | None:
    """Return the checksum of a file's first `end` bytes; None if it is shorter, or cannot be read."""
    crc, at = 0, 0
    view = memoryview(bytearray(_BUFFER))
    with contextlib.suppress(OSError):
        while at < end and (read := os.preadv(fd, [view[: min(_BUFFER, end - at)]], at)):
            crc = zlib.crc32(view[:read], crc)
            at += read
    return crc if at == end else None
