"""Numbers about a loom: turns, tokens, cost, durations and errors, for an entity, a subtree, a gate or everything.

The tallies of entities are added up one by one. One entity's records are in memory at a time, whichever store holds
them, so a loom of any size can be counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cantrip_actors.loom.view import Loom
from cantrip_actors.machine.project.statistics import Durations, GateTally, Tally, tally
from cantrip_actors.records.records import Header

__all__ = ["Durations", "GateTally", "Tally", "by_entity", "statistics", "tally"]


def by_entity(loom: Loom, entities: Iterable[str] | None = None) -> Iterator[tuple[Header, Tally]]:
    """Each entity's own sums, in order of creation; of all entities unless some are named."""
    headers = loom.headers() if entities is None else map(loom.header, entities)
    for header in headers:
        yield header, tally(loom.records(header.entity_id))


def statistics(loom: Loom, entity_id: str | None = None) -> Tally:
    """The sums over the whole loom, or over an entity and everything that it spawned. Raises LoomError."""
    total = Tally()
    for _, one in by_entity(loom, None if entity_id is None else loom.subtree(entity_id)):
        total.add(one)
    return total
