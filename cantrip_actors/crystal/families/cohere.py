"""Cohere's chat, version 2: messages in blocks, a plan before its calls, and citations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from cantrip_actors.crystal.draft import Counts, Decoder, DraftItem, tokens
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.families.chat import Chat, ChatWriter, write_functions
from cantrip_actors.crystal.images import Takes, estimate_by_pixels
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.schemas import keep_schema
from cantrip_actors.crystal.shapes import mapping, objects
from cantrip_actors.crystal.typed_settings import COHERE, Table
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.messages import Message, find_named_gate

FAILED: Final[Mapping[str, int]] = {"ERROR": 500, "ERROR_TOXIC": 400, "TIMEOUT": 504}
"""Reasons to stop that are failures, each with the HTTP status that the error gets."""

EFFORT: Final[Mapping[str, int]] = {
    "minimal": 512,
    "low": 1024,
    "medium": 4096,
    "high": 16_384,
    "xhigh": 24_576,
    "max": 31_000,
}
"""Tokens for thinking."""


class CohereDecoder(Decoder):
    """The stream of a message."""

    provider: ClassVar[str] = "cohere"

    def __init__(self, model: str = "", **more: Any) -> None:
        super().__init__(model, **more)
        self._open_call: DraftItem | None = None

    def read(self, value: dict[str, Any], name: str) -> None:
        """One event, or a whole message."""
        kind = str(value.get("type") or name)
        message = mapping(mapping(value.get("delta")).get("message"))
        if kind in ("content-delta", "content-start"):
            self._add_content(mapping(message.get("content")))
        elif kind == "tool-plan-delta":
            self.draft.flow("message", message.get("tool_plan"))
        elif kind == "tool-call-start":
            self._begin_call(mapping(message.get("tool_calls")))
        elif kind == "tool-call-delta":
            self._add_arguments(mapping(message.get("tool_calls")))
        elif kind in ("content-end", "tool-call-end"):
            self._end()
        elif kind == "citation-start":
            self._cite(mapping(message.get("citations")))
        elif kind == "message-start":
            self.note_beginning(value.get("id"))
            self.draft.start(self.asked)
            self.note(id=value.get("id"))
        elif kind == "message-end":
            self._finish_message(mapping(value.get("delta")))
        elif isinstance(value.get("message"), Mapping):
            self._read_body(value)
        elif kind == "error" or "message" in value or "error" in value:
            raise make_failure(self.draft.provider, None, value)

    def _read_body(self, value: Mapping[str, Any]) -> None:
        message = mapping(value["message"])
        self.draft.start(self.asked)
        self.note(id=value.get("id"))
        self.draft.flow("message", message.get("tool_plan"))
        for part in objects(message.get("content")):
            self._add_content(part)
            self._end()
        for call in objects(message.get("tool_calls")):
            self._begin_call(call)
            self._end()
        for citation in objects(message.get("citations")):
            self._cite(citation)
        self._finish_message(value)

    def _add_content(self, part: Mapping[str, Any]) -> None:
        self.draft.flow("reasoning", part.get("thinking"))
        self.draft.flow("message", part.get("text"))

    def _begin_call(self, call: Mapping[str, Any]) -> None:
        self._end()
        self._open_call = self.draft.call(mapping(call.get("function")).get("name"), call.get("id"))
        self._add_arguments(call)

    def _add_arguments(self, call: Mapping[str, Any]) -> None:
        if self._open_call is not None:
            self.draft.add(self._open_call, mapping(call.get("function")).get("arguments"))

    def _end(self) -> None:
        self.draft.end_flow()
        if self._open_call is not None:
            self.draft.end(self._open_call)
            self._open_call = None

    def _cite(self, citation: Mapping[str, Any]) -> None:
        for source in objects(citation.get("sources")):
            document = mapping(source.get("document"))
            self.draft.cite(document.get("url"), document.get("title") or source.get("id"), citation.get("text"))

    def _finish_message(self, end: Mapping[str, Any]) -> None:
        reason, usage = end.get("finish_reason"), mapping(end.get("usage"))
        counted = mapping(usage.get("tokens")) or mapping(usage.get("billed_units"))
        self.counts = Counts(
            prompt=tokens(counted.get("input_tokens")),
            completion=tokens(counted.get("output_tokens")),
            cached=tokens(usage.get("cached_tokens")),
        )
        if isinstance(reason, str) and reason in FAILED:
            message = end.get("error") or f"the answer ended with {reason}"
            raise make_failure(self.draft.provider, FAILED[reason], {"message": message})
        self._end()
        self.note(stop_reason=reason)
        self.complete = self.over = True

    def get_own_content(self) -> Any:
        """Return the thoughts, which are sent back with the calls that followed them."""
        thoughts = "".join(self.draft.thoughts)
        return {"thinking": thoughts} if thoughts and self.draft.calls else None


class CohereWriter(ChatWriter):
    """Contexts as lists of messages with roles."""

    def write_utterance(self, message: Message, ids: Sequence[str]) -> Iterable[bytes]:
        """An utterance: a plan and calls, or a text."""
        utterance: dict[str, Any] = {"role": "assistant"}
        thoughts = mapping(self.find_own_content(message)).get("thinking") if message.blocks else None
        if thoughts:
            utterance["content"] = [{"type": "thinking", "thinking": thoughts}]
        if ids:
            utterance["tool_calls"] = self.write_calls(message, ids)
            if message.content:
                utterance["tool_plan"] = message.content
        elif message.content:
            utterance["content"] = message.content
        if len(utterance) > 1:
            yield dump_exactly(utterance)


class Cohere(Chat):
    """Cohere's chat."""

    provider: ClassVar[str] = "cohere"
    is_strict: ClassVar[bool] = False
    seller: ClassVar[str | None] = "cohere"
    base_url: ClassVar[str] = "https://api.cohere.com/v2"
    keys: ClassVar[tuple[str, ...]] = ("CO_API_KEY", "COHERE_API_KEY")
    takes: ClassVar[Takes] = Takes()
    lessons: ClassVar[Mapping[str, str]] = {
        "temperature": r"temperature",
        "top_p": r"\bp\b",
        "stop": r"stop_sequences",
        "tool_choice": r"tool_choice",
        "schema": r"response_format|json_schema|json schema",
        "thinking": r"thinking|reasoning",
    }
    level: ClassVar[str] = "thinking"
    written: ClassVar[Table] = COHERE
    writes: ClassVar[type[ChatWriter]] = CohereWriter
    path = "/chat"
    decodes: ClassVar[type[Decoder]] = CohereDecoder
    fit = staticmethod(keep_schema)

    @property
    def has_budget(self) -> bool:
        """A level is sent as a number of tokens."""
        return True

    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ARG002
        """Yield the fields except the messages."""
        settings = query.settings
        budget = 0 if settings.effort in (None, "none") else EFFORT[str(settings.effort)]
        most = settings.max_tokens
        yield "", {"model": self.model, "stream": True, "max_tokens": None if most is None else most + budget}
        yield "temperature", {"temperature": settings.temperature}
        yield "top_p", {"p": settings.top_p}
        yield "stop", {"stop_sequences": list(settings.stop) or None}
        if settings.effort is not None:
            thinking = {"type": "enabled", "token_budget": budget} if budget else {"type": "disabled"}
            yield "thinking", {"thinking": thinking}
        if settings.schema is not None:
            schema = self.fit_schema(settings.schema).schema
            yield "schema", {"response_format": {"type": "json_object", "json_schema": schema}}
        if query.tools:
            yield from self._write_tools(query)

    def exclude(self, query: ProviderQuery) -> frozenset[str]:
        """The provider does not enforce a schema for the answer while there are tools."""
        return frozenset({"schema"}) if query.tools else frozenset()

    def _write_tools(self, query: ProviderQuery) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """To force a call of one gate, the request offers only that gate."""
        gate, offered = find_named_gate(query.choice), query.tools
        if gate is not None:
            offered = [tool for tool in offered if tool.name == gate] or offered
        yield "", {"tools": self.encoder.encode_tools(offered, write_functions)}
        if query.choice == "none":
            yield "tool_choice", {"tool_choice": "NONE"}
        elif query.choice == "required" or gate is not None:
            yield "tool_choice", {"tool_choice": "REQUIRED"}

    image_tokens = staticmethod(estimate_by_pixels)
