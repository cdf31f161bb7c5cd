"""A feed of the records of one entity, in any process (N-39, N-41).

A feed reads the loom. If this process runs the entity, its events announce new records; otherwise the feed polls twice
a second. So it continues when another process takes the entity over, without repetitions and gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cantrip_actors.machine.project.turns import TurnReader
from cantrip_actors.records.records import Record
from cantrip_actors.records.turn import Turn
from cantrip_actors.runtime.events.follower import Follower
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.terms.arguments import check, is_whole
from cantrip_actors.terms.errors import InvalidIntent

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree

T = TypeVar("T")

Reader = Callable[[Sequence[Record]], Iterable[T]]


class LogFeed(Follower[T]):
    """Items derived from an entity's records, in order. It ends with the entity, or when the runtime closes.

    Iterating raises LoomError for an entity that is not in the loom, and while the loom cannot be read: try again then.
    """

    def __init__(self, tree: Tree, entity_id: str, read: Reader[T], position: int = -1) -> None:
        super().__init__(tree.bus.subscribe(entity_id=entity_id, ends_with_it=False))
        self._tree = tree
        self._entity_id = entity_id
        self._make = read
        self._position = position

    async def _read(self) -> Iterable[T]:
        is_over, records = await self._tree.in_store(self._read_records)
        if is_over:
            self.close()
        return self._make(records)

    def _choose_interval(self) -> float:
        return POLL_INTERVAL  # another process may run the entity

    def _read_records(self) -> tuple[bool, Sequence[Record]]:
        loom = self._tree.loom
        is_over = loom.is_over(self._entity_id)  # read first, so that the records include the end
        records, self._position = loom.records_since(self._entity_id, self._position)
        return is_over, records


def follow_turns(tree: Tree, entity_id: str, after: int) -> LogFeed[Turn]:
    """Return the turns of an entity with a higher number than `after`, as they are recorded. Raises InvalidIntent."""
    check(is_whole(after, 0), "story: after", "the number of a turn, 0 for all of them", after, InvalidIntent)
    reader = TurnReader()

    def read(records: Sequence[Record]) -> Iterable[Turn]:
        made = (reader.add(record) for record in records)
        return [turn for turn in made if turn is not None and turn.sequence > after]

    return LogFeed(tree, entity_id, read)
