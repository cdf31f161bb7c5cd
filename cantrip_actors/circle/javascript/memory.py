"""Memory of the JavaScript engine as a difference: what an image has that another one has not.

A sandbox dirties some tens of the pages that the engine's memory has. So a new one is made by writing few pages into a
fresh instance, a turn that may have to be undone is remembered as few pages, and a snapshot is few kilobytes.

A snapshot belongs to one engine and one prelude: their digest is its first line, and another one is refused. It is
trusted otherwise; whoever stores it signs it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

__all__ = ["Difference", "difference", "pack", "unpack"]

_SIZE: Final = struct.Struct("<Q")
_OFFSET: Final = struct.Struct("<I")
_PAGE: Final = 512
"""Bytes of a page of a snapshot. Variables lie scattered: with pages of 4096 it is three times as large."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What makes one memory another: `size` bytes, with these `pages`, each as long as the others, at their offsets."""

    size: int
    page: int
    pages: tuple[tuple[int, bytes], ...]


def difference(before: bytes, now: bytes, page: int) -> Difference:
    """What makes `before`, with zeros after its end, to `now`."""
    old, new, zeros = memoryview(before), memoryview(now), bytes(page)
    pages = []
    for start in range(0, len(now), page):
        part = new[start : start + page]
        if part != (old[start : start + page] if start < len(before) else zeros):
            pages.append((start, bytes(part)))
    return Difference(len(now), page, tuple(pages))


def pack(engine: str, pristine: bytes, image: bytes) -> bytes:
    """The snapshot of a guest of `engine` whose memory was `pristine` and is `image`."""
    parts = [part for start, page in difference(pristine, image, _PAGE).pages for part in (_OFFSET.pack(start), page)]
    return f"{engine}\n".encode() + _SIZE.pack(len(image)) + zlib.compress(b"".join(parts), 1)


def unpack(engine: str, pristine: bytes, snapshot: bytes, most: int) -> Difference:
    """What a pristine memory has to become, of at most `most` bytes; raises ValueError for what is no such snapshot."""
    head = f"{engine}\n".encode()
    if not snapshot.startswith(head):
        raise ValueError(f"this is no snapshot of a sandbox of {engine}")
    body = len(head) + _SIZE.size
    if len(snapshot) < body:
        raise ValueError("the snapshot is damaged")
    (size,) = _SIZE.unpack_from(snapshot, len(head))
    if not len(pristine) <= size <= most:
        raise ValueError(f"the snapshot is of {size} bytes of memory; this sandbox may have {most}")
    step = _OFFSET.size + _PAGE
    inflate = zlib.decompressobj()
    try:
        pages = inflate.decompress(snapshot[body:], (size // _PAGE) * step + 1)
    except zlib.error as problem:
        raise ValueError("the snapshot is damaged") from problem
    if len(pages) % step or not inflate.eof or inflate.unused_data:
        raise ValueError("the snapshot is damaged")
    found = tuple(
        (_OFFSET.unpack_from(pages, start)[0], pages[start + _OFFSET.size : start + step])
        for start in range(0, len(pages), step)
    )
    if any(start + _PAGE > size for start, _ in found):
        raise ValueError("the snapshot is damaged")
    return Difference(size, _PAGE, found)
