"""The timers of a memory or JSONL loom, and the file in which a JSONL loom keeps them: `<loom>.timers`, line by line.

    {"entity":"…","id":"…","with":1234,"timer":{…}}

The latest line with an entity and an id counts; one without "timer" removes it. A line with "with" was written together
with the record at that offset, and is void if the log ends before that record. Timers of an ended entity are void, too.
Opening the file for writing rewrites it if lines are void, or most of them are out of date.
"""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Any

from cantrip_actors.loom.rules import Plan
from cantrip_actors.records.timers import Due, Timer, decode_timer
from cantrip_actors.terms.errors import LoomError


class Timers:
    """All timers of a loom, ordered by due time; those of each queue have an order of their own."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, tuple[str, Due | None, bytes]]] = {}
        """By entity and id: the timer's queue, its position in the order, if it is ever due, and its line."""
        self._orders: dict[str, list[Due]] = {}
        """By queue, "" for none."""

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def find(self, entity_id: str, id: str) -> bytes | None:
        """Return the line of a timer."""
        row = self._rows.get(entity_id, {}).get(id)
        return None if row is None else row[-1]

    def list_lines(self, entity_id: str) -> list[bytes]:
        """Return the lines of an entity's timers, by their ids."""
        return [line for _, (_, _, line) in sorted(self._rows.get(entity_id, {}).items())]

    def list_due(self, until: float, after: Due, limit: int, queue: str) -> list[bytes]:
        """Return the lines of the first timers of a queue after a position that are due at `until`."""
        order = self._orders.get(queue, ())
        first = bisect_right(order, after)
        found = [one for one in order[first : first + limit] if one.due <= until]
        return [self._rows[one.entity_id][one.id][-1] for one in found]

    def has_due(self, until: float, count: int, queue: str) -> bool:
        """Return whether at least so many timers of a queue are due at `until`."""
        order = self._orders.get(queue, ())
        return len(order) >= count and order[count - 1].due <= until

    def count(self, queue: str) -> int:
        """Return how many timers of a queue are ever due."""
        return len(self._orders.get(queue, ()))

    def list_all(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield entity, id and line of every timer."""
        for entity_id, rows in self._rows.items():
            for id, (_, _, line) in rows.items():
                yield entity_id, id, line

    def set(self, timer: Timer, line: bytes) -> None:
        """Add a timer, in place of the one with its entity and id; without a line remove it."""
        self.remove(timer.entity_id, timer.id)
        if line:
            position = None if timer.due is None else timer.position
            self._rows.setdefault(timer.entity_id, {})[timer.id] = timer.queue, position, line
            if position is not None:
                insort(self._orders.setdefault(timer.queue, []), position)

    def load(self, timers: Iterable[tuple[Timer, bytes]]) -> None:
        """Fill an empty instance with timers and their lines."""
        for timer, line in timers:
            position = None if timer.due is None else timer.position
            self._rows.setdefault(timer.entity_id, {})[timer.id] = timer.queue, position, line
        for rows in self._rows.values():
            for queue, position, _ in rows.values():
                if position is not None:
                    self._orders.setdefault(queue, []).append(position)
        for order in self._orders.values():
            order.sort()

    def remove(self, entity_id: str, id: str) -> None:
        """Remove a timer, if it exists."""
        rows = self._rows.get(entity_id, {})
        queue, position, _ = rows.pop(id, ("", None, b""))
        if position is not None:
            order = self._orders[queue]
            del order[bisect_right(order, position) - 1]
        if not rows:
            self._rows.pop(entity_id, None)

    def end(self, entity_id: str) -> None:
        """Remove all timers of an entity."""
        for id in list(self._rows.get(entity_id, ())):
            self.remove(entity_id, id)

    def apply(self, made: Plan) -> None:
        """Add what was written."""
        for timer, line, _ in made.timers.values():
            self.set(timer, line)
        for entity in made.timed_out:
            self.end(entity)


def encode_timer_line(entity_id: str, id: str, line: bytes, number: int | None = None) -> bytes:
    """Return the line of a timer; `number` is that of the record that it was written with."""
    facts: dict[str, Any] = {"entity": entity_id, "id": id}
    if number is not None:
        facts["with"] = number
    head = json.dumps(facts, separators=(",", ":")).encode()
    return b'%b,"timer":%b}\n' % (head[:-1], line) if line else head + b"\n"


def read_timer(line: bytes) -> tuple[Timer, bytes, int | None]:
    """Return timer, its own line, and `with` of a line. Raises LoomError if `encode_timer_line` did not write it."""
    head, found, rest = line.rstrip(b"\n").partition(_TIMER)
    try:
        facts = json.loads(head + b"}" if found else head)
        timer = decode_timer(rest[:-1]) if found else Timer(id=facts["id"], due=None, entity_id=facts["entity"])
    except (ValueError, KeyError, TypeError) as error:
        raise LoomError(f"{line[:60]!r} is not a timer: {error}") from error
    return timer, rest[:-1], facts.get("with")


_TIMER = b',"timer":'
