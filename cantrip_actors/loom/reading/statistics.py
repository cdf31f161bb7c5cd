"""Statistics of a loom: turns, tokens, cost, durations and errors, for an entity, a subtree, a gate or everything.

The tallies of entities are added up one by one. One entity's records are in memory at a time, with any store, so a loom
of any size can be counted.
"""

from __future__ import annotations

from cantrip_actors.loom.reading.view import Loom, make_unchecked
from cantrip_actors.machine.project.statistics import Durations, GateTally, Tally, tally

__all__ = ["Durations", "GateTally", "Tally", "statistics", "tally"]


def statistics(loom: Loom, entity_id: str | None = None) -> Tally:
    """Return the sums over the whole loom, or over an entity and everything that it spawned. Raises LoomError."""
    loom, total = make_unchecked(loom), Tally()
    for entity in loom.entities() if entity_id is None else loom.subtree(entity_id):
        total.add(tally(loom.records(entity)))
    return total
