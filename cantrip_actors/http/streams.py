"""The event streams of one entity and of all: the position at which a reader resumes, and its first events."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from anyio.lowlevel import checkpoint
from starlette.responses import Response

from cantrip_actors.http import models
from cantrip_actors.http.calls import HttpCall, JsonAnswer
from cantrip_actors.http.feeds import Frame, Select, Snapshot, render_history, select_standing
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.sessions import check_scope
from cantrip_actors.http.shapes import entity_shape, entity_shapes
from cantrip_actors.http.sse import RETRY, EventStreamResponse, encode_event, end_quietly
from cantrip_actors.loom.export.story import DURABLE, read_durable
from cantrip_actors.records.records import Record
from cantrip_actors.stream.reading import END_OF_RECORD, EventId, EventLog
from cantrip_actors.stream.wire import as_wire
from cantrip_actors.user_code.threads import run_for_client

MOST_KNOWN: Final = 10_000
"""Entities of which a reader of all events remembers whether it sees them."""

KINDS = frozenset({*DURABLE.values(), "intent", "actor", "upsert", "usage", "server"})


async def _pass_everything(frames: list[Frame]) -> list[Frame]:
    return frames


async def entity_events(call: HttpCall) -> Response | JsonAnswer:
    """Stream the events of an entity: from `Last-Event-ID` on, or a snapshot and the following ones."""
    wanted: models.EventsQuery = call.query
    after = _find_after(call, wanted)
    loom, patience = call.runtime.shown_loom, call.service.limiter.limits.patience

    def look() -> tuple[str, bool]:
        entity_id = call.entity_id(call.path["id"])
        return entity_id, loom.is_over(entity_id)

    entity_id, is_over = await call.read(look)
    if is_over:
        log = EventLog()
        records = await run_for_client(loom.records, entity_id)
        newest = await run_for_client(lambda: deque(read_durable(log, records), 1))
        last = newest[-1].id if newest else EventId(log.number)
        if after is not None and last <= after < EventId(log.number + 1):
            return JsonAnswer(status=204)  # so that EventSource does not reconnect
        first = b""
        if after is None or after > last:
            after = EventId(last.number, last.part - 1) if last.part else EventId(last.number - 1, END_OF_RECORD)
            first = await _build_snapshot(call, entity_id, after)
        return EventStreamResponse(_replay_finished(records, after, first), patience, fail=end_quietly)

    async def snapshot(number: int) -> bytes:
        return await _build_snapshot(call, entity_id, EventId(number, END_OF_RECORD))

    return await _stream(call, entity_id, after, _pass_everything, snapshot)


def _find_after(call: HttpCall, wanted: models.EventsQuery) -> EventId | None:
    """Return the id that a reader continues after; None for one that begins anew. Raises Problem 422."""
    read_last = call.request.headers.get("last-event-id")
    after = EventId.parse((read_last or wanted.after or "").partition(":")[0])
    if after is None and wanted.after and not read_last:
        raise Problem(422, "invalid", "after: expected an id of this stream, or 0 for its beginning")
    return after


async def _replay_finished(records: Sequence[Record], after: EventId, first: bytes) -> AsyncGenerator[bytes]:
    """Yield the events of an entity that has ended."""
    yield RETRY
    yield first
    for part in render_history(records, after):
        yield part
        await checkpoint()


async def _build_snapshot(call: HttpCall, entity_id: str, at: EventId) -> bytes:
    items = list(map(as_wire, select_standing(call.service.upserts.snapshot(entity_id))))

    shape = call.runtime.redact(await call.read(partial(entity_shape, call.runtime, entity_id)))
    return encode_event("snapshot", {"entities": [shape], "items": items}, str(at))


class _View:
    """The entities that a reader of all events sees: those of its tenant, or those below `root`."""

    def __init__(self, call: HttpCall, root: str | None) -> None:
        self._call = call
        self._root = root
        self._known: dict[str, bool] = {}
        """For the entities of the newest events, whether the reader sees them: one may read for weeks."""

    def sees(self, entity_id: str) -> bool:
        """Return whether the reader sees an entity. Reads the loom the first time."""
        known = self._known.get(entity_id)
        if known is None:
            loom, root = self._call.runtime.loom, self._root
            known = loom.has(entity_id) and (root is None or root in loom.ancestry(entity_id))
            known = known and self._call.sees(entity_id)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[entity_id] = known
        return known

    async def find_seen(self, entities: Iterable[str]) -> frozenset[str]:
        """Return those of some entities that the reader sees."""
        ids = frozenset(entities)
        if ids <= self._known.keys():
            return frozenset(filter(self.sees, ids))
        return await self._call.read(lambda: frozenset(filter(self.sees, ids)))


async def all_events(call: HttpCall) -> Response:
    """Stream the events of all entities, or of those below one, with positions in the loom as ids.

    The recorded ones after `Last-Event-ID` come first, then a snapshot.
    """
    wanted: models.FirehoseQuery = call.query
    after = _find_after(call, wanted)
    kinds = None if wanted.kinds is None else frozenset(one.strip() for one in wanted.kinds.split(","))
    if kinds is not None and not kinds <= KINDS:
        raise Problem(422, "invalid", f"kinds: expected some of {', '.join(sorted(KINDS))}")
    has_actors = kinds is not None and "actor" in kinds
    if has_actors:
        check_scope(call.token, "observe")
        call.check_sees_all()
    root = None if wanted.subtree is None else await call.find_entity_id(wanted.subtree)
    view = _View(call, root)

    async def select(frames: list[Frame]) -> list[Frame]:
        asked = [
            frame for frame in frames if (has_actors if frame.kind == "actor" else kinds is None or frame.kind in kinds)
        ]
        seen = await view.find_seen(one.entity_id for one in asked if one.kind != "actor")
        return [one for one in asked if one.kind == "actor" or one.entity_id in seen]

    async def snapshot(number: int) -> bytes:
        standing = select_standing(call.service.upserts.snapshot())

        def look() -> dict[str, Any]:
            shapes = entity_shapes(call.runtime, filter(view.sees, call.runtime.loom.unfinished()))
            return {
                "entities": list(map(call.runtime.redact, shapes)),
                "items": [as_wire(one) for one in standing if view.sees(one.session_id)],
            }

        data = await call.read(look)
        if supervision is not None:
            data["actors"] = supervision.snapshot()
        return encode_event("snapshot", data, str(EventId(number, END_OF_RECORD)))

    with ExitStack() as stack:
        supervision = stack.enter_context(call.service.follow_supervision()) if has_actors else None
        return await _stream(call, None, after, select, snapshot, stack.pop_all())


async def _stream(
    call: HttpCall,
    entity_id: str | None,
    after: EventId | None,
    select: Select,
    snapshot: Snapshot,
    held: ExitStack | None = None,
) -> EventStreamResponse:
    """Return the stream of a reader; the reader is counted while it reads, and its end closes `held`."""
    service = call.service
    with held or ExitStack() as stack:
        stack.enter_context(service.limiter.stream(call.token))
        if call.token.allows("approve"):
            stack.enter_context(service.count_as_person(call.runtime))
        feed = stack.enter_context(service.feed(entity_id))
        await feed.begin(after)
        if after is not None and after.number > feed.number:  # an id of another loom
            after = None
        events = feed.stream(after, select, snapshot)
        patience, on_close = service.limiter.limits.patience, stack.pop_all().close
        return EventStreamResponse(events, patience, on_close, fail=end_quietly)
