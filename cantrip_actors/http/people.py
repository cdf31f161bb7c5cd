"""Requests to people: list the open ones, decide them. The decision's `by` is the token's name."""

from __future__ import annotations

from cantrip_actors.http import models
from cantrip_actors.http.calls import REPLAYED, HttpCall, JsonAnswer
from cantrip_actors.http.dispatches import decide_dispatch, is_of_dispatch, read_request_page
from cantrip_actors.http.files import answer_of
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.shapes import request_shape
from cantrip_actors.loom.selection import Page
from cantrip_actors.records.mail import make_decision_key


async def list_requests(call: HttpCall) -> JsonAnswer:
    """List the open requests, the oldest first: of one entity, or of the next waiting ones."""
    wanted: models.RequestsQuery = call.query
    if wanted.entity is None:
        page = await read_request_page(call, wanted.cursor, wanted.limit)
    else:
        entity_id = await call.find_entity_id(wanted.entity)
        page = Page(await call.read(lambda: call.runtime.requests(entity=entity_id)))
    items = [call.redact_for_token(request_shape(request)) for request in page if request.is_for(wanted.to)]
    return JsonAnswer({"items": items, "next_cursor": page.next})


async def decide(call: HttpCall) -> JsonAnswer:
    """Decide a request; the decision is durable when this answers."""
    body: models.DecideBody = call.body
    request_id = call.path["id"]
    if is_of_dispatch(call, request_id):
        return await decide_dispatch(call, request_id)
    if call.token.cantrips is not None and not await call.read(lambda: _sees_request(call, request_id)):
        raise Problem(404, "unknown-request", "no request has this id: GET /api/v1/requests lists them")
    entity_id, mail_key = request_id.partition(":")[0], make_decision_key(request_id)
    is_repeated = call.key is not None and await call.read(lambda: call.runtime.has_mail(entity_id, mail_key))
    if not body.model_fields_set.isdisjoint({"result", "error"}):
        return await _deliver(call, request_id, body, is_repeated=is_repeated)
    await call.runtime.decide(
        request_id,
        body.decision,
        answer=answer_of(body),
        by=call.token.name,
        note=body.note,
        args=body.args,
        remember=body.remember,
        door=call.token.sender,
        key=call.key,
    )
    content = {"id": request_id, "decision": body.decision or "answer", "by": call.token.name}
    return JsonAnswer(content, headers=REPLAYED if is_repeated else None)


async def _deliver(call: HttpCall, request_id: str, body: models.DecideBody, *, is_repeated: bool) -> JsonAnswer:
    """Deliver the result of a deferred call, or its error; it is durable when this answers."""
    others = sorted(body.model_fields_set - {"result", "error"})
    if others:
        raise Problem(422, "invalid-decision", f"expected a result or an error alone, got also {', '.join(others)}")
    token = call.token
    await call.runtime.deliver(
        request_id, body.result, error=body.error, by=token.name, door=token.sender, key=call.key
    )
    content = {"id": request_id, "decision": "answer" if body.error is None else "error", "by": token.name}
    return JsonAnswer(content, headers=REPLAYED if is_repeated else None)


def _sees_request(call: HttpCall, request_id: str) -> bool:
    request = next((request for request in call.runtime.requests() if request.id == request_id), None)
    return call.sees((None if request is None else request.entity) or request_id.partition(":")[0])
