"""The change to a program's text before it runs: `done "answer"` and `trap … EXIT` become commands of this medium.

In bash `done` ends a loop and cannot name a command. But only operators and redirections follow the `done` of a loop on
its line, so a `done` with a word behind it is meant for the gate. The parser decides whether it is in the position of a
command: not in quotes, comments or here-documents. The parser sees another name of the same length, because `done
ANSWER` is not valid bash.

The host learns from the shell's exit trap that a program left by `exit`. A program that sets its own trap would replace
it, so `trap … EXIT` gets another name, and both traps run (`prelude.sh`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node

from cantrip_actors.circle.syntax import parse

COMMAND: Final = "__done"
TRAP: Final = "__trap"

_COMMANDS: Final = re.compile(rb"(?<![\w./-])(?:done(?=[ \t]+(?!\d*[<>]|[;&|()#\s]|\\\n))|trap(?=[ \t]))")
_STAND_IN: Final = b"Done"
_END: Final = frozenset((b"EXIT", b"SIGEXIT", b"0"))
_LANGUAGE: Final = Language(tree_sitter_bash.language())


def prepare(code: str) -> str:
    """Return the program, with the gate's `done` under the name that the shell knows it by."""
    source = code.encode("utf-8", "replace")
    commands = {match.start(): match for match in _COMMANDS.finditer(source)}
    root = parse(_LANGUAGE, _COMMANDS.sub(_replace_done, source)) if commands else None
    if root is None:
        return code
    parts, position = [], 0
    for word, arguments in sorted(_find_commands(root), key=lambda command: command[0].start_byte):
        match = commands.get(word.start_byte)
        name = None if match is None else COMMAND if match.group() == b"done" else _name_trap(arguments)
        if match is not None and name is not None:
            parts += [source[position : match.start()], name.encode()]
            position = match.end()
    return b"".join([*parts, source[position:]]).decode()


def _replace_done(match: re.Match[bytes]) -> bytes:
    return _STAND_IN if match.group() == b"done" else match.group()


def _find_commands(root: Node) -> Iterator[tuple[Node, list[Node]]]:
    """Yield the words that name commands, with their arguments. In text that does not parse, any word may be one."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        children = node.children
        waiting += children
        if node.type == "command" and children and children[0].type == "command_name":
            yield children[0].children[0], children[1:]
        elif node.type == "ERROR":
            yield from ((child, []) for child in children if child.type == "word")


def _name_trap(arguments: list[Node]) -> str | None:
    """Return our name for `trap`, if these arguments set an exit trap."""
    words = [argument.text or b"" for argument in arguments]
    words = words[1:] if words[:1] == [b"--"] else words
    is_option = bool(words) and words[0] != b"-" and words[0].startswith(b"-")
    return TRAP if not is_option and any(signal.upper() in _END for signal in words[1:]) else None
