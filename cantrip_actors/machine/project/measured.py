"""The facts of records for spans and metrics: durations, tokens, outcomes. `observed.py` has the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from cantrip_actors.records.records import (
    ChildStarted,
    Committed,
    Decided,
    Ended,
    Folded,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Record,
    Requested,
    Sampled,
    Utterance,
)
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.outcome import EndReason


class Began(msgspec.Struct, frozen=True, gc=False):
    """An episode begins; the header is there if the entity begins with it. `sender` gave its intent, if known."""

    at: str
    trace: str | None
    header: Header | None
    sender: str | None = None


class Said(msgspec.Struct, frozen=True, gc=False):
    """The crystal answered, `seconds` after the query."""

    usage: Usage
    seconds: float
    metadata: Mapping[str, Any]


class Running(msgspec.Struct, frozen=True, gc=False):
    """A gate is about to run."""

    gate: str
    call_id: str


class Ran(msgspec.Struct, frozen=True, gc=False):
    """A gate answered after `seconds`. If `call_id` is None, a program has ended, and `gate` is its medium."""

    gate: str
    call_id: str | None
    seconds: float
    is_error: bool
    result: Any
    args: Mapping[str, Any] | None


class Turned(msgspec.Struct, frozen=True, gc=False):
    """A turn is complete; `seconds` run from its query. A continuation has no utterance of its own."""

    sequence: int
    at: str
    seconds: float
    is_continuation: bool
    terminated: bool
    truncated: bool
    ward: str | None


class Delegated(msgspec.Struct, frozen=True, gc=False):
    """A child begins; `trace` is that of the span of the call."""

    call_id: str
    child: str
    trace: str | None


class Compacted(msgspec.Struct, frozen=True, gc=False):
    """Older turns were folded; `usage` is the cost of the summary."""

    usage: Usage
    at: str


class Lent(msgspec.Struct, frozen=True, gc=False):
    """A crystal of this name has answered a server of tools; `usage` is the cost of the answer."""

    usage: Usage
    at: str
    crystal: str


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """The entity waits for a person."""

    request: str
    gate: str
    at: str


class Settled(msgspec.Struct, frozen=True, gc=False):
    """A request was decided."""

    request: str
    decision: str
    at: str


class Closed(msgspec.Struct, frozen=True, gc=False):
    """An entity, or one episode of it, ended otherwise than by a turn. `usage` is booked nowhere else."""

    reason: EndReason
    ward: str | None
    at: str
    usage: Usage


Fact = Began | Said | Running | Ran | Turned | Delegated | Compacted | Lent | Waiting | Settled | Closed


def read_facts(records: Iterable[Record]) -> Iterator[tuple[str, str, Fact]]:
    """Yield the facts of records in order, each with its entity and its turn (or "")."""
    header: Header | None = None
    for record in records:
        kind = type(record)
        read = _OF_A_TURN.get(kind)
        if read is not None:
            yield record.entity_id, record.turn_id, read(record)  # type: ignore[union-attr]  # as _OF_A_TURN says
        elif isinstance(record, Header):
            header = record
        elif isinstance(record, IntentGiven):
            yield record.entity_id, "", Began(record.at, record.trace, header, record.sender)
            header = None
        elif isinstance(record, Folded):
            yield record.entity_id, "", Compacted(record.usage, record.at)
        elif isinstance(record, Sampled):
            yield record.entity_id, "", Lent(record.usage, record.at, record.crystal)
        elif isinstance(record, Ended):
            yield record.entity_id, "", Closed(record.reason, record.ward, record.at, record.usage or NO_USAGE)


def _read_said(record: Utterance) -> Said:
    return Said(record.usage, record.duration_ms / 1e3, record.metadata)


def _read_ran(record: GateFinished) -> Ran:
    seconds = record.duration_ms / 1e3
    return Ran(record.gate, record.tool_call_id, seconds, record.is_error, record.result, record.args)


def _read_turned(record: Committed) -> Turned:
    continues = record.continues is not None
    terminated, truncated = record.terminated, record.truncated
    return Turned(record.sequence, record.at, record.duration_ms / 1e3, continues, terminated, truncated, record.ward)


_OF_A_TURN: Final[Mapping[type, Callable[[Any], Fact]]] = {
    Utterance: _read_said,
    GateStarted: lambda record: Running(record.gate, record.tool_call_id),
    GateFinished: _read_ran,
    Committed: _read_turned,
    ChildStarted: lambda record: Delegated(record.tool_call_id, record.child_id, record.trace),
    Requested: lambda record: Waiting(record.id, record.gate, record.at),
    Decided: lambda record: Settled(record.request_id, record.decision, record.at),
}
"""The function that reads each kind of a turn's records. It runs several times per turn, so it has to be quick."""
