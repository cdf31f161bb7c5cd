"""Rewards as they were given: which turn, when, how much, and what it was before (LOOM-3).

A reward is a record of its own, and the latest counts; the earlier ones stay on record and are here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cantrip_actors.loom.view import Loom
from cantrip_actors.machine import project
from cantrip_actors.records.records import Record, Rewarded

__all__ = ["TurnRewards", "rewards", "rewards_of"]


@dataclass(frozen=True, slots=True)
class TurnRewards:
    """The rewards of one turn, oldest first: at least one."""

    entity_id: str
    turn_id: str
    given: tuple[Rewarded, ...]

    @property
    def reward(self) -> float:
        """The one that counts."""
        return self.given[-1].reward


def rewards_of(records: Iterable[Record]) -> Iterator[TurnRewards]:
    """The rewards of an entity's turns, in the order in which the turns were first rewarded."""
    for turn_id, given in project.rewards_of(records).items():
        yield TurnRewards(given[0].entity_id, turn_id, tuple(given))


def rewards(loom: Loom, entities: Iterable[str] | None = None) -> Iterator[TurnRewards]:
    """The rewards of all turns, or those of these entities, entity by entity."""
    for entity_id in loom.entities() if entities is None else entities:
        yield from rewards_of(loom.records(entity_id))
