"""The timers of a loom in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from operator import attrgetter

from cantrip_actors.loom.stores.rules import Plan
from cantrip_actors.records.timers import Due, Timer


class TimerIndex:
    """All timers of a loom, ordered by due time."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, tuple[Due | None, bytes]]] = {}
        """By entity and id: the timer's position in the order, if it is ever due, and its line."""
        self._order: list[Due] = []

    def find(self, entity_id: str, id: str) -> bytes | None:
        """Return the line of a timer."""
        row = self._rows.get(entity_id, {}).get(id)
        return None if row is None else row[-1]

    def list_lines(self, entity_id: str) -> list[bytes]:
        """Return the lines of an entity's timers, by their ids."""
        return [line for _, (_, line) in sorted(self._rows.get(entity_id, {}).items())]

    def list_due(self, until: float, after: Due, limit: int) -> list[bytes]:
        """Return the lines of the first timers after a position that are due at `until`."""
        first = bisect_right(self._order, after)
        positions = (position for position in self._order[first : first + limit] if position.due <= until)
        lines = (self.find(position.entity_id, position.id) for position in positions)
        return [line for line in lines if line is not None]  # another thread may have removed it meanwhile

    def find_next(self, after: float) -> float | None:
        """Return when the first timer after a time is due."""
        first = bisect_right(self._order, after, key=attrgetter("due"))
        return self._order[first].due if first < len(self._order) else None

    def list_all(self) -> list[tuple[str, str, bytes]]:
        """Return entity, id and line of every timer."""
        rows = [(entity_id, list(timers.items())) for entity_id, timers in list(self._rows.items())]
        return [(entity_id, id, line) for entity_id, timers in rows for id, (_, line) in timers]

    def set(self, timer: Timer, line: bytes) -> None:
        """Add a timer, in place of the one with its entity and id; without a line remove it."""
        self.remove(timer.entity_id, timer.id)
        if line:
            position = None if timer.due is None else timer.position
            self._rows.setdefault(timer.entity_id, {})[timer.id] = position, line
            if position is not None:
                insort(self._order, position)

    def remove(self, entity_id: str, id: str) -> None:
        """Remove a timer, if it exists."""
        rows = self._rows.get(entity_id, {})
        position, _ = rows.pop(id, (None, b""))
        if position is not None:
            del self._order[bisect_left(self._order, position)]
        if not rows:
            self._rows.pop(entity_id, None)

    def end(self, entity_id: str) -> None:
        """Remove all timers of an entity."""
        for id in list(self._rows.get(entity_id, ())):
            self.remove(entity_id, id)

    def apply(self, plan: Plan) -> None:
        """Add what was written."""
        for timer, line, _ in plan.timers.values():
            self.set(timer, line)
        for entity in plan.timed_out:
            self.end(entity)
