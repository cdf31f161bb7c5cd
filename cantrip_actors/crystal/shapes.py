"""What a server sent, read as the shape that it should have: a value of another shape counts as an empty one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def mapping(value: Any) -> Mapping[str, Any]:
    """The object that a value is."""
    if value.__class__ is dict:  # without the detour of an abstract class for what is nearly always one
        return value
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[dict[str, Any]]:
    """The objects among the elements of the list that a value is."""
    return [one for one in value if isinstance(one, dict)] if value and isinstance(value, (list, tuple)) else []


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """The object that a JSON text is, None for any other text."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
