"""Handlers for entities: begin, list, show, send, steer, interrupt, undo, compact, stop, resume, fork.

Each handler turns a request into one call of `Runtime` or `Entity`. Handlers that read much of the loom do so in a
thread and do not block the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any
from urllib.parse import quote

import anyio

from cantrip_actors import Cantrip, Entity, Loom, Work
from cantrip_actors.http import models
from cantrip_actors.http.bodies import DOT_SEGMENTS
from cantrip_actors.http.calls import REPLAYED, HttpCall, JsonAnswer
from cantrip_actors.http.files import check_intent, history_of, intent_of
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.shapes import cantrip_shape, entity_shape, entity_shapes, episode_shape
from cantrip_actors.loom.export.shapes import outcome_shape
from cantrip_actors.loom.stores.selection import Selection, format_since
from cantrip_actors.runtime.time.submissions import Submission
from cantrip_actors.user_code.threads import run_for_client

HUNG_UP = "the client hung up"


async def list_cantrips(call: HttpCall) -> JsonAnswer:
    """Return the cantrips that the service offers to this token."""
    offered = call.service.cantrips.items()
    return JsonAnswer(
        {"items": [cantrip_shape(name, cantrip) for name, cantrip in offered if call.token.may_cast(name)]}
    )


def find_cantrip(call: HttpCall, name: str) -> Cantrip:
    """Return the offered cantrip of that name. Raises Problem 404."""
    cantrip = call.service.cantrips.get(name) if call.token.may_cast(name) else None
    if cantrip is None:
        names = ", ".join(offered for offered in call.service.cantrips if call.token.may_cast(offered))
        raise Problem(404, "unknown-cantrip", f"no cantrip of this name is offered; offered: {names or 'none'}")
    return cantrip


# Begin


async def cast(call: HttpCall) -> JsonAnswer:
    """Cast a cantrip on an intent: a one-shot entity."""
    body: models.CastBody = call.body
    cantrip, intent = find_cantrip(call, body.cantrip), intent_of(body)
    return await _begin(call, partial(call.runtime.start, cantrip, intent, **_read_given(call)))


async def submit(call: HttpCall) -> JsonAnswer:
    """Submit a cast, which a node of the loom begins once it has room; the same key finds the same cast."""
    body: models.SubmitBody = call.body
    _check_wait(call, body.wait)
    if not await _is_served(call, body.cantrip):
        find_cantrip(call, body.cantrip)
    async with nullcontext() if call.key is None else call.service.key_lock(f"{call.token.tenant or ''}\0{call.key}"):
        submission = await call.runtime.submit(
            body.cantrip,
            check_intent(body.intent),
            key=call.key,
            priority=body.priority,
            queue=body.queue,
            by=call.token.sender,
        )
    headers = {"location": call.locate(f"/entities/{submission.entity_id}"), **({} if submission.is_new else REPLAYED)}
    ended = await _wait(call, submission, headers, cancels=False)
    return ended or JsonAnswer(await _build_submission(call, submission), 202, headers)


async def _is_served(call: HttpCall, name: str) -> bool:
    """Return whether a node offers a cantrip, and this service lets the token cast it there."""
    service = call.service
    is_allowed = service.serves_nodes and call.token.may_cast(name)
    return is_allowed and any(name in node.serves for node in await service.runtime.cluster.nodes())


async def get_submission(call: HttpCall) -> JsonAnswer:
    """Return the state of a submission: it waits, or has begun."""
    return JsonAnswer(await _build_submission(call, await _find_submission(call)))


async def withdraw_submission(call: HttpCall) -> JsonAnswer:
    """Withdraw a submission that still waits: its entity will never begin."""
    submission = await _find_submission(call)
    if await submission.withdraw(by=call.token.sender) != "withdrawn":
        detail = "a process has begun the entity, or begins it now: stop the entity instead"
        raise Problem(409, "not-waiting", detail, entity_id=submission.entity_id)
    return JsonAnswer(await _build_submission(call, submission))


async def _find_submission(call: HttpCall) -> Submission:
    submission = await call.runtime.submission(call.path["key"])
    if submission is None or not await call.read(lambda: _sees_submission(call, submission)):
        raise Problem(404, "unknown-submission", "no submission with this key waits or has begun")
    return submission


def _sees_submission(call: HttpCall, submission: Submission) -> bool:
    waiting = submission.cantrip_name
    return call.sees(submission.entity_id) if waiting is None else call.token.may_cast(waiting)


async def _build_submission(call: HttpCall, submission: Submission) -> dict[str, Any]:
    return {
        "entity_id": submission.entity_id,
        "key": submission.key,
        "has_begun": await call.read(lambda: submission.has_begun),
    }


def check_path_name(name: str) -> None:
    """Raise Problem 422 for the name of a new entity that cannot be in a path: clients resolve these two, however they
    are encoded.
    """
    if name in DOT_SEGMENTS:
        raise Problem(422, "invalid-name", f"expected a name that can be in a path, got {name!r}: clients leave it out")


async def begin_entity(call: HttpCall) -> JsonAnswer:
    """Make a long-lived entity with a name."""
    body: models.BeginBody = call.body
    check_path_name(body.name)
    cantrip, intent = find_cantrip(call, body.cantrip), intent_of(body)
    return await _begin(call, partial(call.runtime.invoke, cantrip, intent, name=body.name, **_read_given(call)))


def _read_given(call: HttpCall) -> dict[str, Any]:
    """Return what a request gives the runtime with its intent."""
    return {
        "context": call.body.context,
        "history": history_of(call.body),
        "key": call.key,
        "by": call.token.sender,
    }


async def ensure(call: HttpCall) -> JsonAnswer:
    """Make a long-lived entity without an intent, unless there is one of that name."""
    body: models.EnsureBody = call.body
    cantrip, name = find_cantrip(call, body.cantrip), call.path["name"]
    check_path_name(name)
    entity = await call.read(lambda: call.runtime.entity(name))
    if entity is not None:
        await call.find_entity_id(entity.id)  # it may be of a cantrip that this token may not use
    async with call.service.limiter.reserve_start(call.token) if entity is None else nullcontext():
        entity = await call.runtime.ensure(name, cantrip)
    await call.find_entity_id(entity.id)  # another request may have made it meanwhile

    shape = call.redact_for_token(await call.read(partial(entity_shape, call.runtime, entity.id)))
    return JsonAnswer(shape, 201 if entity.is_new else 200, {"location": call.locate(f"/entities/{entity.id}")})


async def fork(call: HttpCall) -> JsonAnswer:
    """Continue from a turn with a new entity."""
    body: models.ForkBody = call.body
    loom = call.runtime.loom

    def look() -> tuple[str, str]:
        turn_id = call.whole_turn_id()
        return turn_id, loom.header_at(turn_id).cantrip_name or ""

    turn_id, its_cantrip = await call.read(look)
    if body.crystal is not None and not call.token.allows("admin"):
        raise Problem(403, "crystal", "a crystal may be chosen with the scope admin only")
    if body.crystal is not None and ":" not in body.crystal:
        raise Problem(422, "invalid-cantrip", f"crystal: expected FAMILY:MODEL, got {body.crystal:.100}")
    name = body.cantrip
    cantrip = None if name is None else find_cantrip(call, name)
    if name is None and not call.token.may_cast(its_cantrip):
        raise Problem(404, "unknown-cantrip", "the cantrip of that turn is not offered to this token")
    options = {"intent": intent_of(body), "cantrip": cantrip, "crystal": body.crystal, **_read_given(call)}
    return await _begin(call, partial(call.runtime.start_fork, turn_id, **options))


async def begin_work(begin: Callable[..., Awaitable[Entity]], *args: Any, **named: Any) -> Work:
    """Begin an entity; return the work on its first intent."""
    return (await begin(*args, **named)).work


async def hang_up(call: HttpCall, work: Work) -> None:
    """Cancel work whose client has gone; an entity that it began ends with it."""
    await (work.cancel if work.key else work.entity.stop)(HUNG_UP, by=call.token.sender)


async def begin_once(call: HttpCall, begin: Callable[[], Awaitable[Work]]) -> tuple[Work, bool]:
    """Begin an entity; return its first work, and whether an earlier request with this key began it.

    Raises Problem 429.

    Requests with the same key run one at a time until the entity has begun, so each but the first is a replay.
    """
    service, token, key = call.service, call.token, call.key
    async with nullcontext() if key is None else service.key_lock(f"{token.tenant or ''}\0{key}"):
        if key is not None and await call.read(lambda: call.runtime.begun_with(key)) is not None:
            return await begin(), True
        async with service.limiter.reserve_start(token) as count:
            work = await begin()
            count(work.entity_id)
        return work, False


async def _begin(call: HttpCall, begin: Callable[[], Awaitable[Entity]]) -> JsonAnswer:
    """Begin an entity, and wait for its episode if the request says so."""
    body = call.body
    _check_wait(call, body.wait)
    work, is_replay = await begin_once(call, partial(begin_work, begin))
    headers = {"location": call.locate(f"/entities/{work.entity_id}"), **(REPLAYED if is_replay else {})}
    ended = await _wait(call, work, headers)
    if ended is not None:
        return ended

    def look() -> dict[str, Any]:
        loom = call.runtime.loom
        name, state = loom.header(work.entity_id).name, loom.state(work.entity_id)
        return {"entity_id": work.entity_id, "name": name, "state": state}

    return JsonAnswer(await call.read(look), 201 if body.wait is None else 202, headers)


async def _wait(call: HttpCall, work: Work, headers: Mapping[str, str], *, cancels: bool = True) -> JsonAnswer | None:
    """Wait for an episode if the request says so; return how it ended, None if it has not ended by then.

    A client that hangs up cancels the work, if it `cancels`; by default it does so if it could not retrieve the result.
    """
    body = call.body
    if body.wait is None:
        return None

    async def leave() -> None:
        if cancels and (body.on_disconnect or ("continue" if call.key else "cancel")) == "cancel":
            await hang_up(call, work)

    ended = await call.wait_for(work.result, leave, body.wait)
    if ended is None:
        return None
    return JsonAnswer(call.redact_for_token(episode_shape(ended)), 200, headers)


def _check_wait(call: HttpCall, seconds: float | None) -> None:
    longest = call.service.limiter.limits.longest_wait
    if seconds is not None and seconds > longest:
        raise Problem(422, "invalid", f"wait: expected at most {longest:g} seconds, got {seconds:g}")


# Look


async def list_entities(call: HttpCall) -> JsonAnswer:
    """List entities, newest first."""
    return JsonAnswer(call.redact_for_token(await run_for_client(_build_page, call)))


def _build_page(call: HttpCall) -> dict[str, Any]:
    wanted: models.EntitiesQuery = call.query
    loom = call.runtime.loom
    selection = Selection(
        state=wanted.state,
        kind=wanted.kind,
        cantrip=wanted.cantrip,
        prefix=wanted.prefix,
        since=None if wanted.since is None else format_since(wanted.since),
        parent=None if wanted.parent is None else call.entity_id(wanted.parent),
        name=wanted.name,
    )
    page = loom.page(selection, cursor=check_cursor(loom, wanted.cursor), limit=wanted.limit)
    items = entity_shapes(call.runtime, filter(call.sees, (listed.id for listed in page)))
    return {"items": items, "next_cursor": page.next}


def check_cursor(loom: Loom, cursor: str | None) -> str | None:
    """Return the cursor of a listing of entities. Raises Problem 422 for one that no answer had."""
    if cursor is not None and not loom.has(cursor):
        raise Problem(422, "invalid", "cursor: expected the next_cursor of an earlier answer")
    return cursor


async def get_entity(call: HttpCall) -> JsonAnswer:
    """Return the state of an entity."""
    shape = await call.read(lambda: entity_shape(call.runtime, call.entity_id(call.path["id"])))
    return JsonAnswer(call.redact_for_token(shape))


# Send


async def send(call: HttpCall) -> JsonAnswer:
    """Give a long-lived entity a further intent."""
    body: models.SendBody = call.body
    _check_wait(call, body.wait)

    def look() -> tuple[Entity, bool]:
        entity = _find_entity(call)
        return entity, call.key is not None and call.find_receipt(entity.id, call.key) is not None

    entity, is_replay = await call.read(look)
    receipt = await entity.post(intent_of(body), **_read_given(call))
    headers = {
        "location": call.locate(f"/entities/{entity.id}/receipts/{quote(receipt.key, safe='')}"),
        **(REPLAYED if is_replay else {}),
    }
    ended = await _wait(call, receipt, headers)
    return ended or JsonAnswer(await call.read(lambda: _build_receipt(call, receipt)), 202, headers)


def _build_receipt(call: HttpCall, work: Work) -> dict[str, Any]:
    ended = work.find_outcome() if work.state == "settled" else None
    episode = None if ended is None else call.redact_for_token(outcome_shape(work.entity_id, ended))
    return {"id": work.id, "entity_id": work.entity_id, "key": work.key, "state": work.state, "episode": episode}


async def get_receipt(call: HttpCall) -> JsonAnswer:
    """Return the state of an intent that was sent."""
    return JsonAnswer(await call.read(lambda: _build_receipt(call, _find_receipt(call))))


async def withdraw(call: HttpCall) -> JsonAnswer:
    """Take back one intent that was sent, if it still waits in the inbox."""
    receipt = await call.read(lambda: _find_receipt(call))
    state = await receipt.withdraw(call.query.why, by=call.token.sender)
    if state != "withdrawn":
        detail = f"the intent does not wait in the inbox, it is {state}"
        raise Problem(409, "not-waiting", detail, entity_id=receipt.entity_id, state=state)
    return JsonAnswer(await call.read(lambda: _build_receipt(call, receipt)))


def _find_receipt(call: HttpCall) -> Work:
    receipt = call.find_receipt(call.entity_id(call.path["id"]), call.path["key"])
    if receipt is None:
        raise Problem(404, "unknown-receipt", "no intent was sent to this entity with this key")
    return receipt


def _find_entity(call: HttpCall) -> Entity:
    """Return the entity of the path. Reads the loom."""
    return call.runtime.get_entity(call.entity_id(call.path["id"]))


async def steer(call: HttpCall) -> JsonAnswer:
    """Put a message before the entity's next query."""
    entity, headers = await call.read(lambda: _find_to_control(call))
    await entity.steer(call.body.text, pin=call.body.pin, key=call.key, by=call.token.sender)
    return JsonAnswer(None, 202, headers)


async def interrupt(call: HttpCall) -> JsonAnswer:
    """End the entity's present episode."""
    body: models.InterruptBody = call.body
    entity, headers = await call.read(lambda: _find_to_control(call))
    await entity.interrupt(body.why, now=body.now, key=call.key, by=call.token.sender)
    return JsonAnswer(None, 202, headers)


async def undo(call: HttpCall) -> JsonAnswer:
    """Go back to before the entity's last intent."""
    entity, headers = await call.read(lambda: _find_to_control(call))
    return await _wait_until_done(call, entity.undo(key=call.key, by=call.token.sender), headers)


async def compact(call: HttpCall) -> JsonAnswer:
    """Fold older turns out of the entity's context now."""
    body: models.CompactBody = call.body
    entity, headers = await call.read(lambda: _find_to_control(call))
    compacting = entity.compact(body.instructions, key=call.key, by=call.token.sender)
    return await _wait_until_done(call, compacting, headers)


async def _wait_until_done(call: HttpCall, change: Awaitable[bool], headers: Mapping[str, str]) -> JsonAnswer:
    """Return whether there was something to do; 202 if the entity has not looked yet, because it waits for a person."""
    with anyio.move_on_after(call.service.limiter.limits.longest_wait):
        return JsonAnswer({"done": await change}, 200, headers)
    return JsonAnswer(None, 202, headers)


def _find_to_control(call: HttpCall) -> tuple[Entity, dict[str, str]]:
    """Return the entity of a request that controls it, and the headers of the answer."""
    entity = _find_entity(call)
    return entity, dict(REPLAYED) if call.key is not None and call.runtime.has_mail(entity.id, call.key) else {}


async def stop(call: HttpCall) -> JsonAnswer:
    """End an entity and everything below it; answer when all of it has ended."""
    entity = await call.read(partial(_find_entity, call))
    await entity.stop(call.query.reason, by=call.token.sender)
    return JsonAnswer(status=204)


async def resume(call: HttpCall) -> JsonAnswer:
    """Resume an entity that a crash interrupted."""
    entity = await call.runtime.resume(await call.find_entity_id(call.path["id"]), by=call.token.sender)
    state = await call.read(lambda: call.runtime.loom.state(entity.id))
    content = {"entity_id": entity.id, "name": entity.name, "state": state}
    return JsonAnswer(content, 202, {"location": call.locate(f"/entities/{entity.id}")})


async def abandon(call: HttpCall) -> JsonAnswer:
    """End an interrupted entity and everything below it."""
    entity = await call.read(partial(_find_entity, call))
    if entity.loaded:
        raise Problem(409, "running", "this entity runs: stop it instead", entity_id=entity.id)
    await call.runtime.abandon(entity.id, by=call.token.sender)
    for descendant in await call.read(lambda: call.runtime.loom.subtree(entity.id)):
        await call.service.read_late(descendant)
    return JsonAnswer(status=204)
