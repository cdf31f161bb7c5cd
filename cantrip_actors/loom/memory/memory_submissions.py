"""The submissions of a loom in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from cantrip_actors.records.submissions import SubmissionPosition, SubmissionRow


class SubmissionIndex:
    """All waiting submissions of a loom, in the order of each queue."""

    def __init__(self) -> None:
        self.rows: dict[str, SubmissionRow] = {}
        """By id."""
        self._orders: dict[str, list[SubmissionPosition]] = {}
        """By queue."""

    def list_next(self, queue: str, after: SubmissionPosition, limit: int) -> list[SubmissionRow]:
        """Return the first submissions of a queue after a position."""
        order = self._orders.get(queue, [])
        first = bisect_right(order, after)
        rows = (self.rows.get(position.id) for position in order[first : first + limit])
        return [row for row in rows if row is not None]  # another thread may have removed it meanwhile

    def count(self, queue: str, lowest: int) -> int:
        """Return how many submissions of at least this priority wait in a queue."""
        return bisect_left(self._orders.get(queue, []), SubmissionPosition(1 - lowest, 0.0, ""))

    def add(self, row: SubmissionRow) -> None:
        """Add a submission, in place of one with its id: a file may have been rewritten while it was added."""
        self.remove(row.id)
        self.rows[row.id] = row
        insort(self._orders.setdefault(row.queue, []), row.position)

    def remove(self, id: str) -> None:
        """Remove a submission, if it exists."""
        row = self.rows.pop(id, None)
        if row is not None:
            order = self._orders[row.queue]
            del order[bisect_left(order, row.position)]
