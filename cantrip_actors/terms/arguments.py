"""Check the texts that a caller of a runtime gives: keys, names and ids, and who acts and why.

They are checked before anything is recorded: a record with a number in place of a text could not be read again, and
not every database keeps every text.
"""

from __future__ import annotations

from typing import Final
from unicodedata import category

from cantrip_actors.terms.errors import CantripError, InvalidIntent

LONGEST: Final = 1_000
"""Bytes of a key, a name or an id: Postgres keeps at most 2,704 in an entry of an index, with the tenant and more."""

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
