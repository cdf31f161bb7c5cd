"""Spans made from records: those lost in a crash, and those of a whole loom as OTLP.

SDKs export a span when it ends, so a killed process loses its open spans. The loom has their beginnings, costs and
ends. A span that is made from records has the recorded times and `cantrip.backfilled`. Its id is derived from its turn,
and its trace from the `traceparent` in the record of the intent, so making it twice gives the same span. An entity that
was not traced has a trace id derived from its own id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from cantrip_actors.observe import names
from cantrip_actors.observe.usage import build_usage_attributes
from cantrip_actors.stream.events import (
    DelegatedEvent,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    FoldedEvent,
    SampledEvent,
    StepCompleteEvent,
    ToolResultEvent,
    ToolStartEvent,
    UsageEvent,
)
from cantrip_actors.stream.reading import parse_time, read_events
from cantrip_actors.terms.messages import Usage

if TYPE_CHECKING:
    from cantrip_actors.loom import Loom
    from cantrip_actors.observe.settings import TracingSettings
    from cantrip_actors.records.records import Header, Record

CRASHED = "crashed"


@dataclass(frozen=True)
class RecordedSpan:
    """A recorded span. Times are nanoseconds since the epoch; ids are those of OpenTelemetry."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start: int
    end: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    is_unfinished: bool = False
    """Whether the records lack its end, so that no process exported it."""
    is_client: bool = False


def build_spans(records: Iterable[Record], header: Header, parent: str | None = None) -> list[RecordedSpan]:
    """Return the spans of an entity from its log, in the order of their ends.

    `parent` is the `traceparent` of the call that made it, for a child.
    """
    reader = _SpanReader(header, parent)
    for event in read_events(records):
        reader.read(event)
    return reader.finish()


class _SpanReader:
    """Reads the events of one entity in order. `now` is the time of the last one."""

    def __init__(self, header: Header, parent: str | None) -> None:
        self._header = header
        self._parent = _parse_ids(parent)
        self._episode: RecordedSpan | None = None
        self._made: list[RecordedSpan] = []
        self._gates: dict[str, RecordedSpan] = {}
        self._in_turn: list[RecordedSpan] = []
        """The gates of the current turn: a program that ends was around them."""
        self._usage = Usage()
        self._turns = 0
        self._number = 0
        self._now = _to_nanoseconds(parse_time(header.at) or 0.0)

    def read(self, event: EntityEvent) -> None:
        match event:
            case EntityStartedEvent():
                self._begin(event)
            case UsageEvent():
                self._add_query(event)
            case ToolStartEvent():
                call_id = event.tool_call_id
                self._gates.setdefault(call_id, self._get_gate_span(event.turn_id, event.gate, call_id))
            case DelegatedEvent():
                self._note_child(event)
            case ToolResultEvent():
                self._end_gate(event)
            case StepCompleteEvent():
                self._turns += event.continues is None
                self._now, self._in_turn = _to_nanoseconds(event.at), []
                if event.terminated or event.truncated:
                    self._end("terminated" if event.terminated else "truncated", event.ward, None)
            case FoldedEvent():
                self._now = _to_nanoseconds(event.at)
                if event.usage.total_tokens:
                    self._add_chat(f"{event.entity_id}:{event.at}", 0.0, event.usage, {names.SUMMARY: True})
            case SampledEvent():
                answer = f"{event.entity_id}:{event.at}:{len(self._made)}"
                self._add_chat(answer, 0.0, event.usage, {names.SAMPLING: True}, event.crystal)
            case EntityEndedEvent():
                self._now = _to_nanoseconds(event.at)
                self._usage += event.usage
                self._end(event.reason, event.ward, "_OTHER" if event.reason == "failed" else None)
            case _:
                pass

    def _note_child(self, event: DelegatedEvent) -> None:
        call_id, ids = event.tool_call_id, _parse_ids(event.trace)
        gate = self._gates.get(call_id) or self._get_gate_span(event.turn_id, "call_agent", call_id)
        self._gates[call_id] = gate if ids is None else replace(gate, span_id=ids[1])

    def finish(self) -> list[RecordedSpan]:
        for gate in self._gates.values():
            self._made.append(replace(gate, end=self._now, error="outcome_unknown", is_unfinished=True))
        self._gates.clear()
        if self._episode is not None:
            self._end(CRASHED, None, "_OTHER", is_unfinished=True)
        return self._made

    def _begin(self, began: EntityStartedEvent) -> None:
        self._now, self._turns, self._usage = _to_nanoseconds(began.at), 0, Usage()
        header, own = self._header, _parse_ids(began.trace)
        self._number += 1
        if own is None:
            own = (_hash_to_int(f"trace:{header.entity_id}", 16), _hash_to_int(f"{header.entity_id}:{self._number}", 8))
        parent = 0 if self._parent is None or self._parent[0] != own[0] else self._parent[1]
        name = header.cantrip_name
        attributes = {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT: name,
            names.CONVERSATION: header.entity_id,
            names.REQUEST_MODEL: names.split_crystal_name(header.crystal)[1],
            names.ENTITY: header.entity_id,
            names.PARENT: header.parent_entity,
            names.DEPTH: header.depth,
            names.NAME: header.name,
        }
        self._episode = RecordedSpan(
            f"{names.INVOKE_AGENT} {name}" if name else names.INVOKE_AGENT,
            *own,
            parent,
            self._now,
            attributes={key: value for key, value in attributes.items() if value is not None},
        )

    def _end(self, reason: str, ward: str | None, error: str | None, *, is_unfinished: bool = False) -> None:
        span, self._episode = self._episode, None
        if span is None:
            return
        attributes: dict[str, Any] = {
            **span.attributes,
            names.TURNS: self._turns,
            names.END_REASON: reason,
            names.USAGE_INPUT: self._usage.prompt_tokens,
            names.USAGE_OUTPUT: self._usage.completion_tokens,
            names.COST: self._usage.cost,
        }
        if ward is not None:
            attributes[names.WARD] = ward
        self._made.append(replace(span, end=self._now, attributes=attributes, error=error, is_unfinished=is_unfinished))

    def _add_query(self, event: UsageEvent) -> None:
        more = {names.TURN: event.turn_id, names.SEQUENCE: self._turns + 1}
        more |= build_usage_attributes(event.usage, event.metadata)
        self._add_chat(event.turn_id, event.seconds, event.usage, more)

    def _add_chat(
        self, what: str, seconds: float, usage: Usage, more: dict[str, Any], crystal: str | None = None
    ) -> None:
        self._usage += usage
        provider, model = names.split_crystal_name(crystal or self._header.crystal)
        start, self._now = self._now, self._now + round(seconds * 1e9)
        attributes: dict[str, Any] = {
            names.OPERATION: names.CHAT,
            names.PROVIDER: provider,
            names.REQUEST_MODEL: model,
            names.CONVERSATION: self._header.entity_id,
            **build_usage_attributes(usage, {}),
            **more,
        }
        self._made.append(self._open_below(f"{names.CHAT} {model}", what, attributes, start, is_client=True))

    def _get_gate_span(self, turn: str, gate: str, call: str) -> RecordedSpan:
        attributes = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL: gate,
            names.TOOL_CALL: call,
            names.TOOL_TYPE: "function",
            names.TURN: turn,
        }
        return self._open_below(f"{names.EXECUTE_TOOL} {gate}", f"{turn}:{call}", attributes, self._now)

    def _end_gate(self, ran: ToolResultEvent) -> None:
        start, turn = self._now, ran.turn_id
        self._now = start + round(ran.seconds * 1e9)
        error = "tool_error" if ran.is_error else None
        if ran.tool_call_id is None:
            attributes = {
                names.OPERATION: names.EXECUTE_TOOL,
                names.TOOL: ran.gate,
                names.MEDIUM: ran.gate,
                names.TURN: turn,
            }
            start = min((span.start for span in self._in_turn), default=start)
            program = self._open_below(f"{names.EXECUTE_TOOL} {ran.gate}", f"{turn}:program", attributes, start)
            inside, self._in_turn = self._in_turn, []
            self._made = [
                replace(ended, parent_id=program.span_id) if ended in inside else ended for ended in self._made
            ]
            self._made.append(replace(program, end=self._now, error=error))
            return
        call_id = ran.tool_call_id
        span = self._gates.pop(call_id, None) or self._get_gate_span(turn, ran.gate, call_id)
        ended = replace(span, start=min(span.start, start), end=self._now, error=error)
        self._in_turn.append(ended)
        self._made.append(ended)

    def _open_below(
        self, name: str, what: str, attributes: dict[str, Any], start: int, *, is_client: bool = False
    ) -> RecordedSpan:
        episode = self._episode
        trace_id, parent = (0, 0) if episode is None else (episode.trace_id, episode.span_id)
        return RecordedSpan(
            name, trace_id, _hash_to_int(what, 8), parent, start, self._now, attributes, is_client=is_client
        )


def _parse_ids(traceparent: str | None) -> tuple[int, int] | None:
    parts = (traceparent or "").split("-")
    return None if len(parts) != 4 else (int(parts[1], 16), int(parts[2], 16))


def _hash_to_int(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1


def _to_nanoseconds(at: float) -> int:
    return round(at * 1e3) * 1_000_000


def find_parent_trace(loom: Loom, header: Header) -> str | None:
    """Return the `traceparent` of the call that made a child."""
    if header.parent_entity is None or not loom.has(header.parent_entity):
        return None
    events = read_events(loom.records(header.parent_entity))
    delegations = (event for event in events if isinstance(event, DelegatedEvent))
    traces = (event.trace for event in delegations if event.child == header.entity_id)
    return next(traces, None)


# At recovery


class _Ids:
    """Gives a span the ids in its record instead of random ones."""

    def __init__(self, span: RecordedSpan) -> None:
        self._span = span

    def generate_trace_id(self) -> int:
        return self._span.trace_id

    def generate_span_id(self) -> int:
        return self._span.span_id

    def is_trace_id_random(self) -> bool:
        return True


def emit(settings: TracingSettings, spans: Sequence[RecordedSpan]) -> None:
    """Export the unfinished spans of these through the SDK. Does nothing for a tracer with its own ids."""
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    tracer = settings.get_tracer()
    if not hasattr(tracer, "id_generator"):
        return
    for recorded in spans:
        if not recorded.is_unfinished:
            continue
        own: Any = copy(tracer)
        own.id_generator = _Ids(recorded)
        above = SpanContext(
            recorded.trace_id, recorded.parent_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )
        span = own.start_span(
            recorded.name,
            context=trace.set_span_in_context(NonRecordingSpan(above)) if recorded.parent_id else Context(),
            kind=SpanKind.CLIENT if recorded.is_client else SpanKind.INTERNAL,
            attributes={**recorded.attributes, names.BACKFILLED: True},
            start_time=recorded.start,
        )
        if recorded.error is not None:
            span.set_attribute(names.ERROR, recorded.error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(recorded.end)


# As OTLP


def otlp_json(loom: Loom, entity_ids: Iterable[str]) -> Iterator[bytes]:
    """Yield the spans of each entity as one line of OTLP's JSON, as the file exporter of collectors reads them."""
    for entity_id in entity_ids:
        header = loom.header(entity_id)
        if loom.is_forgotten(entity_id):
            continue
        spans = build_spans(loom.records(entity_id), header, find_parent_trace(loom, header))
        scope = {
            "scope": {"name": names.SCOPE},
            "schemaUrl": names.SCHEMA_URL,
            "spans": [_build_otlp(span) for span in spans],
        }
        resource = {"attributes": [_build_attribute("service.name", "cantrip")]}
        yield orjson.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}) + b"\n"


def _build_otlp(span: RecordedSpan) -> dict[str, Any]:
    attributes = {**span.attributes, names.BACKFILLED: True}
    if span.error is not None:
        attributes[names.ERROR] = span.error
    return {
        "traceId": f"{span.trace_id:032x}",
        "spanId": f"{span.span_id:016x}",
        "parentSpanId": f"{span.parent_id:016x}" if span.parent_id else "",
        "name": span.name,
        "kind": 3 if span.is_client else 1,
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": [_build_attribute(key, value) for key, value in attributes.items()],
        "status": {} if span.error is None else {"code": 2},
    }


def _build_attribute(key: str, value: Any) -> dict[str, Any]:
    match value:
        case bool():
            typed: dict[str, Any] = {"boolValue": value}
        case int():
            typed = {"intValue": str(value)}
        case float():
            typed = {"doubleValue": value}
        case _:
            typed = {"stringValue": str(value)}
    return {"key": key, "value": typed}
