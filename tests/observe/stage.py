"""A processor on a stage: events are a word each, and time passes when a test says so."""

from collections.abc import Iterable

from cantrip_actors.observe import Batching, Output, Processor, Upsert
from cantrip_actors.stream.turn import format_instant
from cantrip_actors.stream.wire import (
    Envelope,
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalMessage,
    FinalReasoning,
    ItemDelta,
    ItemDone,
    ItemStart,
    Payload,
    ResponseStart,
)

MORNING = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def envelope(payload: Payload, stamp: float = 0.0, turn: str = "t", session: str = "s") -> Envelope:
    return Envelope("e", format_instant(MORNING + stamp), turn, session, payload)


class Stage:
    """Feeds a processor. Without a word about it, only the gradient and the idle time show anything."""

    def __init__(
        self,
        gradient: Iterable[int] = (),
        timeout: float = 1.0,
        max_latency: float | None = None,
        max_wait: float | None = None,
    ) -> None:
        self.now = 0.0
        self.clock_reads = 0
        self.processor = Processor(self._wall, Batching(tuple(gradient), timeout, max_latency, max_wait))
        self.seen: list[Output] = []

    def _wall(self) -> float:
        self.clock_reads += 1
        return MORNING + self.now

    def feed(self, *payloads: Payload, turn: str = "t", session: str = "s") -> list[Output]:
        """The outputs that these events cause, one after the other, at this moment."""
        made: list[Output] = []
        for payload in payloads:
            made += self.processor.process(envelope(payload, self.now, turn, session), self.now)
        self.seen += made
        return made

    def wait(self, seconds: float) -> list[Output]:
        """The outputs of time passing."""
        until, made = self.now + seconds, []
        while (deadline := self.processor.deadline) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            made += self.processor.tick(self.now)
        self.now = until
        self.seen += made
        return made


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
