"""Recorded answers, as `Recording` values and as a crystal (`replay:FILE`).

A recording is the response of a provider without its framing: a whole body as JSON, or a JSON event on each line. Raw
event streams are accepted too. A file may have several responses one after the other; the provider's own rules show
where one ends, so they need no separator. The events show the provider.

`record="FILE"` on a crystal makes such files. A replayed crystal keeps no state: a context with *n* utterances gets
response number *n* + 1, so any number of entities may share it, and a fork gets the same responses as the original.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from cantrip_actors.crystal.draft import Counts, Decoder
from cantrip_actors.crystal.families.anthropic import AnthropicDecoder
from cantrip_actors.crystal.families.bedrock import BedrockDecoder
from cantrip_actors.crystal.families.chat import ChatDecoder
from cantrip_actors.crystal.families.cohere import CohereDecoder
from cantrip_actors.crystal.families.google import GoogleDecoder
from cantrip_actors.crystal.families.mistral import MistralDecoder
from cantrip_actors.crystal.families.ollama import OllamaDecoder
from cantrip_actors.crystal.families.responses import ResponsesDecoder
from cantrip_actors.crystal.prices import Prices
from cantrip_actors.crystal.provider import join_responses, sum_usage
from cantrip_actors.crystal.query import AnsweringCrystal, Query
from cantrip_actors.crystal.shapes import mapping, objects, parse_object
from cantrip_actors.crystal.sse import Framing, ServerSentEvent
from cantrip_actors.stream.wire import (
    InvalidStreamEvent,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemStart,
    Payload,
    ResponseDone,
    ResponseError,
    ResponseStart,
    check_emitted,
)
from cantrip_actors.terms.context import View
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, suggest_nearest
from cantrip_actors.terms.messages import Response

DECODERS: Final[Mapping[str, type[Decoder]]] = {
    "anthropic": AnthropicDecoder,
    "openai-responses": ResponsesDecoder,
    "openai-chat": ChatDecoder,
    "google": GoogleDecoder,
    "bedrock": BedrockDecoder,
    "mistral": MistralDecoder,
    "cohere": CohereDecoder,
    "ollama": OllamaDecoder,
}
"""The decoder of each family, by the names that recordings use."""


class Outcome(NamedTuple):
    """The result of a stream: its payloads, and a response or an error."""

    payloads: tuple[Payload, ...]
    response: Response | None
    error: CrystalError | None


class Recording(NamedTuple):
    """One response of a provider: its events, each a JSON text, and their interface."""

    family: str
    events: tuple[bytes, ...]
    source: str = ""

    def framed(self) -> bytes:
        """The bytes of the events as sent over the network."""
        lines: list[bytes] = []
        for data in self.events:
            kind = str(_parse_value(data).get("type") or "")
            if self.family in ("anthropic", "openai-responses") and kind not in ("", "message"):
                lines.append(b"event: %b\n" % kind.encode())
            lines.append(b"data: %b\n\n" % data)
        if self.family in ("openai-chat", "mistral") and not _is_body(_parse_value(self.events[-1])):
            lines.append(b"data: [DONE]\n\n")
        return b"".join(lines)

    def play(self, chunks: Iterable[bytes] | None = None) -> Outcome:
        """Decode the response, from these chunks of its bytes or in one piece."""
        return _play(self, DECODERS[self.family](), chunks)


def _play(recording: Recording, decoder: Decoder, chunks: Iterable[bytes] | None = None) -> Outcome:
    framing = Framing()
    payloads: list[Payload] = []
    try:
        for chunk in (recording.framed(),) if chunks is None else chunks:
            for event in framing.feed(chunk):
                payloads += decoder.feed(event)
        for event in framing.close():
            payloads += decoder.feed(event)
        response = decoder.finish()
    except CrystalError as error:
        return Outcome((*payloads, *decoder.fail(error)), None, error)
    return Outcome((*payloads, *decoder.draft.take()), response, None)


def recordings(file: str | Path, family: str | None = None) -> list[Recording]:
    """Return the responses of a file. By default, `family` is detected.

    Raises InvalidCantrip if the file cannot be read, or is not a recording.
    """
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise InvalidCantrip(f"recording {file}: cannot read it: {error.strerror}") from error
    try:
        events = [event for event in _read_events(Path(file).name, data) if event.data != b"[DONE]"]
    except CrystalError as error:
        raise InvalidCantrip(f"recording {file}: {error}") from error
    if not data.strip():
        raise InvalidCantrip(f"recording {file}: there is nothing in it")
    if not any(_parse_value(event.data) for event in events):
        start = data.strip()[:60].decode(errors="replace")
        raise InvalidCantrip(
            f"recording {file}: expected a JSON body, a JSON event a line or server-sent events, found {start!r}"
        )
    if family is None:
        family = next(
            (detected for event in events if (detected := _detect_family(_parse_value(event.data), event.name))), None
        )
    if family is None:
        families = ", ".join(DECODERS)
        raise InvalidCantrip(f"recording {file}: cannot tell which provider sent it: expected one of {families}")
    if family not in DECODERS:
        raise InvalidCantrip(f'recording {file}: unknown interface "{family}": {suggest_nearest(family, DECODERS)}')
    lines = [event.data.replace(b"\n", b" ").strip() for event in events]
    return [Recording(family, tuple(part), str(file)) for part in _split_responses(family, lines)]


def _read_events(name: str, data: bytes) -> list[ServerSentEvent]:
    framed = data.lstrip().startswith((b"event:", b"data:", b":"))
    if name.endswith(".chunks.txt") and not framed:
        # by its name, because an event may be broken: some were recorded for that
        return [ServerSentEvent(line.strip()) for line in data.splitlines() if line.strip()]
    framing = Framing()
    return [*framing.feed(data), *framing.close()]


def _parse_value(data: bytes) -> Mapping[str, Any]:
    return parse_object(data) or {}


def _detect_family(value: Mapping[str, Any], name: str) -> str | None:
    kind = str(value.get("type") or name)
    if kind.startswith("response.") or value.get("object") == "response":
        return "openai-responses"
    if kind.startswith(("message_", "content_block_")) or kind in ("message", "ping") or "request_id" in value:
        return "anthropic"
    if kind == "error":  # flat, or with a number of its own: OpenAI's
        return (
            "anthropic"
            if isinstance(value.get("error"), Mapping) and "sequence_number" not in value
            else "openai-responses"
        )
    is_message = isinstance(value.get("message"), Mapping) and bool(value.keys() & {"finish_reason", "done"})
    if is_message or kind.startswith("message-"):
        return "ollama" if "done" in value else "cohere"
    if value.keys() & {"messageStart", "contentBlockDelta", "messageStop"} or {"output", "stopReason"} <= value.keys():
        return "bedrock"
    if value.keys() & {"candidates", "usageMetadata", "promptFeedback"}:
        return "google"
    error = value.get("error")
    if isinstance(error, Mapping) and error.get("status") and "details" in error:
        return "google"
    return "openai-chat" if "choices" in value or "error" in value or value.get("object") == "error" else None


def _is_body(value: Mapping[str, Any]) -> bool:
    if value.get("type") == "message" or value.get("object") == "response":
        return True
    return any(isinstance(choice.get("message"), Mapping) for choice in objects(value.get("choices"))[:1])


def _split_responses(family: str, lines: Sequence[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    decoder: Decoder | None = None
    last_id: Any = None
    for line in lines:
        value = _parse_value(line)
        own_id = value.get("responseId", value.get("id"))
        is_over = decoder is not None and (decoder.over or decoder.complete)
        if is_over and _is_beginning(family, value, another=bool(own_id and last_id) and own_id != last_id):
            yield part
            part, decoder = [], None
        decoder = decoder or DECODERS[family]()
        try:
            decoder.feed(ServerSentEvent(line))
        except CrystalError:
            decoder.over = True  # an error ends a response
        last_id = own_id or last_id
        part.append(line)
    yield part


def _is_beginning(family: str, value: Mapping[str, Any], *, another: bool) -> bool:
    """Return whether an event may be the first of a response. `another`: its id is not that of the event before."""
    kind = value.get("type")
    if family == "anthropic":
        return kind in ("message_start", "message", "error")
    if family == "openai-responses":
        return kind in ("response.created", "response.queued") or value.get("object") == "response"
    if family == "bedrock":
        return bool(value.keys() & {"messageStart", "output"})
    if family in ("cohere", "ollama"):
        return kind == "message-start" or "message" in value or "error" in value
    candidates = value.get("choices") or value.get("candidates")
    if value.get("error") or (another and candidates):
        return True
    for first in objects(candidates)[:1]:
        parts = objects(
            [*objects(mapping(first.get("content")).get("parts")), first.get("delta"), first.get("message")]
        )
        # a role alone, or an empty text, may also be the last event
        return any(value for part in parts for name, value in part.items() if name != "role")
    return False


# ---------------------------------------------------------------------------------------------------------- the crystal


class Replay(AnsweringCrystal):
    """A crystal that answers with recorded responses. Make one with `replay`."""

    def __init__(self, name: str, replies: Sequence[Recording], prices: Prices) -> None:
        self.name = name
        self._given: list[list[Recording]] = []
        """The recordings of each answer: several if the provider interrupted itself."""
        self._prices = prices
        model, goes_on = "", False
        for recording in replies:
            if goes_on:
                self._given[-1].append(recording)
            else:
                self._given.append([recording])
            decoder = DECODERS[recording.family]()
            response = _play(recording, decoder).response
            goes_on = response is not None and decoder.unfinished
            model = model or str("" if response is None else response.metadata.get("model", ""))
        self.context_window = prices.model(model).window

    async def answer_query(self, query: Query) -> Response:
        """Return the response for this position in the conversation.

        Raises the recorded error, and CrystalError after the last response.
        """
        messages, tools, emit = query.invocation.messages, query.invocation.tools, query.emit
        at = messages.query if isinstance(messages, View) else sum(message.role == "assistant" for message in messages)
        if at >= len(self._given):
            raise CrystalError(f"{self.name} has {len(self._given)} responses and is asked for number {at + 1}")
        whole: Response | None = None
        counts: list[Counts] = []
        items = 0
        for recording in self._given[at]:
            decoder = DECODERS[recording.family](utterance=at + 1, tools=[tool.name for tool in tools])
            decoder.draft.shows_served = True
            decoder.draft.first, decoder.resumes = items, whole is not None
            payloads, response, error = _play(recording, decoder)
            for payload in payloads:
                items += isinstance(payload, ItemStart)
                if emit is not None:
                    emit(payload)
            if response is None:
                assert error is not None
                raise error
            whole = response if whole is None else join_responses(whole, response, decoder.seam)
            counts.append(decoder.counts)
        assert whole is not None, "an answer has a recording"
        return replace(whole, usage=sum_usage(counts, self._prices.model(whole.metadata.get("model"))))

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self._given)} responses>"


def replay(file: str | Path, *, prices: Prices | None = None) -> Replay:
    """Return a crystal that answers with the responses recorded in a file, in order.

    Raises InvalidCantrip if the file cannot be read, or is not a recording.
    """
    return Replay(f"replay:{Path(file).name}", recordings(file), prices or Prices())


# ------------------------------------------------------------------------------------------------------ valid sequences


def faults(payloads: Iterable[Payload]) -> list[str]:
    """Return the faults of one response's stream by the rules of `stream/wire.py`; an empty list if it has none."""
    problems: list[str] = []
    begun: dict[str, bool] = {}
    """The items by id, and whether each is still open."""
    started = ended = False
    for n, payload in enumerate(payloads):
        try:
            check_emitted(payload)
        except (InvalidStreamEvent, TypeError) as error:
            problems.append(f"{n}: {error}")
        if ended:
            problems.append(f"{n}: {payload.type} after the end")
        if started is isinstance(payload, ResponseStart):
            problems.append(f"{n}: {payload.type}: a response starts once, and first")
        started = True
        match payload:
            case ItemStart(item_id=item):
                if item in begun:
                    problems.append(f"{n}: item {item} begins again")
                begun[item] = True
            case (
                ItemDelta(item_id=item) | ItemDone(item_id=item) | ItemError(item_id=item) | ItemCancelled(item_id=item)
            ):
                if not begun.get(item):
                    problems.append(f"{n}: {payload.type} of item {item}, which is not open")
                begun[item] = isinstance(payload, ItemDelta)
            case ResponseDone() | ResponseError():
                ended = True
                still_open = [item for item, is_open in begun.items() if is_open]
                if still_open and isinstance(payload, ResponseDone):
                    problems.append(f"{n}: the response is done and items {still_open} are open")
    if not ended:
        problems.append("the stream has no end")
    return problems
