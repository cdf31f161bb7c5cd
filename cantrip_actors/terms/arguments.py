"""Check what a caller of a runtime gives: keys, names and ids, who acts and why, and settings.

Texts are checked before anything is recorded: a record with a number in place of a text could not be read again, and
not every database keeps every text. Settings are checked where they are given, because a wrong one fails much later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard
from unicodedata import category

from cantrip_actors.terms.errors import CantripError, InvalidIntent

LONGEST: Final = 1_000
"""Bytes of a key, a name or an id: Postgres keeps at most 2,704 in an entry of an index, with the tenant and more."""

SHORT: Final = 200
"""The most characters of a name of a tenant, a queue or a node, which people read in lists."""

_REFUSED: Final = ("Cc", "Cs")
"""Unicode categories that they may not contain: control characters, and surrogates, which no database stores."""


def check_name(what: str, given: object, error: type[CantripError] = InvalidIntent) -> str:
    """Return a key, a name or an id, which every store can index. Raises `error` for anything else."""
    if isinstance(given, str) and len(given.encode(errors="replace")) > LONGEST:
        raise error(f"{what}: expected a text of at most {LONGEST:,} bytes, got {len(given):,} characters")
    if not isinstance(given, str) or not given.strip() or any(category(sign) in _REFUSED for sign in given):
        raise error(f"{what}: expected a text without control characters, got {given!r:.100}")
    return given


def check_texts(error: type[CantripError] = InvalidIntent, **given: object) -> None:
    """Raise `error` for an argument that is not a text."""
    for what, one in given.items():
        if not isinstance(one, str):
            raise error(f"{what}: expected a text, got {one!r:.100}")


def is_short_name(given: object) -> TypeGuard[str]:
    """Return whether a value is a text of 1 to `SHORT` characters, without control characters."""
    return (
        isinstance(given, str)
        and bool(given.strip())
        and len(given) <= SHORT
        and not any(category(sign) in _REFUSED for sign in given)
    )


def read_texts(what: str, given: object, expected: str, error: type[Exception] = ValueError) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises `error` for anything else, one text alone, and an empty text."""
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
        texts = tuple(given)
        if all(isinstance(one, str) and one for one in texts):
            return texts
    raise error(f"{what}: expected {expected}, got {given!r:.100}")


def check_kind(what: str, given: object, kind: Any, expected: str, error: type[Exception] = ValueError) -> None:
    """Raise `error` for an argument that is not an instance of `kind`."""
    if not isinstance(given, kind):
        raise error(f"{what}: expected {expected}, got {type(given).__name__}")


def is_number(given: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that a float can hold, and not NaN. A bool is not a number."""
    try:
        return isinstance(given, (int, float)) and not isinstance(given, bool) and not math.isnan(given)
    except OverflowError:
        return False


def is_whole(given: object, least: int, most: float = math.inf) -> TypeGuard[int]:
    """Return whether a value is a whole number from `least` to `most`."""
    return isinstance(given, int) and not isinstance(given, bool) and least <= given <= most


def check_seconds(what: str, given: object, *, is_positive: bool = False) -> None:
    """Raise ValueError for a setting that is not a number of seconds from 0 on, or above 0 if it `is_positive`."""
    if not (is_number(given) and (given > 0 if is_positive else given >= 0)):
        raise ValueError(f"{what}: expected seconds, as a number {'>' if is_positive else '>='} 0, got {given!r:.100}")


def check_count(what: str, given: object, of: str) -> None:
    """Raise ValueError for a setting that is not a whole number from 1 on; `of` says what it counts."""
    if not is_whole(given, 1):
        raise ValueError(f"{what}: expected a number of {of}, at least 1, got {given!r:.100}")
