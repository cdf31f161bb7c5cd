"""Detect the format of a file from its bytes.

Formats are known by their magic bytes, and text by being UTF-8 without control characters. Nothing is decoded further.
"""

from __future__ import annotations

import mimetypes
import re
from typing import Final

TEXT: Final = "text/plain"

_MAGIC: Final = (
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\x00\x00\x01\xba", "video/mpeg"),
    (0, b"\x00\x00\x01\xb3", "video/mpeg"),
    (0, b"FLV\x01", "video/x-flv"),
    (8, b"WAVE", "audio/wav"),
    (8, b"AVI ", "video/x-msvideo"),
    (8, b"AIFF", "audio/aiff"),
    (4, b"ftypM4A", "audio/mp4"),
    (4, b"ftypqt", "video/quicktime"),
    (4, b"ftyp", "video/mp4"),
)
"""Offset, bytes, media type; the first match counts."""

_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_TEXTUAL: Final = frozenset(
    f"application/{kind}" for kind in ("json", "xml", "yaml", "toml", "javascript", "sql", "x-sh", "x-python")
)


def detect_file_type(data: bytes) -> str | None:
    """Return the media type of a PDF, a recording, a film or a text (`text/plain`); None for anything else."""
    if b"%PDF-" in data[:1024]:  # readers accept a few bytes before it
        return "application/pdf"
    for offset, magic, kind in _MAGIC:
        if data.startswith(magic, offset):
            return kind
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "video/webm" if b"webm" in data[:64] else "video/x-matroska"
    if data.startswith(b"OggS"):
        return "video/ogg" if b"theora" in data[:64] else "audio/ogg"
    if len(data) > 2 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:  # the beginning of a frame
        layer = data[1] >> 1 & 0x03
        return "audio/mpeg" if layer else "audio/aac" if data[1] & 0xF0 == 0xF0 else None
    return TEXT if _is_text(data) else None


def is_textual(media_type: str) -> bool:
    """Return whether a file of this type is a text that a model can read as it is."""
    return media_type.startswith("text/") or media_type in _TEXTUAL or media_type.endswith(("+json", "+xml"))


def guess_type(name: str | None) -> str | None:
    """Return the media type that a file's name implies, or None."""
    return None if name is None else _ENDINGS.get(name.rpartition(".")[2].lower()) or mimetypes.guess_type(name)[0]


_ENDINGS: Final = {"md": "text/markdown", "yaml": "application/yaml", "yml": "application/yaml", "csv": "text/csv"}
"""Media types that are missing from the tables of some machines."""


def _is_text(data: bytes) -> bool:
    if _CONTROL.search(data):
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
