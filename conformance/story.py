"""What happened in a case: which entities ran, how they ended, what their crystals received, what the loom holds.

Nothing is judged here. Turns come from the loom, in the order in which the runtime announced them; the two have to
agree: a turn that was announced and is not there, or the other way round, is a problem of the case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cantrip_actors import Cantrip, CantripError

__all__ = ["Entities", "Run", "Story", "Untold"]


class Untold(Exception):
    """The case states something that this story cannot tell: the text says why."""


class Entities(Protocol):
    """What is used of `runtime.loom`."""

    def entities(self) -> Sequence[str]:
        """Every entity's id, in order of creation."""
        ...

    def header(self, entity_id: str) -> Any:
        """How an entity began."""
        ...

    def turns(self, entity_id: str) -> Sequence[Any]:
        """An entity's turns, in order."""
        ...

    def thread(self, turn_id: str) -> Sequence[Any]:
        """The path from the root to a turn."""
        ...

    def state(self, entity_id: str) -> str:
        """How an entity stands."""
        ...


@dataclass(slots=True)
class Run:
    """One entity that the action made by itself: cast, invoked or forked. Children are in the loom only."""

    entity_id: str | None
    episodes: list[Any] = field(default_factory=list)
    error: CantripError | None = None
    live: Any = None
    """The entity that further intents are sent to, where it was invoked."""

    @property
    def episode(self) -> Any:
        """The latest episode; Untold where an error ended it."""
        if self.error is not None:
            raise Untold(f"the entity ended with an error: {self.error}")
        if not self.episodes:
            raise Untold("the entity has no episode")
        return self.episodes[-1]


@dataclass(slots=True)
class Story:
    """Everything that the checks of `facts.py` may look at."""

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
    """Every episode in order, whichever entity's."""
    error: CantripError | None = None
    error_is_last: bool = False
    """Whether it was the last step of the action that raised."""
    elapsed: float = 0.0
    """Seconds of virtual time that the action took."""

    @property
    def read(self) -> Entities:
        """The loom; Untold where the action did not come to that."""
        if self.loom is None:
            raise Untold("there is no loom: nothing was cast")
        return self.loom

    @property
    def only(self) -> Run:
        """The one entity that the action made; Untold where there are several, since a fact could be of any."""
        if len(self.runs) != 1:
            raise Untold(f"this speaks of one entity, and the action made {len(self.runs)}: use thread_0, thread_1, …")
        return self.runs[0]

    def turns_of(self, run: Run) -> Sequence[Any]:
        """The entity's own turns."""
        return [] if run.entity_id is None else self.read.turns(run.entity_id)

    def thread_of(self, run: Run) -> Sequence[Any]:
        """The path from the root to the entity's last turn: as the loom has it, and as the episode tells it."""
        turns = self.turns_of(run)
        thread = self.read.thread(turns[-1].id) if turns else []
        if run.episodes and [turn.id for turn in run.episodes[-1].thread] != [turn.id for turn in thread]:
            raise Untold("the episode's thread and the loom's are not the same")
        return thread

    @property
    def turns(self) -> Sequence[Any]:
        """Every turn of the loom, in the order in which they were committed."""
        by_id = {turn.id: turn for entity_id in self.read.entities() for turn in self.read.turns(entity_id)}
        if sorted(by_id) != sorted(self.announced):
            raise Untold(f"the loom holds {len(by_id)} turns, {len(self.announced)} were announced as committed")
        return [by_id[turn_id] for turn_id in self.announced]

    @property
    def leaves(self) -> Sequence[str]:
        """The turns that no other turn goes on from: where threads end."""
        parents = {turn.parent_id for turn in self.turns}
        return [turn.id for turn in self.turns if turn.id not in parents]
