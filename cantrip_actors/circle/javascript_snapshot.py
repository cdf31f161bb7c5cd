"""A JavaScript sandbox between two turns, as bytes: where its memory differs from that of a sandbox that ran nothing.

An entity's variables dirty some tens of the four hundred pages that the engine's memory has, so a snapshot is kilobytes
and not megabytes. It belongs to one engine and one prelude: the digest of the pristine memory stands in its head, and
another one refuses it. It is trusted otherwise; whoever stores it signs it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from cantrip_actors.circle.javascript_engine import Pristine

__all__ = ["pack", "unpack"]

_MAGIC: Final = b"cantrip javascript 1\n"
_HEAD: Final = struct.Struct("<32sQI")
_INDEX: Final = struct.Struct("<I")
_PAGE: Final = 4096


def pack(pristine: Pristine, image: bytes, stack: int) -> bytes:
    """The snapshot of a guest whose memory is `image`."""
    before, now = memoryview(pristine.image), memoryview(image)
    zeros = bytes(_PAGE)
    parts: list[bytes | memoryview] = []
    for start in range(0, len(image), _PAGE):
        page = now[start : start + _PAGE]
        if page != (before[start : start + _PAGE] if start < len(before) else zeros):
            parts += [_INDEX.pack(start // _PAGE), page]
    head = _HEAD.pack(bytes.fromhex(pristine.digest), len(image), stack)
    return _MAGIC + head + zlib.compress(b"".join(parts), 1)


def unpack(pristine: Pristine, snapshot: bytes, most: int) -> tuple[bytes, int]:
    """The memory, of at most `most` bytes, and the stack pointer; raises ValueError for what is no such snapshot."""
    if not snapshot.startswith(_MAGIC) or len(snapshot) < len(_MAGIC) + _HEAD.size:
        raise ValueError("no snapshot of a JavaScript sandbox")
    digest, size, stack = _HEAD.unpack_from(snapshot, len(_MAGIC))
    if digest.hex() != pristine.digest:
        raise ValueError("the snapshot was made by another version of the JavaScript engine")
    if not len(pristine.image) <= size <= most or size % _PAGE or stack > size:
        raise ValueError(f"the snapshot is of {size} bytes of memory; this sandbox may have {most}")
    image = bytearray(pristine.image.ljust(size, b"\0"))
    step = _INDEX.size + _PAGE
    inflate = zlib.decompressobj()
    try:
        pages = inflate.decompress(snapshot[len(_MAGIC) + _HEAD.size :], (size // _PAGE) * step + 1)
    except zlib.error as problem:
        raise ValueError("the snapshot is damaged") from problem
    if len(pages) % step or not inflate.eof:
        raise ValueError("the snapshot is damaged")
    for start in range(0, len(pages), step):
        (index,) = _INDEX.unpack_from(pages, start)
        if index >= size // _PAGE:
            raise ValueError("the snapshot is damaged")
        image[index * _PAGE : (index + 1) * _PAGE] = pages[start + _INDEX.size : start + step]
    return bytes(image), stack
