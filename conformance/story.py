"""The story of a case: its entities, their ends, the queries to their crystals, and the records of the loom.

This module makes no checks. Turns come from the loom, in the order in which the runtime announced them. The loom and
the announcements have to agree: a turn that is only in one of them is a problem of the case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cantrip_actors import Cantrip, CantripError

__all__ = ["Entities", "Run", "Story", "Untold"]


class Untold(Exception):
    """The story has no value for an expectation of the case; the text says why."""


class Entities(Protocol):
    """The methods of `runtime.loom` that the checks use."""

    def entities(self) -> Sequence[str]:
        """Return every entity's id, in order of creation."""
        ...

    def header(self, entity_id: str) -> Any:
        """Return the header of an entity."""
        ...

    def turns(self, entity_id: str) -> Sequence[Any]:
        """Return an entity's turns, in order."""
        ...

    def thread(self, turn_id: str) -> Sequence[Any]:
        """Return the path from the root to a turn."""
        ...

    def state(self, entity_id: str) -> str:
        """Return the state of an entity."""
        ...


@dataclass(slots=True)
class Run:
    """One entity that the action itself made: cast, invoked or forked. Children are in the loom only."""

    entity_id: str | None
    episodes: list[Any] = field(default_factory=list)
    error: CantripError | None = None
    live: Any = None
    """The entity that further intents are sent to, if it was invoked."""

    @property
    def episode(self) -> Any:
        """The latest episode. Raises Untold if an error ended it."""
        if self.error is not None:
            raise Untold(f"the entity ended with an error: {self.error}")
        if not self.episodes:
            raise Untold("the entity has no episode")
        return self.episodes[-1]


@dataclass(slots=True)
class Story:
    """The data that the checks of `facts.py` use."""

    loom: Entities | None = None
    cantrip: Cantrip | None = None
    crystals: Mapping[str, Any] = field(default_factory=dict)
    """The scripted crystals of the setup, by their keys."""
    runs: list[Run] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    """The turns' ids, in the order of the events that announced them."""
    extracted: Sequence[Any] | None = None
    executed: list[str] = field(default_factory=list)
    """The gates of the runner's own that ran, in order."""
    own_gates: frozenset[str] = frozenset()
    outcomes: list[Any] = field(default_factory=list)
    """The episodes of all entities, in order."""
    error: CantripError | None = None
    error_is_last: bool = False
    """Whether the last step of the action raised the error."""
    elapsed: float = 0.0
    """The action's duration in seconds of virtual time."""

    @property
    def read(self) -> Entities:
        """Return the loom. Raises Untold if the action did not open one."""
        if self.loom is None:
            raise Untold("there is no loom: nothing was cast")
        return self.loom

    @property
    def only(self) -> Run:
        """Return the only entity that the action made. Raises Untold if it made several: a fact could belong to any."""
        if len(self.runs) != 1:
            raise Untold(f"this speaks of one entity, and the action made {len(self.runs)}: use thread_0, thread_1, …")
        return self.runs[0]

    def turns_of(self, run: Run) -> Sequence[Any]:
        """Return the entity's own turns."""
        return [] if run.entity_id is None else self.read.turns(run.entity_id)

    def thread_of(self, run: Run) -> Sequence[Any]:
        """Return the path from the root to the entity's last turn. Raises Untold if the loom and the episode differ."""
        turns = self.turns_of(run)
        thread = self.read.thread(turns[-1].id) if turns else []
        if run.episodes and [turn.id for turn in run.episodes[-1].thread] != [turn.id for turn in thread]:
            raise Untold("the episode's thread and the loom's are not the same")
        return thread

    @property
    def turns(self) -> Sequence[Any]:
        """Return every turn of the loom, in the order of commits."""
        by_id = {turn.id: turn for entity_id in self.read.entities() for turn in self.read.turns(entity_id)}
        if sorted(by_id) != sorted(self.announced):
            raise Untold(f"the loom holds {len(by_id)} turns, {len(self.announced)} were announced as committed")
        return [by_id[turn_id] for turn_id in self.announced]

    @property
    def leaves(self) -> Sequence[str]:
        """Return the ids of the turns without a successor: the ends of threads."""
        parents = {turn.parent_id for turn in self.turns}
        return [turn.id for turn in self.turns if turn.id not in parents]
