"""Untrusted values as text for people: no value hides a part of itself, or looks like text that is ours.

A value is shown as JSON in one line. Every character that moves, hides or reverses text is an escape of JSON, so the
quotes around a text end where the text ends. So is a letter that looks like a Latin one, in a word with Latin letters:
it would be another name that looks the same. A longer text has a frame: each of its lines begins with `FRAME`. A text
that is cut shows its length and its end, too.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

FRAME: Final = "│ "
"""Each line of an entity's text begins with this, and no line of the library's own does."""

CONTINUED: Final = "↳ "
"""Each line of an argument after its first begins so."""

NARROWEST: Final = 16
"""The columns that a value has at least."""

_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\ufe0e\uffa0")
"""Characters that Python calls printable, and that show nothing."""

_WORD: Final = re.compile(r"\\(?:u[0-9a-f]{4}|.)|[^\W\d_]+")
"""An escape of JSON, whose letters belong to no word, or a word."""

_LATIN: Final = re.compile(r"[A-Za-z]")

_LOOKALIKE: Final = re.compile(
    "[\u0370-\u058f\u13a0-\u13ff\u1c80-\u1c8f\u1d00-\u1dbf\u1f00-\u1fff\u2c80-\u2cff\ua4d0-\ua4ff\ua640-\ua69f"
    "\uab30-\uabbf\uff21-\uff5a\U0001d400-\U0001d7ff]"
)
"""Greek, Cyrillic, Armenian, Cherokee, Coptic, Lisu, phonetic, wide and mathematical letters."""

_NAME: Final = re.compile(r"[A-Za-z_][\w.:-]{0,63}", re.ASCII)


def escape(text: str) -> str:
    """Return a text in one line, with JSON's escapes in place of characters that show nothing or move others."""
    if text.isprintable() and _BLANK.isdisjoint(text):
        return text
    return "".join(sign if sign.isprintable() and sign not in _BLANK else json.dumps(sign)[1:-1] for sign in text)


def _convert(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return repr(value)


def count_columns(text: str) -> int:
    """Return how many columns of a terminal a text has at most; a combining character counts as one."""
    return len(text) + sum(unicodedata.east_asian_width(sign) in "WF" for sign in text if not sign.isascii())


def show_value(value: Any, columns: int) -> str:
    """Return a value as JSON in one line of at most about `columns`; a longer one has its two ends and its length."""
    return shorten(_dump(value), columns)


def _dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=_convert)
    return text if text.isascii() else _WORD.sub(_escape_lookalikes, text)


def _escape_lookalikes(match: re.Match[str]) -> str:
    """Return a word with escapes in place of letters that look like Latin ones, if it has Latin ones, too."""
    word = match[0]
    if word.isascii() or _LATIN.search(word) is None:
        return word
    return _LOOKALIKE.sub(lambda sign: json.dumps(sign[0])[1:-1], word)


def shorten(text: str, columns: int) -> str:
    """Return a text, escaped, in at most about `columns`; of a longer one both ends, and its length."""
    if len(text) <= columns and count_columns(shown := escape(text)) <= columns:
        return shown
    length = f" ({len(text):,} characters)"
    room = max(NARROWEST, columns - len(length) - 1)
    tail = _fit(escape(text[-room:])[::-1], room // 3)[::-1]
    return f"{_fit(escape(text[:room]), room - room // 3)}…{tail}{length}"


def _fit(text: str, columns: int) -> str:
    """Return the beginning of a text that fits into `columns`."""
    used = 0
    for at, sign in enumerate(text):
        used += count_columns(sign)
        if used > columns:
            return text[:at]
    return text


def show_name(name: str, columns: int = 64) -> str:
    """Return a name as it is if it is a word of letters, else as JSON; a long one is cut."""
    return name if _NAME.fullmatch(name) and len(name) <= columns else show_value(name, columns)


def show_arguments(args: Mapping[str, Any], columns: int) -> Iterator[str]:
    """Yield a line for each argument: its name and its value."""
    for name, value in args.items():
        head = f"{show_name(str(name), max(NARROWEST, columns // 3))}: "
        yield f"{head}{show_value(value, columns - count_columns(head))}"


def wrap_arguments(args: Mapping[str, Any], columns: int) -> Iterator[str]:
    """Yield the lines of arguments, whole; each line of an argument after its first begins with `CONTINUED`."""
    for name, value in args.items():
        first, *more = _wrap(escape(f"{show_name(str(name))}: {_dump(value)}"), columns, columns - len(CONTINUED))
        yield first
        yield from (f"{CONTINUED}{part}" for part in more)


def show_call(args: Mapping[str, Any], columns: int) -> str:
    """Return arguments in one line of at most about `columns`, in which each has an equal part of the room."""
    whole = ", ".join(show_arguments(args, columns))
    if count_columns(whole) <= columns or not args:
        return whole
    each = columns // len(args) - 2
    parts: list[str] = []
    for at, (name, value) in enumerate(args.items()):
        part = next(show_arguments({name: value}, each))
        if count_columns(", ".join([*parts, part])) > columns and parts:
            return f"{', '.join(parts)}, … {len(args) - at} more"
        parts.append(part)
    return ", ".join(parts)


def frame(text: str, columns: int, rows: int | None = None) -> list[str]:
    """Return the lines of a text in a frame, each at most about `columns` wide.

    With `rows`, a longer text is cut to so many lines, and the last of them says what is left out. Without, lines are
    wrapped and all of the text is there.
    """
    room = max(NARROWEST, columns - len(FRAME))
    lines = text.splitlines() or [""]
    if rows is None:
        return [f"{FRAME}{part}" for line in lines for part in _wrap(escape(line), room, room)]
    if len(lines) <= rows:
        return [f"{FRAME}{shorten(line, room)}" for line in lines]
    rest = lines[rows - 1 :]
    count = f"… {len(rest):,} more lines ({sum(map(len, rest)):,} characters)"
    return [*(f"{FRAME}{shorten(line, room)}" for line in lines[: rows - 1]), f"{FRAME}{count}"]


def _wrap(text: str, first: int, columns: int) -> Iterator[str]:
    """Yield a text in parts: one of at most `first` columns, then each of at most `columns`."""
    at, room = 0, first
    while True:
        part = _fit(text[at : at + room], room)
        yield part
        at, room = at + len(part), columns
        if at >= len(text):
            return
