"""From envelopes to what subscribers see: upserts and turn events. Pure: time is an argument, nothing waits.

Theory of operation
-------------------

`Processor.process(envelope, now)` returns the outputs that the envelope causes. Time alone causes others: the driver
calls `tick(now)` at `deadline` (`delivery.py` does, or a test).

Each turn has its own state, by (session, turn), so turns that interleave cannot touch each other (X6, X7):

    unknown   item_start, item_done     running   a turn whose beginning was not seen
    unknown   response_start            running   TurnStarted
    running   response_start            running   nothing: a turn starts once, however often its crystal is asked
    running   response_done, _error     ended     upserts of open texts, then one turn event
    unknown   response_done, _error     ended     one turn event
    ended     response_start            running   TurnStarted, with a clean state
    ended     anything else             ended     nothing

A text (message, reasoning) is shown by its gradient, then complete with the content of the finished item. A call is
shown at its start and again with its output; its arguments arrive in between (seed decision 001). After an item was
finished, failed or cancelled, its events are ignored until an `item_start` with its id. If a turn fails, every open
item gets its `error` first (X3, X5); if it completes or is cancelled, the turn event closes the open items (X4).

The error of a failed turn (seed decision 002, 3.1) is that of the first terminal event: a `response_done` shows its
`error`, else its `finish_reason` as the code. A later `response_error` is dropped, so streams send it first.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec.structs import asdict, replace

from cantrip_actors.observe.batching import Batching, GrowingText
from cantrip_actors.observe.upserts import (
    FinalResponse,
    ImageUpsert,
    MessageUpsert,
    Output,
    Status,
    ThinkingUpsert,
    ToolCallUpsert,
    TurnComplete,
    TurnError,
    TurnStarted,
    Upsert,
)
from cantrip_actors.stream.entity import CRASHED
from cantrip_actors.stream.turn import format_instant
from cantrip_actors.stream.wire import (
    Envelope,
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalImage,
    FinalMessage,
    FinalReasoning,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemStart,
    Origin,
    Parent,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamError,
)

UNKNOWN_TOOL: Final = "unknown_tool"
"""The name of a call of which only the output was seen."""

REMEMBERED: Final = 4096
"""The number of ended turns that are remembered, to ignore their late events."""

_NOTHING: Final[Sequence[Output]] = ()


@dataclass(slots=True, eq=False)
class _Text:
    """An unfinished message or reasoning; `at` is the time of its newest event."""

    turn: _Turn
    item_id: str
    kind: Literal["message", "reasoning"]
    at: str
    growing: GrowingText

    @property
    def is_open(self) -> bool:
        return self.turn.texts.get(self.item_id) is self

    def upsert(
        self,
        status: Status,
        content: str,
        at: str,
        *,
        origin: Origin = "agent",
        provider: str | None = None,
        error: StreamError | None = None,
    ) -> Upsert:
        common = self.turn.build_common(self.item_id, at, error)
        if self.kind == "message":
            return MessageUpsert(status=status, content=content, origin=origin, **common)
        whose = self.turn.provider_id if provider is None else provider
        return ThinkingUpsert(status=status, content=content, provider_id=whose, **common)

    def show(self) -> Upsert:
        """Return an upsert of the text so far."""
        status: Status = "update" if self.growing.shown else "create"
        return self.upsert(status, self.growing.show(), self.at)


@dataclass(slots=True, eq=False)
class _Turn:
    """The state of one running turn."""

    session_id: str
    turn_id: str
    parent: Parent | None
    batching: Batching
    emitted_at: Callable[[], str]
    is_started: bool = False
    provider_id: str = ""
    texts: dict[str, _Text] = field(default_factory=dict)
    calls: dict[str, ToolCallUpsert] = field(default_factory=dict)
    """The state of each call without output, by call id, in the order of their starts."""
    outputs: dict[str, str] = field(default_factory=dict)
    """The call id of an output that has begun, by its item."""
    closed: set[str] = field(default_factory=set)
    closed_calls: set[str] = field(default_factory=set)

    def build_common(self, item_id: str, at: str, error: StreamError | None) -> dict[str, Any]:
        """Return the fields that every upsert has."""
        return {
            "turn_id": self.turn_id,
            "session_id": self.session_id,
            "item_id": item_id,
            "source_timestamp": at,
            "emitted_at": self.emitted_at(),
            "error_code": None if error is None else error.code,
            "error_message": None if error is None else error.message,
        }

    def call_of(self, item_id: str) -> ToolCallUpsert | None:
        """Return the open call of an item, which is the call or its output."""
        call_id = self.outputs.get(item_id)
        if call_id is not None:
            return self.calls.get(call_id)
        return next((call for call in self.calls.values() if call.item_id == item_id), None)

    # Items

    def handle_item_start(self, payload: ItemStart, at: str) -> Sequence[Output]:
        item_id, kind = payload.item_id, payload.item_type
        self.closed.discard(item_id)
        if kind == "function_call_output":
            if payload.call_id:
                self.outputs[item_id] = payload.call_id
            return _NOTHING
        if kind == "function_call":
            call_id = payload.call_id or item_id
            if call_id in self.calls:
                return _NOTHING
            self.closed_calls.discard(call_id)
            return [self._begin_call(item_id, call_id, payload.name or UNKNOWN_TOOL, {}, at)]
        if kind != "image" and item_id not in self.texts:
            self.texts[item_id] = _Text(self, item_id, kind, at, GrowingText(self.batching))
        return _NOTHING

    def handle_item_delta(self, payload: ItemDelta, at: str) -> Sequence[Output]:
        """Return the call with a growing output, with the last line of it: the progress text of its gate."""
        call, lines = self.calls.get(self.outputs.get(payload.item_id, "")), payload.delta_content.split("\n")
        line = next((line for line in reversed(lines) if line), None)
        if call is None or line is None:
            return _NOTHING
        call = replace(call, status="update", source_timestamp=at, emitted_at=self.emitted_at())
        self.calls[call.call_id] = call
        return [replace(call, tool_output=line)]

    def handle_item_done(self, payload: ItemDone, at: str) -> Sequence[Output]:
        item_id, final = payload.item_id, payload.final_item
        if item_id in self.closed:
            return _NOTHING
        if isinstance(final, FinalFunctionCall):
            return self._call_done(item_id, final, at)
        self.closed.add(item_id)
        if isinstance(final, FinalFunctionCallOutput):
            return self._finish_output(item_id, final, at)
        if isinstance(final, FinalImage):
            return [ImageUpsert(status="complete", **asdict(final), **self.build_common(item_id, at, None))]
        return self._finish_text(item_id, final, at)

    def _finish_text(self, item_id: str, final: FinalMessage | FinalReasoning, at: str) -> Sequence[Output]:
        text = self.texts.pop(item_id, None)
        made: list[Output] = []
        if text is None:
            text = _Text(self, item_id, final.type, at, GrowingText(self.batching))
        elif text.growing.has_new_tokens:
            made.append(text.show())
        text.kind = final.type
        if isinstance(final, FinalMessage):
            made.append(text.upsert("complete", final.content, at, origin=final.origin))
        else:
            made.append(text.upsert("complete", final.content, at, provider=final.provider_id))
        return made

    def _call_done(self, item_id: str, final: FinalFunctionCall, at: str) -> Sequence[Output]:
        if final.call_id in self.closed_calls:
            return _NOTHING
        call = self.calls.get(final.call_id)
        if call is None:
            return [self._begin_call(item_id, final.call_id, final.name, final.arguments, at)]
        self.calls[final.call_id] = replace(
            call, tool_name=final.name, tool_arguments=final.arguments, source_timestamp=at
        )
        return _NOTHING

    def _finish_output(self, item_id: str, final: FinalFunctionCallOutput, at: str) -> Sequence[Output]:
        self.outputs.pop(item_id, None)
        if final.call_id in self.closed_calls:
            return _NOTHING
        call = self.calls.get(final.call_id)
        if call is None:
            call = self._begin_call(item_id, final.call_id, UNKNOWN_TOOL, {}, at)
        else:
            call = replace(call, source_timestamp=at, emitted_at=self.emitted_at())
        self._close_call(call)
        return [replace(call, status="complete", tool_output=final.output, tool_output_is_error=final.is_error)]

    def handle_item_error(self, payload: ItemError, at: str) -> Sequence[Output]:
        item_id, error = payload.item_id, payload.error
        text, call = self.texts.pop(item_id, None), self.call_of(item_id)
        self.outputs.pop(item_id, None)
        self.closed.add(item_id)
        if text is not None:
            return [text.upsert("error", text.growing.get_text(), at, error=error)]
        if call is not None:
            self._close_call(call)
            return [self._make_failed(call, at, error)]
        return _NOTHING

    def handle_item_cancelled(self, item_id: str) -> None:
        """Forget the item, silently (X4). A call whose output alone is cancelled stays open."""
        self.closed.add(item_id)
        self.texts.pop(item_id, None)
        if self.outputs.pop(item_id, None) is None:
            call = self.call_of(item_id)
            if call is not None:
                self._close_call(call)

    def _begin_call(
        self, item_id: str, call_id: str, name: str, arguments: Mapping[str, Any], at: str
    ) -> ToolCallUpsert:
        common = self.build_common(item_id, at, None)
        call = ToolCallUpsert(status="create", tool_name=name, tool_arguments=arguments, call_id=call_id, **common)
        self.calls[call_id] = call
        return call

    def _make_failed(self, call: ToolCallUpsert, at: str, error: StreamError) -> ToolCallUpsert:
        return replace(call, status="error", **self.build_common(call.item_id, at, error))

    def _close_call(self, call: ToolCallUpsert) -> None:
        self.calls.pop(call.call_id, None)
        self.closed.add(call.item_id)
        self.closed_calls.add(call.call_id)

    # Its beginning and its end

    def handle_response_start(self, payload: ResponseStart) -> Sequence[Output]:
        self.provider_id = payload.provider_id
        if self.is_started:
            return _NOTHING
        self.is_started = True
        return [TurnStarted(self.turn_id, self.session_id, payload.model_id, payload.provider_id, self.parent)]

    def end(self, payload: ResponseDone | ResponseError, at: str) -> Sequence[Output]:
        """Return the upserts of open texts, then the turn event."""
        made: list[Output] = [text.show() for text in self.texts.values() if text.growing.has_news]
        if isinstance(payload, ResponseError):
            made += self.break_off(payload.error, at)
        elif payload.status == "error":
            made += self.break_off(_find_error(payload), at)
        else:
            made.append(TurnComplete(self.turn_id, self.session_id, payload.status, payload.usage, self.parent))
            if payload.step is not None and payload.step.terminated:
                made.append(FinalResponse(self.turn_id, self.session_id, payload.step.result, self.parent))
        self.texts.clear()  # armed timers find no open text
        return made

    def break_off(self, error: StreamError, at: str | None) -> Iterator[Output]:
        """Yield each open item's terminal error, then the turn's; `at` defaults to the time of an item's last event."""
        for text in self.texts.values():
            yield text.upsert("error", text.growing.get_text(), at or text.at, error=error)
        for call in self.calls.values():
            yield self._make_failed(call, at or call.source_timestamp, error)
        if at is not None or self.is_started:
            yield TurnError(self.turn_id, self.session_id, error.code, error.message, self.parent)


class Processor:
    """Turns envelopes into outputs, for any number of sessions and turns.

    `wall` is the clock of `emitted_at`, in seconds since the epoch. It is read once for each upsert, and `emitted_at`
    never goes backwards. `now`, in `process` and `tick`, is a monotonic clock in seconds.
    """

    def __init__(self, wall: Callable[[], float], batching: Batching | None = None) -> None:
        self._wall = wall
        self._latest = -math.inf
        self._batching = Batching() if batching is None else batching
        self._turns: dict[tuple[str, str], _Turn] = {}
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._destroyed = False
        self._timers: list[tuple[float, int, _Text]] = []
        self._armed = 0

    @property
    def deadline(self) -> float | None:
        """When to call `tick`, at the latest; None if no time is due.

        It may be early: a growing text moves its own deadline and is looked at when the old one passes.
        """
        return self._timers[0][0] if self._timers else None

    def process(self, envelope: Envelope, now: float) -> Sequence[Output]:
        """Return the outputs that the envelope causes."""
        key = (envelope.session_id, envelope.turn_id)
        turn = self._turns.get(key)
        payload = envelope.payload
        if type(payload) is ItemDelta:
            if turn is None:
                return _NOTHING
            text = turn.texts.get(payload.item_id)
            if text is None:
                return turn.handle_item_delta(payload, envelope.timestamp)
            return self._grow(text, payload.delta_content, envelope.timestamp, now)
        if turn is None:
            turn = self._begin(key, envelope)
            if turn is None:
                return _NOTHING
        return self._apply(key, turn, envelope, now)

    def tick(self, now: float) -> Sequence[Output]:
        """Return the outputs that are due at `now`."""
        timers = self._timers
        made: list[Output] = []
        while timers and timers[0][0] <= now:
            _, _, text = heapq.heappop(timers)
            growing = text.growing
            growing.armed = math.inf
            if not text.is_open:
                continue
            if growing.due > now:
                self._arm(text)
            elif growing.has_news:
                made.append(text.show())
            else:
                growing.due = math.inf
        return made

    def destroy(self, error: StreamError = CRASHED) -> Sequence[Output]:
        """End every open item and every started turn with `error`: the source of the events is gone.

        Afterwards everything is ignored until a `response_start`.
        """
        made: list[Output] = []
        for key, turn in list(self._turns.items()):
            made += turn.break_off(error, None)
            turn.texts.clear()
            self._end(key)
        self._destroyed = True
        return made

    # How a turn runs

    def _begin(self, key: tuple[str, str], envelope: Envelope) -> _Turn | None:
        """Return the state of a turn that this envelope begins, None if it begins none."""
        payload = envelope.payload
        if not isinstance(payload, ResponseStart):
            if key in self._ended or self._destroyed:
                return None
            if isinstance(payload, ItemError | ItemCancelled):
                return None  # its item was never shown, so its turn would never end
        self._ended.pop(key, None)
        turn = self._turns[key] = _Turn(*key, envelope.parent, self._batching, self._read_time)
        return turn

    def _apply(self, key: tuple[str, str], turn: _Turn, envelope: Envelope, now: float) -> Sequence[Output]:
        payload, at = envelope.payload, envelope.timestamp
        match payload:
            case ItemStart():
                made = turn.handle_item_start(payload, at)
                text = turn.texts.get(payload.item_id)
                return self._grow(text, payload.initial_content, at, now) if text and payload.initial_content else made
            case ItemDone():
                return turn.handle_item_done(payload, at)
            case ItemError():
                return turn.handle_item_error(payload, at)
            case ItemCancelled():
                turn.handle_item_cancelled(payload.item_id)
            case ResponseStart():
                return turn.handle_response_start(payload)
            case ResponseDone() | ResponseError():
                self._end(key)
                return turn.end(payload, at)
        return _NOTHING

    def _grow(self, text: _Text, more: str, at: str, now: float) -> Sequence[Output]:
        text.at = at
        if text.growing.add(more, now):
            return [text.show()]
        if text.growing.due < text.growing.armed:
            self._arm(text)
        return _NOTHING

    def _arm(self, text: _Text) -> None:
        due = text.growing.due
        if due < math.inf:
            text.growing.armed = due
            self._armed += 1  # the heap never compares texts
            heapq.heappush(self._timers, (due, self._armed, text))

    def _end(self, key: tuple[str, str]) -> None:
        del self._turns[key]
        self._ended[key] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _read_time(self) -> str:
        self._latest = max(self._latest, self._wall())
        return format_instant(self._latest)


def _find_error(done: ResponseDone) -> StreamError:
    """Return the error of a response that is done with status "error" (seed decision 002)."""
    return done.error or StreamError(done.finish_reason or "RESPONSE_ERROR", "Response finished with error status")
