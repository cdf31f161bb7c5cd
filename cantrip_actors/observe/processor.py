"""Converts events to the forms for subscribers: upserts and turn events. Pure: time is an argument, nothing waits.

`Processor.process(event, now)` returns the outputs that an event causes. Time alone causes others: the driver calls
`tick(now)` at `deadline` (`delivery.py` does, or a test).

An entity has one turn at a time. Its items begin with a delta or with a recorded event, whichever comes first:

    StepStart                   the turn begins (once, however often its crystal is asked), with what the loom has of it
    Delta, ItemEnd              a streamed item grows and ends: a text, a call, an image
    AttemptFailed               the open items end with its error
    Thinking, Text, Image       the parts of the answer that were not streamed
    ToolCall, ToolResult        a call has its arguments, and its output
    Usage                       the answer is whole: streamed items that it left open end with INCOMPLETE
    StepComplete                the turn ends, unless a call is open: then it waits for children, and continues (LOOM-8)
    EpisodeEnded, EntityEnded   a turn without a commit has failed, or was cancelled
    StepFailed                  the turn failed: its actor crashed

A text is shown by its gradient, then complete with the content of the finished item. A call is shown at its start, with
its arguments as soon as they are complete, and with its output. If a turn fails, every open item gets its `error`
first; if it is cancelled, the turn event closes the open items. The error of a failed turn has the code of the
crystal's own error, if it reported one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import asdict, replace

from cantrip_actors.machine.context import SKIPPED
from cantrip_actors.observe.batching import Batching, GrowingText
from cantrip_actors.observe.upserts import (
    FinalResponse,
    ImageUpsert,
    MessageUpsert,
    Output,
    Parent,
    Status,
    ThinkingUpsert,
    ToolCallUpsert,
    TurnComplete,
    TurnError,
    TurnStarted,
    Upsert,
)
from cantrip_actors.records.instant import format_instant
from cantrip_actors.stream.events import (
    AttemptFailedEvent,
    DeltaEvent,
    EntityEndedEvent,
    EntityEvent,
    EpisodeEndedEvent,
    FinalResponseEvent,
    ImageEvent,
    ItemEndEvent,
    StepCompleteEvent,
    StepEvent,
    StepFailedEvent,
    StepStartEvent,
    TextEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from cantrip_actors.stream.reading import is_cut
from cantrip_actors.stream.wire import (
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalImage,
    FinalItem,
    FinalMessage,
    FinalReasoning,
    ItemId,
    StreamError,
    StreamUsage,
)
from cantrip_actors.terms.messages import Response, as_text

INCOMPLETE: Final = StreamError("INCOMPLETE", "the crystal answered without finishing this item")

_NOTHING: Final[Sequence[Output]] = ()

_KINDS: Final[Mapping[str, type[Upsert]]] = {
    "message": MessageUpsert,
    "reasoning": ThinkingUpsert,
    "image": ImageUpsert,
}
"""The upsert of each kind of item, but for calls."""


@dataclass(slots=True, eq=False)
class _OpenItem:
    """An open item, and its upsert as it stands."""

    turn: _Turn
    upsert: Upsert

    @property
    def call_id(self) -> str | None:
        """The id of a call; None for another item."""
        return self.upsert.call_id if isinstance(self.upsert, ToolCallUpsert) else None

    def emit(self, status: Status, at: float, **changes: Any) -> Upsert:
        """Return the upsert with some changes."""
        times = {"source_timestamp": format_instant(at), "emitted_at": self.turn.read_time()}
        self.upsert = replace(self.upsert, status=status, **times, **changes)
        return self.upsert

    def fail(self, error: StreamError, at: float) -> Upsert:
        """Return the terminal error."""
        return self.emit("error", at, error_code=error.code, error_message=error.message)


@dataclass(slots=True, eq=False)
class _OpenText(_OpenItem):
    """An open message or reasoning; `at` is the time of its newest piece."""

    at: float
    growing: GrowingText

    @property
    def is_open(self) -> bool:
        return self.turn.items.get(self.upsert.item_id) is self

    def show(self) -> Upsert:
        """Return the upsert of the text so far."""
        return self.emit("update" if self.growing.shown else "create", self.at, content=self.growing.show())

    def fail(self, error: StreamError, at: float) -> Upsert:
        """Return the terminal error, with the text so far."""
        self.upsert = replace(self.upsert, content=self.growing.get_text())
        return _OpenItem.fail(self, error, at)


@dataclass(slots=True, eq=False)
class _Turn:
    """The running turn of an entity."""

    session_id: str
    turn_id: str
    batching: Batching
    read_time: Callable[[], str]
    parent: Parent | None = None
    provider_id: str = ""
    attempt: int = 1
    items: dict[str, _OpenItem] = field(default_factory=dict)
    """The open items, in the order of their starts; a call is open until it has its output."""
    recorded: set[str] = field(default_factory=set)
    """The ids of calls that the loom has."""
    finished: dict[str, str] = field(default_factory=dict)
    """The kinds of the items that this attempt has streamed and finished, by item."""
    failure: StreamError | None = None
    """The error that the crystal reported last, if no attempt followed."""
    usage: StreamUsage | None = None

    def _make_upsert(self, kind: type[Upsert], item_id: str, **fields: Any) -> Upsert:
        whose: dict[str, Any] = {"turn_id": self.turn_id, "session_id": self.session_id, "item_id": item_id}
        return kind(status="create", source_timestamp="", emitted_at="", **whose, **fields)

    @property
    def texts(self) -> list[_OpenText]:
        """The open texts."""
        return [item for item in self.items.values() if isinstance(item, _OpenText)]

    # Streamed items

    def add_delta(self, event: DeltaEvent) -> Sequence[Output]:
        """Add a delta that is not of a known text: an item begins, or a gate reports progress."""
        call = self._find_call(event.tool_call_id)
        match event.kind:
            case "message" | "reasoning" if event.is_start:
                more = {} if event.kind == "message" else {"provider_id": self.provider_id}
                upsert = self._make_upsert(_KINDS[event.kind], event.item_id, content="", **more)
                self.items[event.item_id] = _OpenText(self, upsert, event.at, GrowingText(self.batching))
            case "function_call" if event.is_start and call is None:
                return self._name_call(event.item_id, event.tool_call_id, event.gate, {}, event.at)
            case "function_call_output" if event.text and call is not None:
                return [call.emit("update", event.at, tool_output=event.text)]
            case _:
                pass
        return _NOTHING

    def end_item(self, event: ItemEndEvent) -> Sequence[Output]:
        """Finish a streamed item, or give it up."""
        if event.final is not None:
            self.finished[event.item_id] = event.final.type
            return self._finish_item(event.item_id, event.final, event.at)
        self.finished.pop(event.item_id, None)
        item = self.items.pop(event.item_id, None)
        return _NOTHING if item is None or event.error is None else [item.fail(event.error, event.at)]

    def _finish_item(self, item_id: str, final: FinalItem, at: float) -> Sequence[Output]:
        match final:
            case FinalFunctionCall():
                return self._name_call(item_id, final.call_id, final.name, final.arguments, at)
            case FinalFunctionCallOutput():  # of a tool that the provider ran itself
                return self._finish_call(final.call_id, final.output, at, is_error=final.is_error)
        item = self.items.pop(item_id, None)
        shown = [item.show()] if isinstance(item, _OpenText) and item.growing.has_new_tokens else []
        whole = _OpenItem(self, self._make_upsert(_KINDS[final.type], item_id, **asdict(final)))
        return [*shown, whole.emit("complete", at)]

    def fail_attempt(self, event: AttemptFailedEvent) -> Sequence[Output]:
        """End the open items with the error of the attempt."""
        self.finished.clear()
        self.attempt += event.is_retried
        self.failure = None if event.is_retried else event.error
        return self._fail_items(self.items.values(), event.error, event.at)

    def _fail_items(self, items: Iterable[_OpenItem], error: StreamError, at: float) -> list[Output]:
        failed = list(items)
        for item in failed:
            del self.items[item.upsert.item_id]
        return [item.fail(error, at) for item in failed]

    # The recorded answer

    def add_part(self, block: str, final: FinalItem, at: float) -> Sequence[Output]:
        """Show a part of the answer, unless the crystal has streamed parts of that kind."""
        left_open = self._fail_items(self.texts, INCOMPLETE, at)
        is_shown = final.type in self.finished.values()
        return (
            left_open if is_shown else [*left_open, *self._finish_item(self._name_item(f"answer:{block}"), final, at)]
        )

    def restore(self, utterance: Response, at: float) -> Iterator[Output]:
        """Yield what the loom has of a turn that continues."""
        if utterance.thinking:
            yield from self.add_part("thinking", FinalReasoning(utterance.thinking, self.provider_id), at)
        if utterance.content:
            yield from self.add_part("text", FinalMessage(utterance.content, "agent"), at)
        for image in utterance.images:
            yield from self.add_part(f"image:{image.digest}", FinalImage.of(image), at)
        for call in utterance.tool_calls:
            yield from self.note_call(call.id, call.gate, call.args or {}, at)

    def note_call(self, call_id: str, gate: str, args: Mapping[str, Any], at: float) -> Sequence[Output]:
        """Note that the loom has a call."""
        self.recorded.add(call_id)
        return self._name_call(self._name_item(f"call:{call_id}"), call_id, gate, args, at)

    def finish_answer(self, event: UsageEvent) -> Sequence[Output]:
        """End the streamed items that the recorded answer left open."""
        usage, written = event.usage, event.metadata.get("cache_written_tokens")
        cached = usage.cached_tokens or None
        self.usage = StreamUsage(usage.prompt_tokens, usage.completion_tokens, cached, written or None)
        left_open = [item for item in self.items.values() if item.call_id not in self.recorded]
        return self._fail_items(left_open, INCOMPLETE, event.at)

    def finish_recorded_call(self, event: ToolResultEvent) -> Sequence[Output]:
        """Add the output of a call; of a program that has ended, with the call that its medium is."""
        call_id = event.tool_call_id or f"{event.turn_id}:program"
        is_known = self._find_call(call_id) is not None
        begun = _NOTHING if is_known else self.note_call(call_id, event.gate, event.args or {}, event.at)
        return [*begun, *self._finish_call(call_id, as_text(event.result), event.at, is_error=event.is_error)]

    # Calls

    def _find_call(self, call_id: str) -> _OpenItem | None:
        return next((item for item in self.items.values() if item.call_id == call_id), None)

    def _name_call(self, item_id: str, call_id: str, name: str, args: Mapping[str, Any], at: float) -> Sequence[Output]:
        """Begin a call, or show the arguments of one that has begun."""
        call, facts = self._find_call(call_id), {"tool_name": name, "tool_arguments": args}
        if call is not None:
            is_same = call.upsert == replace(call.upsert, **facts)
            return _NOTHING if is_same else [call.emit("update", at, **facts)]
        upsert = self._make_upsert(ToolCallUpsert, item_id, call_id=call_id, **facts)
        call = self.items[item_id] = _OpenItem(self, upsert)
        return [call.emit("create", at)]

    def _finish_call(self, call_id: str, output: str, at: float, *, is_error: bool) -> Sequence[Output]:
        call = self._find_call(call_id)
        if call is None:
            return _NOTHING
        del self.items[call.upsert.item_id]
        return [call.emit("complete", at, tool_output=output, tool_output_is_error=is_error)]

    def _name_item(self, block: str) -> str:
        return str(ItemId(self.turn_id, self.attempt, block))

    # The end

    def complete(self, event: StepCompleteEvent) -> Sequence[Output]:
        """End a turn that is in the loom, unless a call waits for children: then its utterance continues."""
        open_calls = [item.call_id for item in self.items.values() if item.call_id is not None]
        if is_cut(event):
            return self.cancel()
        if open_calls and not (event.terminated or event.truncated):
            return _NOTHING
        outputs: list[Output] = []
        for call_id in open_calls:  # those after `done` were skipped, and have the output that crystals read
            outputs += self._finish_call(call_id, SKIPPED, event.at, is_error=False)
        return [*outputs, TurnComplete(self.turn_id, self.session_id, "completed", self.usage, self.parent)]

    def cancel(self) -> Sequence[Output]:
        """End a turn that was cut off. The turn event closes the open items."""
        outputs = [text.show() for text in self.texts if text.growing.has_news]
        self.items.clear()  # armed timers find no open text
        return [*outputs, TurnComplete(self.turn_id, self.session_id, "cancelled", self.usage, self.parent)]

    def fail(self, error: StreamError, at: float) -> Sequence[Output]:
        """End the turn with an error."""
        failed = TurnError(self.turn_id, self.session_id, error.code, error.message, self.parent)
        return [*self._fail_items(self.items.values(), error, at), failed]


class Processor:
    """Turns events into outputs, for any number of entities.

    `wall` is the clock of `emitted_at`, in seconds since the epoch. It is read once for each upsert, and `emitted_at`
    never goes backwards. `now`, in `process` and `tick`, is a monotonic clock in seconds.
    """

    def __init__(self, wall: Callable[[], float], batching: Batching | None = None) -> None:
        self._wall = wall
        self._latest = -math.inf
        self._batching = Batching() if batching is None else batching
        self._turns: dict[str, _Turn] = {}
        """The running turns, by entity."""
        self._last: _Turn | None = None
        """The turn that ended last: its answer comes next."""
        self._timers: list[tuple[float, int, _OpenText]] = []
        self._armed = 0

    @property
    def deadline(self) -> float | None:
        """When to call `tick`, at the latest; None if no time is due.

        It may be early: a growing text moves its own deadline and is looked at when the old one passes.
        """
        return self._timers[0][0] if self._timers else None

    def process(self, event: EntityEvent, now: float) -> Sequence[Output]:
        """Return the outputs that the event causes."""
        turn = self._turns.get(event.entity_id)
        match event:
            case DeltaEvent():
                return self._add_delta(turn, event, now)
            case StepStartEvent():
                return self._start(turn, event)
            case FinalResponseEvent():
                last = self._last
                if last is None or last.session_id != event.entity_id:
                    return [FinalResponse(event.turn_id, event.entity_id, event.result)]
                return [FinalResponse(last.turn_id, last.session_id, event.result, last.parent)]
            case EpisodeEndedEvent() | EntityEndedEvent() | StepFailedEvent():
                return _NOTHING if turn is None else self._break(turn, event)
            case StepEvent() if type(event) in _HANDLERS:
                turn = turn or self._begin(event)
                outputs = _HANDLERS[type(event)](turn, event)
                if isinstance(event, StepCompleteEvent) and outputs:
                    self._end(turn)
                return outputs
            case _:
                return _NOTHING

    def tick(self, now: float) -> Sequence[Output]:
        """Return the outputs that are due at `now`."""
        timers = self._timers
        outputs: list[Output] = []
        while timers and timers[0][0] <= now:
            _, _, text = heapq.heappop(timers)
            growing = text.growing
            growing.armed = math.inf
            if not text.is_open:
                continue
            if growing.due > now:
                self._arm(text)
            elif growing.has_news:
                outputs.append(text.show())
            else:
                growing.due = math.inf
        return outputs

    # How a turn runs

    def _begin(self, event: StepEvent) -> _Turn:
        """Return the state of a turn whose beginning was not seen, or is this event."""
        turn = self._turns[event.entity_id] = _Turn(event.entity_id, event.turn_id, self._batching, self._read_time)
        return turn

    def _start(self, turn: _Turn | None, event: StepStartEvent) -> Sequence[Output]:
        outputs: list[Output] = []
        if turn is not None:
            if turn.turn_id == event.turn_id:  # a turn starts once, however often its crystal is asked
                return _NOTHING
            outputs += turn.cancel()
        turn = self._begin(event)
        provider, _, model = event.crystal.partition(":")
        turn.provider_id = provider
        if event.parent_entity is not None:
            above = self._turns.get(event.parent_entity)
            spawned_in = event.parent_turn if above is None else above.turn_id
            turn.parent = Parent(event.parent_entity, spawned_in)
        outputs.append(TurnStarted(turn.turn_id, turn.session_id, model or provider, provider, turn.parent))
        if event.utterance is not None:
            outputs += turn.restore(event.utterance, event.at)
        return outputs

    def _break(self, turn: _Turn, event: EpisodeEndedEvent | EntityEndedEvent | StepFailedEvent) -> Sequence[Output]:
        """End a turn without a commit."""
        self._end(turn)
        if isinstance(event, StepFailedEvent):
            return turn.fail(event.error, event.at)
        if event.reason != "failed":
            return turn.cancel()
        code = "CRYSTAL_ERROR" if turn.failure is None else turn.failure.code
        return turn.fail(StreamError(code, event.detail or "the crystal failed"), event.at)

    def _end(self, turn: _Turn) -> None:
        del self._turns[turn.session_id]
        self._last = turn

    def _add_delta(self, turn: _Turn | None, event: DeltaEvent, now: float) -> Sequence[Output]:
        text = None if turn is None else turn.items.get(event.item_id)
        if not isinstance(text, _OpenText):
            if turn is None and not event.is_start:
                return _NOTHING
            turn = turn or self._begin(event)
            outputs = turn.add_delta(event)
            text = turn.items.get(event.item_id)
            if not (isinstance(text, _OpenText) and event.text):
                return outputs
        text.at = event.at
        if text.growing.add(event.text, now):
            return [text.show()]
        if text.growing.due < text.growing.armed:
            self._arm(text)
        return _NOTHING

    def _arm(self, text: _OpenText) -> None:
        due = text.growing.due
        if due < math.inf:
            text.growing.armed = due
            self._armed += 1  # the heap never compares texts
            heapq.heappush(self._timers, (due, self._armed, text))

    def _read_time(self) -> str:
        self._latest = max(self._latest, self._wall())
        return format_instant(self._latest)


_HANDLERS: Final[Mapping[type[EntityEvent], Callable[[_Turn, Any], Sequence[Output]]]] = {
    ItemEndEvent: _Turn.end_item,
    AttemptFailedEvent: _Turn.fail_attempt,
    ThinkingEvent: lambda turn, event: turn.add_part(
        "thinking", FinalReasoning(event.text, turn.provider_id), event.at
    ),
    TextEvent: lambda turn, event: turn.add_part(
        "code" if event.is_code else "text", FinalMessage(event.text, "agent"), event.at
    ),
    ImageEvent: lambda turn, event: turn.add_part(f"image:{event.image.digest}", event.image, event.at),
    ToolCallEvent: lambda turn, event: turn.note_call(event.tool_call_id, event.gate, event.args or {}, event.at),
    UsageEvent: _Turn.finish_answer,
    ToolResultEvent: _Turn.finish_recorded_call,
    StepCompleteEvent: _Turn.complete,
}
"""The effect of each event on its turn."""
