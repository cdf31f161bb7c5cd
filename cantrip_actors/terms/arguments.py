"""Check the arguments of public functions: only this file defines what counts as a text, a number, a list or a choice.

A wrong argument raises at once, and the error names the expected and the actual value; without the check it would fail
much later. Texts are checked before anything is recorded: a record with a number in place of a text could not be read
again, and not every database keeps every text.

`check` raises; the predicates (`is_number`, `is_whole`, `is_text`, `is_list` …) say whether a value fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from math import inf
from reprlib import Repr
from typing import Any, Final, TypeGuard, cast
from unicodedata import category

from cantrip_actors.terms.errors import CantripError, InvalidIntent

LONGEST: Final = 1_000
"""Bytes of a key, a name or an id: Postgres keeps at most 2,704 in an entry of an index, with the tenant and more."""

MakeError = Callable[[str], Exception]
"""A class of errors, or a function that makes one of its text."""

SHORT: Final = 200
"""The most characters of a name of a tenant, a queue or a node, which people read in lists."""

LONGEST_TEXT: Final = 2**18
"""Characters of a note, a reason or another text beside a message: they are recorded, and shown in lists."""

_REFUSED: Final = ("Cc", "Cs")
"""Unicode categories that they may not contain: control characters, and surrogates, which no database stores."""


def check_name(what: str, value: Any, error: type[CantripError] = InvalidIntent) -> str:
    """Return a key, a name or an id, which every store can index. Raises `error` for anything else."""
    if isinstance(value, str) and len(value.encode(errors="replace")) > LONGEST:
        raise error(f"{what}: expected a text of at most {LONGEST:,} bytes, got {len(value):,} characters")
    fits = is_text(value) and not _has_refused(value)
    check(fits, what, "a text that is not empty, without control characters", value, error)
    return cast("str", value)


def check_texts(error: type[CantripError] = InvalidIntent, **values: object) -> None:
    """Raise `error` for an argument that is not a text of at most `LONGEST_TEXT` characters."""
    for what, value in values.items():
        check(isinstance(value, str), what, "a text", value, error)
        if len(cast("str", value)) > LONGEST_TEXT:
            length = len(cast("str", value))
            raise error(f"{what}: expected a text of at most {LONGEST_TEXT:,} characters, got {length:,}")


def is_short_name(value: object) -> TypeGuard[str]:
    """Return whether a value is a text of 1 to `SHORT` characters, without control characters."""
    return is_text(value) and len(value) <= SHORT and not _has_refused(value)


def check_short_name(what: str, value: object) -> None:
    """Raise ValueError for an argument that is not a short name."""
    check(is_short_name(value), what, f"a name of 1 to {SHORT} characters without control characters", value)


def _has_refused(text: str) -> bool:
    return any(category(sign) in _REFUSED for sign in text)


def check(fits: object, what: str, expected: str, value: object, error: MakeError = ValueError) -> None:
    """Raise `error` for an argument that does not fit; its text names the expected and the actual value."""
    if not fits:
        raise error(f"{what}: expected {expected}, got {show(value)}")


def show(value: object) -> str:
    """Return a value as an error message shows it: shortened, also if it has no readable `repr`."""
    return _REPR.repr(value)


def render(value: object) -> str:
    """Return the `repr` of a value; a shortened one if it nests too deeply, or has more digits than Python writes."""
    try:
        return repr(value)
    except (RecursionError, ValueError):
        return show(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that a float can hold, and not NaN. A bool is not a number."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:
        return False


def is_finite(value: object, least: float = -inf) -> TypeGuard[int | float]:
    """Return whether a value is a number from `least` on, and not infinite."""
    return is_number(value) and math.isfinite(value) and value >= least


def is_positive(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number above 0."""
    return is_finite(value) and value > 0


def is_whole(value: object, least: int, most: float = inf) -> TypeGuard[int]:
    """Return whether a value is a whole number from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def is_visible(value: object) -> TypeGuard[str]:
    """Return whether a value is a text with a visible character, as a name has."""
    return is_text(value) and any(sign.isprintable() and not sign.isspace() for sign in value)


def is_list(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether a value is a list or another iterable; a text and a mapping count as single values."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


def is_texts_by_name(value: object) -> TypeGuard[Mapping[str, str]]:
    """Return whether a value is a mapping from texts to texts."""
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)


def read_texts(what: str, value: object, expected: str, error: MakeError = ValueError) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises `error` for anything else, one text alone, and an empty text."""
    texts = tuple(value) if is_list(value) else (None,)
    check(all(isinstance(text, str) and text for text in texts), what, expected, value, error)
    return texts


def check_kind(what: str, value: object, kind: Any, expected: str, error: MakeError = ValueError) -> None:
    """Raise `error` for an argument that is not an instance of `kind`."""
    if not isinstance(value, kind):
        raise error(f"{what}: expected {expected}, got {type(value).__name__}")


def check_whole(
    what: str,
    value: object,
    least: int,
    most: float = inf,
    error: MakeError = ValueError,
    *,
    or_none: bool = False,
) -> None:
    """Raise `error` for an argument that is not a whole number from `least` to `most`, nor None with `or_none`."""
    bounds = (f">= {least}" if most == inf else f"from {least} to {most}") + (", or None" if or_none else "")
    check(is_whole(value, least, most) or (or_none and value is None), what, f"a whole number {bounds}", value, error)


def check_choice(what: str, value: object, allowed: Iterable[object], error: MakeError = ValueError) -> None:
    """Raise `error` for an argument that is not one of the `allowed` values."""
    choices = list(allowed)
    check(value in choices, what, f"one of {', '.join(map(repr, choices))}", value, error)


def check_seconds(what: str, value: object, *, above_zero: bool = False) -> None:
    """Raise ValueError for a setting that is not a number of seconds from 0 on, or above 0."""
    fits = is_number(value) and (value > 0 if above_zero else value >= 0)
    check(fits, what, f"seconds, as a number {'>' if above_zero else '>='} 0", value)


def check_count(what: str, value: object, of: str) -> None:
    """Raise ValueError for a setting that is not a whole number from 1 on; `of` says what it counts."""
    check(is_whole(value, 1), what, f"a number of {of}, at least 1", value)


class _Shortened(Repr):
    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1_000 else "a number of many digits"  # Python refuses it


_REPR: Final = _Shortened()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100
