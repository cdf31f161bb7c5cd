"""The durable events of one entity, in the order of its log, as a reader of its event stream gets them.

Each event has the number of records up to and including the one that it comes from. A reader that has seen an event
resumes after that number, in any process and after any crash, because the log only grows. A record of which two events
come (a last turn, and the end) numbers them `n` and `n.1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from cantrip_actors.machine.evolve import fold, is_entity_end
from cantrip_actors.machine.project.outcome import get_outcome
from cantrip_actors.machine.project.record import get_sender, get_time
from cantrip_actors.machine.project.turns import TurnReader
from cantrip_actors.machine.state import Shape, State
from cantrip_actors.records.records import (
    Committed,
    Decided,
    Ended,
    Folded,
    Header,
    IntentGiven,
    Record,
    Requested,
    Resumed,
    Rewarded,
    Steered,
)
from cantrip_actors.records.turn import Turn
from cantrip_actors.terms.outcome import Outcome

StoryKind = Literal[
    "entity", "intent", "steer", "turn", "request", "decision", "fold", "reward", "resume", "episode", "end"
]


_KINDS: Final[Mapping[type[Record], StoryKind]] = {
    Steered: "steer",
    Requested: "request",
    Decided: "decision",
    Folded: "fold",
    Rewarded: "reward",
    Resumed: "resume",
}
"""The records of which each is one event."""


class Began(NamedTuple):
    """An entity begins, with its first intent."""

    header: Header
    intent: IntentGiven


class StoryEvent(NamedTuple):
    """One durable event. `number` and `part` are its place in the log.

    "entity" has a `Began`, "intent" an `IntentGiven`, "steer" a `Steered`, "turn" a `Turn`, "request" a `Requested`,
    "decision" a `Decided`, "fold" a `Folded`, "reward" a `Rewarded`, which may come after the end, "resume" a
    `Resumed`. "episode" and "end" have an `Outcome`: "episode" comes when an intent of a long-lived entity is done,
    "end" when an entity has ended for good. The outcome counts what the entity has used itself.
    """

    kind: StoryKind
    number: int
    part: int
    value: Began | IntentGiven | Steered | Turn | Requested | Decided | Folded | Rewarded | Resumed | Outcome
    at: str
    """When, ISO 8601 in UTC."""
    by: str = ""
    """The sender of the mail that the record takes, or who gave the reward or resumed the entity; or ""."""


class Story:
    """Follows one log from its beginning, and returns the durable events of each record."""

    def __init__(self) -> None:
        self.number = 0
        """Records so far."""
        self.is_over = False
        """Whether the entity has ended for good."""
        self._header: Header | None = None
        self._shape: Shape | None = None
        self._state = State(None)
        self._turns = TurnReader()
        self._is_in_episode = False
        self._has_begun = False

    def add_all(self, records: Iterable[Record]) -> Iterator[StoryEvent]:
        """Add the next records; yield their events."""
        for record in records:
            yield from self.add(record)

    def add(self, record: Record) -> Iterator[StoryEvent]:
        """Add the next record; yield its events, none for most."""
        self.number += 1
        if isinstance(record, Header):
            self._header, self._shape = record, Shape.of_header(record)
            self._state = State(self._shape.parent_turn)
        assert self._header is not None, "a log begins with its header"
        assert self._shape is not None, "likewise"
        part, was_over, at = 0, self.is_over, get_time(record)
        by = get_sender(record)
        turn = self._turns.add(record)
        if turn is not None:
            yield StoryEvent("turn", self.number, part, turn, at)
            part += 1
        fold(self._shape, (record,), self._state)
        match record:
            case IntentGiven():
                first, self._has_begun, self._is_in_episode = not self._has_begun, True, True
                value = Began(self._header, record) if first else record
                yield StoryEvent("entity" if first else "intent", self.number, part, value, at, by)
            case Steered() | Requested() | Decided() | Folded() | Rewarded() | Resumed():
                yield StoryEvent(_KINDS[type(record)], self.number, part, record, at, by)
            case Ended():
                self.is_over = was_over or is_entity_end(record, lasting=self._header.lasting)
            case _:
                pass
        is_cut = isinstance(record, Committed) and record.truncated and record.ward is None
        outcome = None if is_cut else get_outcome(self._state)  # of a turn that was cut the next record says why
        if outcome is not None and self._is_in_episode:
            self._is_in_episode = False
            if self._header.lasting:
                yield StoryEvent("episode", self.number, part, outcome, at, by)
                part += 1
        if outcome is not None and self.is_over and not was_over:
            yield StoryEvent("end", self.number, part, outcome, at, by)
