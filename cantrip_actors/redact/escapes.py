r"""Texts with their escapes undone, and the positions of the result in the original text.

A secret may be written in many ways: with `\u0073` or `\/` in JSON, `%73` in a URL, `&#115;` in a page, and with any of
these nested in another. Instead of guessing, every apparent escape is undone and the result is searched;
`DecodedText.span` maps a match back to the original characters.

This module does not know what is searched for. Undoing an apparent escape that is not one (in a Windows path) does no
harm, because a reading is only searched.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

DEEPEST = 3
"""Levels of nested escapes that are undone: JSON in JSON in a URL."""


class _Piece(NamedTuple):
    """Characters `start` to `end` of the source become `length` characters from `at` on."""

    at: int
    length: int
    start: int
    end: int


class DecodedText:
    """A text, and the positions of its characters in the text that it is a reading of (`source`; None for the
    original).
    """

    __slots__ = ("_ats", "_pieces", "source", "text")

    def __init__(self, text: str, source: DecodedText | None = None, pieces: list[_Piece] | None = None) -> None:
        self.text = text
        self.source = source
        self._pieces = pieces or []
        self._ats = [piece.at for piece in self._pieces]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the span in the original of characters `start` to `end` (at least one)."""
        if self.source is None:
            return start, end
        return self.source.span(self._where(start)[0], self._where(end - 1)[1])

    def _where(self, at: int) -> tuple[int, int]:
        index = bisect_right(self._ats, at) - 1
        if index < 0:
            return at, at + 1
        piece = self._pieces[index]
        if at < piece.at + piece.length:
            return piece.start, piece.end
        start = piece.end + at - piece.at - piece.length
        return start, start + 1


def has_escapes(text: str) -> bool:
    """Return whether a text may have escapes, and so another reading than itself."""
    return "\\" in text or "%" in text or "&" in text


def readings(text: str) -> Iterator[DecodedText]:
    """Yield the text itself, then every other reading of it."""
    original = DecodedText(text)
    yield original
    if not has_escapes(text):  # the common case
        return
    seen = {text}
    latest = [original]
    for _ in range(DEEPEST):
        further: list[DecodedText] = []
        for source in latest:
            for sign, undo in _ESCAPES:
                if sign in source.text:
                    reading = undo(source)
                    if reading is not None and reading.text not in seen:
                        seen.add(reading.text)
                        further.append(reading)
        yield from further
        latest = further


def join_lines(text: str) -> Iterator[DecodedText]:
    """Yield the text without line breaks and indentation, and with a space for each, to find wrapped secrets."""
    for sign in ("", " "):
        reading = _undo(DecodedText(text), _BREAK, lambda _, sign=sign: [sign])  # type: ignore[misc]
        if reading is not None:
            yield reading


def _undo(source: DecodedText, escape: re.Pattern[str], read: Callable[[str], list[str] | None]) -> DecodedText | None:
    """Return a reading of `source`; `read` returns an escape's characters, one for each equal share of it, or None."""
    text = source.text
    parts: list[str] = []
    pieces: list[_Piece] = []
    done = at = 0
    for match in escape.finditer(text):
        signs = read(match.group())
        if signs is None:
            continue
        start, end = match.span()
        parts.append(text[done:start])
        at += start - done
        width = (end - start) // len(signs)
        for number, sign in enumerate(signs):
            begins = start + number * width
            pieces.append(_Piece(at, len(sign), begins, end if number == len(signs) - 1 else begins + width))
            at += len(sign)
            parts.append(sign)
        done = end
    if not pieces:
        return None
    parts.append(text[done:])
    return DecodedText("".join(parts), source, pieces)


_BREAK = re.compile(r"(?:(?<![ \t])[ \t]++)?\r?\n[ \t]*+")  # tried once for each run of spaces, not at each of them
_BACKSLASH = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[\s\S])"
)
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2})+")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8});")

_NAMED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


def _backslash(escape: str) -> list[str] | None:
    sign = escape[1]
    if len(escape) == 2:
        return [_NAMED.get(sign, sign)]
    if len(escape) == 12:
        high, low = int(escape[2:6], 16), int(escape[8:], 16)
        return [chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))]
    code = int(escape[2:], 16)  # noqa: FURB166  # \\u is no prefix that int knows
    return [chr(code)] if code <= 0x10FFFF else None


def _percent(escape: str) -> list[str]:
    raw = bytes.fromhex(escape.replace("%", ""))
    # one character for each byte keeps the shares equal: a UTF-8 character is placed at its first byte
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
        return list(text)
    signs: list[str] = []
    for sign in text:
        signs += [sign, *[""] * (len(sign.encode()) - 1)]
    return signs


def _entity(escape: str) -> list[str] | None:
    sign = html.unescape(escape)
    return [sign] if len(sign) == 1 else None


_ESCAPES: tuple[tuple[str, Callable[[DecodedText], DecodedText | None]], ...] = (
    ("\\", lambda source: _undo(source, _BACKSLASH, _backslash)),
    ("%", lambda source: _undo(source, _PERCENT, _percent)),
    ("&", lambda source: _undo(source, _ENTITY, _entity)),
)
