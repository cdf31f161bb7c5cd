"""The story of an entity: its durable events as JSON, as event streams and pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from cantrip_actors.loom.export.shapes import message_shape, outcome_shape
from cantrip_actors.loom.export.thread import build_image_fields, build_turn_fields
from cantrip_actors.machine.project import as_intent
from cantrip_actors.records.door import name_decider
from cantrip_actors.records.instant import format_instant
from cantrip_actors.records.records import Record, get_images
from cantrip_actors.records.turn import Turn
from cantrip_actors.stream.events import (
    AdoptedEvent,
    DecidedEvent,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    EpisodeEndedEvent,
    FoldedEvent,
    ForgottenEvent,
    RequestedEvent,
    ResumedEvent,
    RewardedEvent,
    SteeredEvent,
    StepCompleteEvent,
    UndoneEvent,
)
from cantrip_actors.stream.reading import EventId, EventLog
from cantrip_actors.terms.file import File
from cantrip_actors.terms.history import build_history_messages

DURABLE: Final[dict[type[EntityEvent], str]] = {
    EntityStartedEvent: "entity",
    SteeredEvent: "steer",
    StepCompleteEvent: "turn",
    RequestedEvent: "request",
    DecidedEvent: "decision",
    AdoptedEvent: "adopt",
    FoldedEvent: "fold",
    UndoneEvent: "undo",
    RewardedEvent: "reward",
    ResumedEvent: "resume",
    EpisodeEndedEvent: "episode",
    EntityEndedEvent: "end",
    ForgottenEvent: "forget",
}
"""The kinds of events that a stream shows with an id; a further intent is an `intent`."""


class DurableEvent(NamedTuple):
    """An event that a stream shows with its id."""

    id: EventId
    kind: str
    event: EntityEvent
    turn: Turn | None
    """The whole turn that a `turn` completes."""
    record: Record
    """The record that it is of."""
    own_id: str = ""
    """In the stream of all entities, the id in the stream of its entity."""

    @property
    def full_id(self) -> str:
        """The id that a reader gets: in the stream of all entities with that in the stream of its entity."""
        return f"{self.id}:{self.own_id}" if self.own_id else str(self.id)


def read_durable(log: EventLog, records: Iterable[Record]) -> Iterator[DurableEvent]:
    """Yield the durable events of the next records of a log."""
    for record in records:
        for event in log.add(record):
            kind = find_kind(event)
            if kind is not None:
                yield DurableEvent(_find_id(event), kind, event, log.turn, record)


def find_kind(event: EntityEvent) -> str | None:
    """Return the kind under which a stream shows an event with its id; None if it does not."""
    is_further = isinstance(event, EntityStartedEvent) and event.is_further
    return "intent" if is_further else DURABLE.get(type(event))


class EventPage(NamedTuple):
    """Events of a log, oldest first, and how many are before and after them."""

    events: list[DurableEvent]
    earlier: int
    later: int


def read_page(
    records: Iterable[Record], limit: int, before: EventId | None, after: EventId | None, turn: int | None
) -> EventPage:
    """Return `limit` durable events of a log: around a turn, or after or before an event, or the newest."""
    events = list(read_durable(EventLog(), records))
    if turn is not None:
        middle = next((at for at, one in enumerate(events) if one.turn and one.turn.sequence >= turn), len(events))
        end = min(len(events), middle + limit // 2 + 1)
        start = max(0, end - limit)
    elif after is not None:
        start = sum(durable.id <= after for durable in events)
        end = min(len(events), start + limit)
    else:
        end = len(events) if before is None else sum(durable.id < before for durable in events)
        start = max(0, end - limit)
    return EventPage(events[start:end], start, len(events) - end)


def _find_id(event: EntityEvent) -> EventId:
    id = EventId.parse(event.id)
    assert id is not None, "a log gives its events their ids"
    return id


def build_item(durable: DurableEvent) -> dict[str, Any]:
    """Return an event of an entity's story: its id, its kind and its content."""
    return {"id": str(durable.id), "event": durable.kind, "data": build_data(durable)}


_PLAIN: Final[dict[type[EntityEvent], tuple[str, ...]]] = {
    SteeredEvent: ("text",),
    AdoptedEvent: ("cantrip_id", "cantrip"),
    FoldedEvent: ("first", "last", "marker"),
    UndoneEvent: ("first", "last"),
    RewardedEvent: ("turn_id", "reward"),
    ResumedEvent: (),
    ForgottenEvent: ("why",),
}
"""The events that are shown as they are, and their fields."""


def build_data(durable: DurableEvent) -> dict[str, Any]:
    """Return the content of a durable event."""
    event, entity_id, at = durable.event, durable.event.entity_id, format_instant(durable.event.at)
    sender = getattr(event, "by", "")
    by = {"by": sender} if sender else {}
    match event:
        case StepCompleteEvent():
            assert durable.turn is not None, "a turn is complete when it is committed"
            return _build_turn(durable.turn)
        case EntityStartedEvent():
            return {"id": entity_id, **_build_beginning(event, at), **_build_given(durable.record), **by}
        case RequestedEvent():
            return _build_request(event, at)
        case DecidedEvent():
            decided = {name: getattr(event, name) for name in ("decision", "by", "note")}
            decider = name_decider(event.by, event.door)
            return {"id": event.request_id, "entity": entity_id, **decided, "decider": decider, "at": at}
        case EpisodeEndedEvent() | EntityEndedEvent():
            assert event.outcome is not None, "a log knows how its episodes ended"
            state = event.outcome.reason
            return {"id": entity_id, "state": state, **outcome_shape(entity_id, event.outcome), "at": at, **by}
        case _:
            fields = {name: getattr(event, name) for name in _PLAIN[type(event)]}
            return {"id": entity_id, **fields, **_build_images(get_images(durable.record)), "at": at, **by}


def _build_images(images: Iterable[File]) -> dict[str, Any]:
    shown = list(map(build_image_fields, images))
    return {"images": shown} if shown else {}


def _build_given(record: Record) -> dict[str, Any]:
    """Return what came with an intent: its images, and the messages of an earlier conversation."""
    given = as_intent(record)
    if given is None:
        return {}
    history = list(map(message_shape, build_history_messages(given.history, given.past_images)))
    return _build_images(given.own_images) | ({"history": history} if history else {})


def _build_beginning(event: EntityStartedEvent, at: str) -> dict[str, Any]:
    if event.is_further:
        return {"intent": event.intent, "at": at, "key": event.key}
    return {
        "parent": event.parent_entity,
        "parent_turn": event.parent_turn,
        "cantrip": event.cantrip,
        "name": event.name,
        "crystal": event.crystal,
        "lasting": event.lasting,
        "forked": event.forked,
        "intent": event.intent,
        "began": at,
    }


def _build_request(event: RequestedEvent, at: str) -> dict[str, Any]:
    return {
        "id": event.request_id,
        "kind": event.kind,
        "entity": event.entity_id,
        "turn": event.turn_id,
        "call": event.tool_call_id,
        "gate": event.gate,
        "args": event.args or {},
        "text": event.text,
        "schema": event.schema,
        "asked_at": at,
        "expires_at": event.expires_at,
        "is_utterance": event.is_utterance,
        "to": event.to,
    }


def _build_turn(turn: Turn) -> dict[str, Any]:
    """Return a turn; calls of its utterance that it has no result of are `open_calls`."""
    fields = build_turn_fields(turn)
    finished = {seen.tool_call_id for seen in turn.gate_calls}
    open_calls = [
        {"gate": call.gate, "args": call.args or {}, "tool_call_id": call.id}
        for call in (() if turn.continues else turn.tool_calls)
        if call.id not in finished
    ]
    timed = zip(fields["gate_calls"], turn.gate_calls, turn.gate_durations, strict=True)
    calls = [{**call, "duration_ms": ms, **({"ephemeral": True} if seen.ephemeral else {})} for call, seen, ms in timed]
    more = {"thinking": turn.thinking, "code": turn.code, "open_calls": open_calls, "continues": turn.continues}
    return {
        **fields,
        "metadata": {**fields["metadata"], "cost": turn.metadata.cost},
        "gate_calls": calls,
        "content": turn.content,
        **{name: value for name, value in more.items() if value},
    }
