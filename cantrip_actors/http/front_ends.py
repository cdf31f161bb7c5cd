"""The events of one episode as parts of a front end's stream. Pure: the dialects beside it say how parts are written.

Every dialect has the same parts: a turn begins and ends, a text or a reasoning grows, a gate is called and answers, a
person is asked, the episode ends; and within a call, a child begins, its texts and its reasoning grow, it ends.
`FrontEndEncoder` finds them in events; a `FrontEndDialect` writes each of them as messages in JSON. `done` is no call:
its argument is the answer.

A stream that waits for a person ends, because that is how these protocols ask, and the entity still waits. The
client comes back with the decision. Its stream is made from the beginning of the episode again, without the parts
before the decision, so the service stores no state between the two requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from cantrip_actors.observe.batching import Batching
from cantrip_actors.observe.processor import Processor
from cantrip_actors.observe.segments import Piece, Segments
from cantrip_actors.stream.events import (
    DecidedEvent,
    DelegatedEvent,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    EpisodeEndedEvent,
    RequestedEvent,
    RewardedEvent,
    StepCompleteEvent,
    StepEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from cantrip_actors.terms.messages import as_text
from cantrip_actors.terms.outcome import Outcome

StreamPart = dict[str, Any]

_DONE: Final = "done"
_AT_ONCE: Final = Batching(interval=0.0)


class ShownCall(NamedTuple):
    """A call of a gate."""

    id: str
    gate: str
    args: Mapping[str, Any]


class ShownChild(NamedTuple):
    """A child that works for a call of a gate; `parent_id` is the child that has made this call, if one has."""

    id: str
    intent: str
    call_id: str
    parent_id: str | None


class FrontEndDialect(Protocol):
    """How one protocol writes the parts of a stream."""

    headers: ClassVar[Mapping[str, str]]
    """The protocol's headers of the stream."""
    last: bytes
    """The end of the stream, after all parts."""
    child_batching: Batching
    """How often the growing texts of children are written."""
    repeats_children: bool
    """Whether the children under way, and their open texts, begin again in a stream that continues after a decision."""

    def begin(self) -> Iterator[StreamPart]:
        """Yield the beginning of the stream."""

    def queue(self) -> Iterator[StreamPart]:
        """Yield that the message waits until the entity has worked on another one."""

    def begin_turn(self, turn_id: str) -> Iterator[StreamPart]:
        """Yield the beginning of a turn."""

    def end_turn(self, turn_id: str) -> Iterator[StreamPart]:
        """Yield the end of a turn."""

    def add_piece(self, piece: Piece) -> Iterator[StreamPart]:
        """Yield a step of a text or a reasoning."""

    def call_gate(self, call: ShownCall) -> Iterator[StreamPart]:
        """Yield a call of a gate with its arguments."""

    def add_result(self, call: ShownCall, result: Any, *, is_error: bool) -> Iterator[StreamPart]:
        """Yield the answer of a gate."""

    def deny(self, call: ShownCall) -> Iterator[StreamPart]:
        """Yield that a person did not allow a call."""

    def begin_child(self, child: ShownChild) -> Iterator[StreamPart]:
        """Yield the beginning of a child."""

    def add_child_piece(self, child: ShownChild, piece: Piece) -> Iterator[StreamPart]:
        """Yield a step of a text or a reasoning of a child."""

    def end_child(self, child: ShownChild, error: str | None) -> Iterator[StreamPart]:
        """Yield the end of a child; `error` says why it has no answer."""

    def ask(self, request: RequestedEvent) -> Iterator[StreamPart]:
        """Yield the question to a person, and the end of the stream."""

    def end(self, outcome: Outcome) -> Iterator[StreamPart]:
        """Yield the end of an episode that did not fail."""

    def fail(self, code: str, message: str) -> Iterator[StreamPart]:
        """Yield the end of an episode that failed."""


class _ChildTexts:
    """The growing texts of one child."""

    def __init__(self, call_id: str, parent_id: str | None, batching: Batching) -> None:
        self.call_id, self.parent_id = call_id, parent_id
        self.shown: ShownChild | None = None
        """The child, once it has begun."""
        self.processor = Processor(lambda: 0.0, batching)
        self.segments = Segments()


class FrontEndEncoder:
    """Turns the events of one episode, from its beginning, into the parts of a dialect.

    The parts up to the decisions of the requests `decided` are left out: the client has them.
    """

    def __init__(self, dialect: FrontEndDialect, decided: Collection[str] = ()) -> None:
        self._dialect = dialect
        self._undecided = set(decided)
        self._processor = Processor(lambda: 0.0, _AT_ONCE)
        self._segments = Segments()
        self._turn_id = ""
        self._is_in_turn = False
        self._calls: dict[str, ShownCall] = {}
        """The calls without an answer."""
        self._asking: dict[str, str] = {}
        """The call of each open request."""
        self._children: dict[str, _ChildTexts] = {}
        """The children that calls wait for."""
        self._child_requests: dict[str, RequestedEvent] = {}
        """The requests of children that were not decided, by their ids."""
        self._asked: dict[str, ShownCall] = {}
        """The calls of children that the client has, which a person decides or answers, and that have no result."""

    def begin(self, *, is_queued: bool = False) -> Iterator[StreamPart]:
        """Yield the parts before all events."""
        yield from self._dialect.begin()
        if is_queued:
            yield from self._dialect.queue()

    def add(self, event: EntityEvent) -> list[StreamPart]:
        """Return the parts of an event."""
        parts = list(self._read(event))
        return self._select(event, parts)

    def add_child(self, event: EntityEvent) -> list[StreamPart]:
        """Return the parts of an event of a child."""
        return self._select(event, list(self._read_child(event)))

    def _select(self, event: EntityEvent, parts: list[StreamPart]) -> list[StreamPart]:
        """Return the parts of an event, unless the client has them."""
        if isinstance(event, DecidedEvent) and event.request_id in self._undecided:
            self._undecided.remove(event.request_id)
            return parts if self._undecided else [*self._begin_again(), *parts]
        return [] if self._undecided else parts

    def _begin_again(self) -> Iterator[StreamPart]:
        """Begin again what is under way when the last decision was made."""
        if self._is_in_turn:
            yield from self._dialect.begin_turn(self._turn_id)
        if self._dialect.repeats_children:
            for texts in self._children.values():
                if texts.shown is not None:
                    texts.segments.restart()
                    yield from self._dialect.begin_child(texts.shown)

    def find_child_request(self) -> RequestedEvent | None:
        """Return a request of a child that was not decided; None without one, or before the client's decisions."""
        return None if self._undecided else next(iter(self._child_requests.values()), None)

    def drop_child_request(self, request: RequestedEvent) -> None:
        """Forget a request of a child that is open no longer."""
        self._child_requests.pop(request.request_id, None)

    def ask(self, request: RequestedEvent) -> list[StreamPart]:
        """Return the question to a person for an open request, and the end of the stream."""
        pieces = self._segments.finish(request.text) if request.is_utterance else ()
        ends = [part for piece in pieces for part in self._dialect.add_piece(piece)]
        return [*ends, *self._end_children(), *self._end_turn(), *self._dialect.ask(request)]

    def ask_for_child(self, request: RequestedEvent) -> list[StreamPart]:
        """Return the call of a child that a person decides or answers, the question, and the end of the stream.

        The call has an id of its own among those of the message, and gets its result in the stream that continues.
        """
        call = _make_child_call(request)
        return [
            *self._rest_children(),
            *self._end_turn(),
            *self._dialect.call_gate(call),
            *self._dialect.ask(request.with_call_id(call.id)),
        ]

    def fail(self, code: str, message: str) -> list[StreamPart]:
        """Return the end of an episode that failed."""
        return [*self._end_children(), *self._end_turn(), *self._dialect.fail(code, message)]

    def _read(self, event: EntityEvent) -> Iterator[StreamPart]:
        if isinstance(event, StepEvent) and event.turn_id != self._turn_id and not isinstance(event, RewardedEvent):
            yield from self._end_turn()
            self._turn_id, self._is_in_turn = event.turn_id, True
            yield from self._dialect.begin_turn(event.turn_id)
        for output in self._processor.process(event, event.at):
            for piece in self._segments.add(output):
                yield from self._dialect.add_piece(piece)
        match event:
            case ToolCallEvent():
                yield from self._call(event.tool_call_id, event.gate, event.args)
            case RequestedEvent(is_utterance=False):
                yield from self._call(event.tool_call_id, event.gate, event.args)
                self._asking[event.request_id] = event.tool_call_id
            case DelegatedEvent() if event.tool_call_id in self._calls:
                self._children[event.child] = self._make_texts(event.tool_call_id, None)
            case DecidedEvent():
                yield from self._decide(event)
            case ToolResultEvent():
                yield from self._finish(event)
            case StepCompleteEvent():
                yield from self._end_turn()
            case EpisodeEndedEvent(outcome=Outcome() as outcome) | EntityEndedEvent(outcome=Outcome() as outcome):
                yield from self._end(outcome)

    def _call(self, call_id: str, gate: str, args: Mapping[str, Any] | None) -> Iterator[StreamPart]:
        if gate != _DONE and call_id not in self._calls:
            self._calls[call_id] = ShownCall(call_id, gate, args or {})
            yield from self._dialect.call_gate(self._calls[call_id])

    def _decide(self, event: DecidedEvent) -> Iterator[StreamPart]:
        call = self._calls.get(self._asking.pop(event.request_id, ""))
        if call is not None and event.decision in ("deny", "expired"):
            del self._calls[call.id]  # the observation that follows is for the crystal
            yield from self._dialect.deny(call)

    def _finish(self, event: ToolResultEvent) -> Iterator[StreamPart]:
        call_id = event.tool_call_id or f"{event.turn_id}:program"
        if event.args is not None or event.tool_call_id is None:
            yield from self._call(call_id, event.gate, event.args)
        call = self._calls.pop(call_id, None)
        yield from self._end_children(call_id)
        if call is not None:
            yield from self._dialect.add_result(call, event.result, is_error=event.is_error)

    def _end(self, outcome: Outcome) -> Iterator[StreamPart]:
        answer = None if outcome.result is None else as_text(outcome.result)
        for piece in self._segments.finish(answer):
            yield from self._dialect.add_piece(piece)
        if outcome.reason in ("failed", "crashed"):
            yield from self.fail(outcome.reason, outcome.error or "the entity failed")
        else:
            yield from self._end_children()
            yield from self._end_turn()
            yield from self._dialect.end(outcome)

    # Children

    def _make_texts(self, call_id: str, parent_id: str | None) -> _ChildTexts:
        return _ChildTexts(call_id, parent_id, self._dialect.child_batching)

    def _read_child(self, event: EntityEvent) -> Iterator[StreamPart]:
        texts = self._children.get(event.entity_id)
        if texts is None:  # its call has its result
            return
        if isinstance(event, EntityStartedEvent) and texts.shown is None:
            texts.shown = ShownChild(event.entity_id, event.intent, texts.call_id, texts.parent_id)
            yield from self._dialect.begin_child(texts.shown)
        if texts.shown is None:
            return
        for output in texts.processor.process(event, event.at):
            for piece in texts.segments.add(output):
                yield from self._dialect.add_child_piece(texts.shown, piece)
        match event:
            case DelegatedEvent():
                self._children[event.child] = self._make_texts(event.tool_call_id, event.entity_id)
            case RequestedEvent(is_utterance=False):
                self._note_child_request(event)
            case DecidedEvent():
                yield from self._decide_for_child(event)
            case ToolResultEvent():
                yield from self._end_children(event.tool_call_id, event.entity_id)
                yield from self._finish_child_call(event)
            case EntityEndedEvent():
                yield from self._end_child(event.entity_id, None if event.reason == "terminated" else event.reason)

    def _note_child_request(self, request: RequestedEvent) -> None:
        self._child_requests[request.request_id] = request
        if request.request_id in self._undecided:  # an earlier stream of this message has asked
            call = _make_child_call(request)
            self._asked[call.id] = call

    def _decide_for_child(self, event: DecidedEvent) -> Iterator[StreamPart]:
        request = self._child_requests.pop(event.request_id, None)
        if request is not None and event.decision in ("deny", "expired"):
            call = self._asked.pop(_make_child_call(request).id, None)
            if call is not None:
                yield from self._dialect.deny(call)

    def _finish_child_call(self, event: ToolResultEvent) -> Iterator[StreamPart]:
        call = self._asked.pop(name_child_call(event.entity_id, event.tool_call_id or ""), None)
        if call is not None:  # otherwise it was decided at another door
            yield from self._dialect.add_result(call, event.result, is_error=event.is_error)

    def _rest_children(self) -> Iterator[StreamPart]:
        """End the texts of children, and those children, in a stream after which they continue."""
        for texts in reversed(list(self._children.values())):
            if texts.shown is not None:
                for piece in texts.segments.finish(None):
                    yield from self._dialect.add_child_piece(texts.shown, piece)
                yield from self._dialect.end_child(texts.shown, None)

    def _end_children(self, call_id: str | None = None, parent_id: str | None = None) -> Iterator[StreamPart]:
        """End the children of a call, if their ends have not come; without one, all of them."""
        for id, texts in list(self._children.items()):
            if call_id is None or (texts.call_id, texts.parent_id) == (call_id, parent_id):
                yield from self._end_child(id, "cancelled")

    def _end_child(self, id: str, error: str | None) -> Iterator[StreamPart]:
        """End a child, after those below it."""
        for below, texts in list(self._children.items()):
            if texts.parent_id == id:
                yield from self._end_child(below, "cancelled")
        texts = self._children.pop(id)
        if texts.shown is not None:
            for piece in texts.segments.finish(None):
                yield from self._dialect.add_child_piece(texts.shown, piece)
            yield from self._dialect.end_child(texts.shown, error)

    def _end_turn(self) -> Iterator[StreamPart]:
        if self._is_in_turn:
            self._is_in_turn = False
            yield from self._dialect.end_turn(self._turn_id)


def _make_child_call(request: RequestedEvent) -> ShownCall:
    """Return the call of a child that a request is about; its id tells it apart from the calls of its parent."""
    return ShownCall(name_child_call(request.entity_id, request.tool_call_id), request.gate, request.args or {})


def name_child_call(entity_id: str, call_id: str) -> str:
    """Return the id of the call of a child in the chat of its parent."""
    return f"{entity_id}:{call_id}"
