"""The SPEC's events (7.2) as a view of the canonical stream.

Each finished item is one event; pieces, and items that were given up, are not shown. Items of an attempt that failed
are shown if they were finished: the loom, and not this view, has the turn. An output is text, as the crystal reads it.

The view's only state is the names of calls without output, because an output has only the call's id.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from cantrip_actors.runtime.events.events import (
    EntityEvent,
    FinalResponseEvent,
    StepCompleteEvent,
    StepStartEvent,
    TextEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from cantrip_actors.stream.wire import (
    Envelope,
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalImage,
    FinalItem,
    FinalMessage,
    FinalReasoning,
    ItemDone,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamUsage,
)
from cantrip_actors.terms.messages import Usage


class SpecView:
    """Turns envelopes into the SPEC's events, for any number of sessions."""

    def __init__(self) -> None:
        self._gates: dict[tuple[str, str], dict[str, str]] = {}

    def events(self, envelope: Envelope) -> Iterator[EntityEvent]:
        """Yield the events of an envelope, in the SPEC's order."""
        entity, turn, payload = envelope.session_id, envelope.turn_id, envelope.payload
        at = datetime.fromisoformat(envelope.timestamp).timestamp()
        match payload:
            case ResponseStart():
                yield StepStartEvent(entity, at, turn)
            case ItemDone():
                yield from self._view_item(entity, at, turn, payload.final_item)
            case ResponseError():
                self._gates.pop((entity, turn), None)
            case ResponseDone():
                self._gates.pop((entity, turn), None)
                yield from _end(entity, at, turn, payload)
            case _:
                pass

    def _view_item(self, entity: str, at: float, turn: str, final: FinalItem) -> Iterator[EntityEvent]:
        match final:
            case FinalMessage():
                yield TextEvent(entity, at, turn, final.content)
            case FinalImage():
                yield TextEvent(entity, at, turn, final.label)
            case FinalReasoning():
                yield ThinkingEvent(entity, at, turn, final.content)
            case FinalFunctionCall():
                self._gates.setdefault((entity, turn), {})[final.call_id] = final.name
                yield ToolCallEvent(entity, at, turn, final.call_id, final.name, final.arguments)
            case FinalFunctionCallOutput():
                gate = self._gates.get((entity, turn), {}).pop(final.call_id, "")
                yield ToolResultEvent(entity, at, turn, final.call_id, gate, final.output, final.is_error)


def _end(entity: str, at: float, turn: str, done: ResponseDone) -> Iterator[EntityEvent]:
    if done.usage is not None:
        yield UsageEvent(entity, at, turn, _convert_usage(done.usage))
    step = done.step
    if step is not None:
        yield StepCompleteEvent(entity, at, turn, step.sequence, step.terminated, step.truncated)
        if step.terminated:
            yield FinalResponseEvent(entity, at, step.result)


def _convert_usage(usage: StreamUsage) -> Usage:
    return Usage(int(usage.input_tokens), int(usage.output_tokens), int(usage.cache_read_input_tokens or 0))
