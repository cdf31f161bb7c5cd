"""Requests to people: list the open ones, decide them. The decision's `by` is the token's name."""

from __future__ import annotations

from cantrip_actors.http import models
from cantrip_actors.http.calls import Answer, Call
from cantrip_actors.http.shapes import request_shape

__all__ = ["decide", "list_requests"]


async def list_requests(call: Call) -> Answer:
    """List the open requests, the oldest first."""
    entity = call.query.entity
    wanted = None if entity is None else call.entity_id(entity)
    found = [one for one in call.runtime.requests() if wanted in (None, one.entity)]
    return Answer({"items": [call.shown(request_shape(one)) for one in found]})


async def decide(call: Call) -> Answer:
    """Decide a request; the decision is durable when this answers."""
    said: models.Decide = call.body
    request_id = call.path["id"]
    await call.runtime.decide(
        request_id,
        said.decision,
        answer=said.answer,
        by=call.token.name,
        note=said.note,
        args=said.args,
        remember=said.remember,
        door=call.token.sender,
    )
    return Answer({"id": request_id, "decision": said.decision or "answer", "by": call.token.name})
