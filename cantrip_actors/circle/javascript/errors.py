"""Error texts for exceptions that leave a JavaScript program: what happened, where, and what to write instead.

The engine says only `setTimeout is not defined` and `not a function`. Models are trained on Node.js and browsers, so a
missing name comes with an alternative, and a value that is not a function is quoted from the program.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Final

LONGEST: Final = 10_000
"""Characters that are kept of a name or a message."""

NEAR: Final = 200
"""Characters before a call that are searched for the called expression."""

HEAD: Final = 20_000
"""Characters of a program that are searched for the platform it was written for."""

_FRAME: Final = re.compile(
    r"at (?:(\S*) \(|(?=<input>))(?:<input>|(?<=<eval> \()eval_script):(\d+):(\d+)\)?$", re.MULTILINE
)
"""A stack frame of the program. The prelude is also an `eval_script`, and so is a program that awaits, without
functions."""

_OPERAND: Final = re.compile(r"(?:[\w$]+|\([^()]*\)|['\"\]])(?:\??\.[\w$]+|\[[^\[\]]*\]|\([^()]*\))*$")
_MEMBER: Final = re.compile(r"\??\.?[\w$]+(?=\s*[(`])")
_UNKNOWN: Final = re.compile(r"^'?([\w$]+)'? is not defined$")
_IMPORT: Final = re.compile(r"^[ \t]*import[ \t]*[\w{*'\"(]", re.MULTILINE)
_TYPED: Final = re.compile(
    r"^[ \t]*(?:export )?(?:interface|type|enum) \w+|[\w)?][ \t]*:[ \t]*(?:number|string|boolean|any|unknown|void)\b",
    re.MULTILINE,
)

_NO_MODULES: Final = "there are no modules: what you can use is the language and the functions that you were given"
_NO_NODE: Final = f"this is not Node.js; {_NO_MODULES}"
_NO_BROWSER: Final = "this is not a browser: what you need of the world comes from the functions that you were given"
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
"""The advice for names that other engines have, by name."""


def describe(name: str, message: str, stack: str, code: str, gates: Collection[str]) -> str:
    """Return the exception with its position in `code`, the text that ran, and advice if there is any.

    `gates` are the names by which gates can be called. The other arguments come from the program and are not trusted.
    """
    frames = _FRAME.findall(stack[:LONGEST])
    advice = _find_advice(name, message, code, gates)
    if (name, message) == ("TypeError", "not a function") and frames:
        called = _find_called_expression(code, frames[0])
        message = f"not a function: {called}" if called else message
        if re.search(r"\.(?:then|catch|finally)$", called):
            advice = "a gate returns its result, not a promise: use it as it is, or write await before it"
    name, message = (_shorten(text) for text in (name, message))
    error = f"{name}: {message}" if name else f"uncaught {message}"
    if advice:
        error += f"; instead: {advice}"
    return f"{error} ({_render_place(frames)})" if frames else error


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"


def _render_place(frames: list[tuple[str, str, str]]) -> str:
    """Return the position of the error; in a function (maybe of an earlier program), also that of the call."""
    function, line, column = frames[0]
    outer = frames[-1]
    if function in ("", "<eval>", "<anonymous>") or outer[0] != "<eval>":
        return f"line {line}, column {column}"
    return f"line {line}, column {column}, in {function}, called in line {outer[1]}"


def _find_called_expression(code: str, frame: tuple[str, str, str]) -> str:
    """Return the called expression; "" in a function, whose code may belong to another program."""
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
    if after is None:  # the engine pointed somewhere else
        return ""
    called = (before.group() if before is not None and after.group()[0] in ".?" else "") + after.group()
    return called[-80:]


def _find_advice(name: str, message: str, code: str, gates: Collection[str]) -> str:
    unknown = _UNKNOWN.match(message)
    if name == "ReferenceError" and unknown is not None:
        close = difflib.get_close_matches(unknown[1], gates, n=1)
        is_other = bool(close) and close[0] != unknown[1]  # a program can delete a gate's own name
        return _INSTEAD.get(unknown[1]) or (f"did you mean {close[0]}?" if is_other else "")
    if message.startswith("Error resolving module"):
        return _NO_MODULES
    if name != "SyntaxError":
        return ""
    if message == "return not in a function":
        return "write the value as the last expression; there is nothing to return to"
    if message == "unsupported keyword: export":
        return "declare it: top-level variables and functions are kept"
    head = code[:HEAD]
    if _IMPORT.search(head):
        return _NO_MODULES
    return "this is JavaScript and not TypeScript: leave the types out" if _TYPED.search(head) else ""
