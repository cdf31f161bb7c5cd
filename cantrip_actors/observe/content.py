"""The texts of queries in the form of the GenAI conventions: messages made of parts, as plain JSON values.

Secrets are removed before anything else sees the values. Each message is converted once, however many queries contain
it, and with `inputs="new"` only the messages since the last query are recorded, so turn n pays for turn n. The bytes of
images are never included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from cantrip_actors.terms.messages import Message, Response, ToolCall, ToolDefinition, as_text

Content = Literal["none", "span", "event", "both"]

_MODES: Mapping[str, Content] = {
    "NO_CONTENT": "none",
    "SPAN_ONLY": "span",
    "TRUE": "span",
    "EVENT_ONLY": "event",
    "SPAN_AND_EVENT": "both",
}

Part = dict[str, Any]
RedactFunction = Callable[[Any], Any]


def parse_mode(variable: str | None) -> Content:
    """Return the mode in the environment's variable; "none" for an unknown text."""
    return _MODES.get((variable or "").strip().upper(), "none")


class QueryMessages:
    """The context of one entity's queries. `redact` removes the secrets of a JSON value."""

    def __init__(self, redact: RedactFunction, *, only_new: bool) -> None:
        self._redact = redact
        self._only_new = only_new
        self._known: list[tuple[Message, Part]] = []
        """The messages of the last query, each with its converted form."""

    def split_query(self, messages: Sequence[Message]) -> tuple[list[Part], list[Part]]:
        """Return the system instructions and the input messages to record for a query.

        A fold changes the context from its beginning on, and then all of it counts as new.
        """
        sent = self._known
        same = min(len(sent), len(messages))
        if same and not (messages[0] is sent[0][0] and messages[same - 1] is sent[same - 1][0]):
            same = next((n for n in range(same) if messages[n] is not sent[n][0]), same)
        del sent[same:]
        sent.extend([(messages[n], self._build_message(messages[n])) for n in range(same, len(messages))])
        shown = sent[same:] if self._only_new else sent
        instructions = [part for message, form in shown if message.role == "system" for part in form["parts"]]
        return instructions, [form for message, form in shown if message.role != "system"]

    def _build_message(self, message: Message) -> Part:
        form: Part = self._redact({"role": message.role, "parts": list(_list_parts(message))})
        return form


def _list_parts(message: Message) -> Iterable[Part]:
    if message.role == "tool":
        yield {"type": "tool_call_response", "id": message.tool_call_id, "result": message.content}
        return
    yield from _build_parts(message.thinking, message.content, message.tool_calls)
    for image in message.images:
        if image.url is not None:
            yield {"type": "uri", "modality": "image", "mime_type": image.media_type, "uri": image.url}


def _build_parts(
    thinking: str | None, content: str | None, calls: Iterable[ToolCall], code: str | None = None
) -> list[Part]:
    parts: list[Part] = []
    if thinking:
        parts.append({"type": "reasoning", "content": thinking})
    parts += [{"type": "text", "content": text} for text in (content, code) if text]
    parts += [
        {
            "type": "tool_call",
            "id": call.id,
            "name": call.gate,
            "arguments": call.raw if call.args is None else dict(call.args),
        }
        for call in calls
    ]
    return parts


def build_output(response: Response, redact: RedactFunction) -> list[Part]:
    """Return the output messages of an answer."""
    parts = _build_parts(response.thinking, response.content, response.tool_calls, response.code)
    reason = response.metadata.get("stop_reason") or ("tool_call" if response.tool_calls else "stop")
    output: list[Part] = redact([{"role": "assistant", "parts": parts, "finish_reason": str(reason)}])
    return output


def build_definitions(tools: Iterable[ToolDefinition]) -> list[Part]:
    """Return the definitions of the offered gates."""
    return [
        {"type": "function", "name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        for tool in tools
    ]


def dump_text(value: Any) -> str:
    """Return a value as JSON text, for an attribute of a span."""
    return as_text([value])[1:-1] if isinstance(value, str) else as_text(value)
