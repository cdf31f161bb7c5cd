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

from cantrip_actors.terms.half_characters import replace_half_characters

_LONG: Final = re.compile(r"\d{19}", re.ASCII)
_LONG_IN_BYTES: Final = re.compile(rb"\d{19}")


def has_long_number(text: str | bytes) -> bool:
    """Return whether a JSON text may have a whole number of more than 64 bits."""
    return (_LONG.search(text) if isinstance(text, str) else _LONG_IN_BYTES.search(text)) is not None


def parse_exactly(text: str | bytes, *, strict: bool = True) -> Any:
    """Return the value of a JSON text.

    Every door reads JSON with this function: answers of providers, recordings, crystals of users, MCP, ACP, HTTP and
    the command line. Of two keys that are the same, the last counts. Whole numbers are exact. Half a character, which
    no store and no provider takes, becomes U+FFFD. If it is not `strict`, texts may have line breaks and tabs as they
    are.

    Raises ValueError, which says what is wrong: the text is not JSON, it nests too deeply, or a number is too large.
    """
    data = replace_half_characters(_encode(text) if isinstance(text, str) else text)
    try:
        if not has_long_number(data):
            try:
                return orjson.loads(data)
            except ValueError:
                if strict:
                    _parse_slowly(data)  # its error says what is wrong; that of orjson does not
                    raise RecursionError from None  # only orjson refuses it
        return _parse_slowly(data, strict=strict)
    except RecursionError:
        raise TooDeep("expected JSON of fewer levels") from None


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # it has halves of characters, each for itself
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _parse_slowly(data: bytes, *, strict: bool = True) -> Any:
    text = data.decode()
    return json.loads(text, strict=strict, parse_constant=_refuse, parse_float=_parse_float, parse_int=_parse_integer)


class TooDeep(ValueError):
    """JSON that nests too deeply."""


class TooLargeNumber(ValueError):
    """JSON with a number that Python cannot hold."""


def read_arguments(value: object) -> dict[str, Any] | None:
    """Return the arguments of a call as an object, from an object or a JSON text of one; None if they are no object.

    Every door reads arguments with this function, as `parse_exactly` reads JSON. No arguments, a blank text and `null`
    are an empty object. A text in them may have line breaks and tabs as they are: some models do not escape them.
    """
    if isinstance(value, (str, bytes)):
        if not value.strip():
            return {}
        try:
            value = parse_exactly(value, strict=False)
        except ValueError:
            return None
    if value is None:
        return {}
    return _replace_surrogates(dict(value)) if isinstance(value, Mapping) else None


def is_cut_off(text: str | None) -> bool:
    """Return whether a text is the beginning of a JSON object, as in an answer that ended at its limit of tokens."""
    begun = (text or "").strip()
    if not begun.startswith("{"):
        return False
    try:
        json.loads(begun, strict=False)
    except json.JSONDecodeError as error:
        rest = begun[error.pos :]
        is_word = any(word.startswith(rest) for word in ("true", "false", "null", "-"))
        is_escape = error.msg.startswith("Invalid \\u") and '"' not in rest
        return is_word or is_escape or error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        pass
    return False


def explain_arguments(text: str | None) -> str:
    """Return why `read_arguments` has no object for a text; for JSON, what is wrong with its values."""
    try:
        parse_exactly(text or "")
    except TooDeep:
        return "arguments nest too deeply"
    except TooLargeNumber:
        return "arguments have a number that is too large"
    except ValueError:
        pass
    return "arguments are cut off in their JSON object" if is_cut_off(text) else "arguments are not a JSON object"


def _replace_surrogates(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object whose texts have no half characters: the same object if there are none, or if it is no JSON."""
    try:
        orjson.dumps(value)
    except TypeError:
        try:
            text = json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            return value  # its reader refuses it
        mended = replace_half_characters(text)
        parsed = value if mended == text else parse_exactly(mended)
        return parsed if isinstance(parsed, dict) else value
    return value


def strip_fence(text: str) -> str:
    """Return a text without the Markdown fence around it."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```") and "\n" in bare:
        bare = bare[bare.index("\n") + 1 : -3].strip()
    return bare


def copy_json(value: Any) -> Any:
    """Return JSON data that shares no list and no mapping with `value`, however deep. Tuples become lists."""
    top = [value]
    todo: list[Any] = [top]
    while todo:
        part = todo.pop()
        for key, inner in part.items() if isinstance(part, dict) else enumerate(part):
            if isinstance(inner, (dict, list, tuple)):
                part[key] = dict(inner) if isinstance(inner, dict) else list(inner)
                todo.append(part[key])
    return top[0]


def dump_exactly(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return the JSON of a value, in UTF-8. Raises TypeError for a value that JSON cannot express."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else 0)
    except TypeError:  # a whole number of more than 64 bits, half a character, or no JSON
        return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys).encode()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"expected JSON, got {name}")


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise TooLargeNumber(f"expected a number that a float can hold, got {digits:.40}")
    return value


def _parse_integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise TooLargeNumber(f"expected a number of fewer digits, got {len(digits):,}") from None
