"""JSON whose whole numbers are exact: orjson reads one of more than 64 bits as a float, and refuses to write it.

NaN and the infinities, which the standard library reads, are refused: they are not JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import orjson

_LONG: Final = re.compile(r"\d{19}", re.ASCII)
_LONG_IN_BYTES: Final = re.compile(rb"\d{19}")
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
"""An escape in a JSON text: of a whole character in two halves, of half a character (the group), or another one."""


_ESCAPED_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that may be of half a character."""


def has_long_number(text: str | bytes) -> bool:
    """Return whether a JSON text may have a whole number of more than 64 bits."""
    return (_LONG.search(text) if isinstance(text, str) else _LONG_IN_BYTES.search(text)) is not None


def parse_exactly(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError for a text that is not JSON, or nests too deeply."""
    if not has_long_number(text):
        return orjson.loads(text)
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_parse_float)
    except RecursionError:
        raise ValueError("expected JSON, got a text that nests too deeply") from None


def read_arguments(value: object) -> dict[str, Any] | None:
    """Return the arguments of a call as an object, from an object or a JSON text of one; None if they are no object.

    Every door reads arguments with this function: the answers of providers, whole or in pieces, recordings, and
    crystals of users. No arguments, a blank text and `null` are an empty object. Of two keys that are the same, the
    last counts. Whole numbers are exact. Half a character, which no store and no provider takes, becomes U+FFFD.
    """
    if isinstance(value, (str, bytes)):
        text = (value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")).strip()
        if text in (b"", b"null"):
            return {}
        try:
            value = parse_exactly(text)
        except ValueError:
            try:
                value = parse_exactly(replace_half_characters(join_surrogates(text)))
            except ValueError:
                return None
    if value is None:
        return {}
    return _replace_surrogates(dict(value)) if isinstance(value, Mapping) else None


def explain_arguments(text: str | None) -> str:
    """Return why `read_arguments` has no object for a text; for JSON, what is wrong with its values."""
    try:
        value = json.loads(text or "", parse_constant=_refuse, parse_int=str, parse_float=str)
    except RecursionError:
        return "arguments nest too deeply"
    except ValueError:
        value = None
    return "arguments have a number that is too large" if isinstance(value, dict) else "arguments are not a JSON object"


def join_surrogates(text: bytes) -> bytes:
    """Return a text in UTF-8, with the surrogates in it joined to characters; a lone one is replaced."""
    joined = text.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass")
    return joined.decode("utf-16", "replace").encode()


def _replace_surrogates(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object whose texts have no half characters: the same object if there are none, or if it is no JSON."""
    try:
        orjson.dumps(value)
    except TypeError:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return value  # its reader refuses it
        parsed = parse_exactly(replace_half_characters(text.encode())) if _ESCAPED_HALF.search(text) else value
        return parsed if isinstance(parsed, dict) else value
    return value


def replace_half_characters(text: bytes) -> str:
    r"""Return a JSON text in which `\ufffd` replaces escapes of half a character, which JSON allows and UTF-8 does not.

    Programs in JavaScript write them for a text that was cut within an emoji.
    """
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text.decode("utf-8", "replace"))


def dump_exactly(value: Any) -> bytes:
    """Return the JSON of a value, in UTF-8. Raises TypeError for a value that JSON cannot express."""
    try:
        return orjson.dumps(value)
    except TypeError:  # a whole number of more than 64 bits, half a character, or no JSON
        return json.dumps(value, separators=(",", ":")).encode()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"expected JSON, got {name}")


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"expected a number that a float can hold, got {digits:.40}")
    return value
