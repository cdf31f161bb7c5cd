"""A feed of the records of one entity, in any process (N-39, N-41).

A feed reads the loom. If this process runs the entity, its events announce new records; otherwise the feed polls twice
a second. So it continues when another process takes the entity over, without repetitions and gaps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from cantrip_actors.machine.project.turns import TurnReader
from cantrip_actors.records.records import Record
from cantrip_actors.records.turn import Turn
from cantrip_actors.runtime.inboxes import POLL_INTERVAL
from cantrip_actors.terms.errors import InvalidIntent, RuntimeClosed

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree

T = TypeVar("T")

Reader = Callable[[Sequence[Record]], Iterable[T]]


class LogFeed(AsyncIterator[T], Generic[T]):
    """Items derived from an entity's records, in order. It ends with the entity, or when the runtime closes.

    Iterating raises LoomError for an entity that is not in the loom, and while the loom cannot be read: try again then.
    """

    def __init__(self, tree: Tree, entity_id: str, read: Reader[T], position: int = -1) -> None:
        self._tree = tree
        self._entity_id = entity_id
        self._read = read
        self._position = position
        self._ready: deque[T] = deque()
        self._is_closed = False
        self._news = tree.bus.subscribe(entity_id=entity_id)

    @property
    def is_over(self) -> bool:
        """Whether no further item comes; earlier items can still be read."""
        return self._is_closed

    def close(self) -> None:
        """Take no further items; earlier items can still be read."""
        self._is_closed = True
        self._news.close()

    async def __anext__(self) -> T:
        while not self._ready:
            if self._is_closed:
                raise StopAsyncIteration
            await self._poll()
            if not (self._ready or self._is_closed):
                await self._wait()
        return self._ready.popleft()

    async def _poll(self) -> None:
        try:
            is_over, records = await self._tree.in_store(self._read_records)
        except RuntimeClosed:
            self.close()
            return
        self._ready.extend(self._read(records))
        if is_over:
            self.close()

    def _read_records(self) -> tuple[bool, Sequence[Record]]:
        loom = self._tree.loom
        is_over = loom.is_over(self._entity_id)  # read first, so that the records include the end
        records, self._position = loom.records_since(self._entity_id, self._position)
        return is_over, records

    async def _wait(self) -> None:
        """Wait until there may be more: an event of this process, or half a second."""
        with anyio.move_on_after(POLL_INTERVAL):
            try:
                await anext(self._news)
            except StopAsyncIteration:  # the entity was unloaded or has ended, or the runtime closes
                if not self._tree.is_open:
                    self.close()
                    return
                await anyio.sleep(POLL_INTERVAL)
                self._news = self._tree.bus.subscribe(entity_id=self._entity_id)


def follow_turns(tree: Tree, entity_id: str, after: int) -> LogFeed[Turn]:
    """Return the turns of an entity with a higher number than `after`, as they are recorded. Raises InvalidIntent."""
    if isinstance(after, bool) or not isinstance(after, int) or after < 0:
        raise InvalidIntent(f"story: after: expected the number of a turn, 0 for all of them, got {after!r}")
    reader = TurnReader()

    def read(records: Sequence[Record]) -> Iterable[Turn]:
        made = (reader.add(record) for record in records)
        return [turn for turn in made if turn is not None and turn.sequence > after]

    return LogFeed(tree, entity_id, read)
