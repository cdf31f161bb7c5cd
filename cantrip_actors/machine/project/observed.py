"""The facts in a step's records from which events and the canonical stream are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

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

__all__ = ["Begun", "Done", "Finished", "Observed", "observed_in"]


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


Observed = Begun | Response | ToolCall | Observation | Requested | Decided | Done | Finished


def observed_in(records: Iterable[Record]) -> Iterator[tuple[str, str, Observed]]:
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
                )
                yield record.entity_id, record.turn_id, said
            case GateFinished():
                yield record.entity_id, record.turn_id, record.observation
            case Committed():
                done = Done(record.sequence, record.terminated, record.truncated)
                yield record.entity_id, record.turn_id, done
            case GateStarted() if record.args is not None:
                yield record.entity_id, record.turn_id, ToolCall(record.tool_call_id, record.gate, record.args)
            case Requested() | Decided():
                yield record.entity_id, record.turn_id, record
            case Header():
                header = record
            case IntentGiven():
                yield record.entity_id, "", Begun(record, header)
            case Ended():
                yield record.entity_id, "", Finished(record.reason, record.detail)
            case _:
                pass
