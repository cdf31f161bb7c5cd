"""A response in the making: every family's decoder writes into it while the provider's stream arrives.

A decoder handles the events of its provider; a `Draft` makes payloads and the response, and knows no
provider. Each item (a message, a piece of reasoning, a call) is begun, extended and ended once. Each step makes its
payload at once, and the `Response` is made from the same items, so that stream and response agree.

Items are numbered "0", "1", … in the order in which they begin. A draft is one attempt: `query.py` adds the number of
the attempt, and handles a response that fails half way.

Pure: no clock, no I/O. `take` returns the payloads made since the last call.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple

import orjson

from cantrip_actors.crystal.shapes import WRONG_SHAPE, reading_answers
from cantrip_actors.crystal.sse import Framing, ServerSentEvent, check_values
from cantrip_actors.stream.wire import (
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalImage,
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
from cantrip_actors.terms.arguments import is_number
from cantrip_actors.terms.cut_off import find_cut_off
from cantrip_actors.terms.errors import CrystalError, InvalidImage, ProviderError
from cantrip_actors.terms.exact_json import has_long_number, read_arguments
from cantrip_actors.terms.file import LARGEST
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.image_header import detect_media_type
from cantrip_actors.terms.messages import Response, ToolCall, Usage, as_text

MOST_ITEMS: Final = 4_096
"""The most items of an answer: messages, pieces of reasoning, calls, images; and the most sources that it cites."""

KEPT: Final = "sha256:"
"""The prefix to an image's digest, which replaces the image's bytes in a block (`encode.restore_bytes`)."""

ItemKind = Literal["message", "reasoning", "function_call", "image", "server_call", "server_result"]


class Counts(NamedTuple):
    """Tokens as they are billed. `prompt` includes `cached` (read) and `written` (to the cache); `completion` includes
    `reasoning`.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    written: int = 0
    written_long: int = 0
    """The part of `written` that the cache keeps for an hour."""
    reasoning: int = 0
    cost: float | None = None
    """In US dollars, if the provider reports it."""
    uses: tuple[tuple[str, int], ...] = ()
    """How often each server tool with a price of its own was used."""
    modalities: Mapping[str, Mapping[str, int]] | None = None
    """The tokens of `prompt` ("input") and of `completion` ("output") by modality, if the provider reports them."""

    def make_usage(self) -> Usage:
        """The counts that are part of the contract."""
        cached, reasoning = min(self.cached, self.prompt), min(self.reasoning, self.completion)
        return Usage(self.prompt, self.completion, cached, self.cost or 0.0, reasoning_tokens=reasoning)


NO_COUNTS: Final = Counts()

UNNAMED: Final = "(unnamed)"
"""How a stream shows a call without a name: its items need one. The loom keeps what the model answered."""


@dataclass(slots=True, eq=False)
class DraftItem:
    """One item of the response. `parts` are pieces of its text, or of the arguments of a call."""

    number: str
    kind: ItemKind
    parts: list[str]
    name: str = ""
    call_id: str = ""
    arguments: Mapping[str, Any] | None = None
    """The arguments, if the provider sent an object."""
    open: bool = True
    follows: bool = False
    """Whether this message continues the one before it: both are one text for the reader."""

    @property
    def text(self) -> str:
        """The joined pieces."""
        return "".join(self.parts)


@dataclass(slots=True, eq=False)
class Draft:
    """A response in the making. `utterance` is part of the ids of calls that have none from the server.

    If it is 0, the ids stay unchanged, and the loop adds missing ones.
    """

    provider: str
    model: str
    utterance: int = 1
    joint: str = ""
    started: bool = False
    first: int = 0
    """The number of its first item; the responses of one answer number their items together."""
    images: list[Image] = field(default_factory=list)
    """Images that the model made, each once."""
    citations: list[dict[str, str]] = field(default_factory=list)
    shows_served: bool = False
    """Whether server calls are items of the stream, as they are if the query has an observer."""
    _items: list[DraftItem] = field(default_factory=list)
    _out: list[Payload] = field(default_factory=list)
    _calls: int = 0
    """The number of calls."""
    _used_ids: set[str] = field(default_factory=set)
    is_careful: bool = False
    """Whether pieces of text may end with half a character (JSON escapes, divided between surrogates)."""
    _cited: set[tuple[tuple[str, str], ...]] = field(default_factory=set)
    _half: dict[str, str] = field(default_factory=dict)
    _served: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The gates that the provider knows under another name, by that name (`history.py`)."""
    flowing: DraftItem | None = None
    """The item that `flow` extends."""

    def take(self) -> list[Payload]:
        """Return the payloads that were made since the last call."""
        out = self._out
        if out:
            self._out = []
        return out

    def start(self, model: object = None) -> None:
        """Begin the response; a second call changes nothing."""
        if not self.started:
            self.started = True
            if isinstance(model, str) and model:
                self.model = self.model or join_surrogates(model)
            self._out.append(ResponseStart(self.model, self.provider))

    def begin(self, kind: Literal["message", "reasoning"]) -> DraftItem:
        """Begin a message or a piece of reasoning."""
        self.start()
        before = next((item for item in reversed(self._items) if not item.kind.startswith("server")), None)
        follows = kind == "message" and before is not None and before.kind == "message"
        item = DraftItem(self._make_number(), kind, [], follows=follows)
        self._items.append(item)
        self._out.append(ItemStart(item.number, kind))
        return item

    def flow(self, kind: Literal["message", "reasoning"], text: object) -> None:
        """Extend the message or the reasoning that pieces arrive for; a piece of the other kind begins another item.

        For streams whose items come one after the other. Non-strings and empty strings are ignored.
        """
        if text and isinstance(text, str):
            item = self.flowing
            if item is None or item.kind != kind:
                self.end_flow()
                item = self.flowing = self.begin(kind)
            self.add(item, text)

    def end_flow(self) -> None:
        """End the item that `flow` extends, if there is one."""
        if self.flowing is not None:
            self.end(self.flowing)
            self.flowing = None

    def call(self, name: object, call_id: object = None) -> DraftItem:
        """Begin a call, which ends what flows. If the server gave no id, or one that is taken, the call gets a new id.

        An empty name is kept: no gate has it, and the entity observes that. Raises ProviderError for a name that is
        missing or is not a text.
        """
        self.start()
        self.end_flow()
        if not isinstance(name, str):
            raise ProviderError(f"{self.provider} sent a tool call without a name")
        name = self.find_gate(name)
        own = join_surrogates(call_id) if isinstance(call_id, str) else ""
        self._calls += 1
        if self.utterance:
            own = own or f"call_{self.utterance}_{self._calls}"
            if own in self._used_ids:
                own = f"{own}_{self._calls}"
                while own in self._used_ids:
                    own += "_"
            self._used_ids.add(own)
        item = DraftItem(self._make_number(), "function_call", [], name, own)
        self._items.append(item)
        self._out.append(ItemStart(item.number, "function_call", None, name or UNNAMED, own))
        return item

    def find_gate(self, name: str) -> str:
        """Return the gate that the provider calls by this name."""
        name = join_surrogates(name)
        return self.names.get(name, name)

    def serve(self, tool: str, call_id: object = None, name: str = "") -> DraftItem:
        """Begin a call of one of the provider's own tools, which runs there and is not a gate call.

        `name` is the function within a tool that has several.
        """
        self.start()
        own = join_surrogates(call_id) if isinstance(call_id, str) and call_id else f"server_{len(self._served) + 1}"
        item = DraftItem(self._make_number(), "server_call", [], tool, own)
        self._served[own] = {"tool": tool, "id": own, **({"name": name} if name else {}), "args": {}}
        if self.shows_served:
            self._items.append(item)
            self._out.append(ItemStart(item.number, "function_call", None, name or tool, own))
        return item

    def serve_whole(self, tool: str, call_id: object, args: Mapping[str, Any], name: str = "") -> str:
        """Begin and end a server call that arrived in one piece; return its id."""
        item = self.serve(tool, call_id, name)
        item.arguments = args
        self.end(item)
        return item.call_id

    def add_server_result(self, call_id: object, result: Any, *, is_error: bool = False) -> None:
        """Add the result of a server call. The call may be in an earlier part of the answer."""
        self.start()
        own = str(call_id or "")
        served = self._served.setdefault(own, {"id": own})
        if "result" in served:
            return
        served["result"] = result
        if is_error:
            served["is_error"] = True
        self._add_output(own, result, is_error=is_error)

    def _add_output(self, call_id: str, result: Any, *, is_error: bool) -> None:
        if not self.shows_served:
            return
        item = DraftItem(self._make_number(), "server_result", [], call_id=call_id, open=False)
        self._items.append(item)
        text = "" if result is None else as_text(result)
        self._out.append(ItemStart(item.number, "function_call_output", call_id=call_id))
        self._out.append(ItemDone(item.number, FinalFunctionCallOutput(call_id, text, is_error)))

    def cite(self, url: object = None, title: object = None, text: object = None) -> None:
        """Add a source that the answer cites."""
        parts = {"url": url, "title": title, "text": text}
        citation = {
            name: join_surrogates(text_part)
            for name, text_part in parts.items()
            if isinstance(text_part, str) and text_part
        }
        facts = tuple(citation.items())
        if citation and len(self.citations) < MOST_ITEMS and facts not in self._cited:
            self._cited.add(facts)
            self.citations.append(citation)

    def _make_number(self) -> str:
        if len(self._items) + len(self._served) >= MOST_ITEMS:
            problem = f"{self.provider} sent an answer of more than {MOST_ITEMS:,} items: messages, calls and images"
            raise ProviderError(problem, retryable=False)
        return str(self.first + len(self._items))

    def add(self, item: DraftItem, text: object) -> None:
        """Add text to an item. Non-strings and empty strings are ignored."""
        if text and isinstance(text, str) and item.open:
            if self.is_careful:
                text = self._join_halves(item, text)
                if not text:
                    return
            item.parts.append(text)
            if item.kind != "server_call" or self.shows_served:
                self._out.append(ItemDelta(item.number, text))

    def _join_halves(self, item: DraftItem, text: str) -> str:
        text = self._half.pop(item.number, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._half[item.number] = text[-1]
            text = text[:-1]
        return join_surrogates(text)

    def end(self, item: DraftItem, text: str | None = None) -> None:
        """End an item. `text`, if given, is its full text according to the provider."""
        if not item.open:
            return
        if self._half and (half := self._half.pop(item.number, "")):
            item.parts.append(join_surrogates(half))
        item.open = False
        if text is not None:
            item.parts = [join_surrogates(text) if self.is_careful else text]
        final: FinalMessage | FinalReasoning | FinalFunctionCall
        if item.kind == "message":
            final = FinalMessage(item.text, "agent")
        elif item.kind == "reasoning":
            final = FinalReasoning(item.text, self.provider)
        else:
            if item.arguments is None:
                check_values(item.text)
                item.arguments = read_arguments(item.text)
            elif self.is_careful:
                item.arguments = _repair_surrogates(item.arguments)
            # the gate refuses arguments that are not an object; an observer of the stream sees no arguments
            final = FinalFunctionCall(item.name or UNNAMED, item.call_id, item.arguments or {})
            if item.kind == "server_call":
                served = self._served[item.call_id]
                served["args"] = dict(item.arguments or {})
                final = FinalFunctionCall(served.get("name") or item.name, item.call_id, served["args"])
        if item.kind != "server_call" or self.shows_served:
            self._out.append(ItemDone(item.number, final))

    def say(self, kind: Literal["message", "reasoning"], text: str) -> None:
        """Add a whole item."""
        item = self.begin(kind)
        self.add(item, text)
        self.end(item)

    def add_image(self, data: object) -> str | None:
        """Add an image, in base64 or as an address; adding it again changes nothing.

        Returns the text that replaces its bytes in recorded blocks. Returns None for an address, and for data that is
        not an image, which is not added. Raises ProviderError if it is too large to be recorded.
        """
        image = _parse_image(data)
        if image is None:
            return None
        if image.size > LARGEST:
            problem = f"{self.provider} made an image of {image.size:,} bytes: expected at most {LARGEST:,}"
            raise ProviderError(f"{problem}; ask for a smaller one", retryable=False)
        if image not in self.images:
            self.start()
            item = DraftItem(self._make_number(), "image", [], open=False)
            self.images.append(image)
            self._items.append(item)
            self._out.append(ItemStart(item.number, "image"))
            self._out.append(ItemDone(item.number, FinalImage.of(image)))
        return f"{KEPT}{image.digest}" if image.digest else None

    def cut_off(self) -> None:
        """Mark the answer as cut off. The arguments of a call that had not received any are unknown, not empty."""
        last = self._items[-1] if self._items else None
        if last is not None and last.kind == "function_call" and not last.arguments and not last.text.strip():
            self.end(last)
            last.arguments, last.parts = None, ["{"]  # not an object, so that its gate refuses it

    @property
    def calls(self) -> list[DraftItem]:
        """Return the calls, in order."""
        return [item for item in self._items if item.kind == "function_call"]

    @property
    def thoughts(self) -> list[str]:
        """Return the pieces of reasoning, in order."""
        return [item.text for item in self._items if item.kind == "reasoning" and item.parts]

    @property
    def content(self) -> str | None:
        """Return the text, in order."""
        content = ""
        for item in self._items:
            if item.kind == "message" and (text := item.text):
                content += (self.joint if item.follows else "\n\n") + text if content else text
        return content or None

    def make_response(
        self,
        counts: Counts,
        metadata: Mapping[str, Any],
        blocks: tuple[Mapping[str, Any], ...],
        *,
        unfinished: bool = False,
    ) -> Response:
        """End the response and return it.

        Raises ProviderError if it is empty (CRYSTAL-3). Another attempt may bring an answer, unless a limit or a filter
        cut this one off.
        """
        self.start()
        for item in self._items:
            self.end(item)
        for own, served in self._served.items():
            if "result" not in served and "tool" in served and not unfinished:
                self._add_output(own, None, is_error=False)
        reason = metadata.get("stop_reason")
        content, calls = self.content, self.calls
        if not (content or calls or self.images or unfinished):
            error = ProviderError(
                f"crystal returned neither content nor tool_calls: {self.provider} stopped with {reason!r}",
                retryable=find_cut_off(metadata) is None and "refusal" not in metadata,
            )
            error.overflows = reason == "model_context_window_exceeded"
            raise error
        usage = StreamUsage(counts.prompt, counts.completion, counts.cached, counts.written)
        self._out.append(ResponseDone("completed", reason if isinstance(reason, str) else None, None, usage))
        more = {
            "reasoning_tokens": counts.reasoning,
            "cache_written_tokens": counts.written,
            "modality_tokens": counts.modalities,
            "server_calls": list(self._served.values()),
            "citations": self.citations,
        }
        own_metadata = {**metadata, "provider": self.provider, **{name: value for name, value in more.items() if value}}
        return Response(
            content=content,
            tool_calls=tuple(
                ToolCall.of({"id": c.call_id, "gate": c.name, "args": c.text if c.arguments is None else c.arguments})
                for c in calls
            ),
            usage=counts.make_usage(),
            thinking="\n\n".join(self.thoughts) or None,
            blocks=blocks,
            metadata=own_metadata,
            images=tuple(self.images),
        )


def _parse_image(encoded: object) -> Image | None:
    """Return an image from base64, from a data: URL, or from an https address; None for anything else."""
    if not isinstance(encoded, str):
        return None
    try:
        if encoded.startswith("https://"):
            return Image.at(encoded)
        data = base64.b64decode(encoded.partition("base64,")[2] if encoded.startswith("data:") else encoded)
        if len(data) > LARGEST and detect_media_type(data) is not None:
            return Image.from_facts("image/png", "", len(data), None, None)
        return Image(data)
    except (InvalidImage, binascii.Error, ValueError):
        return None


def join_surrogates(text: str) -> str:
    """Return the text with its surrogates joined to characters; a lone one becomes the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _repair_surrogates(value: Any) -> Any:
    """Return a value without half characters."""
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, Mapping):
        return {join_surrogates(name): _repair_surrogates(part) for name, part in value.items()}
    return [_repair_surrogates(part) for part in value] if isinstance(value, list) else value


def tokens(value: Any) -> int:
    """Return a count of tokens; 0 for an invalid or impossible count, so that a wrong count never loses an answer."""
    return int(value) if is_number(value) and 0 < value < 1 << 53 else 0


MODALITIES: Final = ("text", "image", "audio")
"""The kinds of tokens that are counted apart."""


def count_modalities(read: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the tokens of each modality from details as `{"audio_tokens": 7}`, of the prompt and of the answer."""
    both = {
        side: {modality: count for modality in MODALITIES if (count := tokens(details.get(f"{modality}_tokens")))}
        for side, details in (("input", read), ("output", written))
    }
    return {side: counts for side, counts in both.items() if counts}


_DONE: Final = b"[DONE]"


class Decoder(ABC):
    """A family's state machine: fed with events, it yields payloads and, when its stream is over, a response.

    `model` is the model of the query, and marks the blocks that a later query may replay; by default, it is the model
    that the server names. `tools` are the names of the offered tools, which help to separate the pieces of calls.

    `complete`: there is a response. `over`: no event can follow.
    """

    provider: ClassVar[str]
    framing: ClassVar[type[Framing]] = Framing
    """The parser from bytes to events."""
    joint: ClassVar[str] = ""
    seam: ClassVar[str] = "\n\n"
    """The separator between the thinking before and after an interruption."""
    cuts_calls: ClassVar[bool] = True
    """Whether an answer that is cut off may end in a call without the arguments that it was about to get."""

    def __init__(self, model: str = "", *, utterance: int = 1, tools: Collection[str] = (), provider: str = "") -> None:
        self.draft = Draft(provider or self.provider, model, utterance, self.joint)
        self.asked = model
        self.tools = frozenset(tools)
        self.counts = Counts()
        self.metadata: dict[str, Any] = {}
        self.complete = False
        self.over = False
        self.unfinished = False
        """Whether the provider interrupted the answer and continues on request: this part may be empty."""
        self.resumes = False
        """Whether this part continues an interrupted one."""
        self.logprobs: list[list[Any]] = []
        """Log probabilities of the answer's tokens, if the query asked for them (`typed_settings.read_logprobs`)."""
        self.moves = False
        """Whether the last event is progress, even if it emitted no payload, as the work of a server tool."""
        self._first_id: str | None = None
        self._id: str | None = None
        self._is_steady = False

    def is_of_message(self, message_id: Any, *, begins: bool = True) -> bool:
        """Return whether a piece with this id belongs to the message, and not to another one after its end.

        Some servers make up an id for each piece, so an id counts only once two pieces in a row had it, or where the
        first one comes back after another. `begins` says that a message may begin with this piece.

        Raises ProviderError where another message begins before the end of this one: a gateway went over to another
        server, or mixed two streams.
        """
        if not message_id or type(message_id) is not str:
            return True
        if message_id == self._id:
            self._is_steady = True
            return True
        if self._id is None:
            self._first_id = message_id
        elif self._is_steady and self.complete:
            return False
        elif message_id == self._first_id or (begins and self._is_steady):
            raise self.make_second_message_error()
        self._id, self._is_steady = message_id, False
        return True

    def note_beginning(self, message_id: Any) -> None:
        """Handle the beginning of a message with this id. Raises ProviderError if another one has begun."""
        current_id = self.metadata.get("id")
        if current_id and message_id and current_id != message_id:
            raise self.make_second_message_error()

    def make_second_message_error(self) -> ProviderError:
        """The error of a stream in which a second message begins before the first one has ended."""
        return ProviderError(f"{self.draft.provider}: a second message began within the first one", retryable=True)

    def feed(self, event: ServerSentEvent) -> list[Payload]:
        """Return the payloads of an event: usually one, none for a keep-alive.

        Raises ProviderError if it is an error, not JSON, or not an object.
        """
        if self.over:
            return []
        data, name = event
        self.moves = False
        if data == _DONE:
            self.end()
            return self.draft.take()
        try:
            value = self._parse_leniently(data) if has_long_number(data) else orjson.loads(data)
        except orjson.JSONDecodeError:
            value = self._parse_leniently(data)
        if not isinstance(value, dict):
            if value is None or value == "":
                return []
            raise ProviderError(f"{self.draft.provider} sent {_quote(data)}: expected a JSON object")
        try:
            self.read(value, name)
        except WRONG_SHAPE as error:  # a server may send any shape; decoders read the expected one
            raise ProviderError(f"{self.draft.provider} sent {_quote(data)}: a value has the wrong type") from error
        return self.draft.take()

    def _parse_leniently(self, data: bytes) -> Any:
        """Parse JSON that orjson refuses: half a character, a number past 64 bits, NaN."""
        import json

        if not data.strip():
            return None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ProviderError(f"{self.draft.provider} sent {_quote(data)}: not JSON") from error
        self.draft.is_careful = True
        return value

    @abstractmethod
    def read(self, value: dict[str, Any], name: str) -> None:
        """Read one event, or a whole body."""

    def end(self) -> None:
        """Handle the server's `[DONE]`: no more events follow."""
        self.over = True

    def finish(self) -> Response:
        """Return the response. `draft.take()` then returns the payloads of its end.

        Raises ProviderError if the stream ended before it was complete, CrystalError if the response is empty.
        """
        with reading_answers(self.draft.provider):
            return self.build_response()

    def build_response(self) -> Response:
        """Return the response, as `finish`; a family adds what it knows at the end only."""
        if not self.complete:
            raise ProviderError(f"{self.draft.provider}: the stream ended before the response was complete")
        if self.logprobs:
            self.metadata["logprobs"] = self.logprobs
        if self.cuts_calls and find_cut_off(self.metadata) is not None:
            self.draft.cut_off()
        return self.draft.make_response(self.counts, self.metadata, self.make_blocks(), unfinished=self.unfinished)

    def make_blocks(self) -> tuple[Mapping[str, Any], ...]:
        """Return the data to send back unchanged to this provider and model, as one block that names both."""
        content = self.get_own_content()
        if not content:
            return ()
        if self.draft.is_careful:  # a provider refuses half a character
            content = _repair_surrogates(content)
        return ({"provider": self.draft.provider, "model": self.asked or self.draft.model, "content": content},)

    def get_own_content(self) -> Any:
        """Return the provider's own blocks, if a `Response` does not keep all of them."""
        return None

    @property
    def is_part(self) -> bool:
        """Whether this is a part of an answer. Its blocks are recorded then, because those of another part may be."""
        return self.unfinished or self.resumes

    def fail(self, error: CrystalError) -> list[Payload]:
        """Return the payloads that end a failed stream with `error` (decision 002: the structured error)."""
        self.draft.start()
        status = getattr(error, "status", None)
        code = f"HTTP_{status}" if status is not None else type(error).__name__
        return [*self.draft.take(), ResponseError(StreamError(code, join_surrogates(str(error))))]

    def note(self, **metadata: object) -> None:
        """Keep metadata of the provider; values of None are ignored."""
        for name, value in metadata.items():
            if isinstance(value, str) and value:
                self.metadata[name] = value if value.isascii() else join_surrogates(value)


def _quote(data: bytes) -> str:
    text = data[:120].decode(errors="replace")
    return repr(text if len(data) <= 120 else f"{text}…")
