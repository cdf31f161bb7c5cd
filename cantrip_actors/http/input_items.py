"""The input of a stored response, as the items of OpenAI's API: the messages that its request sent, or the results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from cantrip_actors import File, Image
from cantrip_actors.http import openai_models as models
from cantrip_actors.http.calls import HttpCall, JsonAnswer
from cantrip_actors.http.client_rounds import name_steering
from cantrip_actors.http.episode_tools import CALL, split_client_id
from cantrip_actors.http.past_answers import PastAnswer, read_past_answers
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.stored_items import find_noted_form, find_stored, get_round_key, read_settings
from cantrip_actors.loom.export.chat import split_parts
from cantrip_actors.loom.export.exchanges import Exchange, read_exchanges
from cantrip_actors.loom.stores.blobs import address_of
from cantrip_actors.terms.history import build_history_messages
from cantrip_actors.terms.messages import Message, as_text
from cantrip_actors.user_code.threads import run_for_client


async def list_input_items(call: HttpCall) -> JsonAnswer:
    """List the items that the request of a response had: its messages, calls and results."""
    return JsonAnswer(call.redact_for_token(await run_for_client(_read_page, call)))


def _read_page(call: HttpCall) -> dict[str, Any]:
    wanted: models.ItemsQuery = call.query
    items = [*_read_items(call, call.path["id"])]
    if wanted.order == "desc":
        items.reverse()
    if wanted.after is not None:
        places = [number for number, item in enumerate(items) if item["id"] == wanted.after]
        if not places:
            raise Problem(400, "invalid", "after: the response has no input item with this id", param="after")
        items = items[places[0] + 1 :]
    page = items[: wanted.limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, "has_more": len(page) < len(items), **ends}


def _read_items(call: HttpCall, id: str) -> Iterator[dict[str, Any]]:
    """Yield the items of a response, in order, each with an id of its own. Reads the loom."""
    work = find_stored(call, id)
    exchanges = read_exchanges(call.loom, work.entity_id, sys.maxsize)
    listed = [*exchanges.recorded, *exchanges.waiting]
    exchange = next((each for each in listed if (each.intent.key or "") == work.key), None)
    if exchange is None:  # it was undone
        return
    can_reply = find_noted_form(call, work, work.note, work.find_outcome()) is None
    before = read_past_answers(call, work.entity_id, work.key, get_round_key(id), can_reply=can_reply).before
    parts = _read_continuation(call, exchange, before[-1]) if before else _read_intent(exchange)
    for number, item in enumerate(parts):
        yield {"id": f"{item['type'].partition('_')[0]}_in_{id}_{number}", **item, "status": "completed"}


def _read_continuation(call: HttpCall, exchange: Exchange, answer: PastAnswer) -> Iterator[dict[str, Any]]:
    """Yield the results of calls with which a client continued an earlier answer, or its reply to an utterance; and
    the message that it sent with them.
    """
    replies = {reply.request_id: reply for reply in exchange.replies}
    for id in answer.results:
        entity_id, call_id = split_client_id(id) or ("", "")
        client_call = call.loom.find_call(entity_id, call_id) if entity_id else None
        if client_call is not None and client_call.result is not None:
            text, images = as_text(client_call.result.result), client_call.result.images
            output = [*_list_parts(text, images)] if images else text
            yield {"type": "function_call_output", "call_id": id, "output": output}
        elif id in replies:
            yield _make_message("user", _list_parts(replies[id].text, replies[id].files))
    for steered in exchange.steered:
        if steered.key == name_steering(answer.key):
            yield _make_message("user", _list_parts(steered.text, steered.images))


def _read_intent(exchange: Exchange) -> Iterator[dict[str, Any]]:
    """Yield the messages of a request: the history, without its `instructions`, and the intent."""
    intent, settings = exchange.intent, read_settings(exchange.intent.note)
    history = [*build_history_messages(intent.history, intent.past_images)]
    if history and history[0].role == "system" and history[0].content == settings.get("instructions"):
        history = history[1:]
    for message in history:
        yield from _read_message(message)
    yield _make_message("user", _list_parts(intent.intent, intent.own_images))


def _read_message(message: Message) -> Iterator[dict[str, Any]]:
    content = message.content or ""
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": content}
        return
    if message.role != "assistant":
        yield _make_message(message.role, _list_parts(content, message.images))
    elif content:
        yield _make_message("assistant", [{"type": "output_text", "text": content, "annotations": [], "logprobs": []}])
    for tool_call in message.tool_calls:
        fields = {"call_id": tool_call.id or CALL, "name": tool_call.gate, "arguments": tool_call.arguments}
        yield {"type": "function_call", **fields}


def _make_message(role: str, content: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [*content]}


def _list_parts(text: str, images: Iterable[File]) -> Iterator[dict[str, Any]]:
    for part in split_parts(text, images):
        if isinstance(part, str):
            yield {"type": "input_text", "text": part}
        elif isinstance(part, Image):
            yield {"type": "input_image", "detail": part.detail or "auto", "image_url": address_of(part)}
        else:
            data = part.base64()
            where = {"file_url": part.url} if data is None else {"file_data": f"data:{part.media_type};base64,{data}"}
            yield {"type": "input_file", "filename": part.filename, **where}
