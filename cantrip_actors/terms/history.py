"""The history of an intent: messages of an earlier conversation, which the entity has in its context before the intent.

A user writes them as `Message` values, or as mappings with the same fields. A record has them as `PastMessage` values;
their images are with those of the intent, because mail and records keep all images in one list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec

from cantrip_actors.terms.arguments import render
from cantrip_actors.terms.bounds import count_bytes
from cantrip_actors.terms.errors import CrystalError, InvalidIntent, suggest_nearest
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import NO_IMAGES, split_message
from cantrip_actors.terms.messages import Message, Response, Role, ThreadMessage, ToolCall, as_text, make_encodable
from cantrip_actors.terms.value import Value, is_mapping

MOST_MESSAGES: Final = 10_000
"""The most messages of a history."""

History = Iterable[Message | Mapping[str, Any]]
"""An earlier conversation: messages, or mappings with their fields (`role`, `content`, `tool_calls` …)."""


class PastMessage(Value, frozen=True, gc=False):
    """A message of a history as its record has it; the fields are those of `Message`.

    `images` counts its images and files, which the record has in the order of the messages.
    """

    role: Role
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    gate: str | None = None
    is_error: bool = False
    thinking: str | None = None
    blocks: tuple[Mapping[str, Any], ...] = ()
    images: int = 0


class ReadHistory(NamedTuple):
    """A checked history, and the images and files of all of its messages."""

    messages: tuple[PastMessage, ...] = ()
    images: tuple[File, ...] = NO_IMAGES


NO_HISTORY: Final = ReadHistory()

_LEFT_OUT: Final = frozenset({"is_steering", "is_pinned", "files", *ThreadMessage.__struct_fields__}) - {
    *PastMessage.__struct_fields__
}
"""The fields of messages that say nothing to a crystal."""


def read_history(history: object) -> ReadHistory:
    """Return a checked history.

    The content of a message is a text, or a list of texts, images and files. The result of a call gets the name of the
    gate from its call. Raises InvalidIntent, which names the message.
    """
    if isinstance(history, (str, bytes, Mapping)) or not isinstance(history, Iterable):
        raise InvalidIntent(f"history: expected a list of messages, got {render(history):.200}")
    messages: list[PastMessage] = []
    images: list[File] = []
    gates: dict[str, str] = {}
    for number, value in enumerate(history):
        if number == MOST_MESSAGES:
            raise InvalidIntent(f"history: expected at most {MOST_MESSAGES:,} messages: leave out the oldest ones")
        where = f"history[{number}]"
        message, shown = _read_message(where, _get_fields(where, value))
        gates |= {call.id: call.gate for call in message.tool_calls if call.id}
        if message.role == "tool" and message.gate is None:
            message = msgspec.structs.replace(message, gate=gates.get(message.tool_call_id or "", "a tool"))
        messages.append(message)
        images += shown
    return ReadHistory(tuple(messages), tuple(images)) if messages else NO_HISTORY


def _get_fields(where: str, value: object) -> Mapping[str, Any]:
    if isinstance(value, Message):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if not is_mapping(value):
        raise InvalidIntent(f"{where}: expected a Message or a mapping with its fields, got {render(value):.200}")
    known = PastMessage.__struct_fields__
    for name in value:
        if name not in known and name not in _LEFT_OUT:
            raise InvalidIntent(f'{where}: unknown field "{name}": {suggest_nearest(str(name), known)}')
    if value.get("role") not in get_args(Role):
        roles = ", ".join(get_args(Role))
        raise InvalidIntent(f"{where}: expected one of the roles {roles}, got {render(value.get('role')):.100}")
    return value


def _read_message(where: str, fields: Mapping[str, Any]) -> tuple[PastMessage, tuple[File, ...]]:
    role: Role = fields["role"]
    text, images = _read_content(where, fields)
    if role == "system" and images:
        raise InvalidIntent(f"{where}: expected a system message of text, got images or files")
    utterance = _read_utterance(where, text, fields)
    if utterance.tool_calls and role != "assistant":
        raise InvalidIntent(f"{where}: expected tool_calls of an assistant only, got some of role {role!r}")
    if not (text or images or utterance.tool_calls or role == "tool"):
        raise InvalidIntent(f"{where}: expected a text, an image or calls, got a message that says nothing")
    id, gate = (_read_name(where, name, fields) for name in ("tool_call_id", "gate"))
    is_error = fields.get("is_error") is True
    return PastMessage(
        role,
        utterance.content,
        utterance.tool_calls,
        id,
        gate,
        is_error,
        utterance.thinking,
        utterance.blocks,
        len(images),
    ), images


def _read_content(where: str, fields: Mapping[str, Any]) -> tuple[str | None, tuple[File, ...]]:
    """Return the text and the images; a message that was read from a loom has its images beside its text."""
    content, beside = fields.get("content"), fields.get("images") or ()
    if not (isinstance(beside, (list, tuple)) and all(isinstance(image, File) for image in beside)):
        raise InvalidIntent(f"{where}: expected images as a list of Image and File, got {render(beside):.200}")
    if content is None or (isinstance(content, str) and not content.strip()):
        return None, tuple(beside)
    text, images = split_message(content, f"{where}: expected a text")
    return text, (*images, *beside)


def _read_utterance(where: str, text: str | None, fields: Mapping[str, Any]) -> Response:
    """Return the parts of a message that an utterance has, checked and copied."""
    parts = {name: fields.get(name) for name in ("tool_calls", "thinking", "blocks")}
    try:
        return Response.from_fields({"content": text, **parts}).copy()
    except CrystalError as error:
        raise InvalidIntent(f"{where}: {str(error).replace('crystal returned', 'got', 1)}") from error


def _read_name(where: str, name: str, fields: Mapping[str, Any]) -> str | None:
    text = fields.get(name)
    if not isinstance(text, str | None):
        raise InvalidIntent(f"{where}: expected {name} as a text, got {render(text):.100}")
    return text and make_encodable(text)


def measure_history(history: Iterable[PastMessage]) -> int:
    """Return the size of a history without its images, in bytes."""
    return sum(
        count_bytes(message.content or "")
        + count_bytes(message.thinking or "")
        + sum(count_bytes(call.arguments) for call in message.tool_calls)
        + (count_bytes(as_text(message.blocks)) if message.blocks else 0)
        for message in history
    )


def read_recorded_history(value: object) -> tuple[PastMessage, ...] | None:
    """Return the history in the body of a mail; None for a value that another version wrote."""
    try:
        return msgspec.convert(value, tuple[PastMessage, ...])
    except msgspec.ValidationError:
        return None


def build_history_messages(history: Iterable[PastMessage], images: Sequence[File]) -> Iterator[Message]:
    """Yield the messages of a history; `images` are those of all messages."""
    at = 0
    for past in history:
        shown = tuple(images[at : at + past.images])
        at += past.images
        yield Message(
            past.role,
            past.content,
            past.tool_calls,
            past.tool_call_id,
            past.gate,
            past.is_error,
            past.thinking,
            past.blocks,
            shown,
        )
