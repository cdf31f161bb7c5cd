"""Snapshots of the JavaScript engine's memory, as differences to the pristine memory.

A sandbox changes only some tens of the engine's pages. So a new one is made by writing a few pages into a fresh
instance, a turn is undone from a few stored pages, and a snapshot takes a few kilobytes.

A snapshot belongs to one engine and one prelude: its first line is their digest, and a snapshot of another engine is
refused. Beyond that it is trusted: its store signs it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SIZE: Final = struct.Struct("<Q")
_OFFSET: Final = struct.Struct("<I")
_PAGE: Final = 512
"""Bytes of a snapshot's page. Variables lie scattered: with pages of 4096 bytes a snapshot is three times as large."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A change of memory: the new `size` in bytes, and the changed `pages` by offset, each `page` bytes long."""

    size: int
    page: int
    pages: tuple[tuple[int, bytes], ...]


def compute_difference(before: bytes, now: Iterable[bytes], page: int) -> Difference:
    """Return the change from `before`, extended with zeros, to the memory whose pieces are `now`.

    Each piece is a whole number of pages.
    """
    pages, size = list[tuple[int, bytes]](), 0
    for piece in now:
        old = before[size : size + len(piece)].ljust(len(piece), b"\0")
        if piece != old:
            for start in range(0, len(piece), page):
                part = piece[start : start + page]
                if part != old[start : start + page]:
                    pages.append((size + start, part))
        size += len(piece)
    return Difference(size, page, tuple(pages))


def pack(engine: str, pristine: bytes, memory: Iterable[bytes]) -> bytes:
    """Return the snapshot of a guest of `engine` whose memory was `pristine` and now has the pieces `memory`."""
    change = compute_difference(pristine, memory, _PAGE)
    parts = [part for start, page in change.pages for part in (_OFFSET.pack(start), page)]
    return f"{engine}\n".encode() + _SIZE.pack(change.size) + zlib.compress(b"".join(parts), 1)


def unpack(engine: str, pristine: bytes, snapshot: bytes, most: int) -> Difference:
    """Return the change from a pristine memory to a snapshot's, of at most `most` bytes. Raises ValueError."""
    head = f"{engine}\n".encode()
    if not snapshot.startswith(head):
        raise ValueError(f"expected a snapshot of a sandbox of {engine}, got other bytes")
    body = len(head) + _SIZE.size
    if len(snapshot) < body:
        raise ValueError("the snapshot is damaged")
    (size,) = _SIZE.unpack_from(snapshot, len(head))
    if not len(pristine) <= size <= most:
        raise ValueError(f"the snapshot has {size} bytes of memory; this sandbox may have {most}")
    step = _OFFSET.size + _PAGE
    inflate = zlib.decompressobj()
    try:
        pages = inflate.decompress(snapshot[body:], (size // _PAGE) * step + 1)
    except zlib.error as problem:
        raise ValueError("the snapshot is damaged") from problem
    if len(pages) % step or not inflate.eof or inflate.unused_data:
        raise ValueError("the snapshot is damaged")
    changed = tuple(
        (_OFFSET.unpack_from(pages, start)[0], pages[start + _OFFSET.size : start + step])
        for start in range(0, len(pages), step)
    )
    if any(start + _PAGE > size for start, _ in changed):
        raise ValueError("the snapshot is damaged")
    return Difference(size, _PAGE, changed)
