"""A processor on a stage: payloads are a word each, and time passes when a test says so.

Payloads become events as in a runtime: those of items by an `AnswerStream`, beginnings and ends as its records say it.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from cantrip_actors import EntityEndedEvent, EntityEvent, StepCompleteEvent, StepFailedEvent, StepStartEvent, UsageEvent
from cantrip_actors.observe import Batching, Output, Processor, Upsert
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.stream.answer import AnswerStream
from cantrip_actors.stream.wire import (
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalMessage,
    FinalReasoning,
    ItemDelta,
    ItemDone,
    ItemStart,
    Payload,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamError,
    StreamUsage,
)
from cantrip_actors.terms.messages import Usage

MORNING = 1_767_225_600.0  # 2026-01-01T00:00:00Z


class Plain(AnswerStream):
    """An answer without secrets: no word of a text is held back."""

    def _redact_text(self, block: str, text: str) -> str:
        return text


class Source:
    """The events of entities whose crystals emit payloads. `now` is in seconds since the morning."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self._now = lambda: MORNING + now()
        self._answers: dict[str, tuple[str, AnswerStream]] = {}

    def read(self, payload: Payload, turn: str = "t", session: str = "s") -> Iterator[EntityEvent]:
        at = self._now()
        if isinstance(payload, ResponseStart):
            self._ask(turn, session)
            yield StepStartEvent(session, at, turn, f"{payload.provider_id}:{payload.model_id}")
            return
        if self._answers.get(session, ("", None))[0] != turn:
            self._ask(turn, session)
        answer = self._answers[session][1]
        event = answer.read(payload)
        if event is not None:
            yield event
        if isinstance(payload, (ResponseDone, ResponseError)) and not answer.is_closed:
            answer.close()
            yield from self._end(payload, turn, session, event)

    def _ask(self, turn: str, session: str) -> None:
        self._answers[session] = turn, Plain(session, turn, self._now, lambda: Redactor(()))

    def _end(
        self, end: ResponseDone | ResponseError, turn: str, session: str, failure: EntityEvent | None
    ) -> Iterator[EntityEvent]:
        at = self._now()
        if failure is not None:
            yield EntityEndedEvent(session, at, "failed", failure.error.message)
        elif end.status == "cancelled":
            yield EntityEndedEvent(session, at, "cancelled")
        else:
            usage = end.usage
            used = (
                Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens or 0) if usage else Usage()
            )
            yield UsageEvent(session, at, turn, used)
            yield StepCompleteEvent(session, at, turn, 1, terminated=False, truncated=False)

    def crash(self, turn: str = "t", session: str = "s", error: StreamError | None = None) -> EntityEvent:
        if session in self._answers:
            self._answers[session][1].close()
        return StepFailedEvent(session, self._now(), turn, *([] if error is None else [error]))


def count_usage(usage: StreamUsage) -> Usage:
    return Usage(int(usage.input_tokens), int(usage.output_tokens), int(usage.cache_read_input_tokens or 0))


class Stage:
    """Feeds a processor. Without a word about it, only the gradient and the idle time show anything.

    Outputs name items by their blocks.
    """

    def __init__(
        self,
        gradient: Iterable[int] = (),
        timeout: float = 1.0,
        max_latency: float | None = None,
        max_wait: float | None = None,
    ) -> None:
        self.now = 0.0
        self.clock_reads = 0
        self.source = Source(lambda: self.now)
        self.processor = Processor(self._wall, Batching(tuple(gradient), timeout, max_latency, max_wait))
        self.seen: list[Output] = []

    def _wall(self) -> float:
        self.clock_reads += 1
        return MORNING + self.now

    def feed(self, *payloads: Payload, turn: str = "t", session: str = "s") -> list[Output]:
        """The outputs that these payloads cause, one after the other, at this moment."""
        return self.see(event for payload in payloads for event in self.source.read(payload, turn, session))

    def see(self, events: Iterable[EntityEvent]) -> list[Output]:
        """The outputs that events cause."""
        made = [output for event in events for output in self.processor.process(event, self.now)]
        return self._note(made)

    def crash(self, error: StreamError | None = None, session: str = "s") -> list[Output]:
        """The outputs of a crash."""
        return self.see([self.source.crash(session=session, error=error)])

    def wait(self, seconds: float) -> list[Output]:
        """The outputs of time passing."""
        until, made = self.now + seconds, []
        while (deadline := self.processor.deadline) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            made += self.processor.tick(self.now)
        self.now = until
        return self._note(made)

    def _note(self, outputs: list[Output]) -> list[Output]:
        shown = [replace(one, item_id=block_of(one)) if isinstance(one, Upsert) else one for one in outputs]
        self.seen += shown
        return shown


def block_of(upsert: Upsert) -> str:
    return upsert.item_id.partition(":1:")[2]


def upserts(outputs: Iterable[Output]) -> list[Upsert]:
    return [output for output in outputs if isinstance(output, Upsert)]


def statuses(outputs: Iterable[Output]) -> list[str]:
    return [output.status for output in upserts(outputs)]


def contents(outputs: Iterable[Output]) -> list[str]:
    return [output.content for output in upserts(outputs)]


def tokens(outputs: Iterable[Output]) -> list[int]:
    return [len(content.split()) for content in contents(outputs)]


begin = ResponseStart("model-1", "provider-1")


def text(item: str = "m", initial: str | None = None) -> Payload:
    return ItemStart(item, "message", initial)


def thought(item: str = "r") -> Payload:
    return ItemStart(item, "reasoning")


def more(content: str, item: str = "m") -> Payload:
    return ItemDelta(item, content)


def said(content: str, item: str = "m", origin: str = "agent") -> Payload:
    return ItemDone(item, FinalMessage(content, origin))


def mused(content: str, item: str = "r", provider: str = "provider-1") -> Payload:
    return ItemDone(item, FinalReasoning(content, provider))


def call(item: str = "c", call_id: str = "call-1", name: str = "search") -> Payload:
    return ItemStart(item, "function_call", name=name, call_id=call_id)


def called(args: dict[str, object], item: str = "c", call_id: str = "call-1", name: str = "search") -> Payload:
    return ItemDone(item, FinalFunctionCall(name, call_id, args))


def output_begins(item: str = "o", call_id: str = "call-1") -> Payload:
    return ItemStart(item, "function_call_output", call_id=call_id)


def output(content: str = "found", item: str = "o", call_id: str = "call-1", *, is_error: bool = False) -> Payload:
    return ItemDone(item, FinalFunctionCallOutput(call_id, content, is_error))


def words(count: int, item: str = "m") -> list[Payload]:
    """That many deltas of one token each."""
    return [more(f"w{n} ", item) for n in range(count)]
