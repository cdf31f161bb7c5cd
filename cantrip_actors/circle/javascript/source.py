"""The changes to a program's text before it runs: variables are kept, and dropped promises are watched.

Each turn is a script of its own, but its variables are kept for later turns (CIRCLE-9). In JavaScript a second `let x`
at the top level is an error, and a `let` declared inside `eval` is lost when the `eval` ends. So top-level declarations
become `var`. The meaning of `let x;` and of a class declaration is kept: `x` is undefined again, and the next line does
not become part of the class. Lines stay where they are, so that errors point to the right ones.

A statement that is only a call drops its result. If that is a promise and it is rejected, nothing would say so. So
`f();` becomes `f()?.__dropped;`, a property by which the prelude watches the promise; the value is the same. The last
statement is left alone, because its value is the program's. A property takes time, so this is done only where a program
of the sandbox has made promises.

If the rewritten program does not compile, or parsing takes too long, the original text runs (`prelude.js`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import tree_sitter_javascript
from tree_sitter import Language, Node, Query

from cantrip_actors.circle.syntax import find_nodes, parse


@dataclass(frozen=True, slots=True)
class PreparedScript:
    """A program ready to run. `awaits` says that it uses `await` outside of functions, and must be run accordingly."""

    code: str
    awaits: bool = False


_WORTH_A_LOOK: Final = re.compile(r"\b(?:let|const|class|await)\b|use strict")
_MAKES_PROMISES: Final = re.compile(r"\b(?:async|Promise|fromAsync)\b")
_WATCHED: Final = b"?.__dropped"
_FUNCTION: Final = re.compile(r"function|method_definition|class_static_block|field_definition")
_LANGUAGE: Final = Language(tree_sitter_javascript.language())
_DROPPING: Final = Query(
    _LANGUAGE,
    "(expression_statement"
    " [(call_expression) (new_expression arguments: (arguments)) (parenthesized_expression)] @dropped)",
)
"""Statements that are only a call."""


def makes_promises(code: str) -> bool:
    """Return whether a program may make a promise, or define a function that does."""
    return _MAKES_PROMISES.search(code) is not None


def prepare(code: str, *, is_watched: bool = False) -> PreparedScript:
    """Return the program with its top-level declarations as `var`. `is_watched` says to watch dropped promises."""
    source = code.encode("utf-8", "replace")
    root = parse(_LANGUAGE, source) if is_watched or _WORTH_A_LOOK.search(code) else None
    if root is None:
        return PreparedScript(code)
    parts, position = [], 0
    statements = [child for child in root.named_children if child.type not in ("comment", "hash_bang_line")]
    dropped = _find_dropped(root, statements) if is_watched else ()
    for start, end, text in sorted([*_find_edits(statements, source), *dropped]):
        parts += [source[position:start], text]
        position = end
    return PreparedScript(b"".join([*parts, source[position:]]).decode(), "await" in code and _has_await(root))


def _find_edits(statements: list[Node], source: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the replacements for top-level declarations: start, end, new text."""
    for statement in statements:
        start, end = statement.start_byte, statement.end_byte
        if statement.type == "lexical_declaration":
            keyword = statement.children[0]
            yield start, keyword.end_byte, b"var".ljust(keyword.end_byte - start)
            for declarator in statement.named_children:
                name = declarator.child_by_field_name("name")
                if name is not None and name.type == "identifier" and declarator.child_by_field_name("value") is None:
                    yield name.end_byte, name.end_byte, b" = void 0"  # `var x;` alone would leave x unchanged
        elif statement.type == "class_declaration" and (name := statement.child_by_field_name("name")) is not None:
            yield start, start, b"var " + source[name.start_byte : name.end_byte] + b" = "
            yield end, end, b";"
        elif source[start:end] == b"let" and statement is not statements[-1]:
            yield start, end, b"var"  # the parser does not recognise a declaration whose names are on the next line
        elif statement is statements[0] and source[start + 1 : start + 11] == b"use strict":
            yield start + 1, start + 11, b"use_strict"  # strict code inside `eval` loses its declarations


def _find_dropped(root: Node, statements: list[Node]) -> Iterator[tuple[int, int, bytes]]:
    """Yield the insertions after calls whose result is dropped."""
    last = statements[-1].start_byte if statements else None
    for call in find_nodes(_DROPPING, root):
        if call.start_byte != last:
            yield call.end_byte, call.end_byte, _WATCHED


def _has_await(root: Node) -> bool:
    """Return whether the program uses `await` outside of functions."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        # the parser reads `await (…)` as a function call
        if node.type in ("await_expression", "await") or (node.type == "identifier" and node.text == b"await"):
            return True
        if not _FUNCTION.search(node.type):
            waiting += node.children
    return False
