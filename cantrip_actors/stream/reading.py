"""From records to events: the one place that turns what a loom holds into what users see.

`read_events` reads any records. `EventLog` reads the whole log of one entity, and gives each event its id: the number
of records up to and including its own, and its number within that record (0044). The log only grows, so an id is the
same in every process and after every crash.

The outcome of an episode is in no record: it is folded from all of them. So `read_events` asks for it (`FindEnd`): a
log has folded it, and a running entity's cell knows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from cantrip_actors.machine.accept import WARD_OF
from cantrip_actors.machine.evolve import fold, is_entity_end
from cantrip_actors.machine.project import TurnReader, get_outcome, get_sender, get_time
from cantrip_actors.machine.state import Shape, State
from cantrip_actors.records.records import (
    Adopted,
    ChildStarted,
    Committed,
    Decided,
    Ended,
    Folded,
    ForgottenRecord,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Record,
    Requested,
    Resumed,
    Rewarded,
    Sampled,
    Steered,
    Undone,
    Utterance,
)
from cantrip_actors.records.turn import Turn
from cantrip_actors.stream.events import (
    AdoptedEvent,
    DecidedEvent,
    DelegatedEvent,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    EpisodeEndedEvent,
    FinalResponseEvent,
    FoldedEvent,
    ForgottenEvent,
    ImageEvent,
    RequestedEvent,
    ResumedEvent,
    RewardedEvent,
    SampledEvent,
    SteeredEvent,
    StepCompleteEvent,
    TextEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    ToolStartEvent,
    UndoneEvent,
    UsageEvent,
)
from cantrip_actors.stream.wire import FinalImage
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import add_labels
from cantrip_actors.terms.outcome import Outcome


class EpisodeEnd(NamedTuple):
    """How the last episode of an entity ended."""

    outcome: Outcome
    lasting: bool
    """Whether the entity is long-lived: it may survive its episode."""
    ends_now: bool
    """Whether the episode was under way until these records; an idle entity is ended without one."""


FindEnd = Callable[[str], EpisodeEnd | None]
"""Returns the end of an entity's episode, once a record that ends it is read; None if it is not known."""


def read_events(
    records: Iterable[Record], at: float = 0.0, find_end: FindEnd = lambda _: None
) -> Iterator[EntityEvent]:
    """Yield the events of records, in order. A record without a time has that of the one before, at first `at`."""
    header: Header | None = None
    begun = ""
    for record in records:
        at = parse_time(get_time(record)) or at
        kind = type(record)
        if kind is Header:
            header = record  # type: ignore[assignment]  # as its type says
        elif kind is IntentGiven:
            begun = record.entity_id
            yield _read_intent(record, at, header)  # type: ignore[arg-type]  # likewise
            header = None
        elif kind is Committed or kind is Ended:
            yield from _READ[kind](record, at)
            yield from _read_end(record, at, find_end, begun)  # type: ignore[arg-type]  # likewise
        elif kind in _READ:
            yield from _READ[kind](record, at)


def parse_time(text: str) -> float | None:
    """Return the seconds since the epoch of a record's time; None for "", as of a tombstone."""
    return datetime.fromisoformat(text).timestamp() if text else None


def _read_intent(record: IntentGiven, at: float, header: Header | None) -> EntityEvent:
    images = _list_labels(record.own_images)
    started = EntityStartedEvent(
        record.entity_id,
        at,
        add_labels(record.intent, record.own_images) if images else record.intent,
        images=images,
        is_further=header is None,
        key=record.key,
        by=record.sender or "",
        trace=record.trace,
        history=record.history,
    )
    if header is None:
        return started
    return replace(
        started,
        parent_entity=header.parent_entity,
        parent_turn=header.parent_turn,
        depth=header.depth,
        name=header.name,
        crystal=header.crystal,
        cantrip=header.cantrip_name,
        lasting=header.lasting,
        forked=header.forked,
    )


def _list_labels(images: Iterable[File]) -> tuple[str, ...]:
    return tuple([image.label for image in images])


def _read_utterance(record: Utterance, at: float) -> Iterator[EntityEvent]:
    entity, turn = record.entity_id, record.turn_id
    if record.thinking:
        yield ThinkingEvent(entity, at, turn, record.thinking)
    if record.content:
        yield TextEvent(entity, at, turn, record.content)
    if record.code:
        yield TextEvent(entity, at, turn, record.code, is_code=True)
    for image in record.images:
        yield ImageEvent(entity, at, turn, FinalImage.of(image))
    for call in record.tool_calls:
        yield ToolCallEvent(entity, at, turn, call.id, call.gate, call.args)
    yield UsageEvent(entity, at, turn, record.usage, record.metadata, record.duration_ms / 1e3)


def _read_gate_start(record: GateStarted, at: float) -> Iterator[EntityEvent]:
    if record.args is not None:  # the call of a program: those of a tools circle are in the utterance
        yield ToolCallEvent(record.entity_id, at, record.turn_id, record.tool_call_id, record.gate, record.args)
    yield ToolStartEvent(record.entity_id, at, record.turn_id, record.tool_call_id, record.gate)


def _read_gate_end(record: GateFinished, at: float) -> Iterator[EntityEvent]:
    yield ToolResultEvent(
        record.entity_id,
        at,
        record.turn_id,
        record.tool_call_id,
        record.gate,
        record.result,
        record.is_error,
        _list_labels(record.images),
        record.args,
        record.duration_ms / 1e3,
    )


def _read_turn_end(record: Committed, at: float) -> Iterator[EntityEvent]:
    yield StepCompleteEvent(
        record.entity_id,
        at,
        record.turn_id,
        record.sequence,
        record.terminated,
        record.truncated,
        record.ward,
        record.continues,
        record.duration_ms / 1e3,
    )


def _read_request(record: Requested, at: float) -> Iterator[EntityEvent]:
    yield RequestedEvent(
        record.entity_id,
        at,
        record.turn_id,
        record.id,
        record.gate,
        record.args,
        record.why if record.question is None else record.question,
        record.expires_at,
        record.tool_call_id,
        record.question is not None,
        record.answer_schema,
        record.deferred,
        record.is_utterance,
        record.to,
    )


def is_cut(done: Committed | StepCompleteEvent) -> bool:
    """Return whether the turn was cut off from outside: the next record says why."""
    return done.truncated and (done.ward is None or done.ward in WARD_OF.values())


def _read_end(record: Committed | Ended, at: float, find_end: FindEnd, begun: str) -> Iterator[EntityEvent]:
    """Yield the answer, the end of the episode and the end of the entity, if they come with this record.

    `begun` is the entity whose episode began with the records before.
    """
    entity = record.entity_id
    if isinstance(record, Committed) and (is_cut(record) or not (record.terminated or record.truncated)):
        return
    end = find_end(entity)
    by = get_sender(record)
    if end is not None and isinstance(record, Committed) and record.terminated:
        yield FinalResponseEvent(entity, at, end.outcome.result, record.turn_id)
    if end is not None and end.lasting and (end.ends_now or begun == entity):
        yield EpisodeEndedEvent(entity, at, end.outcome, by)
    if isinstance(record, Ended) and (end is None or is_entity_end(record, lasting=end.lasting)):
        outcome = None if end is None else end.outcome
        yield EntityEndedEvent(entity, at, record.reason, record.detail, record.ward, record.usage, by, outcome)


def _copy(event: type[EntityEvent], *fields: str) -> Callable[[Any, float], Iterable[EntityEvent]]:
    """Return a function that makes this event of a record: of its entity, its time, and these fields in their order."""
    read_fields = attrgetter("entity_id", *fields)

    def read(record: Any, at: float) -> Iterable[EntityEvent]:
        entity, *values = read_fields(record)
        return (event(entity, at, *values),)

    return read


_READ: Final[dict[type[Record], Callable[[Any, float], Iterable[EntityEvent]]]] = {
    Utterance: _read_utterance,
    GateStarted: _read_gate_start,
    GateFinished: _read_gate_end,
    Committed: _read_turn_end,
    Ended: lambda _record, _at: (),
    Requested: _read_request,
    Decided: _copy(DecidedEvent, "turn_id", "request_id", "decision", "by", "note", "door"),
    ChildStarted: _copy(DelegatedEvent, "turn_id", "tool_call_id", "child_id", "trace", "background"),
    Sampled: _copy(SampledEvent, "turn_id", "tool_call_id", "crystal", "usage"),
    Steered: lambda record, at: (SteeredEvent(record.entity_id, at, record.text, record.sender or ""),),
    Resumed: _copy(ResumedEvent, "by"),
    Rewarded: _copy(RewardedEvent, "turn_id", "reward", "by"),
    Adopted: _copy(AdoptedEvent, "cantrip_id", "cantrip_name"),
    Folded: _copy(FoldedEvent, "first", "last", "marker", "usage"),
    ForgottenRecord: _copy(ForgottenEvent, "by", "why"),
    Undone: lambda record, at: (UndoneEvent(record.entity_id, at, record.first, record.last, record.sender or ""),),
}


# ----------------------------------------------------------------------------------------------------- the log of one

_ID: Final = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?", re.ASCII)

END_OF_RECORD: Final = 999_999
"""The part after all events of a record."""


class EventId(NamedTuple):
    """The position of an event in an entity's log: the number of its record, and its part within the record."""

    number: int = 0
    part: int = 0

    def __str__(self) -> str:
        return f"{self.number}.{self.part}" if self.part else str(self.number)

    @classmethod
    def parse(cls, text: str) -> EventId | None:
        """Return the position that an id names; None for any other text."""
        match = _ID.fullmatch(text.strip())
        return None if match is None else cls(int(match[1]), int(match[2] or 0))


class EventLog:
    """Follows the log of one entity from its beginning, and gives each event its id."""

    def __init__(self) -> None:
        self.number = 0
        """The number of records so far."""
        self.is_over = False
        """Whether the entity has ended for good."""
        self.turn: Turn | None = None
        """The turn that the last record committed; None if it is of another kind."""
        self._shape = Shape()
        self._state = State(None)
        self._turns = TurnReader()
        self._header: Header | None = None
        self._at = 0.0
        self._is_in_episode = False

    def add(self, record: Record) -> list[EntityEvent]:
        """Add the next record; return its events, none for some."""
        self.number += 1
        self._at = parse_time(get_time(record)) or self._at
        if isinstance(record, Header):
            self._header, self._shape = record, Shape.of_header(record)
            self._state = State(self._shape.parent_turn)
        fold(self._shape, (record,), self._state)
        self.turn = self._turns.add(record)
        before: tuple[Record, ...] = ()
        if isinstance(record, IntentGiven):
            self._is_in_episode = True
            before, self._header = () if self._header is None else (self._header,), None
        events = [
            replace(event, id=str(EventId(self.number, part)))
            for part, event in enumerate(read_events((*before, record), self._at, self._find_end))
        ]
        self.is_over = self.is_over or (
            isinstance(record, Ended) and is_entity_end(record, lasting=self._shape.lasting)
        )
        return events

    def add_all(self, records: Iterable[Record]) -> Iterator[EntityEvent]:
        """Add the next records; yield their events."""
        for record in records:
            yield from self.add(record)

    def _find_end(self, entity_id: str) -> EpisodeEnd | None:  # noqa: ARG002  # there is one
        outcome = get_outcome(self._state)
        if outcome is None:
            return None
        ends_now, self._is_in_episode = self._is_in_episode, False
        return EpisodeEnd(outcome, self._shape.lasting, ends_now)
