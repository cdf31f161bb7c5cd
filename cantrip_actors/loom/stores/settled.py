"""Which records of a loom are settled: no record with a lower number can still appear.

A server gives numbers before transactions commit, so a record may appear after one with a higher number. A number that
is missing belongs to a transaction that is still open or was given up. An open one ends within seconds, so the time of
the next record tells the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cantrip_actors.machine.project import get_time
from cantrip_actors.records.records import Record

SETTLES_AFTER: Final = 10.0
"""Seconds after which a missing number belongs to a transaction that was given up."""


def count_settled(number: int, records: Sequence[tuple[int, Record]], now: float) -> int:
    """Return how many of these records, those after a number, are settled. `now` is in seconds since 1970."""
    for at, (own, _) in enumerate(records):
        if own != number + 1 and _find_time(records[at:]) > now - SETTLES_AFTER:
            return at
        number = own
    return len(records)


def _find_time(records: Sequence[tuple[int, Record]]) -> float:
    """Return the time of the first record that has one, in seconds since 1970; 0 if none has."""
    time = next((time for _, record in records if (time := get_time(record))), "")
    return datetime.fromisoformat(time).timestamp() if time else 0.0
