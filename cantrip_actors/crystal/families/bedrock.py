"""Amazon Bedrock's Converse: its event stream decoded, contexts encoded for it, requests signed.

Converse is one interface for the models of many makers. Text blocks have no event for their beginning, counts arrive
after the end, and errors are exceptions within the stream. Frames are binary, each with its checksum; botocore's parser
reads them. A request has a bearer key, or a signature that botocore makes from the credentials which it finds: the
environment, profiles, single sign-on, the machine's role.

Claude has the same levels and budgets of thinking as in Anthropic's API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import quote

import orjson

from cantrip_actors.crystal.access import Access, import_extra, run_in_thread
from cantrip_actors.crystal.draft import Counts, Decoder, DraftItem, tokens
from cantrip_actors.crystal.encode import CallAnswer, Writer
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.families.anthropic import Anthropic
from cantrip_actors.crystal.history import fit_block, fit_name
from cantrip_actors.crystal.images import OFFICE, Shown, Takes, name_file
from cantrip_actors.crystal.provider import Counting, ProviderQuery
from cantrip_actors.crystal.shapes import mapping, objects
from cantrip_actors.crystal.sse import Framing, ServerSentEvent
from cantrip_actors.crystal.typed_settings import Table
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import Message, Response, ToolDefinition, find_named_gate

FLUKES: Final = frozenset({"malformed_model_output", "malformed_tool_use"})
"""Reasons to stop for which another attempt may succeed."""

DOCUMENTS: Final[Mapping[str, str]] = {"application/pdf": "pdf", OFFICE[0]: "docx", OFFICE[2]: "xlsx"}
"""Media types of documents, and their names in Converse."""

VIDEOS: Final[Mapping[str, str]] = {
    "video/mp4": "mp4",
    "video/quicktime": "mov",
    "video/webm": "webm",
    "video/x-matroska": "mkv",
    "video/x-flv": "flv",
    "video/mpeg": "mpeg",
}
"""Media types of video, which Nova accepts."""

_UNNAMEABLE: Final = re.compile(r"[^A-Za-z0-9()\[\]-]+")
"""Characters that the name of a document may not have; two spaces in a row are not allowed either."""


class BedrockFraming(Framing):
    """Parses binary frames. The data of each event is an object whose only key is the name of the event.

    Data that does not begin with the first byte of a frame's length is a body or a recording.
    """

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        super().__init__()
        self._buffer: Any = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes. Raises ProviderError for a broken frame, and for other data."""
        stream = import_extra("bedrock", "botocore.eventstream")
        if self._buffer is None and not self._head and chunk[:1] == b"\0":
            self._buffer = stream.EventStreamBuffer()
        if self._buffer is None:
            return super().feed(chunk)
        self._buffer.add_data(chunk)
        try:
            return [_make_event(message.headers, message.payload) for message in self._buffer]
        except stream.ParserError as error:
            raise ProviderError(f"bedrock sent a broken frame: {error}") from error


def _make_event(headers: Mapping[str, Any], payload: bytes) -> ServerSentEvent:
    kind = headers.get(":exception-type") or headers.get(":error-code") or headers.get(":event-type") or ""
    if headers.get(":message-type") == "error":
        payload = orjson.dumps({"message": str(headers.get(":error-message") or "")})
    is_event = headers.get(":message-type", "event") == "event"
    return ServerSentEvent(b'{"%b":%b}' % (str(kind).encode(), payload or b"{}"), "" if is_event else "exception")


class BedrockDecoder(Decoder):
    """The stream of a message."""

    provider: ClassVar[str] = "bedrock"
    framing: ClassVar[type[Framing]] = BedrockFraming

    def __init__(self, model: str = "", **more: Any) -> None:
        super().__init__(model, **more)
        self._blocks: dict[int, dict[str, Any]] = {}
        self._items: dict[int, DraftItem] = {}

    def read(self, value: dict[str, Any], name: str) -> None:
        """Read one event, or a whole message."""
        if "output" in value:
            self._read_body(value)
            return
        for kind, content in value.items():
            event = mapping(content)
            self.moves = kind.startswith("contentBlock")
            if kind == "contentBlockDelta":
                self._extend_block(_read_index(event), mapping(event.get("delta")))
            elif kind == "contentBlockStart":
                self._start(_read_index(event), mapping(event.get("start")))
            elif kind == "contentBlockStop":
                self._stop(_read_index(event))
            elif kind == "messageStart":
                if self._blocks and not self.complete:
                    raise self.make_second_message_error()
                self.draft.start(self.asked)
            elif kind == "messageStop":
                self._finish_message(event.get("stopReason"))
            elif kind == "metadata":
                self._count_tokens(mapping(event.get("usage")))
                self.over = self.complete
            elif name == "exception" or kind.endswith(("Exception", "Error")):
                raise make_failure(self.draft.provider, None, {"error": {**event, "type": kind}})

    def build_response(self) -> Response:
        """Return the response. Raises ProviderError for unreadable output, whose tokens arrive after its end."""
        reason = self.metadata.get("stop_reason")
        if reason in FLUKES:
            raise ProviderError(f"{self.draft.provider}: the model's output was unreadable ({reason})", retryable=True)
        return super().build_response()

    def get_own_content(self) -> Any:
        """Return all blocks if one of them is more than text and calls."""
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        plain = all(block.keys() <= {"text", "toolUse"} and not _is_theirs(block) for block in blocks)
        return None if plain and not self.is_part else blocks

    def _read_body(self, value: Mapping[str, Any]) -> None:
        self.draft.start(self.asked)
        for index, block in enumerate(objects(mapping(mapping(value["output"]).get("message")).get("content"))):
            call, thought = mapping(block.get("toolUse")), mapping(block.get("reasoningContent"))
            if call:
                self._start(index, {"toolUse": call})
                self._extend_block(index, {"toolUse": {"input": dump_exactly(call.get("input") or {}).decode()}})
            elif thought:
                reasoning = mapping(thought.get("reasoningText"))
                for name, part in {**reasoning, "redactedContent": thought.get("redactedContent")}.items():
                    self._extend_block(index, {"reasoningContent": {name: part}})
            elif "text" in block:
                self._extend_block(index, block)
            else:
                self._blocks[index] = dict(block)
            self._stop(index)
        self._count_tokens(mapping(value.get("usage")))
        self._finish_message(value.get("stopReason"))
        self.over = self.complete

    def _count_tokens(self, usage: Mapping[str, Any]) -> None:
        read, written = tokens(usage.get("cacheReadInputTokens")), tokens(usage.get("cacheWriteInputTokens"))
        long = sum(
            tokens(detail.get("inputTokens"))
            for detail in objects(usage.get("cacheDetails"))
            if detail.get("ttl") == "1h"
        )
        self.counts = Counts(
            prompt=tokens(usage.get("inputTokens")) + read + written,  # `inputTokens` does not include them
            completion=tokens(usage.get("outputTokens")),
            cached=read,
            written=written,
            written_long=long,
        )

    def _finish_message(self, reason: Any) -> None:
        self.draft.start(self.asked)
        self.note(stop_reason=reason)
        for index in list(self._items):
            self._stop(index)
        self.complete = True

    # Its blocks

    def _start(self, index: int, start: Mapping[str, Any]) -> None:
        if index in self._blocks:
            return
        call = start.get("toolUse")
        if isinstance(call, Mapping) and call.get("type") != "server_tool_use":
            item = self._items[index] = self.draft.call(call.get("name"), call.get("toolUseId"))
            self._blocks[index] = {"toolUse": {"toolUseId": item.call_id, "name": item.name, "input": {}}}
        else:
            self._blocks[index] = {name: {**mapping(part)} for name, part in start.items()}

    def _extend_block(self, index: int, delta: Mapping[str, Any]) -> None:
        for kind, content in delta.items():
            block, item = self._blocks.setdefault(index, {}), self._items.get(index)
            if kind == "text":
                if item is None:
                    item = self._items[index] = self.draft.begin("message")
                self.draft.add(item, content)
            elif kind == "toolUse":
                if item is not None:
                    self.draft.add(item, mapping(content).get("input"))
                elif isinstance(theirs := block.get("toolUse"), dict):
                    theirs["input"] = str(theirs.get("input") or "") + str(mapping(content).get("input") or "")
            elif kind == "reasoningContent":
                self._think(index, mapping(content))
            elif kind == "citation":
                block.setdefault("citations", []).append(content)

    def _think(self, index: int, thought_part: Mapping[str, Any]) -> None:
        thought = self._blocks[index].setdefault("reasoningContent", {})
        text, signature, hidden = (
            thought_part.get("text"),
            thought_part.get("signature"),
            thought_part.get("redactedContent"),
        )
        if isinstance(hidden, str) and hidden:
            thought["redactedContent"] = thought.get("redactedContent", "") + hidden
        if isinstance(text, str) and text:
            item = self._items.get(index)
            if item is None:
                item = self._items[index] = self.draft.begin("reasoning")
            self.draft.add(item, text)
        if isinstance(signature, str) and signature:
            reasoning = thought.setdefault("reasoningText", {})
            reasoning["signature"] = reasoning.get("signature", "") + signature

    def _stop(self, index: int) -> None:
        item, block = self._items.pop(index, None), self._blocks.get(index)
        if item is None or block is None:
            return
        self.draft.end(item)
        if item.kind == "function_call":
            block["toolUse"]["input"] = item.arguments or {}
        elif item.kind == "reasoning":
            reasoning = block["reasoningContent"].setdefault("reasoningText", {})
            reasoning["text"] = item.text
        else:
            block["text"] = item.text


def _read_index(event: Mapping[str, Any]) -> int:
    index = event.get("contentBlockIndex", 0)
    return index if isinstance(index, int) else 0


def _is_theirs(block: Mapping[str, Any]) -> bool:
    return mapping(block.get("toolUse")).get("type") == "server_tool_use"


class BedrockWriter(Writer):
    """Writes contexts for Converse: user and assistant take turns, and results come first in a user message."""

    def __init__(self, model: str, provider: str, takes: Takes, point: Mapping[str, Any] | None) -> None:
        super().__init__(model, provider, takes)
        self.marks = 1
        self.point = point
        """The cache mark after the last block of a context; None if the model has no cache."""

    def mark(self, fragment: bytes) -> bytes:
        """Return a run with a cache mark after its last block; the end of its JSON is known."""
        return fragment if self.point is None else fragment[:-2] + b',{"cachePoint":%b}]}' % dump_exactly(self.point)

    def write_utterance(self, message: Message, ids: Sequence[str]) -> Iterable[bytes]:
        """Yield an utterance: its own blocks if it has any, else its text and its calls."""
        content = self._replay_blocks(message, ids)
        if content is None:
            content = [{"text": message.content}] if message.content and message.content.strip() else []
            content += [
                _write_call(own, call.gate, call.args) for call, own in zip(message.tool_calls, ids, strict=True)
            ]
        if content:  # an empty one is refused
            yield dump_exactly({"role": "assistant", "content": content})

    def _replay_blocks(self, message: Message, ids: Sequence[str]) -> list[dict[str, Any]] | None:
        blocks = self.find_own_content(message)
        if not isinstance(blocks, (list, tuple)):
            return None
        renamed = {call.id: (call, own) for call, own in zip(message.tool_calls, ids, strict=True)}
        content: list[dict[str, Any]] = []
        for block in objects(blocks):
            thought = mapping(mapping(block.get("reasoningContent")).get("reasoningText"))
            call = mapping(block.get("toolUse"))
            if call and not _is_theirs(block):
                call_and_id = renamed.pop(str(call.get("toolUseId")), None)
                if call_and_id is None:
                    return None
                own_call, own = call_and_id
                content.append(_write_call(own, own_call.gate, own_call.args))
            elif "text" in block:
                if str(block["text"]).strip() and (text := fit_block(block, "text", self.rules)) is not None:
                    content.append(text)
            elif thought and "claude" in self.model and fit_block(thought, "reasoningText", self.rules) is None:
                continue  # it was interrupted and has no signature
            elif block:
                content.append(block)
        return None if renamed else content

    def write_messages(self, answers: Sequence[CallAnswer], texts: Sequence[str | Shown]) -> Iterable[bytes]:
        """Yield one message with all results and texts."""
        content: list[dict[str, Any]] = []
        for answer in answers:
            parts = [_write_block(part) for part in self.list_result_parts(answer, answer.content or "[nothing]")]
            result: dict[str, Any] = {"toolUseId": answer.id, "content": parts}
            if answer.is_error:
                result["status"] = "error"
            content.append({"toolResult": result})
        content += [_write_block(part) for text in texts for part in self.list_parts(text)]
        if any("document" in block for block in content) and not any("text" in block for block in content):
            content.append({"text": "[a document without words]"})  # Converse requires a text with it
        yield dump_exactly({"role": "user", "content": content})


def _write_call(own: str, name: str, args: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": own, "name": name, "input": args or {}}}


def _write_block(part: str | File) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    kind, source = part.media_type, {"bytes": part.base64()}
    if kind in DOCUMENTS:
        stem = _UNNAMEABLE.sub(" ", name_file(part).rpartition(".")[0])  # names of two files of a request must differ
        return {
            "document": {"format": DOCUMENTS[kind], "name": f"{stem.strip()} {part.name}".strip(), "source": source}
        }
    if kind in VIDEOS:
        return {"video": {"format": VIDEOS[kind], "source": source}}
    return {"image": {"format": part.media_type.removeprefix("image/"), "source": source}}


def write_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return the tools for Converse."""
    return [
        {"toolSpec": {"name": t.name, "description": t.description or t.name, "inputSchema": {"json": t.parameters}}}
        for t in tools
    ]


class Bedrock(Anthropic):
    """Converse, in one region."""

    provider: ClassVar[str] = "bedrock"
    is_strict: ClassVar[bool] = False
    seller: ClassVar[str | None] = "aws"
    base_url: ClassVar[str] = "https://bedrock-runtime.us-east-1.amazonaws.com"
    keys: ClassVar[tuple[str, ...]] = ("AWS_BEARER_TOKEN_BEDROCK",)
    key_header: ClassVar[tuple[str, str]] = ("authorization", "Bearer ")
    fixed: ClassVar[Mapping[str, str]] = {"accept": "application/vnd.amazon.eventstream, application/json"}
    lessons: ClassVar[Mapping[str, str]] = {
        "temperature": r"temperature",
        "top_p": r"top_?p",
        "stop": r"stop_?sequences",
        "thinking": r"thinking|effort|additionalmodelrequestfields",
        "tool_choice": r"tool_?choice",
        "schema": r"textformat|output_?config|json_?schema",
    }
    decodes: ClassVar[type[Decoder]] = BedrockDecoder
    takes: ClassVar[Takes] = Takes(largest=5 * 1024 * 1024, widest=8000, addresses=False, files=tuple(DOCUMENTS))
    serves: ClassVar[str] = ""
    written: ClassVar[Table] = {"service_tier": lambda value, _: {"serviceTier": {"type": value}}}

    @property
    def path(self) -> str:
        """Return the path, which contains the model: a name, or the ARN of a profile."""
        return f"/model/{quote(self.model, safe='')}/converse-stream"

    @property
    def counting(self) -> Counting | None:
        """The request is that of Converse, within two fields."""
        return Counting(
            f"/model/{quote(self.model, safe='')}/count-tokens",
            ("messages", "system", "toolConfig"),
            "inputTokens",
            lambda body: {"input": {"converse": body}},
        )

    @property
    def is_claude(self) -> bool:
        """Whether the model is one of Anthropic's."""
        return "claude" in self.model

    @property
    def levels(self) -> Mapping[str, str]:
        """Return Claude's levels; other models report theirs when they refuse one."""
        return super().levels if self.is_claude else {}

    @property
    def has_budget(self) -> bool:
        """Return whether the model takes a budget: only Claude does."""
        return self.is_claude and super().has_budget

    def make_writer(self) -> BedrockWriter:
        """Return the writer of contexts for this model."""
        is_nova, point = "nova" in self.model, None
        if self._cache is not None and (self.is_claude or is_nova):
            point = {"type": "default", **({} if self._cache.ttl == "5m" else {"ttl": self._cache.ttl})}
        takes = replace(self.takes, files=(*DOCUMENTS, *VIDEOS)) if is_nova else self.takes
        return BedrockWriter(self.model, self.provider, takes, point)

    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield system and tools with cache marks, and sampling in an object of its own."""
        settings = query.settings
        most, budget = self._allot_tokens(settings) if self.is_claude else (settings.max_tokens, 0)
        if most is not None:
            yield "", {"inferenceConfig": {"maxTokens": most}}
        for parameter, name, value in (
            ("stop", "stopSequences", list(settings.stop) or None),
            ("temperature", "temperature", settings.temperature),
            ("top_p", "topP", settings.top_p),
        ):
            if value is not None:
                yield parameter, {"inferenceConfig": {name: value}}
        if settings.effort not in (None, "none"):
            yield "thinking", self._write_thinking_fields(str(settings.effort), budget)
        if settings.schema is not None and (schema := self.fit_schema(settings.schema).schema) is not None:
            answer_schema = {"name": "answer", "schema": dump_exactly(schema).decode()}
            wanted = {"type": "json_schema", "structure": {"jsonSchema": answer_schema}}
            yield "schema", {"outputConfig": {"textFormat": wanted}}
        point = self.encoder.writer.point if isinstance(self.encoder.writer, BedrockWriter) else None
        if system:
            yield "", {"system": [{"text": system}, *([] if point is None else [{"cachePoint": point}])]}
        if query.tools and query.choice != "none":  # Converse has no value for "none": tools are not offered then
            yield "", {"toolConfig": {"tools": self.encoder.encode_tools(query.tools, write_tools)}}
            gate = find_named_gate(query.choice)
            if query.choice == "required":
                yield "tool_choice", {"toolConfig": {"toolChoice": {"any": {}}}}
            elif gate is not None:
                yield "tool_choice", {"toolConfig": {"toolChoice": {"tool": {"name": gate}}}}
        elif names := {fit_name(call.gate, self.rules) for m in query.messages for call in m.tool_calls}:
            gone = [ToolDefinition(name, "Not offered any more.", {"type": "object"}) for name in sorted(names)]
            yield "", {"toolConfig": {"tools": write_tools(gone)}}  # a context with calls is refused without tools

    def exclude(self, query: ProviderQuery) -> frozenset[str]:
        """Return the parameters that Claude refuses together with thinking; other models report theirs."""
        return super().exclude(query) if self.is_claude else frozenset()

    def _write_thinking_fields(self, effort: str, budget: int) -> Mapping[str, Any]:
        if not self.is_claude:
            return {"outputConfig": {"effort": effort}}
        thinking = self._write_thinking(effort, budget)
        level = mapping(thinking.get("output_config")).get("effort")
        more = {"additionalModelRequestFields": {"thinking": thinking["thinking"]}}
        return more if level is None else {**more, "outputConfig": {"effort": level}}

    def learn(self, error: ProviderError, request: Any) -> str | None:
        """Learn as all families do, and also that a model has no cache: it gets no marks."""
        learnt = super().learn(error, request)
        writer = self.encoder.writer
        if learnt is not None or error.status != 400 or "cache" not in str(error).lower():
            return learnt
        if not isinstance(writer, BedrockWriter) or writer.point is None:
            return None
        writer.point = None
        self.encoder.forget()
        return "cache"


class SignedAccess(Access):
    """Access by a signature (SigV4) with the credentials that `find`, which may block, returns; None is an error.

    `control` is the address of the interface for jobs, `s3` that of the region's buckets.
    """

    def __init__(self, region: str, find: Callable[[], Any], *, control: str = "", s3: str = "") -> None:
        self.control = control
        self.s3 = s3
        self._region = region
        self._find = find
        self._credentials: Any = None
        self._frozen: Any = None

    async def make_headers(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """Return the headers: the signature, its time, and the token of temporary credentials."""
        refresh_needed = getattr(self._credentials, "refresh_needed", lambda: False)  # others do not expire
        if self._credentials is None or refresh_needed():
            await run_in_thread(self._renew)
        return self._sign(method, url, body)

    def is_alone_at(self, url: str) -> bool:
        """Return whether an address is that of a bucket: S3 does not accept a bearer key of Bedrock."""
        is_job = self.s3 == self.control and url.startswith(f"{self.control}/model")  # one address for all of AWS
        return bool(self.s3) and url.startswith(f"{self.s3}/") and not is_job

    def _sign(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        auth, request = import_extra("bedrock", "botocore.auth"), import_extra("bedrock", "botocore.awsrequest")
        signed = request.AWSRequest(method, url, {"content-type": "application/json"}, body)
        if self.is_alone_at(url):
            auth.S3SigV4Auth(self._frozen, "s3", self._region).add_auth(signed)
        else:
            auth.SigV4Auth(self._frozen, "bedrock", self._region).add_auth(signed)
        return {name.lower(): str(value) for name, value in signed.headers.items()}

    def _renew(self) -> None:
        exceptions = import_extra("bedrock", "botocore.exceptions")
        try:
            credentials = self._credentials or self._find()
            if credentials is None:
                raise CrystalError(
                    "bedrock: no AWS credentials: set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and "
                    "AWS_SECRET_ACCESS_KEY, or configure a profile"
                )
            self._frozen = credentials.get_frozen_credentials()
        except (exceptions.HTTPClientError, exceptions.MetadataRetrievalError) as error:
            raise ProviderError(f"bedrock: the AWS credentials could not be fetched: {error}") from error
        except exceptions.BotoCoreError as error:
            raise CrystalError(f"bedrock: no AWS credentials: {error}") from error
        self._credentials = credentials

    def forget(self) -> None:
        """Forget the credentials: the next request looks for them again."""
        self._credentials = None

    @property
    def secrets(self) -> Mapping[str, str]:
        """Return the secret key, and the token of temporary credentials."""
        key = self._frozen
        if key is None:
            return {}
        named = {"AWS_SECRET_ACCESS_KEY": key.secret_key, "AWS_SESSION_TOKEN": key.token}
        return {name: value for name, value in named.items() if value}
