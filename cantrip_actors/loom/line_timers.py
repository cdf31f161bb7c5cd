"""The timers of a memory or JSONL loom, in memory."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator

from cantrip_actors.loom.rules import Plan
from cantrip_actors.records.timers import Due, Timer


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
