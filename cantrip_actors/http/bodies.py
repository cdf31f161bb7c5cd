"""Request bodies: read within a limit, parsed as JSON, validated by a pydantic model.

JSON is read as at all doors (`parse_exactly`), and has at most `DEEPEST` levels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeGuard, TypeVar, get_args

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from cantrip_actors.http.problems import Problem
from cantrip_actors.terms.bounds import DEEPEST, is_deeper
from cantrip_actors.terms.errors import suggest_nearest
from cantrip_actors.terms.exact_json import TooDeep, parse_exactly

M = TypeVar("M", bound=BaseModel)

_JSON: Final = "application/json"
DOT_SEGMENTS: Final = (".", "..")
"""The parts of a path that clients resolve before they send it (RFC 3986)."""


class Strict(BaseModel):
    """Base of the bodies: unknown names are mistakes, and a text is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Lenient(BaseModel):
    """Base of the bodies of APIs that others define: unknown names are ignored, and a text is not a number."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


async def read_body(request: Request, most: int, patience: float) -> bytes:
    """Return the body.

    Raises Problem 413 for a body of more than `most` bytes, 400 for one that ends too early, and 408 if no bytes
    arrive for `patience` seconds.
    """
    length = request.headers.get("content-length", "0")
    size = int(length) if length.isascii() and length.isdecimal() and len(length) <= 18 else 0
    parts: list[bytes] = []
    total = 0
    more = size <= most
    while more and total <= most:
        try:
            with anyio.fail_after(patience):
                message = await request.receive()
        except TimeoutError:
            raise Problem(408, "incomplete", f"nothing of the body came for {patience:g} s") from None
        if message["type"] == "http.disconnect":
            raise Problem(400, "incomplete", "the body ended too early")
        parts.append(message.get("body", b""))
        total += len(parts[-1])
        more = message.get("more_body", False)
    if max(size, total) > most:
        raise Problem(413, "too-large", f"expected a body of at most {most} bytes", limit="body_size")
    return b"".join(parts)


def read_json(request: Request, body: bytes) -> Any:
    """Return the JSON value of a body.

    Raises Problem 415 for another content type and for a compressed body, 400 if it is not strict JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        raise Problem(415, "content-type", f"expected content-type: {_JSON}, got {kind[:60] or 'none'}")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        detail = f"expected a body as it is, without content-encoding, got {coding[:60]}"
        raise Problem(415, "content-encoding", detail, headers={"accept-encoding": "identity"})
    try:
        value = parse_exactly(body)
    except TooDeep:
        raise _make_too_deep() from None
    except ValueError as error:
        text = str(error).removeprefix("expected JSON, ")[:200]
        raise Problem(400, "invalid-json", f"expected JSON: {text}") from None
    if is_deeper(value, DEEPEST):
        raise _make_too_deep()
    return value


def _make_too_deep() -> Problem:
    return Problem(400, "invalid-json", f"expected JSON of at most {DEEPEST} levels")


def validate(model: type[M], value: Any, *, strict: bool = True) -> M:
    """Return the value as a model. Raises Problem 422 with all `mistakes`; without `strict` texts may be numbers."""
    try:
        return model.model_validate(value, strict=strict)
    except ValidationError as error:
        mistakes = [_describe_mistake(model, error) for error in error.errors(include_url=False, include_context=False)]
        first = f"{mistakes[0]['path'] or 'the body'}: {mistakes[0]['message']}"
        raise Problem(422, "invalid", first, mistakes=mistakes) from None


_IN_JSON: Final = {
    "bool": "true or false",
    "dict": "an object",
    "float": "a number",
    "int": "a whole number",
    "list": "an array",
    "model": "an object",
    "string": "a text",
}
"""JSON's words for the types of pydantic's errors."""

_WORDS: Final = {
    "Field required": "required, but missing",
    "Input should have timezone info": 'expected a time with its zone, as in "2026-01-31T09:00:00Z"',
    "Input should be greater than or equal to": "expected at least",
    "Input should be greater than": "expected more than",
    "Input should be less than or equal to": "expected at most",
    "Input should be": "expected",
    " after validation": "",
    "List should have": "expected an array with",
    "String should have": "expected a text with",
}
"""The beginnings of pydantic's other errors, each with its replacement."""

SHOWN: Final = 40
"""The most characters of a refused value in a message."""

_OF_UNION: Final = re.compile(r"str|constrained-str|\w+\[.*\]")
"""The part of a path that names a Python type, for a field that may be of several."""


def _describe_mistake(model: type[BaseModel], error: Mapping[str, Any]) -> dict[str, str]:
    """Return where a value does not fit and why, for a client that knows JSON and not Python."""
    path = [step for step in map(str, error["loc"]) if not _OF_UNION.fullmatch(step)]
    kind, _, what = error["type"].partition("_")
    message = str(error["msg"])
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    if what in ("type", "parsing", "from_float") and kind in _IN_JSON:
        message = f"expected {_IN_JSON[kind]}"
    elif what == "forbidden":
        fields = _find_fields(model, error["loc"][:-1])
        message = "nothing here has this name" + (f": {suggest_nearest(path[-1], fields)}" if fields else "")
        return {"path": ".".join(path), "message": message}
    if kind != "missing" and ", got " not in message:
        message += _show_input(error["input"])
    return {"path": ".".join(path), "message": message}


def _find_fields(model: type[BaseModel], path: Iterable[int | str]) -> Collection[str]:
    """Return the names of the fields of the model at a path; none if it is not clear which model that is."""
    for step in path:
        field = model.model_fields.get(str(step))
        if field is None:
            continue  # the number of an item, or a Python type
        models = [part for part in (field.annotation, *get_args(field.annotation)) if _is_model(part)]
        if len(models) != 1:
            return ()
        (model,) = models
    return model.model_fields


def _is_model(value: object) -> TypeGuard[type[BaseModel]]:
    """Return whether a value is a class of models."""
    return isinstance(value, type) and issubclass(value, BaseModel)


def _show_input(value: object) -> str:
    """Return the end of a message that says what came: a short value as JSON, and the kind of any other."""
    if isinstance(value, dict | list):
        return f", got {'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    shown = json.dumps(value, ensure_ascii=False, default=lambda _: "a value")
    return f", got {shown}" if len(shown) <= SHOWN else ""
