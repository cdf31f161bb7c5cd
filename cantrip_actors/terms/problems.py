"""Describe what is wrong with the arguments of a call, in terms of JSON: pydantic's messages use Python's terms.

In JSON a tuple is a list, and the members of a union have no names: `intents.1: expected text or an object` replaces
three lines, two of which are about members of the union that the value does not resemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final

from cantrip_actors.terms.arguments import render, show
from cantrip_actors.terms.bounds import is_over
from cantrip_actors.terms.exact_json import copy_json

Path = tuple[Any, ...]

_MEANT: Final = (
    ("input should be a valid dictionary or instance of ", "input should be an object "),
    ("input should be a valid dictionary", "input should be an object"),
    ("a valid tuple", "a valid list"),
    ("tuple should", "list should"),
    (" after validation", ""),
)


def describe(errors: Sequence[Any], args: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each of the `errors` of a pydantic model about `args`."""
    placed = [(*_locate(error, args), error) for error in errors]
    meant = _find_meant(placed)
    lines = []
    for path, label, at, error in placed:
        if label and label not in meant[at]:
            continue
        if error["type"] == "too_short" and any(other[: len(path)] == path != other for other, *_ in placed):
            continue  # because its content is wrong
        lines.append(_render_line(path, error, args))
    return list(dict.fromkeys(lines))


def leave_out_nulls(errors: Sequence[Any], args: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments without the nulls that are not valid; None if anything else is wrong with them."""
    if not all(error["input"] is None and error["type"] != "extra_forbidden" for error in errors):
        return None
    fewer: dict[str, Any] = copy_json(dict(args))
    for path in {_locate(error, args)[0] for error in errors}:
        *above, name = path or (None,)
        parent = reduce(lambda part, key: part[key], above, fewer)
        if not isinstance(parent, dict) or parent.get(name, name) is not None:
            return None
        del parent[name]
    return fewer


def shorten(value: object) -> str:
    """Return a value, shortened, for a message."""
    large = not isinstance(value, str) and is_over(value, 1_000)
    text = value if isinstance(value, str) else show(value) if large else render(value)
    text = text if len(text) <= 80 else text[:77] + "…"
    return repr(text) if isinstance(value, str) else text


def _render_line(path: Path, error: Any, args: Mapping[str, Any]) -> str:
    where = ".".join(map(str, path))
    if error["type"] == "missing":
        return f'missing required argument "{where}"'
    if error["type"] == "extra_forbidden":
        return f'unexpected argument "{where}"'
    message = error["msg"][:1].lower() + error["msg"][1:]  # the rest may quote values, patterns and users' own words
    for python, json in _MEANT:
        if python in message:
            before, _, after = message.partition(python)
            message = f"{before}{json}{'' if json.endswith(' ') else after}".rstrip()
    return f'argument "{where}": {message}, got {shorten(error.get("input", args))}'


def _locate(error: Any, args: Mapping[str, Any]) -> tuple[Path, str, Path]:
    """Return the path of an error in `args`, the outermost union's member that it is about, and that union's path."""
    value: Any = args
    path: Path = ()
    label, at = "", path
    last = len(error["loc"]) - 1
    for n, part in enumerate(error["loc"]):
        names_itself = n == last and error["type"] in ("missing", "extra_forbidden")
        if isinstance(value, Mapping) and (part in value or names_itself):
            value, path = value.get(part), (*path, part)
        elif isinstance(value, (list, tuple)) and isinstance(part, int) and (part < len(value) or names_itself):
            value, path = value[part] if part < len(value) else None, (*path, part)
        elif not label:
            label, at = str(part), path
    return path, label, at


def _find_meant(placed: Sequence[tuple[Path, str, Path, Any]]) -> dict[Path, set[str]]:
    """Return the members of each union that a value was meant for: those that its type fits, or all if it fits none."""
    members: dict[Path, set[str]] = {}
    fitting: dict[Path, set[str]] = {}
    for path, label, at, error in placed:
        if label:
            members.setdefault(at, set()).add(label)
            if path != at or not error["type"].endswith("_type"):
                fitting.setdefault(at, set()).add(label)
    return members | fitting
