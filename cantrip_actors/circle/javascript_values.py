"""Values that cross the border between a JavaScript program and the host, as text; what comes in is never trusted.

In both directions it is JSON. What comes in is bounded in the number of its values, because to make Python objects of
a million brackets would hold up the whole process; a long text is no such thing. Half an emoji, which JavaScript can
have in a string and no encoding can carry, becomes the replacement character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import orjson

from cantrip_actors.circle.javascript_engine import Crash
from cantrip_actors.circle.javascript_errors import told
from cantrip_actors.circle.medium import Answer, Finished, Raised

__all__ = ["arguments", "ended", "given", "incoming", "outgoing"]

MANY: Final = 200_000
"""Values that may cross at once."""

UNSHOWABLE: Final = "(an error that cannot be shown)"
"""The prelude's words for an exception that raises another one when it is looked at."""

OUT_OF_MEMORY: Final = frozenset(("out of memory", UNSHOWABLE))
"""What the engine says of any kind of error where it has not enough memory left for more."""

_HALF: Final = re.compile(r"\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)")


def incoming(text: str) -> Any:
    """A value out of a program's JSON; raises ValueError, saying why it is none that can be taken."""
    if text.count(",") + text.count("[") + text.count("{") > MANY:
        raise ValueError(f"more than {MANY} values")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return orjson.loads(_HALF.sub(_whole, text))
    except orjson.JSONDecodeError:
        raise ValueError("no JSON, or nested too deeply") from None


def _whole(escape: re.Match[str]) -> str:
    return r"\ufffd" if len(escape.group()) > 2 else escape.group()


def arguments(text: str) -> Mapping[str, Any]:
    """The arguments of a gate call; raises ValueError, saying what is wrong with them."""
    try:
        args = incoming(text)
    except ValueError as problem:
        raise ValueError(f"arguments: {problem}") from None
    if isinstance(args, dict):
        return args
    raise ValueError("arguments are no JSON object")


def given(answer: Answer) -> str:
    """A gate's answer as the prelude takes it: its JSON, or the message of an exception."""
    return f"e{answer.value}" if answer.is_error else f"v{outgoing(answer.value)}"


def outgoing(value: Any) -> str:
    """A value as JSON that the program parses."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # an integer of more than 64 bits, half an emoji
        return json.dumps(value)


def ended(report: str, code: str, gates: Collection[str], *, scarce: bool) -> Finished | Raised:
    """How a program ended, from what the prelude reports. With `scarce` its memory has been almost full.

    `code` is what ran, and `gates` are the names by which it could call gates.

    Raises Crash where it ran out of memory.
    """
    kind, text = report[:1], report[1:]
    if kind == "e":
        return _raised(text, code, gates, scarce=scarce)
    try:
        return Finished(incoming(text) if text else None)
    except ValueError as problem:
        return Finished(f"(a value that cannot be shown: {problem})")


def _raised(text: str, code: str, gates: Collection[str], *, scarce: bool) -> Raised:
    try:
        said = incoming(text)
        name, message, stack = (str(said[key]) for key in ("name", "message", "stack"))
    except (ValueError, TypeError, KeyError):  # whatever a program did to the engine's own objects
        name, message, stack = "Error", UNSHOWABLE, ""
    if (name, message) == ("InternalError", "out of memory"):
        raise Crash("memory")
    if scarce and (name == "InternalError" or message in OUT_OF_MEMORY or (name, message) == ("", "null")):
        raise Crash("memory")
    return Raised(told(name, message, stack, code, gates))
