"""Reads a value of a server in its expected shape: a value of another shape counts as an empty one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.exact_json import parse_exactly

WRONG_SHAPE: Final = (TypeError, AttributeError, LookupError, ValueError, OverflowError, RecursionError)
"""The errors of code that reads a value of another shape than the expected one."""


@contextmanager
def reading_answers(provider: str) -> Iterator[None]:
    """Raise ProviderError if the block reads an answer of the provider that has another shape than the expected one."""
    try:
        yield
    except WRONG_SHAPE as error:
        problem = f"{provider} sent an answer of an unexpected shape: {type(error).__name__}: {error}"
        raise ProviderError(problem[:500]) from error


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value that is an object, else {}."""
    if value.__class__ is dict:  # fast path: it is nearly always a dict
        return value
    return value if isinstance(value, Mapping) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a value that is a list."""
    return [item for item in value if isinstance(item, dict)] if value and isinstance(value, (list, tuple)) else []


def parse_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the object of a JSON text, None for any other text."""
    try:
        value = parse_exactly(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
