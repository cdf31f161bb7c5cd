"""Chat Completions, streamed, of OpenAI and of all servers that are compatible with it.

A body that was not streamed is read by the same rules, as one piece. Many servers have this interface, and they differ.
The subclasses of `Chat` have the known differences; a crystal learns the others when a server refuses a request
(`Family.learn`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from cantrip_actors.crystal.client import ProviderRequest
from cantrip_actors.crystal.draft import Counts, Decoder, DraftItem, count_modalities, join_surrogates, tokens
from cantrip_actors.crystal.encode import CallAnswer, Encoded, Writer
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.images import Shown, Takes, estimate_by_patches, make_data_url, name_file
from cantrip_actors.crystal.provider import STRICT_REFUSED, Family, ProviderQuery
from cantrip_actors.crystal.schemas import fit_for_openai
from cantrip_actors.crystal.shapes import mapping, objects, parse_object
from cantrip_actors.crystal.typed_settings import CHAT, Table, read_logprobs
from cantrip_actors.terms.arguments import is_finite
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Message, Response, ToolDefinition, find_named_gate

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_NULL: Final = re.compile(r"content.*(null|none|string|required)|none is not an allowed|nonetype", re.IGNORECASE)
_REASONS: Final = re.compile(r"deepseek-(?:reasoner|v3\.[2-9]|v[4-9])|kimi-k2-thinking|kimi-k2\.[5-9]", re.IGNORECASE)
"""Models that require the reasoning of their earlier utterances."""
_UNREASONED: Final = re.compile(
    r"missing\b.{0,60}reasoning_content|reasoning_content\b.{0,80}(?:missing|must be|required)", re.IGNORECASE
)
_REASONING: Final = ("reasoning_content", "reasoning", "reasoning_text")
"""Names of the field with reasoning: of DeepSeek, xAI and older vLLM; of newer vLLM, Groq and OpenRouter;
of GitHub Copilot."""


class _Call:
    """A call in the making."""

    __slots__ = ("arguments", "custom", "extra", "id", "is_named", "item", "name", "shown")

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.name = ""
        self.is_named = False
        """Whether a name has come, which may be empty; without one a piece of the stream is missing."""
        self.arguments: list[str] = []
        self.item: DraftItem | None = None
        self.shown = 0
        self.extra: dict[str, Any] = {}
        self.custom = False
        """Whether the tool is a custom one, whose input is a text and not JSON."""

    @property
    def text(self) -> str:
        """The arguments received so far."""
        return "".join(self.arguments)

    @property
    def may_be_whole(self) -> bool:
        """Whether the arguments may be complete."""
        text = self.text.rstrip()
        # the brace is looked for first, because some servers ask this at each piece
        return self.custom or (text.endswith("}") and parse_object(text) is not None)


class ChatDecoder(Decoder):
    """The stream of a completion."""

    provider: ClassVar[str] = "openai-chat"

    def __init__(self, model: str = "", **more: Any) -> None:
        super().__init__(model, **more)
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}
        self._newest = 0
        self._field = ""
        self._reasoned: list[DraftItem] = []
        """The pieces of reasoning from that field: it goes back with the text of all, as an answer in one piece has."""
        self._details: list[dict[str, Any]] = []
        self._images: dict[str, dict[str, Any]] = {}
        """Images that are sent back with the message, which only OpenRouter accepts."""
        self._refusal: list[str] = []
        self._head: str | None = ""  # of the content, while it may still begin with <think>
        self._inside = False  # of <think>
        self._after = False  # and before the first word behind it
        self._tail = ""  # what may be the beginning of </think>
        self._searches = 0
        self._beginnings = 0
        self._is_repeat = False
        self.message: dict[str, Any] = {}
        """The message of a server that did not stream."""

    def read(self, value: dict[str, Any], name: str) -> None:
        """Read one chunk, or a whole completion."""
        text = self.draft.flowing
        if text is not None and not name and self._try_extend(text, value):
            return
        self._read_usage(value)
        # the second form is that of older vLLM, the third is an event named `error`
        if value.get("error") or value.get("object") == "error" or name == "error":
            raise make_failure(self.draft.provider, None, value)
        choices = value.get("choices")
        if not choices and isinstance(value.get("provider"), dict):
            self.read(value["provider"], "")  # a completion, one level down
            return
        if "id" not in self.metadata or "model" not in self.metadata:
            self.note(id=value.get("id"), model=value.get("model"))
        if isinstance(value.get("provider"), str):
            self.note(served_by=value["provider"])
        for choice in objects(choices):  # null, or left out
            if choice.get("index", 0) in (0, None) and self._is_of_message(choice, value):
                self._read_choice(choice, value)

    def _read_usage(self, value: Mapping[str, Any]) -> None:
        usage = value.get("usage")
        if usage is None:
            usage = mapping(value.get("x_groq")).get("usage")
        if isinstance(usage, Mapping):
            self.counts = read_counts(usage)  # counts are cumulative or repeated: the last ones are right
            served = tokens(mapping(usage.get("server_tool_use")).get("web_search_requests"))
            self._searches = served or self._searches

    def _try_extend(self, text: DraftItem, value: dict[str, Any]) -> bool:
        """Add a chunk's text, if it has nothing else, as most chunks have; return whether it was added."""
        try:
            (choice,) = value["choices"]
            delta = choice["delta"]
            content = delta["content"]
        except (LookupError, TypeError, ValueError):
            return False
        # most chunks have none of the fields that `read` and `_read_choice` handle
        if ("usage" in value and value["usage"] is not None) or "error" in value or "x_groq" in value:
            return False
        if ("provider" in value and "served_by" not in self.metadata) or "error" in choice or "message" in choice:
            return False
        if choice.get("finish_reason") or choice.get("logprobs") or choice.get("index") or text.kind != "message":
            return False
        if value.get("id") != self._id or self._is_repeat:
            return False
        if type(content) is not str or not content:
            return False
        if len(delta) > 1 and any(part and name not in ("role", "content") for name, part in delta.items()):
            return False
        self._is_steady = True
        self.draft.add(text, content)
        return True

    def _is_of_message(self, choice: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
        """Return whether a choice belongs to the message, and not to a second or repeated one after its end."""
        begins = bool(mapping(choice.get("delta")).get("role"))
        if not self.is_of_message(value.get("id"), begins=begins):
            return False
        if begins and not self.complete:
            self._beginnings += 1
        elif begins and self._beginnings == 1:  # some servers have the role in each piece
            self._is_repeat = True
        return not self._is_repeat

    def end(self) -> None:
        """Complete the response, also without a reason to stop."""
        self.complete = self.over = True

    def build_response(self) -> Response:
        """The response."""
        if self.complete:
            self._close_text()
            if self._searches:  # the server reports their number, and the sources that the text cites
                searched = self.draft.serve_whole("web_search", None, {"requests": self._searches})
                self.draft.add_server_result(searched, [dict(citation) for citation in self.draft.citations] or None)
                self.counts = self.counts._replace(uses=(("web_search", self._searches),))
            if self._refusal and not (self.draft.content or self._calls):
                self.draft.say("message", "".join(self._refusal))
            for call in list(self._calls):  # not earlier: the pieces of several calls may alternate
                self._settle(call)
        return super().build_response()

    def get_own_content(self) -> Any:
        """Return the fields that a `Response` does not keep: reasoning that has to be sent back, signatures."""
        content: dict[str, Any] = {}
        if self._details:
            content["reasoning_details"] = self._details
        if self._field:  # without calls, `Response.thinking` has the text, and this field only the name
            content[self._field] = "".join(item.text for item in self._reasoned) if self._calls else ""
        extras = {call.item.call_id: call.extra for call in self._calls if call.extra and call.item is not None}
        if extras:
            content["extra_content"] = extras
        if self._images:
            content["images"] = list(self._images.values())
        return content or None

    # A choice

    def _read_choice(self, choice: Mapping[str, Any], value: Mapping[str, Any]) -> None:
        if choice.get("error"):
            raise make_failure(self.draft.provider, None, choice)
        self.draft.start(value.get("model"))
        logprobs = mapping(choice.get("logprobs"))
        self.logprobs += read_logprobs(logprobs.get("content") or logprobs.get("refusal"))
        delta, reason = choice.get("delta"), choice.get("finish_reason")
        if isinstance(delta, dict):  # null in the chunks of a content filter
            self._read_delta(delta)
        elif isinstance(choice.get("message"), dict):
            self._read_message(choice["message"])
            reason = reason or choice.get("native_finish_reason")
        if reason == "error":
            raise make_failure(self.draft.provider, None, {"error": {"message": "the completion failed", "code": 502}})
        if isinstance(reason, str) and reason:
            self.note(stop_reason=reason, native_stop_reason=choice.get("native_finish_reason"))
            self.complete = True

    def _read_delta(self, delta: Mapping[str, Any]) -> None:
        self._read_reasoning(delta)
        for annotation in objects(delta.get("annotations")):
            cited = mapping(annotation.get("url_citation"))
            self.draft.cite(cited.get("url"), cited.get("title"), cited.get("content"))
        content = delta.get("content")
        if content:
            for kind, text in list_content_parts(content):
                if kind == "thinking":
                    self.draft.flow("reasoning", text)
                else:
                    self._say(text)
        for part in (*objects(delta.get("images")), *(objects(content) if isinstance(content, list) else ())):
            self._add_image(part)
        transcript = mapping(delta.get("audio")).get("transcript")
        if isinstance(transcript, str):
            self._say(transcript)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refusal.append(refusal)
            self.metadata["refusal"] = "".join(self._refusal)
        calls = objects(delta.get("tool_calls"))
        for position, call in enumerate(calls):
            self._add_call_part(call, position, alone=len(calls) == 1)
        if mapping(delta.get("function_call")).get("name") or mapping(delta.get("function_call")).get("arguments"):
            self._add_call_part({"function": delta["function_call"]}, 0, alone=True)

    def _read_message(self, message: dict[str, Any]) -> None:
        """Read a message that was not streamed."""
        self.message = message
        calls = objects(message.get("tool_calls"))
        self._read_delta(
            {**message, "tool_calls": None, "function_call": None if calls else message.get("function_call")}
        )
        for n, call in enumerate(calls):
            self._add_call_part({**call, "index": n}, n, alone=False)
            self._settle(self._calls[-1])
        self.complete = True

    def _add_image(self, part: Mapping[str, Any]) -> None:
        """Add an image of OpenRouter or LiteLLM: in one piece, perhaps repeated."""
        image_url = part.get("image_url")
        url = image_url.get("url") if isinstance(image_url, Mapping) else image_url
        if url is not None:
            self.draft.end_flow()
            image_text = self.draft.add_image(url)
            if image_text is not None and self.draft.provider == "openrouter":
                self._images[image_text] = {
                    "type": "image_url",
                    "image_url": {"url": f"{url.partition(',')[0]},{image_text}"},
                }

    # Text and reasoning

    def _read_reasoning(self, delta: Mapping[str, Any]) -> None:
        has_text = False
        for field in _REASONING:
            thought = delta.get(field)
            if isinstance(thought, str) and thought:
                self._field, has_text = self._field or field, True
                self.draft.flow("reasoning", thought)
                item = self.draft.flowing
                if item is not None and (not self._reasoned or self._reasoned[-1] is not item):
                    self._reasoned.append(item)
                break
        for detail in objects(delta.get("reasoning_details")):
            self._add_detail(detail, has_text=not has_text)

    def _say(self, text: str) -> None:
        """Add text, whose beginning may be reasoning in tags."""
        if self._head is not None:
            self._head += text
            start = self._head.lstrip()
            if _OPEN.startswith(start[: len(_OPEN)]):
                if len(start) < len(_OPEN):
                    return
                self._inside = True
                start = start[len(_OPEN) :]
                self._head = None
                text = start
            else:
                text, self._head = self._head, None
        if self._inside:
            text = self._tail + text
            before, tag, after = text.partition(_CLOSE)
            self._tail = "" if tag else _find_overlap(text, _CLOSE)
            thought = before if tag else text[: len(text) - len(self._tail)]
            if thought:
                self.draft.flow("reasoning", thought if self.draft.flowing is not None else thought.lstrip())
            if not tag:
                return
            self._inside, self._after = False, True
            text = after
        if self._after:
            text = text.lstrip()
            self._after = not text
        self.draft.flow("message", text)

    def _close_text(self) -> None:
        if self._head:
            head, self._head = self._head, None
            if head.strip() or not self._calls:
                self._say(head)
        if self._tail:
            self.draft.flow("reasoning", self._tail)
            self._tail = ""

    def _add_detail(self, detail: dict[str, Any], *, has_text: bool) -> None:
        """Add a piece of a detail that OpenRouter requires unmodified; the pieces of one detail are joined.

        A piece with another id belongs to another detail, and a message that was not streamed has no pieces.
        """
        last = self._details[-1] if self._details and not self.message else None
        same = last is not None and all(last.get(name) == detail.get(name) for name in ("type", "index"))
        same = same and (last is None or None in (last.get("id"), detail.get("id")) or last["id"] == detail["id"])
        text = detail.get("text") or detail.get("summary")
        if has_text and isinstance(text, str) and text:
            self.draft.flow("reasoning", text)
        if last is None or not same or detail.get("type") == "reasoning.encrypted":
            self._details.append(dict(detail))
            return
        for name, piece in detail.items():
            if name in ("text", "summary", "data") and isinstance(piece, str) and isinstance(last.get(name), str):
                last[name] += piece
            elif piece is not None:
                last[name] = piece

    # Calls

    def _add_call_part(self, part: Mapping[str, Any], position: int, *, alone: bool) -> None:
        """Add a piece of a call, identified by index and id or, without these, by name. A piece without
        any of them, `alone` in its chunk, continues the newest call.
        """
        function, custom = part.get("function"), part.get("custom")
        if not any(mapping(custom).values()):  # {"name": ""}, which some servers send with each function
            custom = None
        function = function if isinstance(function, Mapping) else custom if isinstance(custom, Mapping) else part
        own = part.get("id") if isinstance(part.get("id"), str) else ""
        name = function.get("name") if isinstance(function.get("name"), str) else ""
        arguments = function.get("arguments", function.get("input"))
        index = part.get("index")
        if not isinstance(index, int) or isinstance(index, bool):
            number = next((n for n, call in self._at.items() if own and call.id == own), None)
            if number is None and not name and alone and self._at:
                number = self._newest
            fresh = 1 + max(self._at, default=-1)
            index = number if number is not None else fresh if own and position in self._at else position
        self._newest = index
        call = self._at.get(index)
        if call is None or self._is_another(call, str(own or ""), str(name or ""), arguments):
            call = _Call(str(own or ""))
            self._calls.append(call)
            self._at[index] = call
        call.id = call.id or str(own or "")
        call.is_named = call.is_named or isinstance(function.get("name"), str)
        call.custom = call.custom or isinstance(custom, Mapping)
        if name and name != call.name:  # once, repeated, or in pieces
            call.name = str(name) if call.arguments or not call.name else call.name + str(name)
        if isinstance(part.get("extra_content"), dict):
            call.extra.update(part["extra_content"])
        if arguments is not None and not isinstance(arguments, str):  # an object, in one piece
            arguments = dump_exactly(arguments).decode()
        if arguments:
            call.arguments.append(arguments)
        self._show(call)

    def _is_another(self, call: _Call, own: str, name: str, arguments: Any) -> bool:
        if own and call.id:
            if own == call.id:
                return False
            # some servers invent an id for each piece: without a name, or within an object, it continues a call
            return bool(name) and (name != call.name or not call.arguments or call.may_be_whole)
        if not name:
            return False
        if name == call.name:
            return bool(arguments) and call.may_be_whole
        if call.arguments:
            return True
        return call.name in self.tools and name in self.tools

    def _show(self, call: _Call) -> None:
        """Emit a call once its name is complete: its arguments arrive, or the name is that of an offered tool."""
        if call.item is None and call.name and (call.arguments or call.name in self.tools):
            call.item = self.draft.call(call.name, call.id)
        if call.item is not None:
            for piece in call.arguments[call.shown :]:
                self.draft.add(call.item, piece)
            call.shown = len(call.arguments)

    def _settle(self, call: _Call) -> None:
        if call.item is None:
            if not call.name and not call.arguments:
                self._calls.remove(call)  # an empty piece, from servers that send one at the end
                return
            call.item = self.draft.call(call.name if call.is_named else None, call.id)
            self._show(call)
        if call.item.open:
            arguments = {"input": call.text} if call.custom else repair_arguments(call.text)
            if isinstance(arguments, Mapping):
                call.item.arguments = arguments
            elif arguments != call.text:
                call.item.parts = [join_surrogates(str(arguments))]
            call.item.name = self.draft.find_gate(call.name)
            self.draft.end(call.item)


def list_content_parts(content: Any) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a content: a text, or parts, which may include thoughts (Mistral)."""
    if isinstance(content, str):
        yield "text", content
        return
    for part in objects(content):
        if isinstance(part.get("thinking"), (list, str)):
            for _, text in list_content_parts(part["thinking"]):
                yield "thinking", text
        else:
            words = part.get("text") or part.get("refusal")
            if isinstance(words, str):
                yield "text", words


def repair_arguments(arguments: str) -> Any:
    """Return the arguments from JSON that is encoded twice, or that is several objects, only one of them with
    content.
    """
    values: list[Any] = []
    decoder, at = json.JSONDecoder(), 0
    text = arguments.strip()
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return arguments  # the gate refuses it, and quotes the text
        values.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    full = [value for value in values if value != {}]
    if len(values) > 1 and all(isinstance(value, dict) for value in values) and all(other == full[0] for other in full):
        return full[0] if full else {}
    return arguments


def read_counts(usage: Any) -> Counts:
    """Return the valid counts of tokens; invalid ones are ignored, so that they do not cost the answer."""
    if not isinstance(usage, Mapping):
        return Counts()
    details, further = usage.get("prompt_tokens_details"), mapping(usage.get("completion_tokens_details"))
    if not isinstance(details, Mapping):  # DeepSeek's, or Moonshot's
        details = {"cached_tokens": usage.get("prompt_cache_hit_tokens", usage.get("cached_tokens"))}
    prompt, completion = tokens(usage.get("prompt_tokens")), tokens(usage.get("completion_tokens"))
    reasoning = tokens(further.get("reasoning_tokens"))
    if reasoning and tokens(usage.get("total_tokens")) == prompt + completion + reasoning:
        completion += reasoning  # xAI does not include it
    cost = usage.get("cost")
    priced = is_finite(cost, 0)
    return Counts(
        prompt,
        completion,
        cached=tokens(details.get("cached_tokens")),
        written=tokens(details.get("cache_write_tokens")),
        reasoning=reasoning,
        modalities=count_modalities(details, further),
        cost=float(cost) if priced and cost is not None else None,
    )


def _find_overlap(text: str, tag: str) -> str:
    """Return the longest end of the text that is a beginning of `tag`."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-length:]):
            return text[-length:]
    return ""


NO_EXTRAS: Final[Mapping[str, Any]] = {}


class ChatWriter(Writer):
    """Writes contexts as lists of messages. `empty` is the content of an utterance without text."""

    def __init__(self, model: str, provider: str, takes: Takes, empty: str | None = None) -> None:
        super().__init__(model, provider, takes)
        self.empty = empty
        self.reasons = bool(_REASONS.match(model))
        """Whether each utterance is sent with its reasoning; it is empty if another model wrote it."""

    def write_utterance(self, message: Message, ids: Sequence[str]) -> Iterable[bytes]:
        """Yield an utterance, with its reasoning if the model requires it."""
        if not message.content and not ids:
            return
        own = mapping(self.find_own_content(message)) if message.blocks else {}
        utterance: dict[str, Any] = {"role": "assistant", "content": self.write_utterance_content(message, own)}
        if own or self.reasons:
            utterance.update(self._list_own_fields(own, message))
        if ids:
            utterance["tool_calls"] = self.write_calls(message, ids, own.get("extra_content") or {})
        yield dump_exactly(utterance)

    def write_calls(
        self, message: Message, ids: Sequence[str], extras: Mapping[str, Any] = NO_EXTRAS
    ) -> list[dict[str, Any]]:
        """Return the calls of an utterance. `extras` are fields of the provider to send back, by the id of a call."""
        return [
            {
                "id": own_id,
                "type": "function",
                "function": {"name": call.gate, "arguments": call.arguments if call.args is not None else "{}"},
                **({"extra_content": extras[call.id]} if call.id in extras else {}),
            }
            for call, own_id in zip(message.tool_calls, ids, strict=True)
        ]

    def write_utterance_content(self, message: Message, own: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Return the content of an utterance; `own` is the provider's own block of it."""
        return message.content or self.empty

    def _list_own_fields(self, own: Mapping[str, Any], message: Message) -> dict[str, Any]:
        """Return the fields of the answer that are sent back with its utterance."""
        fields = {name: value for name, value in own.items() if name != "extra_content"}
        reasoning_field = next((name for name in _REASONING if name in fields), None)
        if reasoning_field is not None and not fields[reasoning_field]:
            del fields[reasoning_field]
            if self.reasons and message.thinking:
                fields[reasoning_field] = message.thinking
        if self.reasons and not fields.keys() & set(_REASONING):
            fields["reasoning_content"] = ""
        return fields

    def can_show_images(self, message: Message, ids: Sequence[str]) -> bool:  # noqa: ARG002
        """Return whether the message itself has the images."""
        return "images" in mapping(self.find_own_content(message))

    def write_messages(self, answers: Sequence[CallAnswer], texts: Sequence[str | Shown]) -> Iterable[bytes]:
        """Yield the results, one message each, then their images, which a result cannot contain, then the texts."""
        shown: list[str | File] = []
        for answer in answers:
            first, *rest = self.list_result_parts(answer, answer.text)
            if isinstance(first, File):
                what = "an image" if isinstance(first, Image) else "a file"
                first, rest = f"[{what}, which follows]", [first, *rest]
            yield dump_exactly({"role": "tool", "tool_call_id": answer.id, "content": first})
            if rest:
                shown += [f"[from the result of {answer.call.gate}, call {answer.id}]", *rest]
        if shown:
            yield dump_exactly({"role": "user", "content": self.write_content(shown)})
        for text in texts:
            yield dump_exactly({"role": "user", "content": self.write_content(self.list_parts(text))})

    def write_content(self, parts: Sequence[str | File]) -> str | list[dict[str, Any]]:
        """Return texts, images and files: bare text where there is nothing else, which every server knows."""
        if len(parts) == 1 and isinstance(parts[0], str):
            return parts[0]
        return [{"type": "text", "text": part} if isinstance(part, str) else self.write_part(part) for part in parts]

    def write_part(self, file: File) -> dict[str, Any]:
        """Return an image, a recording, a film or a document."""
        if not isinstance(file, Image):
            return _write_file(file)
        address: dict[str, Any] = {"url": make_data_url(file)}
        if file.detail is not None:
            address["detail"] = file.detail
        return {"type": "image_url", "image_url": address}


def _write_file(file: File) -> dict[str, Any]:
    kind = file.media_type.partition("/")[0]
    if file.file_id is not None:
        return {"type": "file", "file": {"file_id": file.file_id}}
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": file.base64(), "format": _name_format(file.media_type)}}
    if kind == "video":
        return {"type": "video_url", "video_url": {"url": make_data_url(file)}}
    return {"type": "file", "file": {"filename": name_file(file), "file_data": make_data_url(file)}}


def _name_format(media_type: str) -> str:
    """Return this interface's name of an audio format."""
    name = media_type.partition("/")[2].removeprefix("x-")
    return {"mpeg": "mp3", "mp4": "m4a", "wave": "wav"}.get(name, name)


def write_functions(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return the tools as functions."""
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        | ({"strict": True} if tool.is_strict else {})
        for tool in tools
    ]
    return [{"type": "function", "function": function} for function in functions]


LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""Names of the limit on the answer, of newer servers and of older ones."""


class Chat(Family):
    """OpenAI's Chat Completions, and the base of the families that are compatible with it."""

    provider: ClassVar[str] = "openai-chat"
    seller: ClassVar[str | None] = "openai"
    base_url: ClassVar[str] = "https://api.openai.com/v1"
    keys: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    most: ClassVar[str] = "max_completion_tokens"
    """The name of the limit on the answer; older servers call it `max_tokens`."""
    is_strict: ClassVar[bool] = True
    lessons: ClassVar[Mapping[str, str]] = {
        "strict": STRICT_REFUSED,
        "temperature": r"temperature",
        "top_p": r"top_p",
        "max_completion_tokens": r"max_completion_tokens",
        "max_tokens": r"max_tokens",
        "tool_choice": r"tool_choice|tool choice",
        "stream_options": r"stream_options",
        "stop": r"'stop'|\bstop sequence|parameter: stop",
        "schema": r"response_format|json_schema|schema",
        "effort": r"reasoning",
    }

    takes: ClassVar[Takes] = Takes(files=("application/pdf", "audio/wav", "audio/mpeg"), ids=frozenset({"openai"}))
    written: ClassVar[Table] = CHAT
    writes: ClassVar[type[ChatWriter]] = ChatWriter
    empty: ClassVar[str | None] = None
    """The content of an utterance without text; some servers refuse null."""

    path = "/chat/completions"
    decodes: ClassVar[type[Decoder]] = ChatDecoder
    fit = staticmethod(fit_for_openai)

    def make_writer(self) -> Writer:
        """Return the writer of contexts for this model."""
        return self.writes(self.model, self.provider, self.takes, self.empty)

    def encode(self, query: ProviderQuery) -> Encoded:
        """Return the encoded context, with the system prompt as its first message."""
        encoded = super().encode(query)
        if not encoded.system:
            return encoded
        return encoded._replace(parts=(self.write_system(encoded.system), *encoded.parts))

    def write_system(self, text: str) -> bytes:
        """Return the system prompt as a message."""
        return dump_exactly({"role": "system", "content": text})

    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ARG002
        """Yield the fields other than the messages."""
        settings = query.settings
        yield "", {"model": self.model, "stream": True}
        yield "temperature", {"temperature": settings.temperature}
        yield "top_p", {"top_p": settings.top_p}
        names = dict.fromkeys((self.most, *LIMITS))
        most = next((name for name in names if self.should_send(name)), self.most)  # a server accepts only one of them
        yield most, {most: settings.max_tokens}
        yield "stop", {"stop": list(settings.stop) or None}
        yield "stream_options", {"stream_options": {"include_usage": True}}
        if settings.effort is not None:
            yield "effort", self.write_thinking(settings.effort)
        if settings.schema is not None:
            fitted = self.fit_schema(settings.schema)
            answer = {"name": "answer", "schema": fitted.schema, "strict": fitted.strict}
            yield "schema", {"response_format": {"type": "json_schema", "json_schema": answer}}
        if query.tools:
            yield "", {"tools": self.encoder.encode_tools(query.tools, write_functions)}
            if query.choice in ("required", "none"):
                yield "tool_choice", {"tool_choice": query.choice}
            elif (gate := find_named_gate(query.choice)) is not None:
                yield "tool_choice", {"tool_choice": {"type": "function", "function": {"name": gate}}}

    def write_thinking(self, effort: str) -> Mapping[str, Any]:
        """Return the field for the level of thinking."""
        return {"reasoning_effort": effort}

    image_tokens = staticmethod(estimate_by_patches)  # the model may be of another maker than OpenAI

    def learn(self, error: ProviderError, request: ProviderRequest) -> str | None:
        """Learn as all families do, and also that an utterance needs a text or its reasoning: contexts are encoded
        again.
        """
        learnt = super().learn(error, request)
        writer = self.encoder.writer
        if learnt is not None or error.status not in (400, 422) or not isinstance(writer, ChatWriter):
            return learnt
        if not writer.reasons and _UNREASONED.search(str(error)):
            writer.reasons = True
            self.encoder.forget()
            return "null"
        if writer.empty is None and b'"content":null' in request.body and _NULL.search(str(error)):
            writer.empty = ""
            self.encoder.forget()
            return "null"
        return None
