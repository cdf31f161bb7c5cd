"""Values between a JavaScript program and the host, as JSON text; incoming values are never trusted.

Incoming text is bounded in its bytes and in its number of values, because making Python objects of a million brackets
would block the whole process. A lone surrogate (half an emoji), which a JavaScript string can contain and no encoding
can write, becomes the replacement character.

A Number of JavaScript has 53 bits. Larger integers pass as BigInt in both directions, written as a text of NUL, "n" and
the digits; in other texts a leading NUL is doubled. A Number beyond 2**53 may have lost digits already, so it is
refused as an integer and never rounded silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import orjson

from cantrip_actors.circle.javascript.errors import describe
from cantrip_actors.circle.medium import Answer, Finished, LimitExceeded, Raised
from cantrip_actors.circle.plain import plain
from cantrip_actors.terms.bounds import BYTES, TooLarge, can_nest_too_deeply, check_json, check_value
from cantrip_actors.terms.half_characters import replace_half_characters

SPOILT: Final = (
    "globalThis must stay extensible and the gates definable, because later programs need that: do not freeze them"
)
"""The error for a program after which no other one could define a variable or call a gate."""

UNSHOWABLE: Final = "(an error that cannot be shown)"
"""The prelude's text for an exception that raises another exception when it is inspected."""

OUT_OF_MEMORY: Final = frozenset(("out of memory", UNSHOWABLE))
"""The engine's message for any error when it has no memory left for another."""

EXACT: Final = 2**53 - 1
"""The largest integer of a Number to which no other integer is rounded."""

_WRITTEN: Final = 1e21
"""JavaScript writes whole Numbers below this one as integers."""

_MARK: Final = b'"\\u0000'
_LONG: Final = re.compile(rb"\d{16}")
_DIGITS: Final = re.compile(r"-?[0-9]+")
_MOST_DIGITS: Final = len(str(-(2**63)))
"""The most characters of an integer of 64 bits."""


def decode_incoming(text: bytes) -> Any:
    """Return the value of a program's JSON. Raises ValueError, for example TooLarge, with the reason."""
    check_json(text)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            value = orjson.loads(replace_half_characters(text))
        except orjson.JSONDecodeError:
            raise ValueError("expected JSON, got text that is not, or that is nested too deeply") from None
    if can_nest_too_deeply(text):  # its bytes and its values are bounded already
        check_value(value)
    try:
        return _read_exact(value) if _MARK in text or _LONG.search(text) else value
    except RecursionError:
        raise ValueError("nested too deeply") from None


class Inexact(ValueError):
    """A Number that is used as an integer and may have lost digits."""

    def __init__(self, number: float) -> None:
        super().__init__(
            f"{number:.0f} is beyond 2**53, where a Number loses digits: write integers of that size as BigInt, as in "
            "12345678901234567890n"
        )


def _read_exact(value: Any) -> Any:
    """Return the value with its BigInts as integers. Raises Inexact."""
    if isinstance(value, dict):
        return {key: _read_exact(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_read_exact(part) for part in value]
    if isinstance(value, str) and value[:1] == "\0":
        return _read_integer(value[2:]) if value[1:2] == "n" else value[1:]
    if isinstance(value, (int, float)) and EXACT < abs(value) < _WRITTEN and value == int(value):
        raise Inexact(value)
    return value


def _read_integer(digits: str) -> int | str:
    """Return a BigInt; one of more than 64 bits as its digits (D-005), however many there are. Raises ValueError."""
    if _DIGITS.fullmatch(digits) is None:
        raise ValueError("expected the digits of a BigInt, got other text")
    whole: int | str = digits if len(digits) > _MOST_DIGITS else plain(int(digits))
    return whole


def _mark(value: Any) -> Any:
    """Return the value with integers of more than 53 bits marked as BigInts."""
    if isinstance(value, dict):
        return {key: _mark(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mark(part) for part in value]
    if isinstance(value, int) and abs(value) > EXACT:
        return f"\0n{value}"
    return f"\0{value}" if isinstance(value, str) and value[:1] == "\0" else value


def read_arguments(gate: str, text: bytes) -> Mapping[str, Any]:
    """Return the arguments of a gate call. Raises ValueError, which says what is wrong with them."""
    try:
        args = decode_incoming(text)
    except ValueError as problem:
        raise ValueError(f"{gate}: arguments: {problem}") from None
    if isinstance(args, dict):
        return args
    raise ValueError(f"{gate}: arguments are not a JSON object")


def encode_answer(answer: Answer) -> str:
    """Return a gate's answer in the form that the prelude reads: a value, or the message of an exception.

    An answer over `BYTES` is an exception that says so: in the engine, a text takes ten times its size for a moment.
    """
    text = f"e{answer.value}" if answer.is_error else encode_outgoing(answer.value)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    if size <= BYTES:
        return text
    return f"eRangeError: the answer has {size:,} bytes of JSON, and a program may get {BYTES:,} in one: ask for a part"


def encode_outgoing(value: Any) -> str:
    """Return a value in the form that the prelude reads: plain JSON, or with BigInts."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # an integer of more than 64 bits, or a lone surrogate
        text = json.dumps(value).encode()
    return f"b{json.dumps(_mark(value))}" if _LONG.search(text) else f"v{text.decode()}"


def parse_report(report: bytes, code: str, gates: Collection[str], *, scarce: bool) -> Finished | Raised:
    """Return the outcome of a program from the prelude's report. `scarce` says that its memory was almost full.

    `code` is the text that ran, and `gates` are the names by which it could call gates.

    Raises LimitExceeded if the program ran out of memory, or has spoilt the sandbox for later programs.
    """
    kind, text = report[:1], report[1:]
    if kind == b"g":
        raise LimitExceeded("crash", SPOILT)
    if kind == b"e":
        return _parse_error(text, code, gates, scarce=scarce)
    try:
        return Finished(decode_incoming(text) if text else None)
    except (Inexact, TooLarge) as problem:
        return Raised(f"RangeError: the value: {problem}")
    except ValueError as problem:
        return Finished(f"(a value that cannot be shown: {problem})")


def _parse_error(text: bytes, code: str, gates: Collection[str], *, scarce: bool) -> Raised:
    try:
        error = decode_incoming(text)
        name, message, stack = (str(error[key]) for key in ("name", "message", "stack"))
    except (ValueError, TypeError, KeyError):  # a program may have changed the engine's own objects
        name, message, stack = "Error", UNSHOWABLE, ""
    if (name, message) == ("InternalError", "out of memory"):
        raise LimitExceeded("memory")
    if scarce and (name == "InternalError" or message in OUT_OF_MEMORY or (name, message) == ("", "null")):
        raise LimitExceeded("memory")
    return Raised(describe(name, message, stack, code, gates))
