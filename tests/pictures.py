"""Small real pictures and other files, made here."""

from __future__ import annotations

import base64
import struct
import zlib

from hypothesis import strategies as st

from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image

__all__ = ["DOCX", "MP3", "PDF", "data_url", "files", "gif", "images", "jpeg", "png", "webp"]


def png(width: int = 3, height: int = 2, shade: int = 0) -> bytes:
    """A grey picture that any viewer shows."""
    rows = b"".join(b"\0" + bytes([shade]) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def gif(width: int = 3, height: int = 2) -> bytes:
    """The header of one."""
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def jpeg(width: int = 3, height: int = 2) -> bytes:
    """Its markers up to the frame header, with one to walk over and a fill byte."""
    frame = b"\xff\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + bytes(12)
    return b"\xff\xd8\xff\xe0\x00\x06JFIF" + frame


def webp(kind: bytes = b"VP8X", width: int = 3, height: int = 2) -> bytes:
    """The header of one, in any of the three layouts."""
    if kind == b"VP8X":
        body = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif kind == b"VP8L":
        body = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little") + bytes(8)
    else:
        body = bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF" + bytes(4) + b"WEBP" + kind + struct.pack("<I", len(body)) + body


def _made(data: bytes, tail: bytes, detail: object, after: int | None) -> Image:
    return Image(data + tail, detail=detail).with_position(after)  # type: ignore[arg-type]


images = st.builds(
    _made,
    st.sampled_from([png(), gif(), jpeg(), webp(), b"\x89PNG\r\n\x1a\n"]),
    st.binary(max_size=40),
    st.sampled_from([None, "low", "high"]),
    st.none() | st.integers(0, 9),
) | st.builds(
    lambda path, after: Image.at(f"https://example.org/{path}.png").with_position(after),
    st.text("abc", min_size=1, max_size=3),
    st.none() | st.integers(0, 9),
)
"""Pictures of any bytes after their magic ones, and addresses."""


def data_url(data: bytes, media_type: str) -> str:
    """Bytes as an address."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


PDF = b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
MP3 = b"ID3\x04\x00\x00\x00\x00\x00\x00\xff\xfb\x90\x00"
DOCX = b"PK\x03\x04\x14\x00\x06\x00" + bytes(8)
"""Their first bytes, mostly."""

_names = st.none() | st.sampled_from(["a.pdf", "b.txt", "c.md", "d [x], e.csv"])
files = (
    st.builds(
        lambda data, name, after: File(data, filename=name).with_position(after),
        st.sampled_from([PDF, MP3, b"one", "zwei \u00fc".encode()]),
        _names,
        st.none() | st.integers(0, 9),
    )
    | st.builds(lambda path: File.at(f"https://example.org/{path}"), st.sampled_from(["a.pdf", "b.mp4", "c"]))
    | st.builds(File.uploaded, st.text("abc", min_size=1, max_size=3), st.sampled_from(["openai", "anthropic"]))
)
"""Files of all kinds, without images."""
