"""JSON whose whole numbers are exact: orjson reads one of more than 64 bits as a float, and refuses to write it.

NaN and the infinities, which the standard library reads, are refused: they are not JSON.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

import orjson

_LONG: Final = re.compile(r"\d{19}", re.ASCII)
_LONG_IN_BYTES: Final = re.compile(rb"\d{19}")
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
"""An escape in a JSON text: of a whole character in two halves, of half a character (the group), or another one."""


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
