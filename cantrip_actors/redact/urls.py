"""URLs for messages: without passwords, tokens and keys."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "[redacted]"

LONGEST_NAME: Final = 16
"""Characters of a user name that may be shown; a longer one is a token."""

_FILE: Final = re.compile(r"(?:sqlite|jsonl|file|memory):(?!//[^/])", re.IGNORECASE)
_SCHEME: Final = re.compile(r"(?:[a-z][a-z0-9+.-]{0,40}(?::|%3a))?(?://|%2f%2f|\\{1,4}/\\{1,4}/)", re.IGNORECASE)
_COLON: Final = re.compile(r":|%3a", re.IGNORECASE)
_AT: Final = re.compile(r"@|%40", re.IGNORECASE)
_ESCAPE: Final = re.compile(r"%([0-9a-f]{2})", re.IGNORECASE)
_EQUALS: Final = re.compile(r"\s{0,8}=\s{0,8}")
_NAME: Final = re.compile(r"[^=?&;#\s]*\Z")
_VALUE: Final = re.compile(r"'(?:\\.|[^'\\])*'?|[^&;#\s]+")
_IS_SECRET: Final = re.compile(
    r"pass|pwd|secret|token|key|sig|auth|cookie|credential|session|jwt|^code$|^p$|^pw$|^x-amz-security", re.IGNORECASE
)


def render_url(url: object) -> str:
    """Return a URL, or any value given as one, in a form that a message may show.

    A possible password is hidden, if necessary with its neighbours: everything from the first colon after the
    scheme to the last `@` (so a password may hold `@`, `/` and `?` unescaped), a user name of more than 16 characters,
    and the value of each option with a name such as `password`, `token` or `sig`, also of libpq's `name=value` strings.
    It takes linear time, never raises, and leaves the path of a local file as it is.
    """
    text = str(url)
    if not _FILE.match(text):
        scheme = _SCHEME.match(text)
        text = _without_userinfo(text, scheme.end() if scheme else 0)
    return _without_options(text)


def _without_userinfo(text: str, start: int) -> str:
    ends = [at.start() for at in _AT.finditer(text, start)]
    if not ends:
        return text
    end = ends[-1]
    colon = _COLON.search(text, start, end)
    if colon is not None:
        return f"{_user(text[start : colon.start()], text[:start])}{colon.group()}{HIDDEN}{text[end:]}"
    authority = min((at for sign in "/?#" if (at := text.find(sign, start)) >= 0), default=len(text))
    if start and ends[0] < authority:
        return f"{_user(text[start : ends[0]], text[:start])}{text[ends[0] :]}"
    return text


def _user(name: str, scheme: str) -> str:
    return scheme + (name if len(name) <= LONGEST_NAME else HIDDEN)


def _without_options(text: str) -> str:
    parts: list[str] = []
    done = 0
    for equals in _EQUALS.finditer(text):
        start = equals.end()
        name = _NAME.search(text[max(0, equals.start() - 200) : equals.start()])
        value = _VALUE.match(text, start)
        if start > done and name and value and _IS_SECRET.search(_ESCAPE.sub(_unescape, name[0])):
            parts += (text[done:start], HIDDEN)
            done = value.end()
    return "".join((*parts, text[done:]))


def _unescape(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16))
