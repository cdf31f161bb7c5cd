"""Read the format of a picture and its size in pixels from its first bytes.

Nothing is decoded. A truncated or invalid header is not an error here: the magic bytes give the format, and the size is
unknown.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

ImageSize = tuple[int, int] | tuple[None, None]

_UNKNOWN: Final = (None, None)

PARTS: Final = 10_000
"""Markers of a JPEG, and chunks of a PNG, that are read: bytes that a stranger made may have one in every second."""


def detect_media_type(data: bytes) -> str | None:
    """Return the media type by the magic bytes; None for anything but a PNG, JPEG, GIF or WebP."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def read_size(data: bytes, media_type: str) -> ImageSize:
    """Return width and height in pixels, as the header has them."""
    width, height = _READ[media_type](data)
    return (width, height) if width and height else _UNKNOWN


def _read_png(data: bytes) -> ImageSize:
    if data[12:16] != b"IHDR" or len(data) < 24:
        return _UNKNOWN
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def _read_gif(data: bytes) -> ImageSize:
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


def _read_jpeg(data: bytes) -> ImageSize:
    """Read the first frame header; other markers are skipped by their lengths."""
    at = 2
    for _ in range(PARTS):
        if at + 9 >= len(data) or data[at] != 0xFF:
            return _UNKNOWN
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker in _FRAMES:
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return _UNKNOWN


_STANDALONE: Final = frozenset((0x01, *range(0xD0, 0xD9)))
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def _read_webp(data: bytes) -> ImageSize:
    kind = data[12:16]
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a" and len(data) >= 30:
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    if kind == b"VP8L" and data[20:21] == b"\x2f" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X" and len(data) >= 30:
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return _UNKNOWN


_READ: Final[dict[str, Callable[[bytes], ImageSize]]] = {
    "image/png": _read_png,
    "image/jpeg": _read_jpeg,
    "image/gif": _read_gif,
    "image/webp": _read_webp,
}

_CHUNK: Final = 12
"""Bytes of a chunk of a PNG besides its data: length, type and checksum."""


def is_broken(data: bytes) -> bool:
    """Return whether a picture certainly cannot be decoded: a PNG whose chunks are cut off or have wrong checksums.

    Other formats, the pixels, and chunks after the first `PARTS` are not checked.
    """
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return False
    at = 8
    for _ in range(PARTS):
        if at + _CHUNK > len(data):
            return True
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + _CHUNK + length
        if end > len(data) or zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            return True
        if kind == b"IEND":
            return False
        at = end
    return False


KINDS_OF_IMAGES: Final = frozenset(_READ)
"""The media types of pictures."""
