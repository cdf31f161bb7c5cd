"""Values that are both in the content of a result and in its structured content: each is shown once. Pure functions.

Servers repeat structured content as text, for clients that read only text, and some of them repeat a picture as base64
in structured content. A picture of 720 kB would cost 240,000 tokens as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from cantrip_actors.terms.file import File

_BLOCK: Final = frozenset(("type", "data", "blob", "mimeType", "uri", "annotations", "_meta"))
"""The keys of a block of media in JSON."""


def list_values(structured: Any) -> frozenset[str]:
    """Return the values that a text may repeat, as JSON: structured content, its fields, and the items of those that
    are lists.
    """
    if structured is None:
        return frozenset()
    fields = list(structured.values()) if isinstance(structured, Mapping) else []
    items = [item for field in fields if isinstance(field, list) for item in field]
    return frozenset(json.dumps(value, sort_keys=True) for value in (structured, *fields, *items))


def repeats(text: str, values: frozenset[str]) -> bool:
    """Return whether a text, or the JSON in it, is one of the values of `list_values`."""
    if not values or json.dumps(text) in values:
        return bool(values)
    try:
        return json.dumps(orjson.loads(text), sort_keys=True) in values
    except (ValueError, RecursionError):  # it is deeper than structured content can be
        return False


def leave_out(structured: Any, files: Mapping[str, str | File]) -> list[Any]:
    """Return structured content in a list, with its files in place of their base64; empty if it has nothing else."""
    rest = _replace(structured, files)
    return [rest] if _says_more(rest) else []


def _replace(value: Any, files: Mapping[str, str | File]) -> Any:
    if isinstance(value, str):
        return files.get(value.rpartition(";base64,")[2] if value.startswith("data:") else value, value)
    if isinstance(value, list):
        return [_replace(item, files) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() <= _BLOCK:
        for name in ("data", "blob"):
            if isinstance(data := value.get(name), str) and data in files:
                return files[data]
    return {name: _replace(item, files) for name, item in value.items()}


def _says_more(value: Any) -> bool:
    """Return whether anything in a value is neither a file nor empty."""
    if isinstance(value, Mapping):
        return any(map(_says_more, value.values()))
    if isinstance(value, list):
        return any(map(_says_more, value))
    return value is not None and not isinstance(value, File)
