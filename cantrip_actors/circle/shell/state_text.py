"""The text that restores this shell's state in another shell, made from the output of `declare` and the like."""

from __future__ import annotations

import re
from typing import Final

OWN: Final = frozenset(
    b"__program __left __exit __bye __shows __token __status __length __answer __name __others".split()
)
"""The variables that the host's own code uses in a shell, and that are gone between two programs."""

_ALIAS: Final = re.compile(rb"^alias ((?:-- )?[^=\n]++=(?:'[^']*+'|\\')++\n)", re.MULTILINE)
_EXPANDED: Final = b"shopt -s expand_aliases\n"


def write_restore(first: bytes, functions: bytes, options: bytes, aliases: bytes) -> bytes:
    """Return the text that gives another shell the same state.

    `first` uses no word that a program may have redefined: it is read before any function is defined, with the options
    that change how functions are read (`extglob`). The parts that must follow the functions bypass them with `builtin`.
    Aliases are not expanded in this text, because a function's aliases were expanded when it was defined. Nothing of
    the host's own is restored: a program has made it readonly.
    """
    if any(name in first for name in OWN):
        first = _DECLARED.sub(lambda match: b"" if match["name"] in OWN else match[0], first)
    expands = _EXPANDED in first
    return b"".join(
        (
            first.replace(_EXPANDED, b"", 1) if expands else first,
            _KEYWORD.sub(rb"function \1", _READONLY.sub(b"declare -f\\1 ", functions)),
            *(b"builtin " + line for line in _READONLY.sub(b"declare -f\\1 ", options).splitlines(keepends=True)),
            _ALIAS.sub(rb"builtin alias \1", aliases),
            b"__o=s\n" if expands else b"__o=u\n",
        )
    )


_READONLY: Final = re.compile(rb"^declare -fr(x?) ", re.MULTILINE)
"""The mark of a function that no later program could define anew, as the host does with gates."""

_KEYWORD: Final = re.compile(
    rb"^((?:!|\[\[|\]\]|case|coproc|do|done|elif|else|esac|fi|for|function|if|in|select|then|time|until|while|\{|\})"
    rb" \(\) )$",
    re.MULTILINE,
)
"""The head of a function that has the name of a keyword: bash 5.3 prints it without `function`, and cannot read it."""

LARGE: Final = 256 * 1024
"""The size in bytes from which a variable is passed separately, because parsing it would take ten times the memory."""

_DECLARED: Final = re.compile(
    rb"^declare -(?P<how>[-\w]+) (?P<name>\w+)"
    rb"(?:=(?:\$'(?P<ansi>(?:[^'\\]++|\\.)*+)'|\"(?P<plain>(?:[^\"\\]++|\\.)*+)\""
    rb"|\((?:[^\"'$()\\]++|\\.|\$?'(?:[^'\\]++|\\.)*+'|\"(?:[^\"\\]++|\\.)*+\"|\$)*+\)))?\n",
    re.MULTILINE | re.DOTALL,
)
"""A variable as `declare -p` prints it. Arrays match too, so that nothing inside one is taken for a variable."""

_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_LETTERS: Final = dict(zip(b"abeEfnrtv", b"\a\b\x1b\x1b\f\n\r\t\v", strict=True))


def split_large_variables(state: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Split a state: return it with its large text variables declared but empty, and those variables' values."""
    large: dict[str, bytes] = {}
    if len(state) < LARGE:
        return state, large
    rest, at = [], 0
    for match in _DECLARED.finditer(state):
        kind = "ansi" if match["ansi"] is not None else "plain"
        text = match[kind]
        if text is not None and len(text) >= LARGE and match["how"] in (b"-", b"x"):
            large[match["name"].decode()] = _unquote(text) if kind == "ansi" else _ESCAPE.sub(rb"\1", text)
            rest.append(state[at : match.start(kind)])
            at = match.end(kind)
    return b"".join((*rest, state[at:])), large


def _unquote(text: bytes) -> bytes:
    """Return the text that `$'…'` denotes. The usual escapes are replaced by the million at once."""
    parts = text.split(rb"\\")
    for at, part in enumerate(parts):
        usual = part.replace(rb"\n", b"\n").replace(rb"\t", b"\t").replace(rb"\r", b"\r").replace(rb"\'", b"'")
        parts[at] = _ESCAPE.sub(_decode_letter, usual) if b"\\" in usual else usual
    return b"\\".join(parts)


def _decode_letter(escape: re.Match[bytes]) -> bytes:
    letter = escape[1]
    return bytes((int(letter, 8) & 255,)) if letter.isdigit() else bytes((_LETTERS.get(letter[0], letter[0]),))
