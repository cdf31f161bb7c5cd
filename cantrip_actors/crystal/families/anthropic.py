"""Anthropic's Messages API: its stream decoded, contexts encoded for it.

The decoder reads events block by block; blocks may interleave, `ping` may arrive at any time, and unknown events are
ignored. A body that was not streamed is read by the same rules.

Thinking is sent back unchanged and in order to the model that wrote it, and to no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from cantrip_actors.crystal.cache_points import CachePoints
from cantrip_actors.crystal.draft import Counts, Decoder, DraftItem, tokens
from cantrip_actors.crystal.encode import CallAnswer, SamplingSettings, Writer
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.history import fit_block, fit_citations
from cantrip_actors.crystal.images import Shown, Takes
from cantrip_actors.crystal.prices import UNKNOWN, Model
from cantrip_actors.crystal.provider import STRICT_REFUSED, Counting, Family, ProviderQuery
from cantrip_actors.crystal.schemas import fit_for_anthropic
from cantrip_actors.crystal.server_tools import KINDS
from cantrip_actors.crystal.shapes import mapping, objects, parse_object
from cantrip_actors.crystal.typed_settings import ANTHROPIC, Table
from cantrip_actors.terms.cut_off import find_cut_off
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Message, Response, ToolDefinition, find_named_gate

REFUSED: Final = "refusal"
_MOVING: Final = frozenset({"content_block_start", "content_block_delta", "content_block_stop"})
_SERVED: Final = frozenset({"server_tool_use", "mcp_tool_use"})
PAUSED: Final = frozenset({"pause_turn", "compaction"})
"""Reasons to stop for a turn that is not over."""


class AnthropicDecoder(Decoder):
    """The stream of a message."""

    provider: ClassVar[str] = "anthropic"

    def __init__(self, model: str = "", **more: Any) -> None:
        super().__init__(model, **more)
        self._blocks: dict[int, dict[str, Any]] = {}
        self._items: dict[int, DraftItem] = {}
        self._counted: dict[str, Any] = {}
        self._prefilled: list[dict[str, Any]] = []
        self._refusal = ""

    def read(self, value: dict[str, Any], name: str) -> None:
        """Read one event, or a whole message."""
        kind = value.get("type") or name
        self.moves = kind in _MOVING
        if kind == "content_block_delta":
            self._extend_block(value)
        elif kind == "content_block_start":
            self._start(value)
        elif kind == "content_block_stop":
            self._stop(value.get("index"))
        elif kind == "message_delta":
            self._note_stop(mapping(value.get("delta")))
            self._read_usage(value.get("usage"))
        elif kind == "message_start":
            self._begin_message(mapping(value.get("message")))
        elif kind == "message_stop":
            self._end_message()
        elif kind == "message":
            self._read_body(value)
        elif kind == "error" or "error" in value:
            raise make_failure(self.draft.provider, None, value)
        # anything else: `ping`, and events newer than this file

    def get_own_content(self) -> Any:
        """Return all blocks if one of them is signed, or more than text and calls."""
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        if find_cut_off(self.metadata) is not None:  # a call of a server tool is refused without its result
            answered = {block.get("tool_use_id") for block in blocks}
            blocks = [b for b in blocks if b.get("type") not in _SERVED or b.get("id") in answered]
        plain = all(b.get("type") in ("text", "tool_use") and not b.get("citations") for b in blocks)
        return None if plain and not self.is_part else blocks

    # The message

    def _begin_message(self, message: Mapping[str, Any]) -> None:
        self.note_beginning(message.get("id"))
        self.draft.start(message.get("model"))  # a repeated one changes only the counts
        self.note(id=message.get("id"), model=message.get("model"))
        self._read_usage(message.get("usage"))
        if not self._blocks:
            self._prefilled = objects(message.get("content"))
        self._note_stop(message)

    def _note_stop(self, delta: Mapping[str, Any]) -> None:
        self.note(stop_reason=delta.get("stop_reason"), stop_sequence=delta.get("stop_sequence"))
        details = delta.get("stop_details")
        if isinstance(details, Mapping):
            self.note(refusal=details.get("category"))
            self._refusal = str(details.get("explanation") or "")

    def _read_usage(self, usage: Any) -> None:
        """Read the counts. They are cumulative and may be repeated: the last one is right."""
        if isinstance(usage, Mapping):
            self._counted.update((name, amount) for name, amount in usage.items() if amount is not None)
            self.counts = _read_counts(self._counted)
            for iteration in objects(self._counted.get("iterations")):
                if iteration.get("type") == "compaction":  # billed, and not in the counts above
                    more = _read_counts(iteration)
                    self.counts = self.counts._replace(
                        prompt=self.counts.prompt + more.prompt,
                        completion=self.counts.completion + more.completion,
                        cached=self.counts.cached + more.cached,
                        written=self.counts.written + more.written,
                    )

    def _end_message(self) -> None:
        if "stop_reason" not in self.metadata:
            raise ProviderError(f"{self.draft.provider}: the message ended without a reason")
        if self._prefilled:
            self._prefill()
        for index in list(self._items):
            self._stop(index)
        if self.metadata["stop_reason"] == REFUSED and not (self.draft.content or self.draft.calls) and self._refusal:
            self.draft.say("message", self._refusal)
        self.unfinished = self.metadata["stop_reason"] in PAUSED
        self.complete = self.over = True

    def _prefill(self) -> None:
        """Add the blocks that were already in `message_start`: calls that were not repeated, or the whole message."""
        ids = {block.get("id") for block in self._blocks.values()}
        for block in self._prefilled:
            is_new = block.get("type") == "tool_use" and block.get("id") not in ids
            if is_new or not ids:
                self._add_block(len(self._blocks), block)

    def _read_body(self, message: Mapping[str, Any]) -> None:
        self._begin_message({**message, "content": None})
        for index, block in enumerate(objects(message.get("content"))):
            self._add_block(index, block)
        self._end_message()

    # Its blocks

    def _add_block(self, index: int, block: dict[str, Any]) -> None:
        self._start({"index": index, "content_block": block})
        self._stop(index)

    def _start(self, value: Mapping[str, Any]) -> None:
        index, block = value.get("index"), value.get("content_block")
        if not isinstance(index, int) or not isinstance(block, dict):
            raise ProviderError(f"{self.draft.provider}: a block began without an index or a content")
        if index in self._blocks:
            return  # sent twice
        block = dict(block)
        self._blocks[index] = block
        kind = block.get("type")
        if kind == "text":
            self._items[index] = item = self.draft.begin("message")
            self.draft.add(item, block.get("text"))
            for citation in objects(block.get("citations")):
                self._cite(citation)
        elif kind == "thinking":
            self._items[index] = item = self.draft.begin("reasoning")
            self.draft.add(item, block.get("thinking"))
        elif kind == "tool_use":
            self._items[index] = item = self.draft.call(block.get("name"), block.get("id"))
            block["id"] = item.call_id
        elif kind in _SERVED:
            called = str(block.get("name") or "")
            if kind == "mcp_tool_use":
                item = self.draft.serve("mcp_connector", block.get("id"), f"{block.get('server_name')}.{called}")
            else:
                item = self.draft.serve(KINDS.get(called, called), block.get("id"))
            self._items[index] = item
        elif str(kind).endswith("_tool_result"):
            result, is_error = _parse_server_result(block)
            self.draft.add_server_result(block.get("tool_use_id"), result, is_error=is_error)
        elif kind == "fallback":  # the model declined, perhaps within a call; another model continues, at its own price
            self.draft.cut_off()
            self.note(model=mapping(block.get("to")).get("model"))

    def _extend_block(self, value: Mapping[str, Any]) -> None:
        index, delta = value.get("index"), value.get("delta")
        block = self._blocks.get(index) if isinstance(index, int) else None
        if block is None or not isinstance(delta, dict):
            raise ProviderError(f"{self.draft.provider}: part of a block that never began")
        kind = delta.get("type")
        item = self._items.get(index)  # type: ignore[arg-type]  # an int, since it found a block
        if kind in ("text_delta", "thinking_delta"):
            field = "text" if kind == "text_delta" else "thinking"
            if item is not None:
                self.draft.add(item, delta.get(field))
            else:  # of a type of block newer than this file
                block[field] = str(block.get(field) or "") + str(delta.get(field) or "")
        elif kind == "input_json_delta":
            if item is not None:
                self.draft.add(item, delta.get("partial_json"))
            else:
                block["partial"] = block.get("partial", "") + str(delta.get("partial_json") or "")
        elif kind == "signature_delta":
            block["signature"] = str(delta.get("signature") or "")  # in one piece
        elif kind == "citations_delta":
            if not isinstance(block.get("citations"), list):  # null, or left out
                block["citations"] = []
            block["citations"].append(delta.get("citation"))
            self._cite(mapping(delta.get("citation")))
        elif kind == "compaction_delta":
            # in one piece, and null if it failed: unknown fields go back as well
            block.update((name, value) for name, value in delta.items() if name != "type")

    def _cite(self, citation: Mapping[str, Any]) -> None:
        named = citation.get("title") or citation.get("document_title")
        self.draft.cite(citation.get("url") or citation.get("source"), named, citation.get("cited_text"))

    def _stop(self, index: Any) -> None:
        block, item = self._blocks.get(index), self._items.pop(index, None)
        if block is None:
            raise ProviderError(f"{self.draft.provider}: the end of a block that never began")
        if item is None:  # a block without an item, or the repeated end of a block
            partial = block.pop("partial", None)
            if partial:
                block["input"] = parse_object(partial) or {}
            return
        if item.kind in ("function_call", "server_call"):
            if not item.parts and isinstance(block.get("input"), dict):
                item.arguments = block["input"]  # without arguments: none, or all of them at the start
            self.draft.end(item)
            block["input"] = item.arguments or {}
            return
        block["text" if item.kind == "message" else "thinking"] = item.text
        self.draft.end(item)


_END: Final = b"}]}"


class AnthropicWriter(Writer):
    """Writes contexts for the Messages API: user and assistant take turns, and results come first in a user message."""

    def __init__(self, model: str, provider: str, takes: Takes, cache: CachePoints | None) -> None:
        super().__init__(model, provider, takes)
        self.marks = 0 if cache is None else cache.messages
        self._mark = {} if cache is None else cache.mark

    def mark(self, fragment: bytes) -> bytes:
        """Return a run with a cache mark on its last block; the end of its JSON is known."""
        return fragment[: -len(_END)] + b',"cache_control":' + dump_exactly(self._mark) + _END

    def write_utterance(self, message: Message, ids: Sequence[str]) -> Iterable[bytes]:
        """Yield an utterance: its own blocks if it has any, else its text and its calls."""
        content = self._replay_blocks(message, ids) or self._write_plain(message, ids)
        if content:  # an empty one is refused
            yield dump_exactly({"role": "assistant", "content": content})

    def _write_plain(self, message: Message, ids: Sequence[str]) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = []
        if message.content and message.content.strip():
            content.append({"type": "text", "text": message.content})
        for call, own in zip(message.tool_calls, ids, strict=True):
            content.append({"type": "tool_use", "id": own, "name": call.gate, "input": call.args or {}})
        return content

    def _replay_blocks(self, message: Message, ids: Sequence[str]) -> list[dict[str, Any]] | None:
        blocks = self.find_own_content(message)
        if not isinstance(blocks, (list, tuple)):
            return None
        renamed = {call.id: (call, own) for call, own in zip(message.tool_calls, ids, strict=True)}
        content: list[dict[str, Any]] = []
        for original in blocks:
            kind = str(original.get("type"))
            block = fit_block(original, kind, self.rules)
            if block is None:
                continue
            if kind == "tool_use":
                call_and_id = renamed.pop(str(block.get("id")), None)
                if call_and_id is None:
                    return None
                call, block["id"] = call_and_id
                block |= {"name": call.gate, "input": call.args or {}}
            if block.get("citations"):
                block["citations"] = fit_citations(objects(block["citations"]), self.rules)
            content.append(block)
        return None if renamed else content  # a call without a block: these are not the blocks of this message

    def write_messages(self, answers: Sequence[CallAnswer], texts: Sequence[str | Shown]) -> Iterable[bytes]:
        """Yield one message with all results and texts."""
        content: list[dict[str, Any]] = []
        for answer in answers:
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": answer.id}
            if answer.images:
                parts = self.list_result_parts(answer, answer.content)
                result["content"] = parts[0] if parts == [answer.content] else [_write_block(part) for part in parts]
            elif answer.content.strip():
                result["content"] = answer.content
            if answer.is_error:
                result["is_error"] = True
                result.setdefault("content", "[failed without a message]")
            content.append(result)
        content += [_write_block(part) for text in texts for part in self.list_parts(text)]
        yield dump_exactly({"role": "user", "content": content})


def _write_block(part: str | File) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.file_id is not None:
        kind = "image" if part.media_type.startswith("image/") else "document"
        return {"type": kind, "source": {"type": "file", "file_id": part.file_id}}
    if not isinstance(part, Image):
        return _write_document(part)
    if part.url is not None:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    source = {"type": "base64", "media_type": part.media_type, "data": part.base64()}
    return {"type": "image", "source": source}


def _write_document(file: File) -> dict[str, Any]:
    source: dict[str, Any] = {"type": "base64", "media_type": file.media_type}
    if file.url is not None:
        source = {"type": "url", "url": file.url}
    elif file.is_text:
        source = {"type": "text", "media_type": "text/plain", "data": file.data.decode(errors="replace")}
    else:
        source["data"] = file.base64()
    return {"type": "document", "source": source, **({"title": file.filename} if file.filename else {})}


def write_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return the tools for the Messages API."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        | ({"strict": True} if tool.is_strict else {})
        for tool in tools
    ]


def _parse_server_result(block: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the result of a tool of the provider, and whether it is an error, without encrypted content."""
    content = block.get("content")
    if isinstance(content, Mapping) and "error_code" in content:
        return str(content["error_code"]), True
    if isinstance(content, Mapping):
        document = mapping(content.get("content"))
        facts = {name: content[name] for name in ("url", "stdout", "stderr", "return_code") if name in content}
        if document.get("title"):
            facts["title"] = document["title"]
        return facts or str(content.get("type") or ""), bool(facts.get("return_code"))
    if isinstance(content, str):
        return content, bool(block.get("is_error"))
    parts = objects(content)
    if any("url" in part for part in parts):
        return [{name: part[name] for name in ("url", "title") if part.get(name)} for part in parts], False
    return "\n".join(str(part.get("text") or "") for part in parts), bool(block.get("is_error"))


def _read_counts(usage: Mapping[str, Any]) -> Counts:
    written, cached = tokens(usage.get("cache_creation_input_tokens")), tokens(usage.get("cache_read_input_tokens"))
    searches = tokens(mapping(usage.get("server_tool_use")).get("web_search_requests"))
    return Counts(
        # input_tokens excludes tokens that were read from the cache or written to it
        prompt=tokens(usage.get("input_tokens")) + written + cached,
        completion=tokens(usage.get("output_tokens")),
        cached=cached,
        written=written,
        written_long=tokens(mapping(usage.get("cache_creation")).get("ephemeral_1h_input_tokens")),
        reasoning=tokens(mapping(usage.get("output_tokens_details")).get("thinking_tokens")),
        uses=(("web_search", searches),) if searches else (),
    )


VERSION: Final = "2023-06-01"
COUNTED: Final = ("model", "messages", "system", "thinking", "output_config", "tools", "tool_choice")
"""The fields of a request that a count depends on."""
EFFORT: Final[Mapping[str, int]] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 10_000,
    "high": 16_384,
    "xhigh": 24_576,
    "max": 32_768,
}
"""Tokens for thinking, for models that take a budget and no level."""
ANSWER: Final = 8192
"""Tokens of an answer without `max_tokens` from an unknown model."""


class Anthropic(Family):
    """The Messages API."""

    provider: ClassVar[str] = "anthropic"
    seller: ClassVar[str | None] = "anthropic"
    base_url: ClassVar[str] = "https://api.anthropic.com"
    keys: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY",)
    fixed: ClassVar[Mapping[str, str]] = {"anthropic-version": VERSION}
    is_strict: ClassVar[bool] = True
    lessons: ClassVar[Mapping[str, str]] = {
        "strict": STRICT_REFUSED,
        "temperature": r"temperature",
        "top_p": r"top_p",
        "stop": r"stop_sequences",
        "thinking": r"thinking.*(not supported|not available|adaptive|budget)|effort",
        "tool_choice": r"tool_choice|forces? tool use",
        "schema": r"output_config|output_format|schema",
    }

    serves: ClassVar[str] = "anthropic"
    written: ClassVar[Table] = ANTHROPIC
    level: ClassVar[str] = "thinking"
    key_header: ClassVar[tuple[str, str]] = ("x-api-key", "")
    decodes: ClassVar[type[Decoder]] = AnthropicDecoder
    takes: ClassVar[Takes] = Takes(
        largest=5 * 1024 * 1024,
        widest=8000,
        files=("application/pdf", "text/*"),
        fetched=("application/pdf",),
        ids=frozenset({"anthropic"}),
    )
    fit = staticmethod(fit_for_anthropic)

    def __init__(self, model: str, facts: Model, *, cache: CachePoints | None = None, by_schema: bool = False) -> None:
        self._cache = cache
        super().__init__(model, facts, by_schema=by_schema)

    @property
    def path(self) -> str:
        """One for all models."""
        return "/v1/messages"

    @property
    def counting(self) -> Counting | None:
        """How the provider counts tokens: as for a query, without its limit."""
        return Counting(f"{self.path}/count_tokens", COUNTED, "input_tokens")

    def make_writer(self) -> Writer:
        """Return the writer of contexts for this model."""
        return AnthropicWriter(self.model, self.provider, self.takes, self._cache)

    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the fields: tools, system, messages, the order in which the provider caches."""
        settings = query.settings
        most, budget = self._allot_tokens(settings)
        yield "", {"model": self.model, "max_tokens": most, "stream": True}
        yield "stop", {"stop_sequences": list(settings.stop) or None}
        yield "temperature", {"temperature": settings.temperature}
        yield "top_p", {"top_p": settings.top_p}
        if settings.effort not in (None, "none"):
            yield "thinking", self._write_thinking(str(settings.effort), budget)
        if settings.schema is not None and (schema := self.fit_schema(settings.schema).schema) is not None:
            yield "schema", {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        if system:
            marked = {} if self._cache is None or not self._cache.system else {"cache_control": self._cache.mark}
            yield "", {"system": [{"type": "text", "text": system, **marked}]}
        if query.tools:
            tools = self.encoder.encode_tools(query.tools, write_tools)
            if self._cache is not None and self._cache.has_tools(system):
                tools = [*tools[:-1], {**tools[-1], "cache_control": self._cache.mark}]
            yield "", {"tools": tools}
            if query.choice == "required":
                yield "tool_choice", {"tool_choice": {"type": "any"}}
            elif (gate := find_named_gate(query.choice)) is not None:
                yield "tool_choice", {"tool_choice": {"type": "tool", "name": gate}}
            elif query.choice == "none":  # also for models that refuse a forced call
                yield "", {"tool_choice": {"type": "none"}}

    def _write_typed_settings(self, query: ProviderQuery) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the settings, without a summary if there is no thinking, and without those of calls if none are
        allowed.
        """
        idle = frozenset() if self._is_thinking(query.settings) else frozenset({"reasoning_summary"})
        idle |= {"parallel_tool_calls"} if query.choice == "none" else frozenset()
        yield from ((name, fields) for name, fields in super()._write_typed_settings(query) if name not in idle)

    def _allot_tokens(self, settings: SamplingSettings) -> tuple[int, int]:
        """Return the limit to send, and how many of its tokens are for thinking if the model takes a budget.

        The budget is added to the length that the caller asked for, up to the limit of the model.
        """
        limit = self.known.max_output
        answer = settings.max_tokens or limit or ANSWER
        if settings.effort in (None, "none") or self._is_adaptive:
            return answer, 0
        wanted = EFFORT[str(settings.effort)]
        if limit is None:
            return answer + wanted, wanted
        if settings.max_tokens is None:
            return limit, min(wanted, limit // 2)
        budget = min(wanted, limit - answer)
        return (answer + budget, budget) if budget >= EFFORT["minimal"] else (answer, 0)

    @property
    def levels(self) -> Mapping[str, str]:
        """Return the levels; models that take a level have no "minimal"."""
        return {"minimal": "low"} if self._is_adaptive else {}

    @property
    def has_budget(self) -> bool:
        """Whether the model takes a budget of tokens for thinking and no level."""
        return not self._is_adaptive

    @property
    def _is_adaptive(self) -> bool:
        """Whether the model takes a level of thinking and no budget."""
        return self.known.adaptive or self.known is UNKNOWN

    def _is_thinking(self, settings: SamplingSettings) -> bool:
        return (
            settings.effort not in (None, "none")
            and self.should_send("thinking")
            and "thinking" not in self._exclude_thinking(settings)
        )

    def _exclude_thinking(self, settings: SamplingSettings) -> frozenset[str]:
        """Return the parameters to leave out: thinking, if the length of the answer leaves no room for it."""
        is_budgeted = settings.effort not in (None, "none") and not self._is_adaptive
        return frozenset({"thinking"}) if is_budgeted and not self._allot_tokens(settings)[1] else frozenset()

    def exclude(self, query: ProviderQuery) -> frozenset[str]:
        """Return the parameters to leave out: with thinking, sampling; with a budget, a forced call."""
        if not self._is_thinking(query.settings):
            return self._exclude_thinking(query.settings)
        return frozenset({"temperature", "top_p"} if self.known.adaptive else {"temperature", "top_p", "tool_choice"})

    def _write_thinking(self, effort: str, budget: int) -> Mapping[str, Any]:
        if self._is_adaptive:
            return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}

    def continue_turn(self, query: ProviderQuery, response: Response) -> ProviderQuery | None:
        """Return the query with the interrupted turn, unchanged."""
        if response.metadata.get("stop_reason") not in PAUSED:
            return None
        utterance = Message("assistant", response.content, response.tool_calls, blocks=response.blocks)
        return query._replace(messages=[*query.messages, utterance], resumes=True)
