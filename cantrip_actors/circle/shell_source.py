"""What happens to a program's text before it runs: `done "answer"` becomes a command, and `trap … EXIT` one of ours.

For a shell `done` is the word that ends a loop, and nothing else can have that name. But a loop's `done` is never
followed by a word, only by an operator, a redirection or the end of the line; so one that begins a command and is
followed by a word is meant for the gate. Quotes, comments and here-documents are left alone.

The trap for the end of the shell is how the host hears of a program that leaves by `exit`. A program that sets its own
would take it away, so `trap … EXIT` gets another name, under which it stands beside it (`shell_prelude.sh`).

And what a shell says of itself at a program's end becomes the text that makes another one what it was.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["COMMAND", "apart", "prepare", "restoring"]

COMMAND: Final = "__done"
TRAP: Final = "__trap"

LONGEST: Final = 200_000
"""Characters up to which a program is looked at; a longer one runs as it stands."""

_DONE: Final = re.compile(r"done(?=[ \t]+(?!\d*[<>]|[;&|()#\s]|\\\n))")
_TRAP: Final = re.compile(
    r"""trap(?=[ \t]+(?:--[ \t]+)?(?:'[^']*'|"(?:[^"\\]|\\.)*"|[^\s'"-][^\s'"]*|-)"""
    r"""(?:[ \t]+\w+)*?[ \t]+(?i:(?:SIG)?EXIT|0)\b)""",
    re.DOTALL,
)
_WORD: Final = re.compile(r"[^\s;&|()<>\"'`$\\#]+")
_HERE: Final = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]*)'|\"([^\"\n]*)\"|\\?([^\s;&|()<>'\"]+))")
_VERBATIM: Final = re.compile(r"<<<|(?<![^\s;&|()])#[^\n]*")
"""A here-string's sign, and a comment."""

_BEFORE_COMMANDS: Final = frozenset(("do", "then", "else", "elif", "if", "while", "until", "!", "{", "time"))


def prepare(code: str) -> str:
    """The program, with the gate's `done` under the name that the shell knows it by."""
    if ("done" not in code and "trap" not in code) or len(code) > LONGEST:
        return code
    out: list[str] = []
    try:
        _scan(code, 0, "", out)
    except RecursionError:  # parentheses in parentheses by the hundred: no program that anybody meant
        return code
    return "".join(out)


def _scan(code: str, at: int, until: str, out: list[str]) -> int:
    """Copy a list of commands to `out`, up to and with `until`; the position after it."""
    begins = True  # whether the next word is a command's first
    here: list[tuple[str, bool]] = []
    while at < len(code):
        char = code[at]
        if char == until:
            out.append(char)
            return at + 1
        if begins and (match := _DONE.match(code, at)):
            out.append(COMMAND)
            at, begins = match.end(), False
        elif begins and (match := _TRAP.match(code, at)):
            out.append(TRAP)
            at, begins = match.end(), False
        elif char == "\n":
            out.append(char)
            at, begins = _bodies(code, at + 1, here, out), True
            here = []
        elif match := _VERBATIM.match(code, at):
            out.append(match.group())
            at = match.end()
        elif match := _HERE.match(code, at):
            here.append((match[2] or match[3] or match[4] or "", match[1] == "-"))
            out.append(match.group())
            at = match.end()
        elif char in "\"'`\\$":
            at, begins = _quoted(code, at, out), False
        elif char in ";&|()":  # a lone ) stands after a pattern of `case`; what follows `f()` begins a command
            out.append(char)
            at, begins = at + 1, True
            if char == "(":
                at = _scan(code, at, ")", out)
        elif match := _WORD.match(code, at):
            out.append(match.group())
            begins = begins and match.group() in _BEFORE_COMMANDS
            at = match.end()
        else:
            out.append(char)
            at += 1
    return at


def _quoted(code: str, at: int, out: list[str]) -> int:
    """Copy what a quote, a backslash or a dollar begins; the position after it."""
    char = code[at]
    if char == "\\":
        out.append(code[at : at + 2])
        return at + 2
    if char == "'":
        end = code.find("'", at + 1)
        end = len(code) if end < 0 else end + 1
        out.append(code[at:end])
        return end
    if char == "`":
        out.append(char)
        return _scan(code, at + 1, "`", out)
    if char == "$":
        if code.startswith("$((", at):
            out.append("$((")
            return at + 3
        if code.startswith("$(", at):
            out.append("$(")
            return _scan(code, at + 2, ")", out)
        if code.startswith("$'", at):
            match = re.compile(r"\$'(?:[^'\\]|\\.)*'?", re.DOTALL).match(code, at)
            assert match is not None, "its first two characters are there"
            out.append(match.group())
            return match.end()
        out.append(char)
        return at + 1
    out.append(char)
    at += 1
    while at < len(code) and code[at] != '"':
        if code[at] in "\\`" or code.startswith("$(", at):
            at = _quoted(code, at, out)
        else:
            out.append(code[at])
            at += 1
    out.append(code[at : at + 1])
    return at + 1


def _bodies(code: str, at: int, here: list[tuple[str, bool]], out: list[str]) -> int:
    """Copy the bodies of the here-documents that a line began; the position after them."""
    for end, tabs in here:
        while at < len(code):
            stop = code.find("\n", at)
            stop = len(code) if stop < 0 else stop + 1
            line = code[at:stop]
            out.append(line)
            at = stop
            if (line.lstrip("\t") if tabs else line).rstrip("\n") == end:
                break
    return at


_ALIAS: Final = re.compile(rb"alias ((?:-- )?[^=\n]+=(?:'[^']*'|\\')+\n)")
_EXPANDED: Final = b"shopt -s expand_aliases\n"


def restoring(first: bytes, functions: bytes, options: bytes, aliases: bytes) -> bytes:
    """The text that makes another shell what one was, of what that one printed at a program's end.

    `first` has no need of a word that a program may have made its own: it is read while there are no functions yet,
    with the options that say how functions are read (`extglob`). What can be read only after them is made to go round
    them. Aliases are not expanded in what is read here: those of a function were, when it was defined.
    """
    expands = _EXPANDED in first
    return b"".join(
        (
            first.replace(_EXPANDED, b"", 1) if expands else first,
            functions,
            *(b"builtin " + line for line in options.splitlines(keepends=True)),
            _ALIAS.sub(rb"builtin alias \1", aliases),
            b"__o=s\n" if expands else b"__o=u\n",
        )
    )


LARGE: Final = 256 * 1024
"""Bytes of a variable that are read as they are: to parse them takes ten times as many, of which a shell has few."""

_DECLARED: Final = re.compile(
    rb"^declare -(?P<how>[-\w]+) (?P<name>\w+)="
    rb"(?:\$'(?P<ansi>(?:[^'\\]++|\\.)*+)'|\"(?P<plain>(?:[^\"\\]++|\\.)*+)\""
    rb"|\((?:[^\"'$()\\]++|\\.|\$?'(?:[^'\\]++|\\.)*+'|\"(?:[^\"\\]++|\\.)*+\"|\$)*+\))\n",
    re.MULTILINE | re.DOTALL,
)
"""A variable as `declare -p` prints it, an array as well, so that nothing in one is taken for another."""

_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_LETTERS: Final = dict(zip(b"abeEfnrtv", b"\a\b\x1b\x1b\f\n\r\t\v", strict=True))


def apart(state: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The state without its large variables of text, and those as they are. They are declared in it, and empty."""
    large: dict[str, bytes] = {}
    if len(state) < LARGE:
        return state, large
    rest, at = [], 0
    for found in _DECLARED.finditer(state):
        kind = "ansi" if found["ansi"] is not None else "plain"
        text = found[kind]
        if text is not None and len(text) >= LARGE and found["how"] in (b"-", b"x"):
            large[found["name"].decode()] = _unquoted(text) if kind == "ansi" else _ESCAPE.sub(rb"\1", text)
            rest.append(state[at : found.start(kind)])
            at = found.end(kind)
    return b"".join((*rest, state[at:])), large


def _unquoted(text: bytes) -> bytes:
    """What stands in `$'…'`. The escapes that a text is full of are seen to by the million at once."""
    parts = text.split(rb"\\")
    for at, part in enumerate(parts):
        usual = part.replace(rb"\n", b"\n").replace(rb"\t", b"\t").replace(rb"\r", b"\r").replace(rb"\'", b"'")
        parts[at] = _ESCAPE.sub(_letter, usual) if b"\\" in usual else usual
    return b"\\".join(parts)


def _letter(escape: re.Match[bytes]) -> bytes:
    said = escape[1]
    return bytes((int(said, 8) & 255,)) if said.isdigit() else bytes((_LETTERS.get(said[0], said[0]),))
