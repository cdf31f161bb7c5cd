r"""Half characters in JSON: `\\ud83d` without its other half, which JSON allows and UTF-8 does not.

Programs write them for a text that was cut within an emoji. U+FFFD replaces them.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
    rb"|(\xed[\xa0-\xbf][\x80-\xbf])"
)
"""An escape of a whole character in two halves, of half a character (a group), or another one; half a character."""


def replace_half_characters(text: bytes) -> bytes:
    r"""Return a JSON text without half characters.

    >>> replace_half_characters(rb'["\ud83d", "\ud83d\ude00", "\\ud83d"]')
    b'["\\ufffd", "\\ud83d\\ude00", "\\\\ud83d"]'
    """
    return _ESCAPE.sub(_replace, text) if b"\\u" in text or b"\xed" in text else text


def _replace(escape: re.Match[bytes]) -> bytes:
    if escape[2]:
        return b"\xef\xbf\xbd"
    return rb"\ufffd" if escape[1] else escape[0]


class HalfCharacterFilter:
    """Replaces half characters in JSON that arrives in pieces. No escape goes over the end of a line."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, piece: bytes) -> bytes:
        """Return the lines that this piece ends."""
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        text = b"".join([*self._rest, piece[:end]]) if end else b""
        self._rest = [piece[end:]] if end else [*self._rest, piece]
        return replace_half_characters(text)

    def finish(self) -> bytes:
        """Return the last line, which has no end."""
        text = b"".join(self._rest)
        self._rest.clear()
        return replace_half_characters(text)
