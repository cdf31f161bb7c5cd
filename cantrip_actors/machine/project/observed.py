"""The facts in a step's records from which events and the canonical stream are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cantrip_actors.records.records import (
    Committed,
    Decided,
    Ended,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Observation,
    Record,
    Requested,
    Utterance,
)
from cantrip_actors.terms.messages import Response, ToolCall
from cantrip_actors.terms.outcome import EndReason


class Begun(NamedTuple):
    """An episode begins with an intent; the header is there if the entity begins with it."""

    intent: IntentGiven
    header: Header | None


class Done(NamedTuple):
    """A turn is in the loom."""

    sequence: int
    terminated: bool
    truncated: bool


class Finished(NamedTuple):
    """An entity, or one episode of it, is over."""

    reason: EndReason
    detail: str | None


class Asks(NamedTuple):
    """The entity waits for a person; `text` says why, or is the question."""

    request_id: str
    gate: str
    args: Mapping[str, Any] | None
    text: str
    expires_at: str | None


class Answered(NamedTuple):
    """A request was decided."""

    request_id: str
    decision: str
    by: str
    note: str


Observed = Begun | Response | ToolCall | Observation | Asks | Answered | Done | Finished


def read_observed(records: Iterable[Record]) -> Iterator[tuple[str, str, Observed]]:
    """Yield the observable facts in records, in order, each with its entity and its turn (or "").

    A `ToolCall` comes from a program: the calls of a tools circle are in the `Response`.
    """
    header: Header | None = None
    for record in records:
        match record:
            case Utterance():
                said = Response(
                    record.content,
                    record.tool_calls,
                    record.usage,
                    record.thinking,
                    record.code,
                    record.blocks,
                    record.metadata,
                    images=record.images,
                )
                yield record.entity_id, record.turn_id, said
            case GateFinished():
                yield record.entity_id, record.turn_id, record.observation
            case Committed():
                done = Done(record.sequence, record.terminated, record.truncated)
                yield record.entity_id, record.turn_id, done
            case GateStarted() if record.args is not None:
                yield record.entity_id, record.turn_id, ToolCall(record.tool_call_id, record.gate, record.args)
            case Requested():
                text = record.why if record.question is None else record.question
                asks = Asks(record.id, record.gate, record.args, text, record.expires_at)
                yield record.entity_id, record.turn_id, asks
            case Decided():
                answered = Answered(record.request_id, record.decision, record.by, record.note)
                yield record.entity_id, record.turn_id, answered
            case Header():
                header = record
            case IntentGiven():
                yield record.entity_id, "", Begun(record, header)
            case Ended():
                yield record.entity_id, "", Finished(record.reason, record.detail)
            case _:
                pass
