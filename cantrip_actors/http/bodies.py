"""Request bodies: read within a limit, parsed as strict JSON, validated by a pydantic model.

JSON here is what RFC 8259 calls interoperable: UTF-8, no name twice in an object, no lone surrogates, no NaN, numbers
that a float or a bounded integer can hold, and at most `DEEPEST` levels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from cantrip_actors.http.problems import Problem
from cantrip_actors.terms.errors import suggest_nearest

M = TypeVar("M", bound=BaseModel)

DEEPEST: Final = 100
"""The maximum nesting of a JSON value."""

_JSON: Final = "application/json"


class Strict(BaseModel):
    """Base of the bodies: unknown names are mistakes, and a text is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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
        text = body.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=_refuse_name_twice, parse_constant=_refuse_constant, parse_float=_parse_finite_float
        )
        _check_value(value, DEEPEST)
    except RecursionError:
        raise Problem(400, "invalid-json", f"expected JSON of at most {DEEPEST} levels") from None
    except (UnicodeError, ValueError) as error:
        raise Problem(400, "invalid-json", f"expected JSON: {str(error)[:200]}") from None
    return value


def _refuse_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name is twice in one object")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_finite_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return value


def _check_value(value: Any, levels: int) -> None:
    if isinstance(value, str):
        value.encode("utf-8")  # a lone surrogate raises
    elif isinstance(value, (dict, list)):
        if not levels:
            raise ValueError(f"more than {DEEPEST} levels")
        inside: Iterable[Any] = value if isinstance(value, list) else [*value, *value.values()]
        for part in inside:
            _check_value(part, levels - 1)


def validate(model: type[M], value: Any, *, strict: bool = True) -> M:
    """Return the value as a model. Raises Problem 422 with all `mistakes`; without `strict` texts may be numbers."""
    try:
        return model.model_validate(value, strict=strict)
    except ValidationError as error:
        mistakes = [
            _describe_mistake(model, error)
            for error in error.errors(include_url=False, include_context=False, include_input=False)
        ]
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
    "Input should be": "expected",
    "List should have": "expected an array with",
    "String should have": "expected a text with",
}
"""What the other errors of pydantic begin with, and what they begin with here."""

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
    elif what == "forbidden" and len(path) == 1:
        message = f"nothing here has this name: {suggest_nearest(path[0], model.model_fields)}"
    return {"path": ".".join(path), "message": message}
