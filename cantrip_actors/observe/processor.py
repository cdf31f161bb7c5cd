"""From envelopes to what subscribers are shown: upserts and turn events. Pure: time is given, nothing waits.

Theory of operation
-------------------

`Processor.process(envelope, now)` answers with the outputs that the envelope causes. Some are caused by time alone:
`deadline` says when to call `tick(now)`, and whoever drives the processor does (`delivery.py`, or a test in a `for`).

Each turn has a state of its own, by (session, turn), so turns that interleave cannot touch each other (X6, X7):

    unknown   item_start, item_done     running   a turn whose beginning was not seen
    unknown   response_start            running   TurnStarted
    running   response_start            running   nothing: a turn starts once, however often its crystal is asked
    running   response_done, _error     ended     what is open is shown, then one turn event (U-37)
    unknown   response_done, _error     ended     one turn event
    ended     response_start            running   TurnStarted, with nothing left over from before (U-43)
    ended     anything else             ended     nothing (U-42)

Texts (message, reasoning) are shown by their gradient, then complete with what the finished item says. A call is shown
at its start and again with its output; its arguments arrive in between and are kept for the output (seed decision 001).
An item that was finished, failed or cancelled says nothing more until an `item_start` brings its id back. Where a turn
fails, every open item gets its `error` first (X3, X5); where it completes or is cancelled, the turn event itself closes
what is open (X4).

Which error a failed turn shows (seed decision 002, 3.1): the first terminal event decides; a `response_done` shows its
`error`, else its `finish_reason` as the code. A response_error that comes later cannot be un-told, so streams send it
first.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from cantrip_actors.model.entity_stream import CRASHED
from cantrip_actors.model.stream import (
    Envelope,
    FinalFunctionCall,
    FinalFunctionCallOutput,
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
from cantrip_actors.model.turn_stream import instant
from cantrip_actors.observe.batching import Batching, Growing
from cantrip_actors.observe.upserts import (
    FinalResponse,
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

__all__ = ["UNKNOWN_TOOL", "Processor"]

UNKNOWN_TOOL: Final = "unknown_tool"
"""The name of a call that only its output was seen of."""

REMEMBERED: Final = 4096
"""Ended turns whose late events are told from those of turns that were never seen."""

_NOTHING: Final[Sequence[Output]] = ()


class _Text:
    """A message or a reasoning in the making."""

    __slots__ = ("at", "growing", "item_id", "kind", "turn")

    def __init__(self, turn: _Turn, item_id: str, kind: Literal["message", "reasoning"], at: str) -> None:
        self.turn = turn
        self.item_id = item_id
        self.kind = kind
        self.at = at
        self.growing = Growing(turn.batching)

    @property
    def open(self) -> bool:
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
        common = self.turn.common(self.item_id, at, error)
        if self.kind == "message":
            return MessageUpsert(status=status, content=content, origin=origin, **common)
        whose = self.turn.provider_id if provider is None else provider
        return ThinkingUpsert(status=status, content=content, provider_id=whose, **common)

    def show(self) -> Upsert:
        """What is there so far."""
        status: Status = "update" if self.growing.shown else "create"
        return self.upsert(status, self.growing.show(), self.at)


class _Call:
    """A call whose output has not come yet."""

    __slots__ = ("arguments", "at", "call_id", "item_id", "name", "turn")

    def __init__(self, turn: _Turn, item_id: str, call_id: str, name: str, at: str) -> None:
        self.turn = turn
        self.item_id = item_id
        self.call_id = call_id
        self.name = name
        self.arguments: Mapping[str, Any] = {}
        self.at = at

    def upsert(
        self,
        status: Status,
        at: str,
        *,
        output: FinalFunctionCallOutput | None = None,
        error: StreamError | None = None,
    ) -> Upsert:
        return ToolCallUpsert(
            status=status,
            tool_name=self.name,
            tool_arguments=self.arguments,
            call_id=self.call_id,
            tool_output=None if output is None else output.output,
            tool_output_is_error=None if output is None else output.is_error,
            **self.turn.common(self.item_id, at, error),
        )


class _Turn:
    """The state of one running turn."""

    __slots__ = (
        "batching",
        "calls",
        "closed",
        "closed_calls",
        "emitted_at",
        "outputs",
        "parent",
        "provider_id",
        "session_id",
        "started",
        "texts",
        "turn_id",
    )

    def __init__(self, envelope: Envelope, batching: Batching, emitted_at: Callable[[], str]) -> None:
        self.turn_id = envelope.turn_id
        self.session_id = envelope.session_id
        self.parent: Parent | None = envelope.parent
        self.batching = batching
        self.emitted_at = emitted_at
        self.started = False
        self.provider_id = ""
        self.texts: dict[str, _Text] = {}
        self.calls: dict[str, _Call] = {}  # by call id; in the order of their starts
        self.outputs: dict[str, str] = {}  # the call id of an output that has begun, by its item
        self.closed: set[str] = set()
        self.closed_calls: set[str] = set()

    def common(self, item_id: str, at: str, error: StreamError | None) -> dict[str, Any]:
        """The fields that every upsert has."""
        return {
            "turn_id": self.turn_id,
            "session_id": self.session_id,
            "item_id": item_id,
            "source_timestamp": at,
            "emitted_at": self.emitted_at(),
            "error_code": None if error is None else error.code,
            "error_message": None if error is None else error.message,
        }

    def call_of(self, item_id: str) -> _Call | None:
        """The open call that an item is, or is the output of."""
        call_id = self.outputs.get(item_id)
        if call_id is not None:
            return self.calls.get(call_id)
        return next((call for call in self.calls.values() if call.item_id == item_id), None)

    # Items

    def item_start(self, payload: ItemStart, at: str) -> Sequence[Output]:
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
            call = self.calls[call_id] = _Call(self, item_id, call_id, payload.name or UNKNOWN_TOOL, at)
            return [call.upsert("create", at)]
        if item_id not in self.texts:
            self.texts[item_id] = _Text(self, item_id, kind, at)
        return _NOTHING

    def item_done(self, payload: ItemDone, at: str) -> Sequence[Output]:
        item_id, final = payload.item_id, payload.final_item
        if item_id in self.closed:
            return _NOTHING
        if isinstance(final, FinalFunctionCall):
            return self._call_done(item_id, final, at)
        self.closed.add(item_id)
        if isinstance(final, FinalFunctionCallOutput):
            return self._output_done(item_id, final, at)
        return self._text_done(item_id, final, at)

    def _text_done(self, item_id: str, final: FinalMessage | FinalReasoning, at: str) -> Sequence[Output]:
        text = self.texts.pop(item_id, None)
        made: list[Output] = []
        if text is None:
            text = _Text(self, item_id, final.type, at)
        elif text.growing.new_tokens:
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
        known = call is not None
        if call is None:
            call = self.calls[final.call_id] = _Call(self, item_id, final.call_id, final.name, at)
        call.name, call.arguments, call.at = final.name, final.arguments, at
        return _NOTHING if known else [call.upsert("create", at)]

    def _output_done(self, item_id: str, final: FinalFunctionCallOutput, at: str) -> Sequence[Output]:
        self.outputs.pop(item_id, None)
        if final.call_id in self.closed_calls:
            return _NOTHING
        call = self.calls.get(final.call_id)
        if call is None:
            call = _Call(self, item_id, final.call_id, UNKNOWN_TOOL, at)
        self._close_call(call)
        return [call.upsert("complete", at, output=final)]

    def item_error(self, payload: ItemError, at: str) -> Sequence[Output]:
        item_id, error = payload.item_id, payload.error
        text, call = self.texts.pop(item_id, None), self.call_of(item_id)
        self.outputs.pop(item_id, None)
        self.closed.add(item_id)
        if text is not None:
            return [text.upsert("error", text.growing.text(), at, error=error)]
        if call is not None:
            self._close_call(call)
            return [call.upsert("error", at, error=error)]
        return _NOTHING

    def item_cancelled(self, item_id: str) -> None:
        """Forget the item, silently (X4). A call whose output alone is cancelled stays open."""
        self.closed.add(item_id)
        self.texts.pop(item_id, None)
        if self.outputs.pop(item_id, None) is None:
            call = self.call_of(item_id)
            if call is not None:
                self._close_call(call)

    def _close_call(self, call: _Call) -> None:
        self.calls.pop(call.call_id, None)
        self.closed.add(call.item_id)
        self.closed_calls.add(call.call_id)

    # Its beginning and its end

    def response_start(self, payload: ResponseStart) -> Sequence[Output]:
        self.provider_id = payload.provider_id
        if self.started:
            return _NOTHING
        self.started = True
        return [TurnStarted(self.turn_id, self.session_id, payload.model_id, payload.provider_id, self.parent)]

    def ended(self, payload: ResponseDone | ResponseError, at: str) -> Sequence[Output]:
        """What texts have to show yet, then how the turn ended."""
        made: list[Output] = [text.show() for text in self.texts.values() if text.growing.news]
        if isinstance(payload, ResponseError):
            made += self.broken_off(payload.error, at)
        elif payload.status == "error":
            made += self.broken_off(_error_of(payload), at)
        else:
            made.append(TurnComplete(self.turn_id, self.session_id, payload.status, payload.usage, self.parent))
            if payload.step is not None and payload.step.terminated:
                made.append(FinalResponse(self.turn_id, self.session_id, payload.step.result, self.parent))
        self.texts.clear()  # so that timers that are still armed find nothing open
        return made

    def broken_off(self, error: StreamError, at: str | None) -> Iterator[Output]:
        """Every open item's terminal error, then the turn's; `at` is when, or None for when each was last heard of."""
        for text in self.texts.values():
            yield text.upsert("error", text.growing.text(), at or text.at, error=error)
        for call in self.calls.values():
            yield call.upsert("error", at or call.at, error=error)
        if at is not None or self.started:
            yield TurnError(self.turn_id, self.session_id, error.code, error.message, self.parent)


class Processor:
    """Turns envelopes into outputs, for any number of sessions and turns.

    `wall` is the clock of `emitted_at`, in seconds since the epoch; it is asked once for each upsert and never goes
    backwards in what is shown (U-52). `now`, in `process` and `tick`, is a monotonic clock in seconds.
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
        """When to call `tick`, at the latest; None where time alone changes nothing.

        It may be early: a text that goes on coming moves its own time, and is looked at when the old one comes.
        """
        return self._timers[0][0] if self._timers else None

    def process(self, envelope: Envelope, now: float) -> Sequence[Output]:
        """What the envelope causes."""
        key = (envelope.session_id, envelope.turn_id)
        turn = self._turns.get(key)
        payload = envelope.payload
        if type(payload) is ItemDelta:
            text = None if turn is None else turn.texts.get(payload.item_id)
            return _NOTHING if text is None else self._grow(text, payload.delta_content, envelope.timestamp, now)
        if turn is None:
            turn = self._begin(key, envelope)
            if turn is None:
                return _NOTHING
        return self._apply(key, turn, envelope, now)

    def tick(self, now: float) -> Sequence[Output]:
        """What has waited long enough by `now`."""
        timers = self._timers
        made: list[Output] = []
        while timers and timers[0][0] <= now:
            _, _, text = heapq.heappop(timers)
            growing = text.growing
            growing.armed = math.inf
            if not text.open:
                continue
            if growing.due > now:
                self._arm(text)
            elif growing.news:
                made.append(text.show())
            else:
                growing.due = math.inf
        return made

    def destroy(self, error: StreamError = CRASHED) -> Sequence[Output]:
        """The source of the events is gone: what is open ends with `error`, and so does every turn that had started.

        Afterwards nothing is accepted until a `response_start` (U-49).
        """
        made: list[Output] = []
        for key, turn in list(self._turns.items()):
            made += turn.broken_off(error, None)
            turn.texts.clear()
            self._end(key)
        self._destroyed = True
        return made

    # How a turn runs

    def _begin(self, key: tuple[str, str], envelope: Envelope) -> _Turn | None:
        """The state of a turn that is not running, where this envelope may begin one."""
        payload = envelope.payload
        if not isinstance(payload, ResponseStart):
            if key in self._ended or self._destroyed:
                return None
            if isinstance(payload, ItemError | ItemCancelled):
                return None  # of an item that was never shown: to keep a state for it would be to keep it for ever
        self._ended.pop(key, None)
        turn = self._turns[key] = _Turn(envelope, self._batching, self._emitted_at)
        return turn

    def _apply(self, key: tuple[str, str], turn: _Turn, envelope: Envelope, now: float) -> Sequence[Output]:
        payload, at = envelope.payload, envelope.timestamp
        match payload:
            case ItemStart():
                made = turn.item_start(payload, at)
                text = turn.texts.get(payload.item_id)
                return self._grow(text, payload.initial_content, at, now) if text and payload.initial_content else made
            case ItemDone():
                return turn.item_done(payload, at)
            case ItemError():
                return turn.item_error(payload, at)
            case ItemCancelled():
                turn.item_cancelled(payload.item_id)
            case ResponseStart():
                return turn.response_start(payload)
            case ResponseDone() | ResponseError():
                self._end(key)
                return turn.ended(payload, at)
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
            self._armed += 1  # so that the heap never compares texts
            heapq.heappush(self._timers, (due, self._armed, text))

    def _end(self, key: tuple[str, str]) -> None:
        del self._turns[key]
        self._ended[key] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _emitted_at(self) -> str:
        self._latest = max(self._latest, self._wall())
        return instant(self._latest)


def _error_of(done: ResponseDone) -> StreamError:
    """The error of a response that is done with one (seed decision 002)."""
    return done.error or StreamError(done.finish_reason or "RESPONSE_ERROR", "Response finished with error status")
