"""Handlers for the loom: turns, threads, trees, search, sums, exports, rewards. They read in a thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from typing import Any

from anyio import to_thread

from cantrip_actors import LoomError
from cantrip_actors.http import models
from cantrip_actors.http.calls import REPLAYED, HttpCall, JsonAnswer
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.sessions import check_scope
from cantrip_actors.http.shapes import tree_shape
from cantrip_actors.http.sse import EventStreamResponse
from cantrip_actors.loom.export.formats import export_lines
from cantrip_actors.loom.export.model_input import build_input_fields
from cantrip_actors.loom.export.shapes import usage_shape
from cantrip_actors.loom.export.spending import read_spending
from cantrip_actors.loom.export.story import build_item, read_page
from cantrip_actors.loom.export.thread import build_turn_fields
from cantrip_actors.loom.reading.search import Hit, Query, search
from cantrip_actors.loom.reading.statistics import statistics
from cantrip_actors.stream.reading import EventId
from cantrip_actors.terms.period import find_zone
from cantrip_actors.user_code.threads import get_client_limiter, run_for_client


async def get_turn(call: HttpCall) -> JsonAnswer:
    """Return a turn."""
    return JsonAnswer(await run_for_client(lambda: build_turn_fields(call.loom.turn(call.turn_id(call.path["id"])))))


async def get_input(call: HttpCall) -> JsonAnswer:
    """Return the input of the model for a turn: messages, images, system prompt, gates, settings."""
    turn_id = await call.read(call.whole_turn_id)
    shown = build_input_fields(await call.runtime.model_input(turn_id))
    return JsonAnswer(await run_for_client(call.redact_for_token, shown))


async def get_thread(call: HttpCall) -> JsonAnswer:
    """Return the path from the root to a turn, oldest first."""

    def look() -> list[dict[str, Any]]:
        return list(map(build_turn_fields, call.loom.thread(call.turn_id(call.path["id"]))))

    return JsonAnswer({"items": await run_for_client(look)})


async def get_turns(call: HttpCall) -> JsonAnswer:
    """List the turns of an entity."""
    wanted: models.TurnsQuery = call.query

    def read() -> list[dict[str, Any]]:
        entity_id = call.entity_id(call.path["id"])
        return list(map(build_turn_fields, call.loom.list_turns(entity_id, after=wanted.after, limit=wanted.limit)))

    return JsonAnswer({"items": await run_for_client(read)})


async def get_story(call: HttpCall) -> JsonAnswer:
    """List durable events of an entity, oldest first: the newest, those before or after one, or those around a turn."""
    wanted: models.StoryQuery = call.query
    before, after = _read_event_id("before", wanted.before), _read_event_id("after", wanted.after)

    def read() -> dict[str, Any]:
        entity_id, loom = call.entity_id(call.path["id"]), call.runtime.loom
        page = read_page(loom.records(entity_id), wanted.limit, before, after, wanted.turn)
        items = list(map(build_item, page.events))
        # only the returned events are redacted: redacting a log of 10,000 turns would take long
        return {"items": call.redact_for_token(items), "earlier": page.earlier, "later": page.later}

    return JsonAnswer(await run_for_client(read))


def _read_event_id(name: str, text: str | None) -> EventId | None:
    if text is None:
        return None
    id = EventId.parse(text)
    if id is None:
        raise Problem(422, "invalid", f"{name}: expected an id of the entity's event stream")
    return id


async def get_tree(call: HttpCall) -> JsonAnswer:
    """Return an entity and everything below it."""
    return JsonAnswer(await run_for_client(lambda: tree_shape(call.loom, call.entity_id(call.path["id"]))))


async def get_spending(call: HttpCall) -> JsonAnswer:
    """Return the usage of an entity and everything below it in each intent, day or month, oldest first."""
    wanted: models.SpendingQuery = call.query

    def read() -> list[dict[str, Any]]:
        spent = read_spending(call.loom, call.entity_id(call.path["id"]), wanted.per, wanted.zone)
        return [{"period": period, "usage": usage_shape(usage)} for period, usage in spent]

    find_zone(wanted.zone, lambda text: Problem(422, "invalid", text))
    return JsonAnswer({"items": await run_for_client(read)})


async def reward(call: HttpCall) -> JsonAnswer:
    """Reward a turn."""
    body: models.RewardBody = call.body
    turn_id = await call.read(call.whole_turn_id)
    by = f"{body.by}, by {call.token.sender}" if body.by else call.token.sender
    loom = call.runtime.loom
    is_new = await loom.reward(turn_id, body.reward, by=by, key=call.key or "")
    await call.service.read_late(await call.read(lambda: loom.header_at(turn_id).entity_id))
    return JsonAnswer({"turn_id": turn_id, "reward": body.reward, "by": by}, 201, None if is_new else REPLAYED)


async def search_loom(call: HttpCall) -> JsonAnswer:
    """Find turns by their texts, calls and observations."""
    wanted: models.SearchQuery = call.query
    entity = None if wanted.entity is None else await call.find_entity_id(wanted.entity)
    try:
        query = Query(
            text=wanted.q,
            regex=wanted.regex,
            gate=wanted.gate,
            errors=wanted.errors,
            entity=entity,
            since=None if wanted.since is None else wanted.since.isoformat(),
            until=None if wanted.until is None else wanted.until.isoformat(),
            by=wanted.by,
        )
        limiter = get_client_limiter() if wanted.regex is None else call.service.expressions

        def look() -> list[Hit]:
            return list(islice((hit for hit in search(call.loom, query) if call.sees(hit.entity_id)), wanted.limit))

        hits = await to_thread.run_sync(look, limiter=limiter)
    except LoomError as error:
        if wanted.regex is None:
            raise
        raise Problem(422, "invalid", str(error)) from None
    return JsonAnswer({"items": [asdict(hit) for hit in hits]})


async def stats(call: HttpCall) -> JsonAnswer:
    """Count turns, tokens, cost, durations and errors."""
    wanted = call.query.entity
    if wanted is None:
        call.check_sees_all()
    entity = None if wanted is None else await call.find_entity_id(wanted)
    counted = await run_for_client(statistics, call.loom, entity)
    return JsonAnswer(counted.as_json())


async def export(call: HttpCall) -> EventStreamResponse:
    """Export the loom as NDJSON, without secrets unless the token has the scope for them.

    All formats but that of turns have the system prompt and the gates of a model, which only `inputs` may read.
    """
    wanted: models.ExportQuery = call.query
    if wanted.format != "jsonl":
        check_scope(call.token, "inputs")
    if wanted.entity is None:
        call.check_sees_all()
    entity = None if wanted.entity is None else await call.find_entity_id(wanted.entity)
    if wanted.format == "pairs" and entity is not None:
        raise Problem(422, "invalid", "pairs are made from a whole loom: leave the entity out")
    lines = _read_in_thread(export_lines(call.loom, wanted.format, entity))
    limiter, kind = call.service.limiter, {"content-type": "application/x-ndjson"}
    with ExitStack() as stack:
        stack.enter_context(limiter.stream(call.token))
        return EventStreamResponse(lines, limiter.limits.patience, stack.pop_all().close, headers=kind)


async def _read_in_thread(lines: Iterator[bytes]) -> AsyncGenerator[bytes]:
    while (line := await run_for_client(next, lines, None)) is not None:
        yield line
