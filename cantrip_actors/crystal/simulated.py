"""Calls of models that cannot be forced to call: an answer by a schema represents one (CRYSTAL-5).

Two kinds of servers need it. Some have tools and no `tool_choice`: a query that requires a call has a schema. Others
have no tools: every query has a schema, and earlier calls become text (`PlainWriter`). The model answers `{"tool":
"read", "arguments": {…}}` or, if a call is not required, `{"say": "…"}`.

Not every server that accepts a schema follows it. An answer that is not a call is a text, and `query.py` decides what
follows, as for all crystals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cantrip_actors.crystal.draft import Counts, Draft
from cantrip_actors.crystal.encode import CallAnswer, Writer
from cantrip_actors.crystal.history import AS_TEXT
from cantrip_actors.crystal.images import Shown, Takes
from cantrip_actors.stream.wire import Payload, ResponseDone, ResponseStart
from cantrip_actors.terms.exact_json import dump_exactly, parse_exactly, read_arguments
from cantrip_actors.terms.messages import Message, Response, ToolCall, ToolDefinition

_SAY: Final = {
    "type": "object",
    "properties": {"say": {"type": "string"}},
    "required": ["say"],
    "additionalProperties": False,
}


def make_schema(tools: Sequence[ToolDefinition], *, must_call: bool) -> Mapping[str, Any]:
    """Return the schema of an answer that is one call or, if that is allowed, a text."""
    shapes: list[Mapping[str, Any]] = [
        {
            "type": "object",
            "properties": {"tool": {"type": "string", "enum": [tool.name]}, "arguments": tool.parameters},
            "required": ["tool", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    if not must_call:
        shapes.append(_SAY)
    return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}


def write_instructions(tools: Sequence[ToolDefinition], *, must_call: bool, described: bool) -> str:
    """Return the instructions for the model. `described` if the server already describes the tools to it."""
    lines = ['[Answer with one JSON object and nothing else: {"tool": <name>, "arguments": <object>} to call a tool']
    lines[0] += "; one has to be called now." if must_call else ', or {"say": <text>} to speak.'
    if described:
        lines.append(f"The tools are {', '.join(tool.name for tool in tools)}.]")
    else:
        lines.append("The tools, with the JSON Schemas of their arguments:")
        lines += [f"- {t.name}: {t.description} {dump_exactly(t.parameters).decode()}" for t in tools]
        lines[-1] += "]"
    return "\n".join(lines)


def extract_call(
    response: Response, tools: Sequence[ToolDefinition], utterance: int, first: int = 0
) -> tuple[Response, list[Payload]]:
    """Return the response with the call that its text represents, and the payloads of that call."""
    draft = Draft(str(response.metadata.get("provider") or ""), str(response.metadata.get("model") or ""), utterance)
    draft.first = first
    if response.thinking:
        draft.say("reasoning", response.thinking)
    call = _find_call(response.content or "", {tool.name for tool in tools})
    if isinstance(call, str):
        draft.say("message", call)
        changed = replace(response, content=call)
    else:
        name, arguments = call
        item = draft.call(name)
        item.arguments = arguments
        draft.add(item, dump_exactly(arguments).decode())
        draft.end(item)
        changed = replace(response, content=None, tool_calls=(ToolCall(item.call_id, name, arguments),), blocks=())
    draft.make_response(Counts(), {}, ())
    return changed, [payload for payload in draft.take() if not isinstance(payload, (ResponseStart, ResponseDone))]


def _find_call(text: str, names: set[str]) -> tuple[str, dict[str, Any]] | str:
    """Return the call in a text, or the text in it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        value = parse_exactly(text[start : end + 1])  # some models add a Markdown fence
    except ValueError:
        return text
    if not isinstance(value, dict):
        return text
    name, arguments = value.get("tool"), read_arguments(value.get("arguments"))
    if name in names and arguments is not None:
        return name, arguments
    say = value.get("say")
    return say if isinstance(say, str) and say else text


class PlainWriter(Writer):
    """Writes a context with its calls and results as text, for servers without tools."""

    def __init__(self, inner: Writer) -> None:
        self._inner = inner
        super().__init__(inner.model, inner.provider, inner.takes)
        self.rules = AS_TEXT
        self.marks = inner.marks

    @property
    def takes(self) -> Takes:
        """The images and files that the provider accepts, from the writer that writes them."""
        return self._inner.takes

    @takes.setter
    def takes(self, takes: Takes) -> None:
        self._inner.takes = takes

    def write_utterance(self, message: Message, ids: Sequence[str]) -> Iterable[bytes]:  # noqa: ARG002
        """Yield an utterance, with its calls as the JSON that represented them."""
        calls = [dump_exactly({"tool": c.gate, "arguments": c.args or {}}).decode() for c in message.tool_calls]
        text = "\n".join(part for part in (message.content, *calls) if part)
        return self._inner.write_utterance(Message("assistant", text), ())

    def mark(self, fragment: bytes) -> bytes:
        """Return a run with the mark of the provider."""
        return self._inner.mark(fragment)

    def write_messages(self, answers: Sequence[CallAnswer], texts: Sequence[str | Shown]) -> Iterable[bytes]:
        """Yield the results, as text with their images."""
        parts: list[str | Shown] = []
        for answer in answers:
            text = f"[{'error' if answer.is_error else 'result'} of {answer.call.gate}]\n{answer.content}"
            parts.append(Shown(text, answer.images) if answer.images else text)
        return self._inner.write_messages((), [*parts, *texts])
