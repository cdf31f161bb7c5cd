"""Google's Gemini API (`streamGenerateContent`): its stream decoded, contexts encoded for it.

Each chunk is a whole response with the next parts. No event ends the stream, only a reason to finish, which is STOP
with or without calls. Parts are kept unchanged, each with its own signature, and are sent back to the model that
signed them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Final

from cantrip_actors.crystal.draft import Counts, Decoder, DraftItem, count_modalities, tokens
from cantrip_actors.crystal.encode import CallAnswer, Writer
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.history import is_sent_name
from cantrip_actors.crystal.images import Shown, Takes, estimate_by_tiles
from cantrip_actors.crystal.provider import Counting, Family, ProviderQuery
from cantrip_actors.crystal.schemas import Fitted, fit_for_gemini, fit_gemini_arguments
from cantrip_actors.crystal.server_tools import KINDS
from cantrip_actors.crystal.shapes import mapping, objects
from cantrip_actors.crystal.typed_settings import GOOGLE, Table, read_google_logprobs
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import Message, Response, ToolCall, ToolDefinition, find_named_gate

FLUKES: Final = frozenset(
    {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE", "OTHER", "STOP"}
)
"""Reasons for an empty answer after which another attempt may succeed."""

INTERRUPTED: Final = "CONTINUATION"
"""The reason for an answer that the provider continues when it gets its token back (`Google.continue_turn`)."""

_INSIDE: Final = ("image/", "application/pdf")
"""Media types that a result can contain; audio and video follow it as parts of their own."""

UNSIGNED: Final = "skip_thought_signature_validator"
"""The replacement for a signature in a history that another model made."""

_THEIRS: Final = frozenset({"toolCall", "toolResponse", "executableCode", "codeExecutionResult"})
_PATH: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['([^']*)'\]")


_TEXT: Final = frozenset({"text"})


class GoogleDecoder(Decoder):
    """The stream of a response."""

    provider: ClassVar[str] = "google"
    seam: ClassVar[str] = ""
    cuts_calls: ClassVar[bool] = False

    def __init__(self, model: str = "", **more: Any) -> None:
        super().__init__(model, **more)
        self._parts: list[dict[str, Any]] = []
        self._more: list[str] = []
        """Pieces of text that have not been added to the last part yet."""
        self._call: DraftItem | None = None  # the call whose arguments are incomplete
        self._arguments: dict[str, Any] = {}
        self._half = ""  # the path of the argument whose value is incomplete
        self._usage: dict[str, int] = {}
        self._read: dict[str, Any] = {}
        self._made: dict[str, Any] = {}
        self._grounding: dict[str, Any] = {}
        self._fetched: list[dict[str, Any]] = []
        self._served: set[str] = set()
        self._ran = ""  # the code that runs there

    def read(self, value: dict[str, Any], name: str) -> None:  # noqa: ARG002
        """Read one chunk, or a whole response: both have the same shape."""
        text = self.draft.flowing
        if text is not None and self._try_extend(text, value):
            return
        self._join()
        if value.get("error"):
            raise make_failure(self.draft.provider, None, value)
        if not self.is_of_message(value.get("responseId")):
            return
        self._count_tokens(value.get("usageMetadata"))
        self.note(id=value.get("responseId"), model=value.get("modelVersion"))
        candidates = value.get("candidates")
        if not isinstance(candidates, list) or not candidates:
            reason = mapping(value.get("promptFeedback")).get("blockReason")
            if reason:  # with status 200
                raise ProviderError(f"{self.draft.provider}: the prompt was blocked: {reason}", retryable=False)
            return
        self.draft.start(value.get("modelVersion"))
        candidate = next((item for item in candidates if item.get("index", 0) in (0, None)), None)
        if candidate is None:
            return  # another candidate, if several were asked for
        for part in objects(mapping(candidate.get("content")).get("parts")):
            self.moves = True
            self._read_part(part)
        reason = candidate.get("finishReason")
        if isinstance(reason, str) and reason != "FINISH_REASON_UNSPECIFIED":
            self.note(stop_reason=reason, stop_message=candidate.get("finishMessage"))
            self.complete = True
        if "logprobsResult" in candidate:
            self.logprobs += read_google_logprobs(candidate["logprobsResult"])
        if "groundingMetadata" in candidate:
            self._grounding.update(mapping(candidate["groundingMetadata"]))
        self._fetched = objects(mapping(candidate.get("urlContextMetadata")).get("urlMetadata")) or self._fetched
        self.note(continuation=candidate.get("continuationToken"))
        self.unfinished = self.metadata.get("stop_reason") == INTERRUPTED and "continuation" in self.metadata

    def _try_extend(self, item: DraftItem, value: dict[str, Any]) -> bool:
        """Add a chunk's text, if it has nothing else, as most chunks have; return whether it was added."""
        try:
            (candidate,) = value["candidates"]
            (part,) = candidate["content"]["parts"]
            text = part["text"]
        except (LookupError, TypeError, ValueError):
            return False
        if "error" in value or "finishReason" in candidate or "groundingMetadata" in candidate:
            return False
        if value.get("responseId") != self._id:
            return False
        if "logprobsResult" in candidate or "urlContextMetadata" in candidate or "continuationToken" in candidate:
            return False
        if type(text) is not str or not text or len(part) > 1 or candidate.get("index") or self._call is not None:
            return False
        if not self._more and (item.kind != "message" or self._parts[-1].keys() != _TEXT):
            return False
        if "usageMetadata" in value:
            self._count_tokens(value["usageMetadata"])
        self._is_steady = True
        self.draft.add(item, text)
        self._more.append(text)
        return True

    def _join(self) -> None:
        """Add the new pieces to the text of the last part."""
        if self._more:
            self._parts[-1]["text"] += "".join(self._more)
            self._more.clear()

    def build_response(self) -> Response:
        """The response."""
        self._join()
        if self.complete:
            self._end_call()
            self.draft.end_flow()
            if self._grounding or self._fetched:
                self._add_grounding()
            reason = self.metadata.get("stop_reason")
            if not self.unfinished:
                self.metadata.pop("continuation", None)
            if not (self.draft.content or self.draft.calls or self.draft.images or self.unfinished):
                message = self.metadata.get("stop_message") or "nothing was said"
                raise ProviderError(
                    f"crystal returned neither content nor tool_calls: {self.draft.provider}: {message} ({reason})",
                    retryable=reason in FLUKES,
                )
        return super().build_response()

    def get_own_content(self) -> Any:
        """Return the parts if one of them is signed, or more than text and calls."""
        plain = all(not part.keys() - {"text", "functionCall", "thought"} for part in self._parts)
        plain = plain and not any("id" in (part.get("functionCall") or ()) for part in self._parts)
        return None if plain and not self.is_part else self._parts

    def _count_tokens(self, usage: Any) -> None:
        """Read the counts. Later chunks may omit some or have 0: the last nonzero value is right."""
        for name, amount in mapping(usage).items():
            self._usage[name] = tokens(amount) or self._usage.get(name, 0)
        self._read = _count_by_modality(mapping(usage).get("promptTokensDetails")) or self._read
        self._made = _count_by_modality(mapping(usage).get("candidatesTokensDetails")) or self._made
        count = self._usage.get
        self.counts = Counts(
            prompt=count("promptTokenCount", 0) + count("toolUsePromptTokenCount", 0),
            completion=count("candidatesTokenCount", 0) + count("thoughtsTokenCount", 0),  # neither includes the other
            cached=count("cachedContentTokenCount", 0),
            reasoning=count("thoughtsTokenCount", 0),
            modalities=count_modalities(self._read, self._made),
        )

    # Tools of its own

    def _add_server_part(self, part: Mapping[str, Any]) -> None:
        """Add a call of a tool that Google runs, or its result; both are sent back with the other parts."""
        if (call := mapping(part.get("toolCall"))) and (kind := str(call.get("toolType") or "")):
            tool = KINDS.get(kind, kind.lower())
            self._served.add(tool)
            self.draft.serve_whole(tool, call.get("id"), mapping(call.get("args")))
        elif answer := mapping(part.get("toolResponse")):
            self.draft.add_server_result(answer.get("id"), answer.get("response"))
        elif code := mapping(part.get("executableCode")):
            args = {"code": code.get("code") or "", "language": code.get("language") or ""}
            self._ran = self.draft.serve_whole("code_execution", code.get("id"), args)
        elif ran := mapping(part.get("codeExecutionResult")):
            failed = ran.get("outcome") not in (None, "OUTCOME_OK")
            self.draft.add_server_result(ran.get("id") or self._ran, ran.get("output"), is_error=failed)

    def _add_grounding(self) -> None:
        """Add the results of a search and the text that cites them, and the search itself if no part had it."""
        chunks = [
            mapping(chunk.get("web") or chunk.get("retrievedContext"))
            for chunk in objects(self._grounding.get("groundingChunks"))
        ]
        sources = [
            {name: chunk[key] for name, key in (("url", "uri"), ("title", "title")) if chunk.get(key)}
            for chunk in chunks
        ]
        queries = self._grounding.get("webSearchQueries")
        if isinstance(queries, list) and queries:
            if "web_search" not in self._served:
                searched = self.draft.serve_whole("web_search", None, {"queries": queries})
                self.draft.add_server_result(searched, sources or None)
            self.counts = self.counts._replace(uses=(("web_search", len(queries)),))
        if self._fetched and "url_context" not in self._served:
            urls = [fetch.get("retrievedUrl") for fetch in self._fetched]
            fetched = self.draft.serve_whole("url_context", None, {"urls": urls})
            statuses = [
                {"url": fetch.get("retrievedUrl"), "status": fetch.get("urlRetrievalStatus")} for fetch in self._fetched
            ]
            self.draft.add_server_result(fetched, statuses)
        for support in objects(self._grounding.get("groundingSupports")):
            text = mapping(support.get("segment")).get("text")
            places = support.get("groundingChunkIndices")
            for at in places if isinstance(places, list) else ():
                if type(at) is int and 0 <= at < len(sources):
                    self.draft.cite(sources[at].get("url"), sources[at].get("title"), text)

    # Parts

    def _read_part(self, part: dict[str, Any]) -> None:
        call = mapping(part.get("functionCall"))
        if call.get("name") or (call and self._call is not None):  # one without a name goes on with that before
            self._add_call(call, part)
            return
        self._end_call()
        if "functionCall" in part:
            part = {name: value for name, value in part.items() if name != "functionCall"}
        if not part:
            return
        if not _THEIRS.isdisjoint(part):
            self.draft.end_flow()
            self._add_server_part(part)
        text = part.get("text")
        if isinstance(text, str):
            if text:
                self.draft.flow("reasoning" if part.get("thought") else "message", text)
            elif not part.get("thoughtSignature"):
                return  # an empty part
            last = self._parts[-1] if self._parts else {}
            if _is_bare(last) and _is_bare(part) and bool(last.get("thought")) == bool(part.get("thought")):
                last["text"] += text
                return  # join unsigned texts only
        data = mapping(part.get("inlineData"))
        if data and part.get("thought"):
            return  # a draft of the image: it is not sent back
        image_text = self._add_image(data)
        self._parts.append(dict(part) if image_text is None else {**part, "inlineData": {**data, "data": image_text}})

    def _add_image(self, data: Mapping[str, Any]) -> str | None:
        """Add the image of a part; return the text that replaces its bytes in the parts."""
        if not str(data.get("mimeType") or "").startswith("image/"):
            return None
        self.draft.end_flow()
        return self.draft.add_image(data.get("data"))

    def _add_call(self, call: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        name = call.get("name")
        if isinstance(name, str) and name:
            self._end_call()
            self._call = self.draft.call(name, call.get("id"))
            self._arguments = dict(call.get("args") or {})
            if self._arguments:
                self.draft.add(self._call, dump_exactly(self._arguments).decode())
            rest = {key: value for key, value in part.items() if key != "functionCall"}
            self._parts.append({"functionCall": {"name": name, "args": self._arguments}, **rest})
            if call.get("id"):
                self._parts[-1]["functionCall"]["id"] = call["id"]
        elif self._call is not None and isinstance(call.get("args"), Mapping):
            self._arguments.update(call["args"])
        for piece in objects(call.get("partialArgs")):
            if self._call is not None:
                _set_argument(self._arguments, piece)
                self._half = str(piece.get("jsonPath")) if piece.get("willContinue") else ""
        if not call.get("willContinue"):
            self._end_call()

    def _end_call(self) -> None:
        """End the call whose arguments are complete; the part that ends it may be missing."""
        if self._call is not None:
            if self._half and self.metadata.get("stop_reason") != "MAX_TOKENS":
                raise ProviderError(
                    f"google ended a call to {self._call.name} in the middle of its argument {self._half}"
                )
            if self._half:  # the rest is unknown: not an object, so that its gate refuses it
                self._call.parts = ["{"]
            else:
                self._call.arguments = self._arguments
            self.draft.end(self._call)
            self._call, self._half = None, ""


def _count_by_modality(details: Any) -> dict[str, Any]:
    """Return Google's counts of each modality with the names of OpenAI's interfaces."""
    return {
        f"{detail.get('modality')}_tokens".lower(): detail.get("tokenCount")
        for detail in map(mapping, objects(details))
    }


def _is_bare(part: Mapping[str, Any]) -> bool:
    return "text" in part and not part.get("thoughtSignature") and not part.keys() - {"text", "thought"}


def _set_argument(arguments: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Set an argument, or a part of it, at its path; pieces of one text are joined."""
    names = _PATH.findall(str(piece.get("jsonPath") or ""))
    steps: list[str | int] = [int(index) if index else name or quoted for name, index, quoted in names]
    if not steps:
        return
    value: Any = next((v for k, v in piece.items() if k in ("stringValue", "numberValue", "boolValue")), None)
    place: Any = arguments
    for step, following in pairwise(steps):
        place = _get_or_add(place, step, [] if isinstance(following, int) else {})
    last = str(steps[-1]) if isinstance(place, dict) else steps[-1]
    before = _get_or_add(place, last, None)
    place[last] = before + value if isinstance(before, str) and isinstance(value, str) else value


def _get_or_add(place: Any, step: str | int, empty: Any) -> Any:
    if isinstance(place, list) and isinstance(step, int):
        if step > len(place):
            raise ProviderError(f"google sent part of element {step} of a list that has {len(place)}")
        if step == len(place):
            place.append(empty)
        return place[step]
    return place.setdefault(str(step), empty)


class GoogleWriter(Writer):
    """Writes contexts as contents with parts. `signed`: the model refuses a history without signatures."""

    def __init__(self, model: str, provider: str, takes: Takes, *, signed: bool) -> None:
        super().__init__(model, provider, takes)
        self._signed = signed

    def can_show_images(self, message: Message, ids: Sequence[str]) -> bool:  # noqa: ARG002
        """Return whether the model's own parts, which have the images, are sent back."""
        return self._replay_parts(message) is not None

    def write_utterance(self, message: Message, ids: Sequence[str]) -> Iterable[bytes]:  # noqa: ARG002
        """Yield an utterance: its own parts if it has any, else text and calls."""
        parts = self._replay_parts(message)
        if parts is None:
            parts = [{"text": message.content}] if message.content else []
            for n, call in enumerate(message.tool_calls):
                call_part: dict[str, Any] = {"functionCall": _write_call(call)}
                if n == 0 and self._signed:
                    call_part["thoughtSignature"] = UNSIGNED
                parts.append(call_part)
        if parts:
            yield dump_exactly({"role": "model", "parts": parts})

    def _replay_parts(self, message: Message) -> list[dict[str, Any]] | None:
        parts = self.find_own_content(message)
        if not isinstance(parts, (list, tuple)):
            return None
        called = [part["functionCall"].get("name") for part in parts if part.get("functionCall")]
        calls = message.tool_calls
        if len(called) != len(calls) or not all(
            is_sent_name(name, call.gate, self.rules) for name, call in zip(called, calls, strict=True)
        ):
            return None
        rest = iter(calls)
        return [
            {**part, "functionCall": {**part["functionCall"], **_write_call(next(rest))}}
            if part.get("functionCall")
            else part
            for part in parts
        ]

    def write_messages(self, answers: Sequence[CallAnswer], texts: Sequence[str | Shown]) -> Iterable[bytes]:
        """Yield one content: results in the order of their calls, which is how Gemini matches them, then texts."""
        parts: list[dict[str, Any]] = []
        beside: list[dict[str, Any]] = []
        for answer in answers:
            content, inside, others = self._split_files(answer)
            result = {"error" if answer.is_error else "output": content}  # has to be an object
            function_response: dict[str, Any] = {"name": answer.call.gate, "response": result}
            if self._has_server_id(answer):
                function_response["id"] = answer.call.id
            if inside:
                function_response["parts"] = inside
            parts.append({"functionResponse": function_response})
            beside += others
        parts += beside
        parts += [_write_part(part) for text in texts for part in self.list_parts(text)]
        yield dump_exactly({"role": "user", "parts": parts})

    def _split_files(self, answer: CallAnswer) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the text of a result, its images, and the files that follow it, with a text that names the call.

        Models up to Gemini 2 take none in results, and no model an address.
        """
        if not answer.images:
            return answer.content, [], []
        parts = self.list_result_parts(answer, answer.content)
        text = "\n".join(part for part in parts if isinstance(part, str))
        files = [part for part in parts if isinstance(part, File)]
        fits = [self._signed and file.digest != "" and file.media_type.startswith(_INSIDE) for file in files]
        inside = [_write_part(file) for file, is_inside in zip(files, fits, strict=True) if is_inside]
        others = [_write_part(file) for file, is_inside in zip(files, fits, strict=True) if not is_inside]
        whose = [{"text": f"[from the result of {answer.call.gate}]"}] if others else []
        return text, inside, [*whose, *others]

    def _has_server_id(self, answer: CallAnswer) -> bool:
        """Return whether the server gave the call its id: it accepts only such ids."""
        parts = self.find_own_content(answer.utterance)
        return isinstance(parts, (list, tuple)) and any(
            (part.get("functionCall") or {}).get("id") == answer.call.id for part in parts
        )


def _write_call(call: ToolCall) -> dict[str, Any]:
    return {"name": call.gate, "args": call.args or {}}


def _write_part(part: str | File) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    address = part.url or part.file_id
    if address is not None:
        return {"fileData": {"mimeType": part.media_type, "fileUri": address}}
    return {"inlineData": {"mimeType": part.media_type, "data": part.base64()}}


def write_declarations(tools: Sequence[ToolDefinition], *, maps: bool) -> list[dict[str, Any]]:
    """Return the tools as declarations. `maps`: the model accepts objects with free keys."""
    declarations = []
    for tool in tools:
        declaration: dict[str, Any] = {"name": tool.name, "description": tool.description}
        if tool.parameters.get("properties"):
            declaration["parametersJsonSchema"] = fit_gemini_arguments(tool.parameters, maps=maps)
        declarations.append(declaration)
    return [{"functionDeclarations": declarations}]


_BUDGET: Final[Mapping[str, int]] = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24_576}


COUNTED: Final = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig")
"""The fields of a request that a count depends on."""


class Google(Family):
    """The Gemini API."""

    provider: ClassVar[str] = "google"
    seller: ClassVar[str | None] = "google"
    base_url: ClassVar[str] = "https://generativelanguage.googleapis.com/v1beta"
    keys: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    lessons: ClassVar[Mapping[str, str]] = {
        "thinking": r"thinking",
        "tool_choice": r"function.?calling.?config|tool.?config",
        "schema": r"response.?(json.?)?schema|response.?mime",
    }

    serves: ClassVar[str] = "google"
    written: ClassVar[Table] = GOOGLE
    level: ClassVar[str] = "thinking"
    items: ClassVar[str] = "contents"
    key_header: ClassVar[tuple[str, str]] = ("x-goog-api-key", "")  # in the address it would end up in logs
    decodes: ClassVar[type[Decoder]] = GoogleDecoder
    takes: ClassVar[Takes] = Takes(
        kinds=frozenset({"image/png", "image/jpeg", "image/webp"}),
        files=("application/pdf", "audio/*", "video/*"),
        fetched=("*/*",),
        ids=frozenset({"google"}),
    )

    @property
    def path(self) -> str:
        """Return the path, which contains the model."""
        return f"/models/{self.model.removeprefix('models/')}:streamGenerateContent?alt=sse"

    @property
    def counting(self) -> Counting | None:
        """The whole request is counted, within a field."""
        model = f"models/{self.model.removeprefix('models/')}"
        return Counting(
            f"/{model}:countTokens",
            COUNTED,
            "totalTokens",
            lambda body: {"generateContentRequest": {"model": model, **body}},
        )

    @property
    def old(self) -> bool:
        """Whether the model is of the first two generations."""
        return self.model.startswith(("gemini-1", "gemini-2"))

    @property
    def levels(self) -> Mapping[str, str]:
        """Return the levels; "high" is the highest, and models with levels always think."""
        return {"xhigh": "high", "max": "high"} | ({} if self.old else {"none": "minimal"})

    @property
    def has_budget(self) -> bool:
        """Return whether the model takes a budget of tokens for thinking."""
        return self.old

    @property
    def _maps(self) -> bool:
        return not self.model.startswith(("gemini-1", "gemini-2.0"))

    def fit(self, schema: Mapping[str, Any]) -> Fitted:
        """Return the schema for this model; the first two generations accept no objects with free keys."""
        return fit_for_gemini(schema, maps=self._maps)

    def make_writer(self) -> Writer:
        """Return the writer of contexts for this model."""
        return GoogleWriter(self.model, self.provider, self.takes, signed=not self.old)

    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the fields; sampling has an object of its own."""
        settings = query.settings
        sampling = {
            "temperature": settings.temperature,
            "topP": settings.top_p,
            "maxOutputTokens": settings.max_tokens,
            "stopSequences": list(settings.stop) or None,
        }
        yield "", {"generationConfig": {name: value for name, value in sampling.items() if value is not None} or None}
        if settings.effort is not None:
            shown = settings.effort != "none" and settings.typed.get("reasoning_summary") != "none"
            thinking: dict[str, Any] = {"includeThoughts": shown}
            if self.old:
                thinking["thinkingBudget"] = _BUDGET[settings.effort]
            else:
                thinking["thinkingLevel"] = settings.effort
            yield "thinking", {"generationConfig": {"thinkingConfig": thinking}}
        if settings.schema is not None:
            schema = self.fit_schema(settings.schema).schema
            if schema is not None:
                wanted = {"responseMimeType": "application/json", "responseJsonSchema": schema}
                yield "schema", {"generationConfig": wanted}
        if system:
            yield "", {"systemInstruction": {"parts": [{"text": system}]}}
        if query.tools:
            declare = partial(write_declarations, maps=self._maps)
            yield "", {"tools": self.encoder.encode_tools(query.tools, declare)}
            mode = {"required": "ANY", "none": "NONE"}.get(query.choice or "")
            if mode is not None:  # never without tools
                yield "tool_choice", {"toolConfig": {"functionCallingConfig": {"mode": mode}}}
            elif (gate := find_named_gate(query.choice)) is not None:
                forced = {"mode": "ANY", "allowedFunctionNames": [gate]}
                yield "tool_choice", {"toolConfig": {"functionCallingConfig": forced}}
            if settings.server_tools:  # its calls have to go back with ours
                yield "", {"toolConfig": {"includeServerSideToolInvocations": True}}

    def image_tokens(self, image: File) -> int:
        """Return the tokens of an image: a constant from Gemini 3 on, before that 258 for each tile of 768 pixels."""
        return estimate_by_tiles(image, edge=768, each=258, most=100) if self.old else 1_120

    def continue_turn(self, query: ProviderQuery, response: Response) -> ProviderQuery | None:
        """Repeat the query with the token of the interrupted answer, which then continues."""
        token = response.metadata.get("continuation")
        if token is None:
            return None
        more = {**query.settings.more, "continuationToken": token}
        return query._replace(settings=query.settings._replace(more=more))
