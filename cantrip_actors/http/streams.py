"""The event streams of one entity and of all: where a reader resumes, and its first events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from functools import cache
from typing import Any

from anyio import to_thread
from anyio.lowlevel import checkpoint
from starlette.responses import Response

from cantrip_actors.http import models
from cantrip_actors.http.calls import Answer, Call
from cantrip_actors.http.feeds import Filter, Frame, replay, select_standing
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.shapes import entity_shape
from cantrip_actors.http.sse import END_OF_RECORD, RETRY, EventStream, Position, encode_event
from cantrip_actors.http.system import check_may_observe
from cantrip_actors.machine.project import Story, StoryEvent
from cantrip_actors.stream.wire import as_wire

KINDS = frozenset(
    {"actor", "entity", "intent", "steer", "turn", "request", "decision", "fold", "reward", "resume", "episode", "end"}
    | {"upsert", "usage", "server"},
)


def _pass_everything(_: Frame) -> bool:
    return True


async def entity_events(call: Call) -> Response | Answer:
    """Stream the events of an entity: from `Last-Event-ID` on, or a snapshot and the following ones."""
    wanted: models.EventsQuery = call.query
    entity_id = call.entity_id(call.path["id"])
    after = _parse_position(call.request.headers.get("last-event-id") or wanted.after or "")
    loom, patience = call.runtime.shown_loom, call.service.limiter.limits.patience
    if loom.is_over(entity_id):
        story = Story()
        told = await to_thread.run_sync(lambda: list(story.add_all(loom.records(entity_id))))
        last = Position(told[-1].number, told[-1].part) if told else Position(story.number)
        if after is not None and last <= after < Position(story.number + 1):
            return Answer(status=204)  # so that EventSource does not reconnect
        if after is None or after > last:
            before = Position(last.number, last.part - 1) if last.part else Position(last.number - 1, END_OF_RECORD)
            return EventStream(_replay_finished(entity_id, told, before, _snapshot(call, entity_id, before)), patience)
        return EventStream(_replay_finished(entity_id, told, after), patience)
    return _stream(
        call,
        entity_id,
        after,
        _pass_everything,
        lambda number: _snapshot(call, entity_id, Position(number, END_OF_RECORD)),
    )


def _parse_position(given: str) -> Position | None:
    return Position.parse(given) if given else None


async def _replay_finished(
    entity_id: str, told: list[StoryEvent], after: Position, first: bytes = b""
) -> AsyncGenerator[bytes]:
    """Yield the events of an entity that has ended."""
    yield RETRY
    if first:
        yield first
    for event in told:
        for part in replay(entity_id, event, after, _pass_everything):
            yield part
        await checkpoint()


def _snapshot(call: Call, entity_id: str, at: Position) -> bytes:
    loom = call.runtime.loom
    requests = [one for one in call.runtime.requests() if one.entity == entity_id]
    shape = call.runtime.redact(
        entity_shape(loom, loom.header(entity_id), requests, interrupted=call.find_interrupted())
    )
    data = {
        "entities": [shape],
        "items": list(map(as_wire, select_standing(call.service.upserts.snapshot(entity_id)))),
    }
    return encode_event("snapshot", data, str(at))


async def all_events(call: Call) -> Response:
    """Stream what all entities do, or those below one. Each connection begins with a snapshot."""
    wanted: models.FirehoseQuery = call.query
    kinds = None if wanted.kinds is None else frozenset(one.strip() for one in wanted.kinds.split(","))
    if kinds is not None and not kinds <= KINDS:
        raise Problem(422, "invalid", f"kinds: expected some of {', '.join(sorted(KINDS))}")
    has_actors = kinds is not None and "actor" in kinds
    if has_actors:
        check_may_observe(call)
    root = None if wanted.subtree is None else call.entity_id(wanted.subtree)
    loom = call.runtime.loom

    @cache
    def sees(entity_id: str) -> bool:
        return loom.has(entity_id) and (root is None or root in loom.ancestry(entity_id))

    def wants(frame: Frame) -> bool:
        if frame.kind == "actor":
            return has_actors
        return (kinds is None or frame.kind in kinds) and sees(frame.entity_id)

    def snapshot(_number: int) -> bytes:
        unfinished, interrupted = [one for one in loom.unfinished() if sees(one)], call.find_interrupted()
        data: dict[str, Any] = {
            "entities": [
                call.runtime.redact(entity_shape(loom, loom.header(one), interrupted=interrupted)) for one in unfinished
            ],
            "items": [as_wire(one) for one in select_standing(call.service.upserts.snapshot()) if sees(one.session_id)],
        }
        if supervision is not None:
            data["actors"] = supervision.snapshot()
        return encode_event("snapshot", data)

    with ExitStack() as stack:
        supervision = stack.enter_context(call.service.follow_supervision()) if has_actors else None
        return _stream(call, None, None, wants, snapshot, stack.pop_all())


def _stream(
    call: Call,
    entity_id: str | None,
    after: Position | None,
    wanted: Filter,
    snapshot: Callable[[int], bytes],
    held: ExitStack | None = None,
) -> EventStream:
    """Return the stream of a reader; the reader is counted while it reads, and its end closes `held`."""
    service = call.service
    with held or ExitStack() as stack:
        stack.enter_context(service.limiter.stream(call.token))
        if call.token.allows("approve"):
            stack.enter_context(service.count_as_person(call.runtime))
        feed = stack.enter_context(service.feed(entity_id))
        if after is not None and after.number > feed.number:  # an id of another loom
            after = None
        events = feed.stream(after, wanted, lambda: snapshot(feed.number))
        return EventStream(events, service.limiter.limits.patience, stack.pop_all().close)
