"""Checks of plain values that users pass: numbers, seconds, keys of a dict."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is an int or a float; a bool is neither here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_hashable(key: object) -> TypeGuard[Hashable]:
    """Return whether `key` can be the key of a dict. A tuple with a list in it is a `Hashable` and cannot."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


def check_seconds(what: str, seconds: object) -> None:
    """Refuse a time that is not a number: a timer without a due time would never fire, or delay all others.

    Raises:
        ValueError: naming `what`.
    """
    if not is_number(seconds) or math.isnan(seconds):
        raise ValueError(f"{what}: expected seconds, got {seconds!r}")
