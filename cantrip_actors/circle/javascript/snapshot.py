"""A JavaScript sandbox between two turns, as bytes that can be stored: how its memory differs from a pristine one.

A snapshot belongs to one engine and one prelude: their digest is its first line, and another one is refused. It is
trusted otherwise; whoever stores it signs it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from cantrip_actors.circle.javascript.engine import Pristine
from cantrip_actors.circle.javascript.memory import Difference, difference

__all__ = ["pack", "unpack"]

_SIZE: Final = struct.Struct("<Q")
_OFFSET: Final = struct.Struct("<I")
_PAGE: Final = 512
"""Bytes. Variables lie scattered: with pages of 4096 a snapshot is three times as large."""


def pack(pristine: Pristine, image: bytes) -> bytes:
    """The snapshot of a guest whose memory is `image`."""
    parts = [
        part for start, page in difference(pristine.image, image, _PAGE).pages for part in (_OFFSET.pack(start), page)
    ]
    return _head(pristine) + _SIZE.pack(len(image)) + zlib.compress(b"".join(parts), 1)


def unpack(pristine: Pristine, snapshot: bytes, most: int) -> Difference:
    """What a pristine memory has to become, of at most `most` bytes; raises ValueError for what is no such snapshot."""
    head = _head(pristine)
    if not snapshot.startswith(head):
        raise ValueError(f"this is no snapshot of a sandbox of {pristine.engine}")
    body = len(head) + _SIZE.size
    if len(snapshot) < body:
        raise ValueError("the snapshot is damaged")
    (size,) = _SIZE.unpack_from(snapshot, len(head))
    if not len(pristine.image) <= size <= most:
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


def _head(pristine: Pristine) -> bytes:
    return f"{pristine.engine}\n".encode()
