"""Check the arguments of public functions: the one place that says what a text, a number, a list or a choice is.

A wrong argument raises where it is given, with what was expected and what came, because it fails much later otherwise.
Texts are checked before anything is recorded: a record with a number in place of a text could not be read again, and
not every database keeps every text.

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

_REFUSED: Final = ("Cc", "Cs")
"""Unicode categories that they may not contain: control characters, and surrogates, which no database stores."""


def check_name(what: str, given: Any, error: type[CantripError] = InvalidIntent) -> str:
    """Return a key, a name or an id, which every store can index. Raises `error` for anything else."""
    if isinstance(given, str) and len(given.encode(errors="replace")) > LONGEST:
        raise error(f"{what}: expected a text of at most {LONGEST:,} bytes, got {len(given):,} characters")
    fits = is_text(given) and not _has_refused(given)
    check(fits, what, "a text without control characters", given, error)
    return cast("str", given)


def check_texts(error: type[CantripError] = InvalidIntent, **given: object) -> None:
    """Raise `error` for an argument that is not a text."""
    for what, one in given.items():
        check(isinstance(one, str), what, "a text", one, error)


def is_short_name(given: object) -> TypeGuard[str]:
    """Return whether a value is a text of 1 to `SHORT` characters, without control characters."""
    return is_text(given) and len(given) <= SHORT and not _has_refused(given)


def check_short_name(what: str, given: object) -> None:
    """Raise ValueError for an argument that is not a short name."""
    check(is_short_name(given), what, f"a name of 1 to {SHORT} characters without control characters", given)


def _has_refused(text: str) -> bool:
    return any(category(sign) in _REFUSED for sign in text)


def check(fits: object, what: str, expected: str, given: object, error: MakeError = ValueError) -> None:
    """Raise `error`, with what was expected and what came, for an argument that does not fit."""
    if not fits:
        raise error(f"{what}: expected {expected}, got {show(given)}")


def show(given: object) -> str:
    """Return a value as an error message shows it: shortened, also if it has no readable `repr`."""
    return _REPR.repr(given)


def is_number(given: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that a float can hold, and not NaN. A bool is not a number."""
    try:
        return isinstance(given, (int, float)) and not isinstance(given, bool) and not math.isnan(given)
    except OverflowError:
        return False


def is_finite(given: object, least: float = -inf) -> TypeGuard[int | float]:
    """Return whether a value is a number from `least` on, and not infinite."""
    return is_number(given) and math.isfinite(given) and given >= least


def is_positive(given: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number above 0."""
    return is_finite(given) and given > 0


def is_whole(given: object, least: int, most: float = inf) -> TypeGuard[int]:
    """Return whether a value is a whole number from `least` to `most`."""
    return isinstance(given, int) and not isinstance(given, bool) and least <= given <= most


def is_text(given: object) -> TypeGuard[str]:
    """Return whether a value is a text that is not blank."""
    return isinstance(given, str) and bool(given.strip())


def is_list(given: object) -> TypeGuard[Iterable[Any]]:
    """Return whether a value is a list or another iterable, and not a text or a mapping, which are one thing."""
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))


def is_texts_by_name(given: object) -> TypeGuard[Mapping[str, str]]:
    """Return whether a value is a mapping from texts to texts."""
    return isinstance(given, Mapping) and all(isinstance(one, str) for pair in given.items() for one in pair)


def read_texts(what: str, given: object, expected: str, error: MakeError = ValueError) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises `error` for anything else, one text alone, and an empty text."""
    texts = tuple(given) if is_list(given) else (None,)
    check(all(isinstance(one, str) and one for one in texts), what, expected, given, error)
    return texts


def check_kind(what: str, given: object, kind: Any, expected: str, error: MakeError = ValueError) -> None:
    """Raise `error` for an argument that is not an instance of `kind`."""
    if not isinstance(given, kind):
        raise error(f"{what}: expected {expected}, got {type(given).__name__}")


def check_whole(
    what: str,
    given: object,
    least: int,
    most: float = inf,
    error: MakeError = ValueError,
    *,
    or_none: bool = False,
) -> None:
    """Raise `error` for an argument that is not a whole number from `least` to `most`, nor None with `or_none`."""
    bounds = (f">= {least}" if most == inf else f"from {least} to {most}") + (", or None" if or_none else "")
    check(is_whole(given, least, most) or (or_none and given is None), what, f"a whole number {bounds}", given, error)


def check_choice(what: str, given: object, known: Iterable[object], error: MakeError = ValueError) -> None:
    """Raise `error` for an argument that is not one of the `known` values."""
    choices = list(known)
    check(given in choices, what, f"one of {', '.join(map(repr, choices))}", given, error)


def check_seconds(what: str, given: object, *, above_zero: bool = False) -> None:
    """Raise ValueError for a setting that is not a number of seconds from 0 on, or above 0."""
    fits = is_number(given) and (given > 0 if above_zero else given >= 0)
    check(fits, what, f"seconds, as a number {'>' if above_zero else '>='} 0", given)


def check_count(what: str, given: object, of: str) -> None:
    """Raise ValueError for a setting that is not a whole number from 1 on; `of` says what it counts."""
    check(is_whole(given, 1), what, f"a number of {of}, at least 1", given)


class _Shortened(Repr):
    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1_000 else "a number of many digits"  # Python refuses it


_REPR: Final = _Shortened()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100
