"""Anthropic's Messages API over the same entities: a request casts a one-shot entity, as a chat completion does.

Requests are converted to those of a chat completion, which `openai.py` turns into episodes. This file has the
differences: the form of content, the stream, typed answers, errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from starlette.responses import Response

from cantrip_actors.http import anthropic_models as models
from cantrip_actors.http.answer_form import AnswerForm
from cantrip_actors.http.calls import HttpCall, JsonAnswer
from cantrip_actors.http.entities import find_cantrip
from cantrip_actors.http.episode_tools import Rest
from cantrip_actors.http.openai import (
    ENTITY,
    answer_run,
    begin_run,
    convert_problem,
    find_target,
    name_run,
    refuse_parameter,
    reserve_stream,
    start_one_shot,
)
from cantrip_actors.http.openai_encoders import EpisodeEncoder, answer_text, get_metadata
from cantrip_actors.http.openai_models import AnswerFormat, AnyQuery, ChatBody, Opaque
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.request_messages import parse_messages
from cantrip_actors.http.sse import encode_event
from cantrip_actors.http.table import ApiRoute
from cantrip_actors.observe.segments import Piece
from cantrip_actors.terms.messages import Usage, as_text
from cantrip_actors.terms.outcome import Outcome

CHARACTERS_OF_A_TOKEN: Final = 4
"""The usual ratio; the tokenizer is the provider's, and a cantrip may have any provider."""

_KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def as_anthropic_error(answer: Response) -> Response:
    """Return a problem in Anthropic's shape, and any other answer as it is."""
    return convert_problem(answer, _build_error)


def _build_error(status: int, problem: Mapping[str, Any]) -> dict[str, Any]:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return _make_error(kind, problem["detail"])


def _make_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


# Requests


_APART: Final = frozenset({"tool_result", "tool_use", "thinking", "redacted_thinking"})
"""The kinds of blocks that are not part of a message's text; only the provider that redacted a block can read it."""


class _PlacedMessage(NamedTuple):
    """A message of a chat completion, and where the request has it."""

    where: str
    fields: dict[str, Any]


def _read_messages(body: models.CountTokensBody) -> list[_PlacedMessage]:
    """Return the messages of a body, the system prompt first, as those of a chat completion. Raises Problem 400."""
    messages = [
        _PlacedMessage(where, fields)
        for where, message in ((f"messages[{number}]", message) for number, message in enumerate(body.messages))
        for fields in _split_message(where, message)
    ]
    if not body.system:
        return messages
    return [_PlacedMessage("system", {"role": "system", "content": _read_content("system", body.system)}), *messages]


def _split_message(where: str, message: models.AnthropicMessage) -> Iterator[dict[str, Any]]:
    """Yield the results of tools as messages of their own, and the other blocks as one message, with its calls and its
    thinking.
    """
    content = message.content
    if isinstance(content, str):
        yield {"role": message.role, "content": content}
        return
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for block in content:
        kind = str(block.get("type"))
        by_kind.setdefault(kind if kind in _APART else "", []).append(block)
    for block in by_kind.pop("tool_result", []):
        id, result, is_error = block.get("tool_use_id"), block.get("content") or "", block.get("is_error")
        yield {"role": "tool", "tool_call_id": id, "content": _read_content(where, result), "is_error": is_error}
    if by_kind or not content:
        thoughts = "\n\n".join(str(block.get("thinking") or "") for block in by_kind.get("thinking", ()))
        calls = [
            {"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input")}}
            for block in by_kind.get("tool_use", ())
        ]
        text = _read_content(where, by_kind.get("", []))
        yield {"role": message.role, "content": text, "tool_calls": calls, "reasoning_content": thoughts}


def _read_content(where: str, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [_read_block(where, block) for block in content]


def _read_block(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block as a part of a chat completion's message. Raises Problem 400 for one of another kind."""
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": block.get("text")}
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _read_source(where, block)}}
    if kind == "document":
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") == "text":
            return {"type": "text", "text": source.get("data")}
        return {"type": "file", "file": {"file_data": _read_source(where, block), "filename": block.get("title")}}
    detail = f"{where}: expected texts, images, documents, calls of tools and their results, got {kind!s:.50}"
    raise Problem(400, "unsupported_value", detail, param="messages")


def _read_source(where: str, block: Mapping[str, Any]) -> str:
    source = block.get("source")
    match source if isinstance(source, dict) else {}:
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            return f"data:{media_type};base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
    detail = f"{where}: expected a source of type base64 or url; this service keeps no files of its own"
    raise Problem(400, "unsupported_value", detail, param="messages")


def _read_body(body: models.MessagesBody, messages: Sequence[_PlacedMessage]) -> ChatBody:
    """Return a body as that of a chat completion. Raises Problem 400 for a parameter that would change the answer and
    is not supported.
    """
    refused = next((name for name in ("mcp_servers", "container") if getattr(body, name)), None)
    if refused is not None:
        raise refuse_parameter(refused)
    form = (body.output_config and body.output_config.format) or body.output_format
    return ChatBody(
        model=body.model,
        messages=[message.fields for message in messages],
        tools=None if body.tools is None else [_read_tool(tool) for tool in body.tools],
        tool_choice=_read_choice(body.tool_choice or {}),
        parallel_tool_calls=not _reads_one_call(body.tool_choice or {}),
        response_format=None if form is None else AnswerFormat(type=form.type, schema=form.schema_),
    )


def _read_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as a function; a tool of another type, which a provider defines, as it is."""
    if tool.get("type") not in (None, "custom"):
        return tool
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
        "strict": tool.get("strict"),
    }
    return {"type": "function", "function": function}


def _read_choice(choice: Mapping[str, Any]) -> Any:
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return "required" if choice.get("type") == "any" else choice.get("type")


def _reads_one_call(choice: Mapping[str, Any]) -> bool:
    """Return whether a client wants one call at a time. Raises Problem 400."""
    one_call = choice.get("disable_parallel_tool_use")
    if not isinstance(one_call, bool | None):
        detail = f"tool_choice.disable_parallel_tool_use: expected true or false, got {one_call!r:.50}"
        raise Problem(400, "invalid", detail, param="tool_choice")
    return one_call is True


# Answers


def _count_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _make_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def _make_call(id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


_BLOCKS: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "message": ("text", "text_delta", {"type": "text", "text": ""}),
    "thinking": ("thinking", "thinking_delta", {"type": "thinking", "thinking": "", "signature": ""}),
}
"""Of each kind of piece: the field of its text, the type of its deltas, and its block as it begins."""


class AnthropicEncoder(EpisodeEncoder):
    """One message, or its events."""

    def __init__(self, id: str, model: str, form: AnswerForm | None) -> None:
        super().__init__(form)
        self._id, self._model = id, model
        self._blocks = 0

    def build(self, ended: Rest | Outcome) -> dict[str, Any]:
        """Return a whole message."""
        texts = self._list_texts(ended) if isinstance(ended, Rest) else []
        calls = self._list_calls(ended)
        if isinstance(ended, Outcome) and not calls:
            texts = [text] if (text := answer_text(ended) or ended.summary or "") else []
        return self._make_message([*map(_make_text, texts), *calls]) | self._finish(ended)

    def _make_message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _count_usage(Usage()),
        }

    def _list_calls(self, ended: Rest | Outcome) -> list[dict[str, Any]]:
        """Return the calls that the client is to carry out, or the one by which it gets the answer."""
        if isinstance(ended, Rest):
            return [_make_call(item.id, item.name, orjson.loads(item.arguments)) for item in ended.calls]
        if self._tool is None or not ended.terminated:
            return []
        return [_make_call(f"toolu_{self._id}", self._tool.name, ended.result)]

    def _find_stop_reason(self, ended: Rest | Outcome) -> str:
        if isinstance(ended, Rest):
            return "tool_use" if ended.calls else "end_turn"
        if not ended.terminated or ended.cut_off == "length":
            return "max_tokens"
        if ended.cut_off is not None:
            return "refusal"
        return "end_turn" if self._tool is None else "tool_use"

    def _finish(self, ended: Rest | Outcome) -> dict[str, Any]:
        """Return the members of a message that its end decides."""
        usage, more = (ended.usage, get_metadata(ended)) if isinstance(ended, Rest) else (ended.subtree_usage, {})
        return {"stop_reason": self._find_stop_reason(ended), "usage": _count_usage(usage), **more}

    def begin(self) -> Iterator[bytes]:
        """Yield the event that precedes all content."""
        yield _encode("message_start", message=self._make_message([]))

    def rest(self, rest: Rest) -> Iterator[bytes]:
        """Yield the events of calls that the client is to carry out."""
        for text in (None, *self._list_texts(rest)):
            yield from self._finish_texts(text)
        yield from self._write_end(rest)

    def end(self, outcome: Outcome) -> Iterator[bytes]:
        """Yield the events of the end."""
        yield from self._finish_texts(None if self._list_calls(outcome) else answer_text(outcome))
        yield from self._write_end(outcome)

    def _write_end(self, ended: Rest | Outcome) -> Iterator[bytes]:
        for block in self._list_calls(ended):
            at = self._blocks
            self._blocks += 1
            delta = {"type": "input_json_delta", "partial_json": as_text(block["input"])}
            yield _encode("content_block_start", index=at, content_block={**block, "input": {}})
            yield _encode("content_block_delta", index=at, delta=delta)
            yield _encode("content_block_stop", index=at)
        end = self._finish(ended)
        yield _encode("message_delta", delta={"stop_reason": end.pop("stop_reason"), "stop_sequence": None}, **end)
        yield _encode("message_stop")

    def fail(self, error: dict[str, Any]) -> Iterator[bytes]:
        """Yield the end of an episode that failed."""
        kind = "api_error" if error["type"] == "server_error" else error["type"]
        yield encode_event("error", _make_error(kind, error["message"]))

    def _add_piece(self, piece: Piece) -> Iterator[bytes]:
        field, kind, block = _BLOCKS[piece.kind]
        match piece.step:
            case "begin":
                self._blocks = piece.number + 1
                yield _encode("content_block_start", index=piece.number, content_block=block)
            case "grow":
                yield _encode("content_block_delta", index=piece.number, delta={"type": kind, field: piece.text})
            case "end":
                yield _encode("content_block_stop", index=piece.number)


def _encode(kind: str, **data: Any) -> bytes:
    return encode_event(kind, {"type": kind, **data})


# Handlers


async def create_message(call: HttpCall) -> JsonAnswer | Response:
    """Cast a cantrip on the last message of the user, or send it to a long-lived entity."""
    body: models.MessagesBody = call.body
    messages = _read_messages(body)
    chat = _read_body(body, messages)
    target = await find_target(call, chat, "output_config")
    chat_input = parse_messages(call, chat.messages, "messages", [message.where for message in messages])
    with reserve_stream(call) as stack:
        run = await begin_run(call, target, chat_input, "messages", start_one_shot)
        return await answer_run(call, run, AnthropicEncoder(f"msg_{name_run(run)}", body.model, target.form), stack)


async def count_tokens(call: HttpCall) -> JsonAnswer:
    """Estimate the tokens of a request by its length, without the system prompt and the gates of the cantrip."""
    body: models.CountTokensBody = call.body
    if not body.model.startswith(ENTITY):
        find_cantrip(call, body.model)
    texts = [body.system, [message.content for message in body.messages], body.tools]
    characters = sum(len(orjson.dumps(text)) for text in texts if text)
    return JsonAnswer({"input_tokens": -(-characters // CHARACTERS_OF_A_TOKEN)})


_OBJECT: Final = {200: Opaque}

ANTHROPIC_ROUTES: Final = (
    ApiRoute(
        "POST",
        "/v1/messages",
        "read",
        create_message,
        _OBJECT,
        models.MessagesBody,
        query=AnyQuery,
        style="anthropic",
    ),
    ApiRoute(
        "POST",
        "/v1/messages/count_tokens",
        "read",
        count_tokens,
        {200: models.TokenCount},
        models.CountTokensBody,
        query=AnyQuery,
        style="anthropic",
    ),
)
"""Anthropic's API; the models are those of OpenAI's. Messages check the scope `cast` or `send`, whichever the request
needs."""
