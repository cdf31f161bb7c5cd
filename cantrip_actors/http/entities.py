"""Handlers for entities: begin, list, show, send, steer, interrupt, stop, resume, fork.

Each handler turns a request into one call of `Runtime` or `Entity`. Handlers that read much of the loom do so in a
thread and do not block the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

from anyio import to_thread

from cantrip_actors import Cantrip, Entity, Episode, LoomError, Receipt
from cantrip_actors.http import models
from cantrip_actors.http.calls import REPLAYED, Answer, Call
from cantrip_actors.http.files import check_intent, intent_of
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.shapes import cantrip_shape, entity_shape, episode_shape, outcome_shape
from cantrip_actors.machine.project import find_episode
from cantrip_actors.records.records import Header
from cantrip_actors.runtime.time.submissions import Submission

ENTITIES = "/api/v1/entities"
HUNG_UP = "the client hung up"


async def list_cantrips(call: Call) -> Answer:
    """Return the cantrips that the service offers to this token."""
    offered = call.service.cantrips.items()
    return Answer({"items": [cantrip_shape(name, one) for name, one in offered if call.token.may_cast(name)]})


def find_cantrip(call: Call, name: str) -> Cantrip:
    """Return the offered cantrip of that name. Raises Problem 404."""
    cantrip = call.service.cantrips.get(name) if call.token.may_cast(name) else None
    if cantrip is None:
        known = ", ".join(one for one in call.service.cantrips if call.token.may_cast(one))
        raise Problem(404, "unknown-cantrip", f"no cantrip of this name is offered; offered: {known or 'none'}")
    return cantrip


# Begin


async def cast(call: Call) -> Answer:
    """Cast a cantrip on an intent: a one-shot entity."""
    said: models.Cast = call.body
    cantrip, intent = find_cantrip(call, said.cantrip), intent_of(said)
    return await _begin(
        call,
        lambda: call.runtime.start(cantrip, intent, context=said.context, key=call.key, by=call.token.sender),
    )


async def submit(call: Call) -> Answer:
    """Have some node of the loom cast a cantrip, once there is room; the same key finds the same cast."""
    said: models.Submit = call.body
    _check_wait(call, said.wait)
    find_cantrip(call, said.cantrip)
    async with nullcontext() if call.key is None else call.service.key_lock(f"{call.token.tenant or ''}\0{call.key}"):
        await call.service.limiter.check_cost(call.token)
        made = await call.runtime.submit(
            said.cantrip, check_intent(said.intent), key=call.key, priority=said.priority, queue=said.queue
        )
    headers = {"location": f"{ENTITIES}/{made.entity_id}", **({} if made.is_new else REPLAYED)}
    ended = await _wait(call, made.episode, headers)
    return ended or Answer(await _build_submission(call, made), 202, headers)


async def get_submission(call: Call) -> Answer:
    """Return whether a submission still waits, or has begun."""
    return Answer(await _build_submission(call, await _find_submission(call)))


async def withdraw_submission(call: Call) -> Answer:
    """Withdraw a submission that still waits: its entity will never begin."""
    found = await _find_submission(call)
    if not await found.withdraw():
        told = "a process has begun the entity, or begins it now: stop the entity instead"
        raise Problem(409, "not-waiting", told, entity_id=found.entity_id)
    return Answer(await _build_submission(call, found))


async def _find_submission(call: Call) -> Submission:
    found = await call.runtime.submission(call.path["key"])
    if found is None:
        raise Problem(404, "unknown-submission", "no submission with this key waits or has begun")
    return found


async def _build_submission(call: Call, made: Submission) -> dict[str, Any]:
    return {"entity_id": made.entity_id, "key": made.key, "has_begun": await call.read(lambda: made.has_begun)}


async def begin_entity(call: Call) -> Answer:
    """Make a long-lived entity with a name."""
    said: models.Begin = call.body
    cantrip, intent = find_cantrip(call, said.cantrip), intent_of(said)
    return await _begin(
        call,
        lambda: call.runtime.invoke(
            cantrip, intent, name=said.name, context=said.context, key=call.key, by=call.token.sender
        ),
    )


async def fork(call: Call) -> Answer:
    """Continue from a turn with a new entity."""
    said: models.Fork = call.body
    loom = call.runtime.loom

    def look() -> tuple[str, str]:
        turn_id = call.whole_turn_id(call.path["id"])
        return turn_id, loom.header_at(turn_id).cantrip_name or ""

    turn_id, its_cantrip = await call.read(look)
    if said.crystal is not None and not call.token.allows("admin"):
        raise Problem(403, "crystal", "a crystal may be chosen with the scope admin only")
    if said.crystal is not None and ":" not in said.crystal:
        raise Problem(422, "invalid-cantrip", f"crystal: expected FAMILY:MODEL, got {said.crystal:.100}")
    name = said.cantrip
    cantrip = None if name is None else find_cantrip(call, name)
    if name is None and not call.token.may_cast(its_cantrip):
        raise Problem(404, "unknown-cantrip", "the cantrip of that turn is not offered to this token")
    intent = intent_of(said)
    return await _begin(
        call,
        lambda: call.runtime.start_fork(
            turn_id,
            intent=intent,
            cantrip=cantrip,
            crystal=said.crystal,
            context=said.context,
            key=call.key,
            by=call.token.sender,
        ),
    )


async def begin_once(call: Call, begin: Callable[[], Awaitable[Entity]]) -> tuple[Entity, bool]:
    """Begin an entity; return it, and whether an earlier request with this key began it. Raises Problem 429.

    Requests with the same key run one at a time until the entity has begun, so each but the first is a replay.
    """
    service, token, key = call.service, call.token, call.key
    async with nullcontext() if key is None else service.key_lock(f"{token.tenant or ''}\0{key}"):
        if key is not None and await call.read(lambda: call.runtime.begun_with(key)) is not None:
            return await begin(), True
        async with service.limiter.reserve_start(token) as count:
            entity = await begin()
            count(entity.id)
        return entity, False


async def _begin(call: Call, begin: Callable[[], Awaitable[Entity]]) -> Answer:
    """Begin an entity, and wait for its episode if the request says so."""
    said = call.body
    _check_wait(call, said.wait)
    entity, is_replay = await begin_once(call, begin)
    headers = {"location": f"{ENTITIES}/{entity.id}", **(REPLAYED if is_replay else {})}
    begun = {"entity_id": entity.id, "name": entity.name, "state": "active"}
    if said.wait is None:
        state = await call.read(lambda: call.runtime.loom.state(entity.id))
        return Answer({**begun, "state": state}, 201, headers)
    ended = await _wait(call, entity.episode, headers, entity.stop)
    return ended or Answer(begun, 202, headers)


async def _wait(
    call: Call,
    episode: Callable[[], Awaitable[Episode]],
    headers: Mapping[str, str],
    cancel: Callable[..., Awaitable[object]] | None = None,
) -> Answer | None:
    """Wait for an episode if the request says so; return how it ended, None if it has not ended by then.

    A client that hangs up cancels the work; by default it does so if it could not retrieve the result.
    """
    said = call.body
    if said.wait is None:
        return None

    async def leave() -> None:
        if cancel is not None and (said.on_disconnect or ("continue" if call.key else "cancel")) == "cancel":
            await cancel(HUNG_UP, by=call.token.sender)

    found = await call.wait_for(episode, leave, said.wait)
    if found is None:
        return None
    return Answer(call.redact_for_token(await call.read(lambda: episode_shape(found))), 200, headers)


def _check_wait(call: Call, seconds: float | None) -> None:
    longest = call.service.limiter.limits.longest_wait
    if seconds is not None and seconds > longest:
        raise Problem(422, "invalid", f"wait: expected at most {longest:g} seconds, got {seconds:g}")


# Look


async def list_entities(call: Call) -> Answer:
    """List entities, newest first."""
    return Answer(call.redact_for_token(await to_thread.run_sync(_build_page, call)))


def _build_page(call: Call) -> dict[str, Any]:
    wanted: models.EntitiesQuery = call.query
    loom, interrupted = call.runtime.loom, call.find_interrupted()
    parent = None if wanted.parent is None else call.entity_id(wanted.parent)
    found: list[dict[str, Any]] = []
    for header in _skip_to(reversed(list(loom.headers())), wanted.cursor):
        if wanted.name not in (None, header.name) or parent not in (None, header.parent_entity):
            continue
        if wanted.state not in (None, loom.state(header.entity_id)):
            continue
        if len(found) == wanted.limit:
            return {"items": found, "next_cursor": found[-1]["id"]}
        found.append(entity_shape(loom, header, interrupted=interrupted))
    return {"items": found, "next_cursor": None}


def _skip_to(headers: Iterator[Header], cursor: str | None) -> Iterator[Header]:
    """Yield the headers that follow the entity with the id `cursor`. Raises Problem 422 for an unknown one."""
    if cursor is not None and not any(header.entity_id == cursor for header in headers):
        raise Problem(422, "invalid", "cursor: expected the next_cursor of an earlier answer")
    yield from headers


async def get_entity(call: Call) -> Answer:
    """Return how an entity stands."""

    def look() -> dict[str, Any]:
        entity_id, loom = call.entity_id(call.path["id"]), call.runtime.loom
        requests = [one for one in call.runtime.requests() if one.entity == entity_id]
        return entity_shape(loom, loom.header(entity_id), requests, interrupted=call.find_interrupted())

    return Answer(call.redact_for_token(await call.read(look)))


# Send


async def send(call: Call) -> Answer:
    """Give a long-lived entity a further intent."""
    said: models.Send = call.body
    _check_wait(call, said.wait)

    def look() -> tuple[Entity, bool]:
        entity = call.runtime.find(call.entity_id(call.path["id"]))
        return entity, call.key is not None and _has_receipt(call, entity.id, call.key)

    entity, is_replay = await call.read(look)
    intent = intent_of(said)
    if not is_replay:
        await call.service.limiter.check_cost(call.token)
    receipt = await entity.post(intent, context=said.context, key=call.key, by=call.token.sender)
    headers = {
        "location": f"{ENTITIES}/{entity.id}/receipts/{quote(receipt.key, safe='')}",
        **(REPLAYED if is_replay else {}),
    }
    ended = await _wait(call, receipt.episode, headers, receipt.cancel)
    return ended or Answer(await call.read(lambda: _build_receipt(call, receipt)), 202, headers)


def _has_receipt(call: Call, entity_id: str, key: str) -> bool:
    try:
        call.runtime.receipt(entity_id, key)
    except LoomError:
        return False
    return True


def _build_receipt(call: Call, receipt: Receipt) -> dict[str, Any]:
    entity_id, loom = receipt.entity_id, call.loom
    ended = find_episode(loom.records(entity_id), receipt.key, loom.subtree_usage)
    episode = None if ended is None else call.redact_for_token(outcome_shape(entity_id, ended))
    return {"entity_id": entity_id, "key": receipt.key, "state": receipt.state, "episode": episode}


async def get_receipt(call: Call) -> Answer:
    """Return how it stands with one intent that was sent."""
    return Answer(await call.read(lambda: _build_receipt(call, _find_receipt(call))))


async def withdraw(call: Call) -> Answer:
    """Take back one intent that was sent, if it still waits in the inbox."""
    receipt = await call.read(lambda: _find_receipt(call))
    state = await receipt.withdraw(call.query.why, by=call.token.sender)
    if state != "withdrawn":
        told = f"the intent does not wait in the inbox, it is {state}"
        raise Problem(409, "not-waiting", told, entity_id=receipt.entity_id, state=state)
    return Answer(await call.read(lambda: _build_receipt(call, receipt)))


def _find_receipt(call: Call) -> Receipt:
    entity_id, key = call.entity_id(call.path["id"]), call.path["key"]
    if not _has_receipt(call, entity_id, key):
        raise Problem(404, "unknown-receipt", "no intent was sent to this entity with this key")
    return call.runtime.receipt(entity_id, key)


async def steer(call: Call) -> Answer:
    """Put a message before the entity's next query."""
    entity, headers = await call.read(lambda: _find_to_control(call))
    await entity.steer(call.body.text, key=call.key, by=call.token.sender)
    return Answer(None, 202, headers)


async def interrupt(call: Call) -> Answer:
    """End the entity's present episode."""
    said: models.Interrupt = call.body
    entity, headers = await call.read(lambda: _find_to_control(call))
    await entity.interrupt(said.why, now=said.now, key=call.key, by=call.token.sender)
    return Answer(None, 202, headers)


def _find_to_control(call: Call) -> tuple[Entity, dict[str, str]]:
    """Return the entity of a request that controls it, and the headers of the answer."""
    entity = call.runtime.find(call.entity_id(call.path["id"]))
    return entity, dict(REPLAYED) if call.key is not None and call.runtime.has_mail(entity.id, call.key) else {}


async def stop(call: Call) -> Answer:
    """End an entity and everything below it; answer when all of it has ended."""
    entity = await call.read(lambda: call.runtime.find(call.entity_id(call.path["id"])))
    await entity.stop(call.query.reason, by=call.token.sender)
    return Answer(status=204)


async def resume(call: Call) -> Answer:
    """Resume an entity that a crash interrupted."""
    entity = await call.runtime.resume(await call.find_entity_id(call.path["id"]), by=call.token.sender)
    state = await call.read(lambda: call.runtime.loom.state(entity.id))
    told = {"entity_id": entity.id, "name": entity.name, "state": state}
    return Answer(told, 202, {"location": f"{ENTITIES}/{entity.id}"})


async def abandon(call: Call) -> Answer:
    """End an interrupted entity and everything below it."""
    entity = await call.read(lambda: call.runtime.find(call.entity_id(call.path["id"])))
    if entity.loaded:
        raise Problem(409, "running", "this entity runs: stop it instead", entity_id=entity.id)
    await call.runtime.abandon(entity.id, by=call.token.sender)
    for one in await call.read(lambda: call.runtime.loom.subtree(entity.id)):
        await call.service.read_late(one)
    return Answer(status=204)
