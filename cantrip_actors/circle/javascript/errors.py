"""Error texts for exceptions that left a JavaScript program: what happened, where, and what to write instead.

The engine only says `setTimeout is not defined` and `not a function`. Models are trained on Node.js and on browsers, so
a missing name comes with an alternative, and a value that is not a function is named as in the program.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Final

__all__ = ["describe"]

LONGEST: Final = 10_000
"""Characters of a message that are kept."""

NEAR: Final = 200
"""Characters before a call that are searched for the called expression."""

HEAD: Final = 20_000
"""Characters of a program that are looked at for what it was written for."""

_FRAME: Final = re.compile(
    r"at (?:(\S*) \(|(?=<input>))(?:<input>|(?<=<eval> \()eval_script):(\d+):(\d+)\)?$", re.MULTILINE
)
"""One of the program's. The prelude is an `eval_script`, too, and a program that awaits is one, without functions."""

_OPERAND: Final = re.compile(r"(?:[\w$]+|\([^()]*\)|['\"\]])(?:\??\.[\w$]+|\[[^\[\]]*\]|\([^()]*\))*$")
_MEMBER: Final = re.compile(r"\??\.?[\w$]+(?=\s*[(`])")
_UNKNOWN: Final = re.compile(r"^'?([\w$]+)'? is not defined$")
_IMPORT: Final = re.compile(r"^[ \t]*import[ \t]*[\w{*'\"(]", re.MULTILINE)
_TYPED: Final = re.compile(
    r"^[ \t]*(?:export )?(?:interface|type|enum) \w+|[\w)?][ \t]*:[ \t]*(?:number|string|boolean|any|unknown|void)\b",
    re.MULTILINE,
)

_NO_MODULES: Final = "there are no modules: what you can use is the language and the functions that you were given"
_NO_NODE: Final = f"this is no Node.js; {_NO_MODULES}"
_NO_BROWSER: Final = "this is no browser: what you need of the world comes from the functions that you were given"
_NO_TIMERS: Final = "there are no timers, and nothing to wait for: write what is to happen in its order"
_NO_NETWORK: Final = "there is no network: what you need of the world comes from the functions that you were given"
_INSTEAD: Final = {
    **dict.fromkeys(("setTimeout", "setInterval", "setImmediate", "requestAnimationFrame", "sleep"), _NO_TIMERS),
    **dict.fromkeys(("fetch", "XMLHttpRequest", "WebSocket", "axios"), _NO_NETWORK),
    **dict.fromkeys(("require", "module", "exports", "process", "Buffer", "__dirname", "fs", "path", "os"), _NO_NODE),
    **dict.fromkeys(
        ("window", "document", "localStorage", "navigator", "location", "alert", "prompt", "confirm"), _NO_BROWSER
    ),
    "structuredClone": "JSON.parse(JSON.stringify(value)) copies data",
    "crypto": "Math.random has numbers, the same ones in every sandbox",
    "Intl": "write numbers and dates as you want them: toFixed, padStart, toISOString",
    **dict.fromkeys(
        ("URL", "URLSearchParams", "TextEncoder", "TextDecoder"),
        "it is not in this engine: take strings apart yourself",
    ),
}
"""What an entity can write instead of a name that other engines have."""


def describe(name: str, message: str, stack: str, code: str, gates: Collection[str]) -> str:
    """Return the exception with its place in `code`, the text that ran, and advice if there is any.

    `gates` are the names by which gates can be called. The arguments come from the program and are not trusted.
    """
    frames = _FRAME.findall(stack[:LONGEST])
    advice = _advice(name, message, code, gates)
    if (name, message) == ("TypeError", "not a function") and frames:
        called = _expression_called(code, frames[0])
        message = f"not a function: {called}" if called else message
        if re.search(r"\.(?:then|catch|finally)$", called):
            advice = "a gate returns its result and no promise: use it as it is, or write await before it"
    if len(message) > LONGEST:
        message = f"{message[:LONGEST]}… ({len(message) - LONGEST} more characters)"
    error = f"{name}: {message}" if name else f"uncaught {message}"
    if advice:
        error += f"; instead: {advice}"
    return f"{error} ({_place(frames)})" if frames else error


def _place(frames: list[tuple[str, str, str]]) -> str:
    """Return where it happened; in a function, also where the program called it, which may be in an earlier program."""
    function, line, column = frames[0]
    outer = frames[-1]
    if function in ("", "<eval>", "<anonymous>") or outer[0] != "<eval>":
        return f"line {line}, column {column}"
    return f"line {line}, column {column}, in {function}, called in line {outer[1]}"


def _expression_called(code: str, frame: tuple[str, str, str]) -> str:
    """Return the expression that is called; "" in a function, which may be another program's."""
    function, line, column = frame
    lines = code.splitlines()
    if function != "<eval>" or int(line) > len(lines):
        return ""
    text, at = lines[int(line) - 1], int(column) - 1
    before = _OPERAND.search(
        text[max(0, at - NEAR) : at]
    )  # the engine points to the call, to the dot before its name, or to the name
    after = _MEMBER.match(text, at)
    if before is not None and text[at : at + 1] == "(":
        return before.group()[-80:]
    if after is None:  # or somewhere else
        return ""
    called = (before.group() if before is not None and after.group()[0] in ".?" else "") + after.group()
    return called[-80:]


def _advice(name: str, message: str, code: str, gates: Collection[str]) -> str:
    unknown = _UNKNOWN.match(message)
    if name == "ReferenceError" and unknown is not None:
        close = difflib.get_close_matches(unknown[1], gates, n=1)
        return _INSTEAD.get(unknown[1]) or (f"did you mean {close[0]}?" if close else "")
    if message.startswith("Error resolving module"):
        return _NO_MODULES
    if name != "SyntaxError":
        return ""
    if message == "return not in a function":
        return "write the value as the last expression; there is nothing to return to"
    if message == "unsupported keyword: export":
        return "declare it: what stands at the top level lives on"
    head = code[:HEAD]
    if _IMPORT.search(head):
        return _NO_MODULES
    return "this is JavaScript and no TypeScript: leave the types out" if _TYPED.search(head) else ""
