"""Error texts for exceptions that leave a Python program, and the exceptions by which the interpreter reports a limit.

The interpreter ends a program that runs out of time or memory with an exception that the program cannot catch, and then
guarantees nothing about its variables. So each exception of those types counts as a limit. A program that raises one
itself is undone too, which is harmless; continuing with a heap in an unknown state would not be.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

from pydantic_monty import Frame, MontyRuntimeError, MontySyntaxError

from cantrip_actors.circle.step import Limit, LimitExceeded
from cantrip_actors.terms.messages import make_encodable

REQUESTS: Final = 1_000
"""Requests to the host, other than gate calls, that a program may make in one step: unknown names, files, clocks."""

LONGEST: Final = 4_000
"""Characters of a message that are kept; a program can raise megabytes."""

FRAMES: Final = 5
"""Lines of the program that an error names: the first one and the last ones matter most."""

_LIMITS: Final[dict[str, Limit]] = {"TimeoutError": "seconds", "MemoryError": "memory", "RecursionError": "recursion"}
_FULL: Final = "SyntaxError: session defines too many"
"""The error for too many functions, as `eval` in a loop makes them: such a sandbox could never define another one."""

_REQUESTED: Final = "RuntimeError: suspension limit"
_PARSER: Final = "The monty syntax parser does not yet support"
_CALLBACK: Final = "cannot suspend in this synchronous context"
_INTERNAL: Final = "Internal error in monty"

_UNKNOWN: Final = re.compile(r"name '(\w+)' is not defined$")

_LACKING: Final = frozenset(
    (
        *("NotImplementedError", "ModuleNotFoundError", "ImportError", "PermissionError"),
        *("TypeError", "NameError", "AttributeError"),
    )
)
_INSTEAD: Final = {
    "class inheritance": "write the class without bases; for an error of your own, raise ValueError('…')",
    "yield expressions": "build a list and return it, or write a comprehension",
    "the 'del' statement": "d.pop(key) and items.pop(index) remove an item; a variable can be set to None",
    "method decorators": "write a plain method, or a function outside of the class",
    "async context managers": "nothing here has to be awaited: call functions as they are",
    "async for": "nothing here has to be awaited: write a plain loop",
    "exception groups": "write except, once for each type",
    "type aliases": "leave the annotation out",
    "Wildcard imports": "import the names that you need, or the module",
    "there is no module": (
        "these are here, in part: base64, bisect, collections, copy, csv, dataclasses, datetime, decimal, functools, "
        "hashlib, itertools, json, math, random, re, tomllib, typing, unicodedata; what they lack, write yourself"
    ),
    "cannot import name": "that module is here in part only: leave the name out and write yourself what you need of it",
    "has no files, environment or clock": "what you need of the world comes from the functions that you were given",
    "an awaitable is required": "call the functions that you have as they are, without gather: they return results",
    "callable replacement is not yet supported": "go through re.finditer and join the parts",
    "name 'exit' is not defined": "end with done(answer), or let the program come to its end",
    "name 'quit' is not defined": "end with done(answer), or let the program come to its end",
    "has no attribute 'exit'": "end with done(answer), or let the program come to its end",
    "name 'input' is not defined": "there is no input: what you were given is in your variables",
    "name 'globals' is not defined": "name the variable, or keep what you look up in a dict of your own",
    "name 'dir' is not defined": "name the attribute, or try it and catch AttributeError",
    "name 'vars' is not defined": "name the attributes, or keep what you look up in a dict of your own",
    "name 'help' is not defined": "what the functions take is in their signatures, which you were given",
    "name '__import__' is not defined": "write import at the top, of a module that is here",
    "name 'bytearray' is not defined": "bytes are there, and lists of numbers",
    "name 'callable' is not defined": "call it in try, and catch TypeError",
    "object has no attribute '__name__'": "functions have no attributes: keep their names beside them, in a dict",
    "has no attribute 'wraps'": "return the inner function as it is",
}
"""Advice for each feature that this Python lacks, because models are trained on the full one."""


def find_limit(error: MontyRuntimeError | MontySyntaxError) -> LimitExceeded | None:
    """Return the limit that an exception reports, or None."""
    text = _read_line(error)
    if text.startswith(_REQUESTED):
        return LimitExceeded("gate_calls", f"{REQUESTS} requests for names, files or clocks that do not exist")
    limit = "memory" if text.startswith(_FULL) else _LIMITS.get(text.split(":", 1)[0])
    return None if limit is None else LimitExceeded(limit)


def describe(error: MontyRuntimeError | MontySyntaxError, gates: Iterable[str] = ()) -> str:
    """Return the exception's type and message, and the lines of the entity's own code in its traceback.

    `gates` are the names by which gates can be called, for correcting a misspelt one.
    """
    frames = error.traceback()
    here = frames[0].filename if frames else ""
    if len(frames) > FRAMES:
        frames = [frames[0], *frames[1 - FRAMES :]]
    return "\n".join(
        [
            _add_advice(_reword(_read_line(error)), gates),
            *dict.fromkeys(f"  {_render_place(frame, here)}" for frame in frames),
        ]
    )


def _read_line(error: MontyRuntimeError | MontySyntaxError) -> str:
    text = make_encodable(error.display("type-msg"))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"


def _reword(line: str) -> str:
    if _PARSER in line:
        return line.replace(_PARSER, "this Python does not have")
    if _CALLBACK in line:
        return (
            "NotImplementedError: a gate cannot be called from a callback such as sorted(key=…) or map(…): use a loop"
        )
    if _INTERNAL in line:
        return f"RuntimeError: this Python cannot do that: {line.rsplit(_INTERNAL, 1)[1].lstrip(': ')}"
    return line


def _add_advice(line: str, gates: Iterable[str]) -> str:
    kind, _, message = line.partition(": ")
    if kind not in _LACKING:  # another exception may carry the program's own text, which is left alone
        return line
    advice = next((advice for lack, advice in _INSTEAD.items() if lack in message), None)
    if advice is not None:
        return f"{line}; instead: {advice}"
    unknown = _UNKNOWN.match(message)
    close = difflib.get_close_matches(unknown[1], gates, n=1) if unknown is not None else []
    return f"{line}; did you mean {close[0]}?" if close else line


def _render_place(frame: Frame, here: str) -> str:
    earlier = (
        "" if frame.filename == here else " of an earlier program" if frame.filename.startswith("<py") else " of eval"
    )
    function = f", in {frame.function_name}" if frame.function_name not in (None, "<module>") else ""
    source = (frame.source_line or "").strip().partition("\n")[0]  # for a decorator it is the whole definition
    shown = f": {source if len(source) <= 120 else source[:119] + '…'}" if source else ""
    return make_encodable(f"line {frame.line}{earlier}{function}{shown}")
