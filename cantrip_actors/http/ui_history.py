"""The messages of a chat as `useChat` holds them, for a page that is loaded again. Pure.

A message of the assistant is folded from the parts that its stream had, and has the same id: the page shows the same
before and after it is loaded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from cantrip_actors.http.front_ends import FrontEndEncoder, StreamPart
from cantrip_actors.http.ui_messages import UiMessages, make_message_id
from cantrip_actors.loom.export.exchanges import Exchange
from cantrip_actors.loom.stores.blobs import address_of
from cantrip_actors.stream.events import EntityEvent, RequestedEvent
from cantrip_actors.terms.file import File
from cantrip_actors.terms.work_id import make_work_id

UiMessage = dict[str, Any]

KEY_PREFIX: Final = "chat:"
"""The key of an intent is this and the id of the user's message."""


def list_ui_messages(entity_id: str, exchanges: Iterable[Exchange]) -> list[UiMessage]:
    """Return the messages of the exchanges of an entity, in their order.

    The answer to an intent is left out while a stream can bring it: until the episode ends, or says something to which
    a person replies.
    """
    return [message for exchange in exchanges for message in _list_messages(entity_id, exchange)]


def _list_messages(entity_id: str, exchange: Exchange) -> Iterator[UiMessage]:
    intent = exchange.intent
    work_id = make_work_id(entity_id, intent.key)
    message_id = (intent.key or work_id).removeprefix(KEY_PREFIX)
    yield _make_user_message(message_id, intent.intent, intent.own_images)
    replied: list[str] = []
    for reply in exchange.replies:
        yield from _answer(work_id, replied, exchange.events[: reply.number])
        yield _make_user_message(reply.request_id, reply.text, reply.files)
        replied = [reply.request_id]
    if exchange.is_over or exchange.open_utterance is not None:
        yield from _answer(work_id, replied, exchange.events)


def _answer(work_id: str, replied: Sequence[str], events: Sequence[EntityEvent]) -> Iterator[UiMessage]:
    """Yield the message of the assistant between a reply and the last event, unless it is empty."""
    message_id = make_message_id(work_id, replied)
    encoder = FrontEndEncoder(UiMessages(message_id), replied)
    parts = [part for event in events for part in encoder.add(event)]
    if events and isinstance(utterance := events[-1], RequestedEvent):
        parts += encoder.ask(utterance)
    message = fold_message(message_id, parts)
    if message["parts"]:
        yield message


def _make_user_message(id: str, text: str, files: Sequence[File]) -> UiMessage:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for file in files:
        address = address_of(file)
        if address is None:
            parts.append({"type": "text", "text": file.label})
        else:
            named = {} if file.filename is None else {"filename": file.filename}
            parts.append({"type": "file", "mediaType": file.media_type, "url": address, **named})
    return {"id": id, "role": "user", "parts": parts}


def fold_message(message_id: str, stream: Iterable[StreamPart]) -> UiMessage:
    """Return the message of the assistant that a client has after the parts of a stream."""
    parts: list[dict[str, Any]] = []
    named: dict[str, dict[str, Any]] = {}
    """The growing texts and the calls, by id."""
    for part in stream:
        match part:
            case {"type": "start-step"}:
                parts.append({"type": "step-start"})
            case {"type": "text-start" | "reasoning-start", "id": id}:
                named[id] = {"type": part["type"].removesuffix("-start"), "text": "", "state": "done"}
                parts.append(named[id])
            case {"type": "text-delta" | "reasoning-delta", "id": id}:
                named[id]["text"] += part["delta"]
            case {"type": "tool-input-available", "toolCallId": id}:
                shown = {name: part[name] for name in ("toolCallId", "input", "providerExecuted")}
                named[id] = {"type": f"tool-{part['toolName']}", "state": "input-available", **shown}
                parts.append(named[id])
            case {"type": "tool-output-available" | "tool-output-error" | "tool-output-denied", "toolCallId": id}:
                shown = {name: part[name] for name in ("output", "errorText") if name in part}
                named[id] |= {"state": part["type"].removeprefix("tool-"), **shown}
            case _:  # the end
                pass
    return {"id": message_id, "role": "assistant", "parts": parts}
