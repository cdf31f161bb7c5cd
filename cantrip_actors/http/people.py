"""Requests to people: list the open ones, decide them. The decision's `by` is the token's name."""

from __future__ import annotations

from typing import Any, Final

from cantrip_actors import Request
from cantrip_actors.http import models
from cantrip_actors.http.calls import REPLAYED, HttpCall, JsonAnswer
from cantrip_actors.http.entities import check_cursor
from cantrip_actors.http.files import answer_of
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.shapes import request_shape
from cantrip_actors.loom.stores.selection import Page


async def list_requests(call: HttpCall) -> JsonAnswer:
    """List the open requests, the oldest first: of one entity, or of the next waiting ones."""
    wanted: models.RequestsQuery = call.query
    if wanted.entity is None:
        page = await _read_page(call, wanted.cursor, wanted.limit)
    else:
        entity_id = await call.find_entity_id(wanted.entity)
        page = Page(await call.read(lambda: call.runtime.requests(entity=entity_id)))
    items = [call.redact_for_token(request_shape(request)) for request in page if request.is_for(wanted.to)]
    return JsonAnswer({"items": items, "next_cursor": page.next})


async def _read_page(call: HttpCall, cursor: str | None, limit: int) -> Page[Request]:
    """Return a page of the open requests that the token may see, the oldest first."""
    await call.read(lambda: check_cursor(call.runtime.loom, cursor))
    page = await call.runtime.list_requests(after=cursor, limit=limit)
    if call.token.cantrips is None:
        return page
    return Page(await call.read(lambda: [request for request in page if _sees(call, request)]), page.next)


_RESULTS: Final = frozenset({"result", "error"})
"""The fields of a body that delivers the result of a deferred call."""


async def decide(call: HttpCall) -> JsonAnswer:
    """Decide a request, or deliver the result of a deferred call or its error; it is durable when this answers."""
    body: models.DecideBody = call.body
    request_id = call.path["id"]
    # the id of a request begins with that of its entity; requests of no entity are not for such a token
    if call.token.cantrips is not None and not await call.read(lambda: call.sees(request_id.partition(":")[0])):
        raise Problem(404, "unknown-request", "no request has this id: GET /api/v1/requests lists them")
    who: dict[str, Any] = {"by": call.token.name, "door": call.token.sender, "key": call.key}
    if body.model_fields_set.isdisjoint(_RESULTS):
        more: dict[str, Any] = {"note": body.note, "args": body.args, "remember": body.remember}
        is_repeated = await call.runtime.decide(request_id, body.decision, answer=answer_of(body), **more, **who)
        decision: str = body.decision or "answer"
    else:
        others = sorted(body.model_fields_set - _RESULTS)
        if others:
            raise Problem(422, "invalid-decision", f"expected a result or an error alone, got also {', '.join(others)}")
        is_repeated = await call.runtime.deliver(request_id, body.result, error=body.error, **who)
        decision = "answer" if body.error is None else "error"
    content = {"id": request_id, "decision": decision, "by": call.token.name}
    return JsonAnswer(content, headers=REPLAYED if is_repeated else None)


def _sees(call: HttpCall, request: Request) -> bool:
    """Return whether a token that is limited to some cantrips may decide a request: of none without a turn."""
    return request.turn is not None and request.entity is not None and call.sees(request.entity)
